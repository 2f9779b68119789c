/* job_test.c - job files: defaults, overrides, errors that name file, line and the nearest key, and what keys
 * have to do with one another. Ranges, choices and users of each key: job_keys_test.c. */
#include "harness.h"
#include "worker_internal.h"
#include <keel/job.h>
#include <keel/optimizer_ops.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/keel-job-XXXXXX";

static void write_text(const char *text)
{
    strcpy(path, "/tmp/keel-job-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static enum keel_status load(const char *text, const char *override, struct keel_job *job)
{
    write_text(text);
    enum keel_status status = keel_job_load(path, &override, override != NULL, job);
    unlink(path);
    return status;
}

START_TEST(an_empty_file_gives_the_defaults)
{
    struct keel_job job;
    ck_ok(load("", NULL, &job));
    ck_assert_uint_eq(job.layers, 4);
    ck_assert_uint_eq(job.decay_steps, job.steps);
    ck_assert_str_eq(job.device, "auto");
}
END_TEST

START_TEST(an_override_wins_over_the_file)
{
    struct keel_job job;
    ck_ok(load("[train]\nsteps = 10\n", "train.steps=20", &job));
    ck_assert_uint_eq(job.steps, 20);
}
END_TEST

START_TEST(the_end_of_a_range_is_in_it_as_written_too)
{
    struct keel_job job;
    ck_ok(load("[train]\neps = 1e-20\n", NULL, &job));
    ck_ok(load("[train]\neps = 9.99999968e-21\n", NULL, &job)); /* as a float it is the same */
}
END_TEST

START_TEST(what_is_written_loads_to_the_same_job)
{
    struct keel_job job, again;
    ck_ok(load("[train]\nlr = 0.000123\n[model]\ndropout = 0.1\nbias = no\n[data]\nvocab = byte\n", NULL,
               &job));
    char *text = NULL;
    size_t bytes;
    FILE *memory = open_memstream(&text, &bytes);
    ck_ok(keel_job_write(&job, memory));
    fclose(memory);
    ck_ok(load(text, NULL, &again));
    free(text);
    ck_assert_mem_eq(&job, &again, sizeof job);
}
END_TEST

struct bad {
    const char *text, *override, *names; /* what the message must name */
};
static const struct bad bad[] = {
    {"[model]\n\nwidth = 100000000\n", NULL, ":3: model.width = 100000000: out of range"},
    {"[train]\nstep = 10\n", NULL, ":2: unknown key train.step; the nearest known key is train.steps"},
    {"[data]\nvocab = words\n", NULL, "one of char, byte, bpe:tokenizer.json"},
    {"[model]\nwidth = 130\n", NULL, "does not divide"},
    {"[job]\ntensor = 2\n[parallel]\ntensor = 4\n", NULL,
     "parallel.tensor = 4 is above job.tensor = 2, and a rank has one slice at least: give 2 at most"},
    {"[parallel]\ndata = 5\n", NULL, "parallel.data = 5 is above job.shards = 4"},
    {"[parallel]\nzero = 0\nzero_group = 2\n", NULL,
     "parallel.zero_group = 2: parallel.zero = 0 splits nothing; give 1, 2 or 3"},
    {"[parallel]\nzero = 1\n[train]\noptimizer = lamb\n", NULL,
     "parallel.zero = 1: train.optimizer = lars and lamb"},
    {"[parallel]\nzero = 2\n[train]\ngradients = int8\n", NULL,
     "parallel.zero = 2: train.gradients = int8 are summed on the host"},
    {"[cluster]\nranks = 4\nnodes = 3\n", NULL, "does not divide over cluster.nodes"},
    {"[cluster]\nseal_payloads = true\n", NULL, "nearest known key is cluster.seal_payload"},
    {"[train]\nmin_lr = 1\n", NULL, "train.min_lr"},
    {"[train]\nrestart_growth = 2\n", NULL, "give train.restart_steps"},
    {"[train]\ndecay = wsd\ncooldown_steps = 290\n", NULL, "more than the 300 steps"},
    {"[train]\nlr_scale = *.bias\n", NULL, "PATTERN:FACTOR"},
    {"[train]\ntotal_batch = 40\n", NULL, "give a multiple of 16, or another train.batch"},
    {"[train]\ntotal_batch = 2000000\n", NULL, "no multiple, up to 65536 times"},
    {"[train]\ntotal_batch = 48\nmicrobatches = 2\n", NULL, "of which 3 follow, do not agree"},
    {"[train]\nlabel_smoothing = 0.1\n[job]\ntensor = 2\n", NULL, "give job.tensor = 1"},
    {"[data]\nformat = criteo\n", NULL, "data.format = criteo: text, uint16 or uint32 is wanted"},
    {"[model]\nkind = dlrm\n[data]\nformat = uint16\n", NULL, "criteo, csv, or auto for samples"},
    {"[data]\npath = a.txt\nval_path = b.bin\n", NULL,
     "data.path = a.txt and data.val_path = b.bin: by their names (.bin) one is a text and one is tokens"},
    {"[data]\npath = a/train.bin\nval_path = held-out\n", NULL, "one is a text and one is tokens"},
    {"[model]\nkind = dlrm\n[data]\nval_path = x\n", NULL,
     "data.val_path says nothing where data.format = auto"},
    {"[model]\nkind = dlrm\n[data]\nformat = csv\nsamples = 9\n", NULL, "data.samples = 9 says nothing"},
    {"[model]\nkind = resnet\n[data]\nformat = csv\n", NULL, "folders, or auto for IDX files is wanted"},
    {"[model]\nkind = resnet\n[data]\nimage_size = 32\n", NULL,
     "image_size says nothing where data.format = auto"},
    {"[train]\nmin_delta = 0.1\n", NULL, "says nothing without train.patience"},
    {"[train]\npatience = 3\neval_every = 70\n", NULL, "an eval_every that is a multiple of snapshot.every"},
    {"[train]\npatience = 3\n[snapshot]\nevery = 0\n", NULL, "the snapshot of the best evaluation is kept"},
    {"[train]\nfreeze = ,\n", NULL, "train.freeze = ,: has no pattern"},
    {"[train]\nno_decay = , ,\n", NULL, "train.no_decay = , ,: has no pattern"},
    {"[train]\nlora_alpha = 8\n", NULL, "say nothing without train.lora_rank"},
    {"[train]\nlora_rank = 8\nfreeze = h.0.*\n", NULL, "all but the adapters is frozen"},
    {"[train]\nlr_scale = *.bias:0\n", NULL, "train.freeze is for 0"},
    {"[train]\nlr_scale = *.bias:2,:3\n", NULL, "PATTERN:FACTOR"},
    {"[train]\nlr_scale = *.bias:2x\n", NULL, "PATTERN:FACTOR"},
    {"[train]\nlr_scale = *.bias:nan\n", NULL, "PATTERN:FACTOR"},
    {"[snapshot]\nbandwidth_bytes_s = 100\n", NULL, "65536 or more, or 0 for no cap"},
    {"[snapshot]\npartner = true\n", NULL, "give snapshot.local = DIR"},
    {"[snapshot]\nstore = /s\n", NULL, "give snapshot.local = DIR"},
    {"[snapshot]\nlocal = /n\nstore_every = 9\n", NULL, "of which store"},
    {"[snapshot]\nlocal = /n\ncodec = delta\n", NULL, "give codec = planes"},
    {"[snapshot]\nlocal = /n\npartner = true\n", NULL, "cluster.nodes = 2"},
    {"[snapshot]\nlocal = n\n[cluster]\nlaunch = none\n", NULL, "begins with /"},
    {"[snapshot]\nerasure = 2+1\n", NULL, "snapshot.erasure is a copy"},
    {"[snapshot]\nlocal = /n\nerasure = 2+1\n", NULL, "wants 3 nodes, and cluster.nodes are 1"},
    {"[snapshot]\nlocal = /n\nerasure = 8\n[cluster]\nranks = 9\n", NULL, "K+M is wanted"},
    {"[snapshot]\nlocal = /n\nerasure = 0+2\n[cluster]\nranks = 9\n", NULL, "K+M is wanted"},
    {"[snapshot]\nlocal = /n\nerasure = 2+1x\n[cluster]\nranks = 9\n", NULL, "K+M is wanted"},
    {"[snapshot]\nlocal = /n\nerasure = 60+8\n[cluster]\nranks = 70\n", NULL, "64 nodes at most"},
    {"[snapshot]\nlocal = /n\nerasure = 8+2\n[cluster]\nranks = 70\n", NULL, "not built yet"},
    {"[snapshot]\nlocal = /n\nstore = s\n[cluster]\nlaunch = none\n", NULL, "snapshot.store = s"},
    {"[train]\nloss_scale = 2\n", NULL, "train.loss_scale = 2 belongs to train.storage = f16"},
    {"[model]\nkind = moe\nlayers = 1\n", NULL, "model.layers = 1: model.kind = moe has experts"},
    {"[job]\nname = a/b\n", NULL, "job.name"},
    {"[model]\nkind = resnet\ndepth = 50\nlayers = 2\n", NULL,
     "model.layers = 2 says nothing beside model.depth = 50"},
    {"[model]\nkind = resnet\ndepth = 18\nbottleneck = true\n", NULL,
     "model.bottleneck = true says nothing beside model.depth = 18"},
    {"[model]\nkind = llama\nrope_context = 64\n", NULL,
     "model.rope_context = 64 says nothing without model.rope_factor"},
    {"[model]\nkind = alexnet\n[data]\nmixup = 1e-38\n", NULL,
     "data.mixup = 1e-38: out of range: 0, or 0.001"},
    {"[model]\nkind = resnet\n[data]\ncrop = 0.1\n", NULL, "data.crop says nothing where data.format = auto"},
    {"[model]\nkind = dlrm\ntable_rows = 4-3\n", NULL, "model.table_rows = 4-3: model.tables = 8 sizes"},
    {"[model]\nkind = dlrm\nmlp_top = 4-2\n", NULL, "model.mlp_top = 4-2: ends with 1, for one click"},
    {"[train]\ngradients = int4\n", NULL, "train.gradients = int4: exact, int8, or topk:FRACTION"},
    {"[train]\ngradients = topk\n", NULL, "train.gradients = topk: exact, int8, or topk:FRACTION"},
    {"[train]\ngradients = topk:\n", NULL, "train.gradients = topk:: exact"},
    {"[train]\ngradients = topk:0\n", NULL, "train.gradients = topk:0: exact"},
    {"[train]\ngradients = topk:2\n", NULL, "a fraction from 0.0002 to 0.5, as topk:0.01"},
    {"[train]\ngradients = topk:nan\n", NULL, "train.gradients = topk:nan: exact"},
    {"[train]\ngradients = topk:0.1x\n", NULL, "train.gradients = topk:0.1x: exact"},
    {"nonsense\n", NULL, ":1:"},
    {"", "train.steps", "section.key=value"},
    {"", "train.stepz=3", "nearest known key is train.steps"},
};

START_TEST(bad_input_is_refused_by_name)
{
    struct keel_job job;
    ck_status(load(bad[_i].text, bad[_i].override, &job), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), bad[_i].names) != NULL, "%s does not say %s", keel_detail(),
                  bad[_i].names);
}
END_TEST

