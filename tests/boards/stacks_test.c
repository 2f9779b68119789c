/* stacks_test.c - the golden suite on every stack there is: one table of operations by stacks, and no hash
 * that differs.
 *
 * A stack is a driver with its settings. Each has a process of its own, since drivers read their settings
 * once: this program starts itself as `stacks_test golden SELECTOR`. The emulated boards run what
 * `keel board build` made for them here.
 *
 * The stacks of other tests are left to those tests (kernels/golden_test.c, oclgrind_test.sh: the same cases
 * and hashes), but for host C, which stands beside the emulated boards in the table; KEEL_TEST_LONG takes all
 * of them, and STACKS=word those whose name holds the word. */
#include "harness.h"
#include <fcntl.h>
#include <inttypes.h>
#include <keel/board.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/golden.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CASE_LIMIT_NS  patience_ns(120 * KEEL_NS_PER_S)
#define STACK_LIMIT_NS patience_ns(400 * KEEL_NS_PER_S)
enum { OPS_MAX = 128, STACKS_MAX = 16, SETTINGS_MAX = 6, NAME_BYTES = 64 };

struct stack {
    const char *name, *selector;
    const char *settings[SETTINGS_MAX][2];
    bool emulated;       /* through the layer, with artifacts of its own */
    const char *differs; /* a case that is known to differ there, unless the driver is a later one:
                            kernels/README.md */
};

static const struct stack stacks[] = {
    {"host C", "host", {{NULL}}, false, NULL},
    {"PoCL, 1 thread", "pocl:0", {{"POCL_MAX_PTHREAD_COUNT", "1"}}, false, NULL},
    {"PoCL, all threads", "pocl:0", {{NULL}}, false, NULL},
    {"PoCL basic", "pocl:0", {{"POCL_DEVICES", "basic"}}, false, NULL},
    {"rusticl", "mesa:0", {{"RUSTICL_ENABLE", "llvmpipe"}}, false, "bias_grad/70001x1"},
    {"Oclgrind",
     "oclg:0",
     {{"OCL_ICD_VENDORS", "/usr/lib/oclgrind/liboclgrind-rt-icd.so"}, {"OCLGRIND_LOCAL_MEM_SIZE", "131072"}},
     false,
     NULL},
    {"emulated fpga", "emulated/fpga", {{"EMULATED_BOARD", "fpga"}}, true, NULL},
    {"emulated npu", "emulated/npu", {{"EMULATED_BOARD", "npu"}}, true, NULL},
};
enum { STACKS = sizeof stacks / sizeof stacks[0] };

/* ---- the child: every case, a line each ---- */

static int broken(const char *what)
{
    printf("broken %s: %s\n", what, keel_detail());
    return EXIT_FAILURE;
}

static int run_cases(struct keel_kernels *kernels, struct keel_queue *queue)
{
    for (uint32_t i = 0; i < keel_golden_count(KEEL_CANONICAL); i++) {
        struct keel_golden golden = keel_golden_get(KEEL_CANONICAL, i);
        struct keel_golden_result result;
        uint64_t begin_ns = keel_now_ns();
        if (keel_golden_run(kernels, queue, i, keel_deadline_after_ns(CASE_LIMIT_NS), &result) != KEEL_OK)
            return broken(golden.name);
        printf("case %s %s %016" PRIx64 " %s %" PRIu64 "\n", golden.op, golden.name, result.hash,
               result.matches && result.intact ? "same" : "wrong",
               (keel_now_ns() - begin_ns) / KEEL_NS_PER_MS);
        fflush(stdout);
    }
    return EXIT_SUCCESS;
}

static int golden_on(const char *selector)
{
    struct keel_board *board = NULL;
    struct keel_kernels *kernels = NULL;
    struct keel_queue *queue = NULL;
    uint64_t begin_ns = keel_now_ns();
    if (keel_board_open(selector, NULL, &board) != KEEL_OK ||
        keel_kernels_create(keel_board_device(board), &kernels) != KEEL_OK ||
        keel_queue_create(keel_board_device(board), &queue) != KEEL_OK)
        return broken(selector);
    printf("ready %" PRIu64 "\n", (keel_now_ns() - begin_ns) / KEEL_NS_PER_MS);
    int code = run_cases(kernels, queue);
    fflush(stdout);
    keel_queue_destroy(queue);
    keel_kernels_destroy(kernels);
    keel_board_close(board);
    return code;
}

