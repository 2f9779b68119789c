/* plan_table_test.c - the plans of a run: one for each number of ranks, against its definition; their
 * numbers; what does not fit. */
#include "harness.h"
#include "plan_table.h"
#include <keel/memory.h>
#include <keel/models.h>
#include <string.h>
#include <unistd.h>

enum { SLICES = 4 };

static struct keel_plan_table table, other;
static struct keel_device *device;
static struct keel_plan_model model;
static uint64_t layout;

/* An empty job file, with these keys. */
static struct keel_job job_of(const char *const *keys, uint32_t count)
{
    char path[] = "/tmp/keel-plans-XXXXXX";
    struct keel_job job;
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    const enum keel_status status = keel_job_load(path, keys, count, &job);
    unlink(path);
    ck_ok(status);
    return job;
}

static struct keel_job job_with(const char *key)
{
    const char *const keys[] = {"job.tensor=4", "cluster.ranks=8", key};
    return job_of(keys, key != NULL ? 3 : 2);
}

static struct keel_engine *engine_of(uint32_t width, uint32_t count, struct keel_graph **out_graph)
{
    const struct keel_gpt_config gpt = {
        .layers = 2, .heads = 4, .width = width, .block = 12, .vocab = 50, .batch = 3, .bias = true};
    struct keel_engine *engine;
    ck_ok(keel_graph_create(out_graph));
    ck_ok(keel_model_gpt(*out_graph, &gpt));
    const struct keel_engine_config config = {.device = device,
                                              .graph = *out_graph,
                                              .tensor = SLICES,
                                              .tensor_first = SLICES - count,
                                              .tensor_count = count,
                                              .training = true,
                                              .plan_only = true};
    ck_ok(keel_engine_create(&config, &engine));
    return engine;
}

static uint64_t layout_of(uint32_t width, uint32_t count)
{
    struct keel_graph *graph;
    struct keel_engine *engine = engine_of(width, count, &graph);
    const uint64_t out = keel_plan_layout(engine);
    keel_engine_destroy(engine);
    keel_graph_destroy(graph);
    return out;
}

static void set_up(void)
{
    const struct keel_job job = job_with(NULL);
    struct keel_graph *graph;
    ck_ok(keel_device_open("null", NULL, &device));
    for (uint32_t count = SLICES; count > 0; count--) {
        struct keel_engine *engine = engine_of(32, count, &graph);
        if (count == SLICES) {
            ck_ok(keel_plan_model_make(&job, graph, engine, &model));
            layout = keel_plan_layout(engine);
        } else {
            keel_plan_model_cut(&model, count, engine);
        }
        keel_engine_destroy(engine);
        keel_graph_destroy(graph);
    }
}

static void tear_down(void)
{
    keel_plan_model_fini(&model);
    keel_device_close(device);
}

START_TEST(each_number_of_ranks_has_the_plan_that_its_axes_give)
{
    for (uint32_t tensor = 0; tensor <= SLICES; tensor++)
        for (uint32_t zero = 0; zero < 3; zero++) {
            struct keel_job job = job_with(NULL);
            job.parallel.tensor = tensor;
            job.parallel.zero = zero > 0 ? KEEL_ZERO_NONE + zero : KEEL_ZERO_CHOSEN;
            keel_plan_table_make(&model, &job, layout, 11, &table);
            ck_assert(table.ranks == 11 && table.fewest == 1);
            for (uint32_t n = 1; n <= 11; n++) {
                const struct keel_job_plan *plan = &table.plans[n];
                const uint32_t places = tensor == 0 ? 1 : tensor < n ? tensor : n;
                ck_assert_uint_eq(plan->tensor, places);
                ck_assert_uint_eq(plan->data, n / places < job.shards ? n / places : job.shards);
                ck_assert_uint_eq(plan->seats + plan->spares, n);
                ck_assert_uint_eq(plan->zero, zero);
                ck_assert(plan->fits && table.numbers[n] == keel_plan_number(&job, layout, n));
            }
        }
}
END_TEST