START_TEST(text_that_a_job_file_cannot_hold_is_refused)
{
    static const char *const overrides[] = {"data.path=a ;b", "data.path=;a", "data.path= a", "data.path=a ",
                                            "data.path=a\nb"};
    struct keel_job job;
    for (size_t i = 0; i < sizeof overrides / sizeof overrides[0]; i++)
        ck_status(load("", overrides[i], &job), KEEL_INVALID);
    char longest[256] = "data.path=";
    memset(longest + strlen(longest), 'x', 199 - strlen("path = \n"));
    ck_ok(load("", longest, &job));
    strcat(longest, "x");
    ck_status(load("", longest, &job), KEEL_INVALID);
    strcat(job.path, "xx"); /* as a path that was made absolute */
    FILE *file = tmpfile();
    ck_status(keel_job_write(&job, file), KEEL_INVALID);
    fclose(file);
}
END_TEST

START_TEST(an_indented_line_is_a_key_and_not_more_of_the_value_above)
{
    struct keel_job job;
    ck_ok(load("[data]\n  path = some/text\n  vocab = byte\n", NULL, &job));
    ck_assert_str_eq(job.path, "some/text");
    const char *files;
    ck_assert_uint_eq(keel_job_vocab(&job, &files), KEEL_VOCAB_BYTE);
    ck_assert_ptr_null(files);
}
END_TEST