/* ---- the parent: a process for each stack, and the table ---- */

struct cell {
    uint32_t same, wrong;
};

static char folder[] = "/tmp/keel-stacks-XXXXXX";
static const char *self, *build_folder;
static char ops[OPS_MAX][NAME_BYTES];
static uint32_t op_count;
static struct cell cells[OPS_MAX][STACKS];
static struct cell total[STACKS];
static double ready_s[STACKS], all_s[STACKS];

static uint32_t op_of(const char *name)
{
    for (uint32_t i = 0; i < op_count; i++)
        if (strcmp(ops[i], name) == 0)
            return i;
    ck_assert_uint_lt(op_count, OPS_MAX);
    snprintf(ops[op_count], NAME_BYTES, "%s", name);
    return op_count++;
}

/* Reads what a stack's process said. */
static void take_lines(uint32_t stack, const char *path)
{
    char line[512], op[NAME_BYTES], name[NAME_BYTES], verdict[16];
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) {
        uint64_t hash, ms;
        if (sscanf(line, "ready %" SCNu64, &ms) == 1)
            ready_s[stack] = (double)ms / 1e3;
        if (sscanf(line, "case %63s %63s %" SCNx64 " %15s", op, name, &hash, verdict) != 4) {
            if (strncmp(line, "ready", 5) != 0)
                printf("note: %s: %s", stacks[stack].name, line);
            continue;
        }
        const char *known = stacks[stack].differs;
        bool same = strcmp(verdict, "same") == 0, right = same || (known != NULL && strcmp(name, known) == 0);
        struct cell *cell = &cells[op_of(op)][stack];
        cell->same += same;
        cell->wrong += !same;
        total[stack].same += right;
        total[stack].wrong += !right;
        if (!same)
            printf("note: %s: %s differs%s: %016" PRIx64 "\n", stacks[stack].name, name,
                   right ? ", as is known" : "", hash);
    }
    fclose(file);
}

static bool spawn(char *const argv[], int log_fd, uint64_t limit_ns)
{
    struct keel_process child;
    struct keel_process_end end = {.code = 1};
    ck_ok(keel_process_spawn(argv, NULL, 0, log_fd, &child));
    bool ended = keel_process_wait(&child, keel_deadline_after_ns(limit_ns), &end) == KEEL_OK;
    if (!ended) {
        keel_process_signal(&child, 9);
        keel_process_wait(&child, keel_deadline_after_ns(10 * KEEL_NS_PER_S), &end);
    }
    keel_process_close(&child);
    return ended && !end.signaled && end.code == 0;
}

/* What `keel board build` makes of an emulated board, in a copy of its folder. The NPU's own kernels are what
 * was built for the FPGA. */
static bool build_board(const char *name)
{
    char from[128], to[256], keel[256], board[NAME_BYTES], verb[2][8] = {"board", "build"}, *text = NULL;
    size_t bytes = 0;
    snprintf(from, sizeof from, "boards/%s/board.conf", name);
    snprintf(to, sizeof to, "%s/%s", folder, name);
    snprintf(board, sizeof board, "%s", name);
    snprintf(keel, sizeof keel, "%s/keel", build_folder);
    ck_ok(keel_mkdir_all(to));
    ck_ok(keel_file_read(from, 1 << 16, &text, &bytes));
    snprintf(to, sizeof to, "%s/%s/board.conf", folder, name);
    ck_ok(keel_file_replace(to, text, bytes, 0644));
    keel_free(text);
    setenv("EMULATED_BOARD", strrchr(name, '/') + 1, 1);
    char *argv[] = {keel, verb[0], verb[1], board, NULL};
    return spawn(argv, -1, STACK_LIMIT_NS);
}

/* Everything that the two emulated boards need: once. */
static void prepare_emulated(void)
{
    static bool done;
    char path[256];
    snprintf(path, sizeof path, "%s/libkeel-emulated.so", build_folder);
    setenv("OPENCL_LAYERS", path, 1);
    setenv("KEEL_BOARDS", folder, 1);
    snprintf(path, sizeof path, "%s/emulated/fpga/artifacts", folder);
    setenv("EMULATED_STORE", path, 1);
    if (!done)
        ck_assert(build_board("emulated/fpga") && build_board("emulated/npu"));
    done = true;
}

