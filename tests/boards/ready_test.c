/* ready_test.c - a board with artifacts compiles nothing: not when it opens, not at its first launches, not
 * at shapes that nobody launched when the artifacts were made. On PoCL, with the compiler's calls counted in
 * front of it, and the code that PoCL makes counted in its cache. */
#include "compile_count.h"
#include "harness.h"
#include <ftw.h>
#include <keel/board.h>
#include <keel/clock.h>
#include <keel/golden.h>
#include <keel/process.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define LIMIT_NS (300 * KEEL_NS_PER_S)
enum { LARGE = 192, MANY = 1 << 20, BUSY = 16 };

static char root[64], cache[96];

static void write_conf(const char *text)
{
    char folder[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(folder, root, "pocl/cpu"));
    ck_ok(keel_mkdir_all(folder));
    ck_ok(keel_path_join(path, folder, "board.conf"));
    ck_ok(keel_file_replace(path, text, strlen(text), 0600));
}

/* In a process of its own: once this one has called a driver, its tests could not begin anew. */
static void run_keel(char *const words[])
{
    const char *build = getenv("BUILD");
    char keel[KEEL_PATH_BYTES];
    snprintf(keel, sizeof keel, "%s/keel", build != NULL ? build : "build");
    char *argv[16] = {keel};
    for (uint32_t i = 0; words[i] != NULL; i++)
        argv[i + 1] = words[i];
    struct keel_process process;
    struct keel_process_end end;
    ck_ok(keel_process_spawn(argv, NULL, 0, -1, &process));
    ck_ok(keel_process_wait(&process, keel_deadline_after_ns(LIMIT_NS), &end));
    keel_process_close(&process);
    ck_assert(!end.signaled && end.code == 0);
}

static void set_up(void)
{
    snprintf(root, sizeof root, "/tmp/keel-ready-XXXXXX");
    ck_assert(mkdtemp(root) != NULL);
    snprintf(cache, sizeof cache, "%s/cache", root);
    ck_assert_int_eq(setenv("KEEL_BOARDS", root, 1), 0);
    ck_assert_int_eq(setenv("POCL_DEVICES", "basic", 1),
                     0); /* whose code other tests leave in PoCL's cache */
    write_conf("[match]\nplatform = Portable*\n[code]\nform = artifacts\n");
    run_keel((char *const[]){"board", "build", "pocl/cpu", "--json", NULL});
    ck_ok(keel_mkdir_all(cache));
    ck_assert_int_eq(setenv("POCL_CACHE_DIR", cache, 1), 0);
}

static void tear_down(void)
{
    ck_ok(keel_remove_tree(root));
}

static uint32_t files;
static int count_code(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)where;
    size_t length = strlen(path);
    files += kind == FTW_F && length > 3 && strcmp(path + length - 3, ".so") == 0;
    return 0;
}

/* How much code PoCL has, of artifacts or made by itself. */
static uint32_t code_in_cache(void)
{
    files = 0;
    ck_assert_int_eq(nftw(cache, count_code, 16, FTW_PHYS), 0);
    return files;
}

/* A product and a sum larger than all golden operations. */
static void run_large(struct keel_board *board, struct keel_kernels *kernels, struct keel_queue *queue)
{
    struct keel_device *device = keel_board_device(board);
    struct keel_buffer *a, *b, *c;
    struct keel_launch_list list = {0};
    ck_ok(keel_buffer_create(device, MANY * sizeof(float), &a));
    ck_ok(keel_buffer_create(device, MANY * sizeof(float), &b));
    ck_ok(keel_buffer_create(device, MANY * sizeof(float), &c));
    const struct keel_gemm gemm = {.m = LARGE,
                                   .n = LARGE,
                                   .k = LARGE,
                                   .batch = 1,
                                   .lda = LARGE,
                                   .ldb = LARGE,
                                   .ldc = LARGE,
                                   .a = a,
                                   .b = b,
                                   .c = c};
    const struct keel_add add = {.count = MANY, .a = a, .b = b, .y = c};
    ck_ok(keel_op_gemm(kernels, &gemm, &list));
    ck_ok(keel_op_add(kernels, &add, &list));
    ck_ok(keel_launch_list_run(&list, queue));
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS)));
    keel_launch_list_fini(&list);
    keel_buffer_destroy(a);
    keel_buffer_destroy(b);
    keel_buffer_destroy(c);
}