START_TEST(a_file_with_a_nul_is_refused_and_not_read_up_to_there)
{
    static const char text[] = "[train]\nsteps = 5\n\0lr = 1\n";
    struct keel_job job;
    write_text("");
    ck_ok(keel_file_replace(path, text, sizeof text - 1, 0600));
    ck_status(keel_job_load(path, NULL, 0, &job), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "byte 18 is NUL"));
    unlink(path);
}
END_TEST

START_TEST(a_missing_file_is_named)
{
    struct keel_job job;
    ck_status(keel_job_load("/nonexistent/x.conf", NULL, 0, &job), KEEL_NOT_FOUND);
    ck_assert(strstr(keel_detail(), "/nonexistent/x.conf") != NULL);
}
END_TEST

/* Behind the warm-up: PyTorch 2.15's CosineAnnealingWarmRestarts and LinearLR, and a wsd of two of those. */
static const struct schedule {
    const char *keys;
    uint64_t step;
    double rate;
} schedules[] = {
    {"warmup_steps = 10\n", 0, 0.1},
    {"warmup_steps = 10\n", 9, 1},
    {"warmup_steps = 10\n", 10, 1},
    {"warmup_steps = 10\n", 60, 0.55},
    {"warmup_steps = 10\n", 110, 0.1},
    {"warmup_steps = 10\n", 5000, 0.1},
    {"warmup_steps = 10\nrestart_steps = 10\n", 19, 0.1220254037844386},
    {"warmup_steps = 10\nrestart_steps = 10\n", 20, 1},
    {"warmup_steps = 10\nrestart_steps = 10\n", 103, 0.8145033635316129},
    {"warmup_steps = 10\nrestart_steps = 10\n", 110, 0.1},
    {"warmup_steps = 10\nrestart_steps = 10\nrestart_growth = 2\n", 19, 0.1220254037844386},
    {"warmup_steps = 10\nrestart_steps = 10\nrestart_growth = 2\n", 20, 1},
    {"warmup_steps = 10\nrestart_steps = 10\nrestart_growth = 2\n", 30, 0.55},
    {"warmup_steps = 10\nrestart_steps = 10\nrestart_growth = 2\n", 40, 1},
    {"warmup_steps = 10\nrestart_steps = 10\nrestart_growth = 2\n", 79, 0.10138719982009242},
    {"warmup_steps = 10\nrestart_steps = 10\nrestart_growth = 2\n", 80, 1},
    {"warmup_steps = 10\ndecay = linear\n", 10, 1},
    {"warmup_steps = 10\ndecay = linear\n", 35, 0.775},
    {"warmup_steps = 10\ndecay = linear\n", 109, 0.109},
    {"warmup_steps = 10\ndecay = linear\n", 110, 0.1},
    {"warmup_steps = 10\ndecay = wsd\ncooldown_steps = 40\n", 70, 1},
    {"warmup_steps = 10\ndecay = wsd\ncooldown_steps = 40\n", 90, 0.55},
    {"warmup_steps = 10\ndecay = wsd\ncooldown_steps = 40\n", 111, 0.1},
    {"warmup_steps = 10\ndecay = wsd\n", 99, 1},
    {"warmup_steps = 10\ndecay = wsd\n", 110, 0.1},
    {"warmup_steps = 109\ndecay = wsd\n", 108, 1},
    {"warmup_steps = 109\ndecay = wsd\n", 109, 1},
    {"warmup_steps = 500\n", 300, 0.602},
};