static void run_stack(uint32_t index)
{
    const struct stack *stack = &stacks[index];
    char path[128], selector[NAME_BYTES], word[] = "golden";
    snprintf(path, sizeof path, "%s/log", folder);
    snprintf(selector, sizeof selector, "%s", stack->selector);
    int log_fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(log_fd, 0);
    if (stack->emulated)
        prepare_emulated();
    for (uint32_t i = 0; i < SETTINGS_MAX && stack->settings[i][0] != NULL; i++)
        setenv(stack->settings[i][0], stack->settings[i][1], 1);
    char *argv[] = {(char *)self, word, selector, NULL};
    uint64_t begin_ns = keel_now_ns();
    bool good = spawn(argv, log_fd, STACK_LIMIT_NS);
    all_s[index] = (double)(keel_now_ns() - begin_ns) / 1e9;
    close(log_fd);
    for (uint32_t i = 0; i < SETTINGS_MAX && stack->settings[i][0] != NULL; i++)
        unsetenv(stack->settings[i][0]);
    unsetenv("OPENCL_LAYERS");
    unsetenv("KEEL_BOARDS");
    take_lines(index, path);
    remove(path);
    if (!good)
        total[index].wrong++;
}

static void print_table(const bool *ran)
{
    printf("%-20s", "cases with the same hash");
    for (uint32_t s = 0; s < STACKS; s++)
        if (ran[s])
            printf(" %17s", stacks[s].name);
    for (uint32_t i = 0; i < op_count; i++) {
        printf("\n%-20s    ", ops[i]);
        for (uint32_t s = 0; s < STACKS; s++)
            if (ran[s])
                printf(" %14u/%2u", cells[i][s].same, cells[i][s].same + cells[i][s].wrong);
    }
    printf("\n%-20s    ", "seconds");
    for (uint32_t s = 0; s < STACKS; s++)
        if (ran[s])
            printf("  %6.1f of %6.1f", ready_s[s], all_s[s]);
    printf("\n");
    fflush(stdout);
}

static bool is_elsewhere(const struct stack *stack)
{
    return getenv("KEEL_TEST_LONG") == NULL && !stack->emulated && strcmp(stack->selector, "host") != 0;
}

START_TEST(every_operation_has_the_same_hash_on_every_stack)
{
    const char *only = getenv("STACKS"), *sanitizer = getenv("SAN");
    const bool apart = sanitizer != NULL && sanitizer[0] != '\0'; /* drivers in C++ do not load beside one */
    bool ran[STACKS] = {false};
    uint32_t wrong = 0, missing = 0;
    for (uint32_t i = 0; i < STACKS; i++) {
        ran[i] = only != NULL ? strstr(stacks[i].name, only) != NULL : !is_elsewhere(&stacks[i]);
        ran[i] &= !apart || (strncmp(stacks[i].selector, "mesa", 4) != 0 &&
                             strncmp(stacks[i].selector, "oclg", 4) != 0);
        if (ran[i])
            run_stack(i);
    }
    print_table(ran);
    for (uint32_t i = 0; i < STACKS; i++) {
        wrong += total[i].wrong;
        missing += ran[i] && total[i].same + total[i].wrong < keel_golden_count(KEEL_CANONICAL);
    }
    ck_assert_uint_eq(wrong, 0);
    ck_assert_uint_eq(missing, 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, every_operation_has_the_same_hash_on_every_stack);
}

static int run_all(void)
{
    Suite *suite = suite_create("stacks");
    TCase *tcase = tcase_create("stacks");
    tcase_set_timeout(tcase, 1200);
    cases(tcase);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    self = argv[0];
    build_folder = getenv("BUILD") != NULL ? getenv("BUILD") : "build";
    if (argc == 3)
        return golden_on(argv[2]);
    if (mkdtemp(folder) == NULL)
        return EXIT_FAILURE;
    int code = run_all();
    keel_remove_tree(folder);
    return code;
}
