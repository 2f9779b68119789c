/* ready_bench.c - how long until all kernels can be launched: with artifacts, and from source with everything
 * in the driver's cache. On PoCL; KEEL_READY_BOARD names another board whose artifacts are made already.
 *
 * Each figure is of a process of its own, from before the first OpenCL call to the last kernel; the two ways
 * alternate. One JSON object a line. */
#include <keel/board.h>
#include <keel/clock.h>
#include <keel/kernels.h>
#include <keel/process.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIDDLE = 5, ROUNDS = 2 * MIDDLE + 1, GOAL_MS = 300 };
enum way { ARTIFACTS, SOURCE, WAYS };
static const char *const way_names[WAYS] = {"artifacts", "source, cached"};

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "ready_bench: %s: %s\n", what, keel_detail());
    exit(EXIT_FAILURE);
}

/* In a child: nanoseconds until the kernels are there, onto `out`. */
static _Noreturn void measure(const char *name, enum way way, int out)
{
    const struct keel_board_options options = {.without_code = way == SOURCE};
    struct keel_board *board;
    struct keel_kernels *kernels;
    uint64_t began_ns = keel_now_ns();
    if (keel_board_open(name, &options, &board) != KEEL_OK ||
        keel_kernels_create(keel_board_device(board), &kernels) != KEEL_OK)
        fail(way_names[way]);
    uint64_t took_ns = keel_now_ns() - began_ns;
    _exit(write(out, &took_ns, sizeof took_ns) == sizeof took_ns ? EXIT_SUCCESS : EXIT_FAILURE);
}

static uint64_t run_once(const char *name, enum way way)
{
    int ends[2], status = 1;
    uint64_t took_ns = 0;
    if (pipe(ends) != 0)
        fail("pipe");
    pid_t child = fork();
    if (child == 0)
        measure(name, way, ends[1]);
    close(ends[1]);
    bool told = read(ends[0], &took_ns, sizeof took_ns) == sizeof took_ns;
    close(ends[0]);
    if (!told || waitpid(child, &status, 0) != child || status != 0)
        fail("a measurement failed");
    return took_ns;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* A board of our own, in a folder of its own. */
static void make_board(char folder[64])
{
    static const char conf[] = "[match]\nplatform = Portable*\n[code]\nform = artifacts\n";
    char path[KEEL_PATH_BYTES], keel[KEEL_PATH_BYTES];
    struct keel_process process;
    struct keel_process_end end;
    const char *build = getenv("BUILD");
    snprintf(folder, 64, "/tmp/keel-ready-XXXXXX");
    snprintf(keel, sizeof keel, "%s/keel", build != NULL ? build : "build");
    if (mkdtemp(folder) == NULL || keel_path_join(path, folder, "board.conf") != KEEL_OK ||
        keel_file_replace(path, conf, strlen(conf), 0600) != KEEL_OK)
        fail(folder);
    char *const argv[] = {keel, "board", "build", folder, NULL};
    if (keel_process_spawn(argv, NULL, 0, STDERR_FILENO, &process) != KEEL_OK ||
        keel_process_wait(&process, KEEL_NEVER, &end) != KEEL_OK || end.signaled || end.code != 0)
        fail("keel board build");
    keel_process_close(&process);
}

int main(void)
{
    static uint64_t took_ns[WAYS][ROUNDS];
    char folder[64] = "";
    const char *name = getenv("KEEL_READY_BOARD");
    if (name == NULL)
        make_board(folder);
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < WAYS; way++)
            took_ns[way][round] = run_once(name != NULL ? name : folder, (enum way)way);
    double median_ms[WAYS];
    for (int way = 0; way < WAYS; way++) {
        qsort(took_ns[way], ROUNDS, sizeof took_ns[way][0], compare);
        median_ms[way] = (double)took_ns[way][MIDDLE] / 1e6;
    }
    printf("{\"room\":\"boards\",\"figure\":\"all kernels ready with artifacts (median of %d processes)\","
           "\"value\":%.1f,\"unit\":\"ms\",\"peer\":\"cached source\",\"peer_value\":%.1f,\"ratio\":%.2f,"
           "\"goal\":%d,\"met\":%s}\n",
           ROUNDS, median_ms[ARTIFACTS], median_ms[SOURCE], median_ms[ARTIFACTS] / median_ms[SOURCE], GOAL_MS,
           median_ms[ARTIFACTS] <= GOAL_MS ? "true" : "false");
    if (folder[0] != '\0')
        (void)keel_remove_tree(folder);
    return EXIT_SUCCESS;
}