START_TEST(a_learning_rate_is_a_function_of_the_step)
{
    const struct schedule *of = &schedules[_i];
    struct keel_job job;
    char text[256];
    snprintf(text, sizeof text, "[train]\nsteps = 110\nlr = 1\nmin_lr = 0.1\n%s", of->keys);
    ck_ok(load(text, NULL, &job));
    ck_assert_double_eq_tol((double)keel_job_learning_rate(&job, of->step), of->rate, 1e-6);
}
END_TEST

START_TEST(microbatches_follow_from_the_samples_of_a_step)
{
    struct keel_job job, same;
    char one[KEEL_IDENTITY_BYTES], other[KEEL_IDENTITY_BYTES];
    ck_ok(load("[train]\ntotal_batch = 48\n", NULL, &job));
    ck_assert_uint_eq(job.microbatches, 3);
    ck_ok(load("[train]\nmicrobatches = 3\n", NULL, &same));
    keel_job_identity(&job, 1, one);
    keel_job_identity(&same, 1, other);
    ck_assert_str_eq(one, other);
    ck_ok(load("[train]\nmicrobatches = 3\n", "train.total_batch=48", &same));
}
END_TEST

START_TEST(a_difference_is_told_by_the_key_that_was_written)
{
    struct keel_job job, other;
    char text[256];
    ck_ok(load("[train]\ntotal_batch = 48\n", NULL, &job));
    ck_ok(load("[train]\ntotal_batch = 64\n", NULL, &other));
    ck_assert_uint_eq(keel_job_difference(&job, &other, text, sizeof text), 1);
    ck_assert_str_eq(text, "train.total_batch is 48 there and 64 here");
    ck_ok(load("[train]\nmicrobatches = 2\n", NULL, &other));
    ck_assert_uint_eq(keel_job_difference(&job, &other, text, sizeof text), 1);
    ck_assert_str_eq(text, "train.total_batch is 48 there and 32 here");
    ck_ok(load("[train]\nmicrobatches = 3\n", NULL, &job));
    ck_assert_uint_eq(keel_job_difference(&job, &other, text, sizeof text), 1);
    ck_assert_str_eq(text, "train.microbatches is 3 there and 2 here");
}
END_TEST