START_TEST(what_does_not_fit_has_no_number_and_the_fewest_that_fit_are_found)
{
    struct keel_job job = job_with("parallel.tensor=2");
    char text[80];
    keel_plan_table_make(&model, &job, layout, 8, &table);
    for (uint32_t limit = 1; limit <= 8; limit++)
        for (int less = 0; less < 2; less++) {
            uint32_t fewest = 0;
            job.parallel.memory_bytes = table.plans[limit].total_bytes - (uint64_t)less;
            keel_plan_table_make(&model, &job, layout, 8, &other);
            for (uint32_t n = 8; n > 0; n--) {
                const bool fits = table.plans[n].total_bytes <= job.parallel.memory_bytes;
                ck_assert(fits == (other.numbers[n] != 0) && fits == other.plans[n].fits);
                fewest = fits ? n : fewest;
            }
            ck_assert_uint_eq(other.fewest, fewest);
        }
    job.parallel.memory_bytes = table.plans[2].total_bytes;
    keel_plan_table_make(&model, &job, layout, 8, &other);
    keel_plan_table_describe(&other, text, sizeof text);
    ck_assert_str_eq(text, "2 to 8"); /* one has all slices */
    other.numbers[3] = other.numbers[7] = other.numbers[8] = 0;
    keel_plan_table_describe(&other, text, sizeof text);
    ck_assert_str_eq(text, "2, 4 to 6");
    keel_plan_table_describe(&other, text, 5);
    ck_assert_str_eq(text, "2, 4");
}
END_TEST

START_TEST(a_refusal_names_kinds_and_the_nearest_plan_that_fits)
{
    struct keel_job job = job_with(NULL);
    keel_plan_table_make(&model, &job, layout, 4, &table);
    ck_ok(keel_plan_table_check(&table, &model, &job.parallel));
    job.parallel.memory_bytes = table.plans[4].total_bytes - 1;
    keel_plan_table_make(&model, &job, layout, 4, &table);
    ck_status(keel_plan_table_check(&table, &model, &job.parallel), KEEL_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "each of 4 ranks (data 4, tensor 1, zero 0) needs"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "bytes: weights "));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "; 4 with parallel.tensor = "));
    job.parallel.memory_bytes = 100;
    keel_plan_table_make(&model, &job, layout, 4, &table);
    ck_assert_uint_eq(table.fewest, 0);
    ck_status(keel_plan_table_check(&table, &model, &job.parallel), KEEL_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "no plan fits, of any number of ranks"));
    struct keel_job_plan smallest;
    job.parallel.tensor = 1;
    keel_plan_make(&model, 1, SLICES, 0, 2, 0, &smallest);
    job.parallel.memory_bytes = smallest.total_bytes;
    keel_plan_table_make(&model, &job, layout, 1, &table);
    ck_status(keel_plan_table_check(&table, &model, &job.parallel), KEEL_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "; 4 with parallel.tensor = 4 and parallel.zero = 0 fit"));
}
END_TEST

START_TEST(axes_that_are_left_open_are_those_of_a_plan_that_fits)
{
    struct keel_job_plan was, best;
    for (uint32_t given = 0; given < 4; given++)
        for (uint32_t ranks = 1; ranks <= 8; ranks++) {
            struct keel_parallel open = {
                .holders = 2, .tensor = given & 1, .zero = given & 2 ? KEEL_ZERO_NONE : 0};
            const struct keel_parallel unbound = open;
            keel_plan_of_run(&model, &open, ranks, &best);
            open.memory_bytes = best.total_bytes;
            ck_assert(!keel_plan_settle(&model, ranks, &open, &was)); /* 1 and 0 fit */
            ck_assert(open.tensor == unbound.tensor && open.zero == unbound.zero);
            open.memory_bytes--;
            const bool fits = keel_plan_choose(&model, &open, ranks, &best) == KEEL_OK;
            const bool chosen = keel_plan_settle(&model, ranks, &open, &was);
            ck_assert(chosen == (fits && given != 3));
            ck_assert(!chosen || (open.tensor == best.tensor && open.zero == KEEL_ZERO_NONE + best.zero &&
                                  was.total_bytes == open.memory_bytes + 1));
        }
}
END_TEST