START_TEST(nothing_is_compiled_after_start)
{
    struct keel_board *board;
    struct keel_kernels *kernels;
    struct keel_queue *queue;
    struct keel_golden_result result;
    ck_ok(keel_board_open("pocl", NULL, &board));
    ck_assert_str_eq(keel_board_file(board)->id, "pocl/cpu");
    ck_ok(keel_kernels_create(keel_board_device(board), &kernels));
    ck_ok(keel_queue_create(keel_board_device(board), &queue));
    ck_assert_uint_eq(from_source, 0);
    ck_assert_uint_gt(from_binary, 0);
    uint32_t code = code_in_cache();
    for (uint32_t i = 0; i < keel_golden_count(KEEL_CANONICAL); i++) {
        ck_ok(keel_golden_run(kernels, queue, i, keel_deadline_after_ns(LIMIT_NS), &result));
        ck_assert_msg(result.matches && result.intact, "%s", keel_golden_get(KEEL_CANONICAL, i).name);
    }
    run_large(board, kernels, queue);
    ck_assert_uint_eq(from_source, 0);
    ck_assert_uint_eq(code_in_cache(), code);
    keel_queue_destroy(queue);
    keel_kernels_destroy(kernels);
    keel_board_close(board);
}
END_TEST

/* This process and its children, on one processor from now on. */
static void share_one_processor(void)
{
    cpu_set_t all, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
}

/* As promised, by the board's own time: a processor that seventeen processes want does not break it. */
START_TEST(a_busy_machine_does_not_make_a_board_late)
{
    pid_t busy[BUSY];
    share_one_processor();
    for (uint32_t i = 0; i < BUSY; i++) {
        busy[i] = fork();
        ck_assert_int_ge(busy[i], 0);
        if (busy[i] == 0)
            for (alarm((unsigned)(LIMIT_NS / KEEL_NS_PER_S));;) {
            }
    }
    run_keel((char *const[]){"board", "check", "pocl/cpu", "--level", "2.4", NULL});
    for (uint32_t i = 0; i < BUSY; i++)
        ck_assert_int_eq(kill(busy[i], SIGKILL), 0);
}
END_TEST

static char artifact[KEEL_PATH_BYTES];
static enum keel_status take_artifact(void *context, const char *name)
{
    return strstr(name, ".bin") != NULL ? keel_path_join(artifact, context, name) : KEEL_OK;
}

START_TEST(a_damaged_artifact_reaches_no_driver)
{
    struct keel_board *board;
    char path[KEEL_PATH_BYTES];
    snprintf(path, sizeof path, "%s/pocl/cpu/artifacts", root);
    ck_ok(keel_dir_list(path, take_artifact, path));
    ck_assert(keel_path_is_file(artifact));
    ck_ok(keel_file_append(artifact, "x", 1, false));
    ck_status(keel_board_open("pocl", NULL, &board), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), artifact));
    const struct keel_board_options without = {.without_code = true};
    ck_ok(keel_board_open("pocl", &without, &board));
    keel_board_close(board);
    ck_assert_uint_eq(from_binary + from_source, 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_unchecked_fixture(tc, set_up, tear_down); /* made once; the last test damages it */
    tcase_add_test(tc, nothing_is_compiled_after_start);
    tcase_add_test(tc, a_busy_machine_does_not_make_a_board_late);
    tcase_add_test(tc, a_damaged_artifact_reaches_no_driver);
}

KEEL_TEST_MAIN("ready", cases, 300)