START_TEST(what_was_best_is_among_the_snapshots_that_stay)
{
    struct keel_job job;
    ck_ok(load("[train]\npatience = 4\neval_every = 30\n[snapshot]\nevery = 10\n", NULL, &job));
    ck_assert_uint_eq(keel_job_retention(&job).keep_last, 4 * 3 + 2);
    ck_ok(load("[train]\npatience = 4\neval_every = 30\n[snapshot]\nevery = 10\nkeep = 50\n", NULL, &job));
    ck_assert_uint_eq(keel_job_retention(&job).keep_last, 50);
}
END_TEST

/* So that more steps are asked for without another key, and are the same run. */
START_TEST(a_constant_rate_does_not_depend_on_the_number_of_steps)
{
    struct keel_job job, longer;
    char one[KEEL_IDENTITY_BYTES], other[KEEL_IDENTITY_BYTES];
    ck_ok(load("[train]\ndecay = constant\nlr = 1e-5\n", NULL, &job));
    ck_ok(load("[train]\ndecay = constant\nlr = 1e-5\n", "train.steps=9000", &longer));
    keel_job_identity(&job, 1, one);
    keel_job_identity(&longer, 1, other);
    ck_assert_str_eq(one, other);
    ck_assert_float_eq_tol(keel_job_learning_rate(&job, 8999), 1e-5F, 1e-12F);
}
END_TEST

START_TEST(bulk_data_are_sealed_when_the_job_says_so)
{
    struct keel_job job;
    const uint8_t key[32] = {1};
    ck_ok(load("", NULL, &job));
    ck_assert(!keel_worker_fabric(&job, key).seal_payload);
    ck_ok(load("[cluster]\nseal_payload = true\n", NULL, &job));
    ck_assert(keel_worker_fabric(&job, key).seal_payload);
    ck_assert_ptr_eq(keel_worker_fabric(&job, key).key, key);
}
END_TEST

START_TEST(identity_follows_what_the_bits_depend_on)
{
    struct keel_job a, b, c;
    char ia[KEEL_IDENTITY_BYTES], ib[KEEL_IDENTITY_BYTES], ic[KEEL_IDENTITY_BYTES];
    ck_ok(load("", NULL, &a));
    ck_ok(load(
        "[cluster]\nranks = 3\nseal_payload = true\n[snapshot]\nevery = 7\n[parallel]\ndata = 3\nzero = 3\n",
        NULL, &b));
    ck_ok(load("[train]\nlr = 0.002\n", NULL, &c));
    keel_job_identity(&a, 1, ia);
    keel_job_identity(&b, 1, ib);
    keel_job_identity(&c, 1, ic);
    ck_assert_str_eq(ia, ib);
    ck_assert_str_ne(ia, ic);
    keel_job_identity(&a, 2, ic);
    ck_assert_str_ne(ia, ic);
    ck_ok(load("[job]\ntensor = 2\n", NULL, &c));
    keel_job_identity(&c, 1, ic);
    ck_assert_str_ne(ia, ic);
}
END_TEST