START_TEST(a_cut_that_no_engine_has_leaves_out_its_plans_alone)
{
    const struct keel_parallel any = {.holders = 2};
    for (uint32_t count = 1; count < SLICES; count++) {
        struct keel_job_plan *plans;
        uint32_t plan_count, widths = 0;
        model.cuts[count].refused = true;
        ck_ok(keel_plan_list(&model, &any, SLICES, &plans, &plan_count));
        for (uint32_t i = 0; i < plan_count; i++)
            widths |= 1U << plans[i].tensor;
        keel_free(plans);
        for (uint32_t places = 1; places <= SLICES; places++) {
            const struct keel_parallel asked = {.holders = 2, .tensor = places};
            const bool has = SLICES / places == count || (SLICES + places - 1) / places == count;
            ck_assert_int_eq((widths & 1U << places) != 0, !has);
            ck_assert_int_eq(keel_plan_fewest_seats(&model, &asked) != 0, !has);
        }
        model.cuts[count].refused = false;
    }
}
END_TEST

START_TEST(numbers_differ_by_all_that_plans_follow_from_and_by_nothing_else)
{
    static const char *const others[] = {"parallel.tensor=2", "parallel.zero=1",      "parallel.holders=1",
                                         "parallel.data=4",   "parallel.memory=9999", "parallel.bucket=8192",
                                         "job.shards=2",      "train.microbatches=2", "model.width=64",
                                         "cluster.nodes=4",   "cluster.ranks=16"};
    static const char *const same[] = {"cluster.timeout_s=9", "snapshot.every=3", "cluster.device=host",
                                       "cluster.spares=2"};
    const struct keel_job job = job_with(NULL);
    const uint64_t mine = keel_plan_number(&job, layout, 4);
    ck_assert_uint_ne(mine, 0);
    for (uint32_t n = 1; n <= 8; n++)
        ck_assert((keel_plan_number(&job, layout, n) == mine) == (n == 4));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const struct keel_job with = job_with(others[i]);
        const uint64_t its = keel_plan_number(&with, layout, 4);
        ck_assert_msg(its != mine, "%s", others[i]);
        ck_assert_ptr_nonnull(strstr(keel_plan_difference(its, mine), "other keys"));
    }
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        const struct keel_job with = job_with(same[i]);
        ck_assert_msg(keel_plan_number(&with, layout, 4) == mine, "%s", same[i]);
    }
}
END_TEST

START_TEST(a_layout_is_the_models_whichever_slices_an_engine_has)
{
    const struct keel_job job = job_with(NULL);
    const uint64_t mine = keel_plan_number(&job, layout, 4);
    for (uint32_t count = 1; count <= SLICES; count++)
        ck_assert_uint_eq(layout_of(32, count), layout);
    const uint64_t wider = layout_of(64, SLICES);
    ck_assert_uint_ne(wider, layout);
    ck_assert_ptr_nonnull(strstr(keel_plan_difference(keel_plan_number(&job, wider, 4), mine), "layout"));
    ck_assert_ptr_nonnull(strstr(keel_plan_difference(mine ^ UINT64_C(1) << 63, mine), "another release"));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, each_number_of_ranks_has_the_plan_that_its_axes_give);
    tcase_add_test(tc, what_does_not_fit_has_no_number_and_the_fewest_that_fit_are_found);
    tcase_add_test(tc, a_refusal_names_kinds_and_the_nearest_plan_that_fits);
    tcase_add_test(tc, axes_that_are_left_open_are_those_of_a_plan_that_fits);
    tcase_add_test(tc, a_cut_that_no_engine_has_leaves_out_its_plans_alone);
    tcase_add_test(tc, numbers_differ_by_all_that_plans_follow_from_and_by_nothing_else);
    tcase_add_test(tc, a_layout_is_the_models_whichever_slices_an_engine_has);
}

KEEL_TEST_MAIN("plan_table", cases, 60)