START_TEST(ranks_are_a_product_of_the_axes_or_what_could_be_is_named)
{
    static const struct {
        uint32_t data, tensor, ranks;
        const char *names; /* NULL: they are */
    } of[] = {{0, 0, 7, NULL},
              {2, 2, 4, NULL},
              {0, 2, 6, NULL},
              {3, 0, 12, NULL},
              {2, 2, 6, "data could be 3, and tensor could be 3"},
              {0, 4, 6, "no data will do, and tensor could be 1, 2, 3"},
              {3, 0, 15, "data could be 5, and no tensor will do"},
              {4, 0, 6, "data could be 2, 3, 6, and no tensor will do"}};
    struct keel_job job;
    ck_ok(load("[job]\nshards = 8\ntensor = 4\n", NULL, &job));
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        job.parallel.data = of[i].data;
        job.parallel.tensor = of[i].tensor;
        ck_status(keel_job_check_ranks(&job, of[i].ranks), of[i].names == NULL ? KEEL_OK : KEEL_INVALID);
        if (of[i].names != NULL)
            ck_assert_msg(strstr(keel_detail(), of[i].names) != NULL, "%zu: %s", i, keel_detail());
    }
}
END_TEST

START_TEST(groups_of_owners_divide_the_data_positions_or_what_could_be_is_named)
{
    static const struct {
        uint32_t data, tensor, group, ranks;
        const char *names; /* NULL: they do */
    } of[] = {{0, 0, 0, 7, NULL},
              {0, 0, 2, 8, NULL},
              {0, 2, 3, 6, NULL},
              {4, 2, 4, 8, NULL},
              {0, 1, 1, 5, NULL},
              {0, 0, 3, 8, "the 8 data positions of 8 ranks; it could be 1, 2, 4, 8"},
              {0, 2, 2, 6, "the 3 data positions of 6 ranks; it could be 1, 3"},
              {4, 0, 8, 8, "the 4 data positions of 8 ranks; it could be 1, 2, 4"}};
    struct keel_job job;
    ck_ok(load("[job]\nshards = 8\ntensor = 4\n[parallel]\nzero = 1\n", NULL, &job));
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        job.parallel.data = of[i].data;
        job.parallel.tensor = of[i].tensor;
        job.parallel.zero_group = of[i].group;
        ck_status(keel_job_check_ranks(&job, of[i].ranks), of[i].names == NULL ? KEEL_OK : KEEL_INVALID);
        if (of[i].names != NULL)
            ck_assert_msg(strstr(keel_detail(), of[i].names) != NULL, "%zu: %s", i, keel_detail());
    }
}
END_TEST

/* As they are: a change that makes all runs strangers is made on purpose, with the version of the arithmetic.
 */
START_TEST(identities_of_runs_stay_and_end_with_the_version)
{
    struct keel_job job;
    char identity[KEEL_IDENTITY_BYTES];
    ck_ok(load("", NULL, &job));
    keel_job_identity(&job, 1, identity);
    ck_assert_str_eq(identity, "e6f3ab3d060da56388ddcb221a38c6a5854dd903169da63391f8ad83c7350002");
    ck_assert(keel_job_is_arithmetic(identity));
    ck_ok(load("[job]\nname = demo\n[model]\nkind = gpt\nwidth = 64\ndropout = 0.1\ntied = no\n"
               "[data]\nvocab = byte\n[train]\nlr = 0.002\nbatch = 16\n",
               NULL, &job));
    keel_job_identity(&job, 2, identity);
    ck_assert_str_eq(identity, "b78c744c4dc258dbaa66aa03e3a6f79cece9926af9c9ebd3a717b4241a9c0002");
    job.kind = KEEL_MODEL_MOE;
    char other[KEEL_IDENTITY_BYTES];
    keel_job_identity(&job, 2, other);
    ck_assert_str_ne(identity, other);
    ck_ok(load("", NULL, &job));
    keel_job_identity(&job, 1, identity);
    job.optimizer = KEEL_OPTIMIZER_LAMB;
    keel_job_identity(&job, 1, other);
    ck_assert_str_ne(identity, other);
}
END_TEST

/* The golden ones are those of before, when convolutions were canonical in every class, and attention too. */
START_TEST(images_in_a_class_of_numerics_are_other_runs_than_with_canonical_convolutions)
{
    static const struct {
        const char *model, *canonical, *of_class;
    } before[] = {
        {"[model]\nkind = resnet\n", "4c5780388d9b5bf8036230349fea9d2d41ab242b78374bf8ec819825dee20002",
         "62a4be1923a8168db6a1444e7ed3d7a8d4510c107824f07a2c307a3ad43d0002"},
        {"[model]\nkind = vit\n", "a24b515bab0307ea78d7548a5d3a68fd211a0ebd68fd40b27fbfbf79baef0002",
         "b48b34ed67f806e350264ba1a44e91230e55a174415f1ebb0ba8a9ff808c0002"}};
    char identity[KEEL_IDENTITY_BYTES];
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        struct keel_job job;
        ck_ok(load(before[i].model, NULL, &job));
        keel_job_identity(&job, 1, identity);
        ck_assert_str_eq(identity, before[i].canonical);
        ck_ok(load(before[i].model, "job.numerics=exact8x2", &job));
        keel_job_identity(&job, 1, identity);
        ck_assert_str_ne(identity, before[i].of_class);
        ck_assert(keel_job_is_older_class(&job, 1, before[i].of_class));
        ck_assert(!keel_job_is_older_class(&job, 1, before[i].canonical));
        ck_assert(!keel_job_is_older_class(&job, 2, before[i].of_class));
        ck_assert(!keel_job_is_older_class(&job, 1, identity));
    }
}
END_TEST

/* Runs that were begun before there was the key are exact ones: the golden identity above is theirs. */
START_TEST(compressed_gradients_are_part_of_the_identity_and_exact_ones_are_what_was)
{
    static const char *const ways[] = {"train.gradients=exact", "train.gradients=int8",
                                       "train.gradients=topk:0.01", "train.gradients=topk:0.1"};
    struct keel_compression how;
    struct keel_job job;
    char first[KEEL_IDENTITY_BYTES], identity[4][KEEL_IDENTITY_BYTES];
    ck_ok(load("", NULL, &job));
    keel_job_identity(&job, 1, first);
    for (int i = 0; i < 4; i++) {
        ck_ok(load("", ways[i], &job));
        keel_job_identity(&job, 1, identity[i]);
        ck_assert_int_eq(keel_job_compression(&job, &how), i > 0);
        for (int k = 0; k < i; k++)
            ck_assert_str_ne(identity[k], identity[i]);
    }
    ck_assert_str_eq(identity[0], first);
    ck_assert_uint_eq(how.block, KEEL_TOP_K_KEPT * 10);
    ck_ok(load("", "train.gradients=topk:1e-2", &job));
    ck_assert_str_eq(job.gradients, "topk:0.01");
    keel_job_identity(&job, 1, first);
    ck_assert_str_eq(identity[2], first);
    ck_ok(load("", "train.gradients=topk:0.0002", &job));
    ck_assert(keel_job_compression(&job, &how));
    ck_assert_uint_le(how.block, KEEL_TOP_K_BLOCK_MAX);
}
END_TEST

START_TEST(an_identity_of_another_arithmetic_is_known)
{
    /* of version 1, as a run of all defaults had it; cut short; and longer */
    ck_assert(!keel_job_is_arithmetic("0764284c8245bf02c1ae6b61b4fb35d4936f6a27834eb37dd34738c058028cdf"));
    ck_assert(!keel_job_is_arithmetic("0764284c8245bf02c1ae6b61b4fb35d4936f6a27834eb37dd34738c058020003"));
    ck_assert(!keel_job_is_arithmetic("0002"));
    ck_assert(!keel_job_is_arithmetic(""));
    ck_assert(keel_job_is_arithmetic("0764284c8245bf02c1ae6b61b4fb35d4936f6a27834eb37dd34738c058020002"));
}
END_TEST

START_TEST(what_makes_another_run_of_a_job_is_named_with_both_values)
{
    struct keel_job there, here;
    char text[512];
    ck_ok(load("", NULL, &there));
    ck_ok(load("[cluster]\nranks = 3\n[train]\nsteps = 9\ndecay_steps = 300\n[data]\npath = elsewhere\n",
               NULL, &here));
    ck_assert_uint_eq(keel_job_difference(&there, &here, text, sizeof text), 0);
    ck_assert_str_eq(text, "");
    ck_ok(load("[model]\nwidth = 64\n[train]\noptimizer = sgd\n", NULL, &here));
    ck_assert_uint_eq(keel_job_difference(&there, &here, text, sizeof text), 2);
    ck_assert_str_eq(text,
                     "model.width is 128 there and 64 here, train.optimizer is adamw there and sgd here");
    ck_ok(load("[model]\nwidth = 64\nlayers = 2\nbias = no\ntied = no\n[train]\nlr = 0.1\nclip = 0\n", NULL,
               &here));
    ck_assert_uint_eq(keel_job_difference(&there, &here, text, sizeof text), 6);
    ck_assert_ptr_nonnull(strstr(text, ", model.tied is true there and false here, and 2 more"));
    char small[24];
    ck_assert_uint_eq(keel_job_difference(&there, &here, small, sizeof small), 6);
}
END_TEST

START_TEST(a_device_for_each_of_64_ranks_is_written_with_counts)
{
    static const struct {
        uint32_t node;
        const char *device;
    } places[] = {{1, "pocl:0"}, {48, "pocl:0"}, {49, "host"}, {50, "pocl:1"}, {63, "pocl:1"},
                  {64, "host"},  {65, "fpga"},   {66, "fpga"}, {67, "pocl:0"}};
    struct keel_job job;
    char device[KEEL_SELECTOR_BYTES];
    ck_ok(load("[job]\nshards = 64\n[cluster]\nranks = 64\nspares = 2\n"
               "device = 48*pocl:0, host,14* pocl:1 ,host,2*fpga\n",
               NULL, &job));
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        keel_job_device(&job, places[i].node, 0, device);
        ck_assert_str_eq(device, places[i].device);
    }
    ck_ok(load("[job]\nshards = 64\n[cluster]\nranks = 64\nnodes = 2\ndevice = 32*pocl:0,32*host\n", NULL,
               &job));
    keel_job_device(&job, 2, 31, device);
    ck_assert_str_eq(device, "host");
    keel_job_device(&job, 1, 31, device);
    ck_assert_str_eq(device, "pocl:0");
}
END_TEST

START_TEST(counts_of_devices_that_do_not_fit_are_refused)
{
    static const char *const wrong[] = {"cluster.device=2*host",
                                        "cluster.device=4*host",
                                        "cluster.device=0*host",
                                        "cluster.device=0*host,3*host",
                                        "cluster.device=99999*host",
                                        "cluster.device=3*",
                                        "cluster.device=18446744073709551619*host"};
    struct keel_job job;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_status(load("[cluster]\nranks = 3\n", wrong[i], &job), KEEL_INVALID);
    ck_ok(load("[cluster]\nranks = 3\n", "cluster.device=3*host", &job));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_device_for_each_of_64_ranks_is_written_with_counts);
    tcase_add_test(tc, counts_of_devices_that_do_not_fit_are_refused);
    tcase_add_test(tc, what_makes_another_run_of_a_job_is_named_with_both_values);
    tcase_add_test(tc, an_empty_file_gives_the_defaults);
    tcase_add_test(tc, an_override_wins_over_the_file);
    tcase_add_test(tc, the_end_of_a_range_is_in_it_as_written_too);
    tcase_add_test(tc, what_is_written_loads_to_the_same_job);
    tcase_add_loop_test(tc, bad_input_is_refused_by_name, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(tc, text_that_a_job_file_cannot_hold_is_refused);
    tcase_add_test(tc, an_indented_line_is_a_key_and_not_more_of_the_value_above);
    tcase_add_test(tc, a_file_with_a_nul_is_refused_and_not_read_up_to_there);
    tcase_add_test(tc, a_missing_file_is_named);
    tcase_add_loop_test(tc, a_learning_rate_is_a_function_of_the_step, 0,
                        sizeof schedules / sizeof schedules[0]);
    tcase_add_test(tc, microbatches_follow_from_the_samples_of_a_step);
    tcase_add_test(tc, a_difference_is_told_by_the_key_that_was_written);
    tcase_add_test(tc, what_was_best_is_among_the_snapshots_that_stay);
    tcase_add_test(tc, a_constant_rate_does_not_depend_on_the_number_of_steps);
    tcase_add_test(tc, bulk_data_are_sealed_when_the_job_says_so);
    tcase_add_test(tc, identity_follows_what_the_bits_depend_on);
    tcase_add_test(tc, images_in_a_class_of_numerics_are_other_runs_than_with_canonical_convolutions);
    tcase_add_test(tc, compressed_gradients_are_part_of_the_identity_and_exact_ones_are_what_was);
    tcase_add_test(tc, an_identity_of_another_arithmetic_is_known);
    tcase_add_test(tc, identities_of_runs_stay_and_end_with_the_version);
    tcase_add_test(tc, ranks_are_a_product_of_the_axes_or_what_could_be_is_named);
    tcase_add_test(tc, groups_of_owners_divide_the_data_positions_or_what_could_be_is_named);
}

KEEL_TEST_MAIN("job", cases, 10)
