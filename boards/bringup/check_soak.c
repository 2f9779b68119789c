/* check_soak.c - level 6: for as long as one likes (--seconds), the board computes what it computed before.
 *
 * 6.1 runs all golden operations again and again. 6.2 trains a small model again and again, each run in a
 * process of its own (`keel run`), and wants in every step the bits that the host has. */
#include "check_runner.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/command.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RESERVE_S = 10, LEAST_RUNS = 2, STEPS = 20, TEXT_BYTES = 30000, FILE_BYTES_MAX = 1 << 20 };

static uint64_t deadline_of(const struct keel_check_run *run)
{
    return run->deadline_ns - RESERVE_S * KEEL_NS_PER_S;
}

/* ---- 6.1 ----------------------------------------------------------------------------------------------- */

static void check_golden(struct keel_check_run *run)
{
    uint64_t seconds = run->options->seconds, since_ns = keel_now_ns(), rounds = 0;
    do {
        char what[64];
        snprintf(what, sizeof what, "round %" PRIu64 " of golden operations", rounds + 1);
        keel_check_progress(run, (keel_now_ns() - since_ns) / KEEL_NS_PER_S, seconds, what);
        if (!keel_check_ok(run, keel_device_fixture_goldens(&run->on, deadline_of(run)), what))
            break;
        rounds++;
    } while (keel_now_ns() < since_ns + seconds * KEEL_NS_PER_S);
    keel_check_note(run, "%" PRIu64 " rounds of %" PRIu32 " golden operations", rounds,
                    keel_golden_count(keel_kernels_class(run->on.kernels)));
}

/* ---- 6.2 ----------------------------------------------------------------------------------------------- */

static const char job[] = "[job]\nname = soak\nshards = 1\n"
                          "[model]\nlayers = 2\nheads = 2\nwidth = 64\nblock = 32\ndropout = 0.1\n"
                          "[data]\npath = %s/text\n"
                          "[train]\nsteps = %d\nbatch = 2\nwarmup_steps = 2\neval_every = 0\n"
                          "[snapshot]\nevery = 0\n"
                          "[cluster]\ndevice = %s\nranks = 1\nrespawn = no\n";

/* Something to read: words of letters, the same everywhere. */
static enum keel_status write_text(const char *folder)
{
    char path[KEEL_PATH_BYTES], *text;
    uint32_t word = 1;
    KEEL_TRY(keel_path_join(path, folder, "text"));
    KEEL_TRY(keel_alloc(TEXT_BYTES, 1, &text));
    for (uint32_t i = 0; i < TEXT_BYTES; i++) {
        word = word * 1664525u + 1013904223u;
        text[i] = (word >> 28) == 0 ? ' ' : (char)('a' + (word >> 24) % 16);
    }
    enum keel_status status = keel_file_replace(path, text, TEXT_BYTES, 0600);
    keel_free(text);
    return status;
}

/* `keel run`; its last words stand behind what it failed with. */
static enum keel_status run_job(const char *job_path, const char *out, uint64_t deadline_ns)
{
    char self[KEEL_PATH_BYTES], why[KEEL_DETAIL_BYTES], tail[300];
    struct keel_process_end end = {0};
    KEEL_TRY(keel_self_path(self, sizeof self));
    const char *const argv[] = {self, "run", job_path, "--out", out, NULL};
    int log = memfd_create("keel-soak", MFD_CLOEXEC);
    if (log < 0)
        return keel_fail_errno(errno, "a run cannot be started");
    enum keel_status status = keel_process_run(argv, NULL, 0, log, deadline_ns, &end);
    if (status == KEEL_OK)
        status = keel_process_succeeded(&end, "keel run");
    snprintf(why, sizeof why, "%s", keel_detail());
    keel_read_tail(log, tail, sizeof tail);
    close(log);
    return status == KEEL_OK ? KEEL_OK : keel_fail(status, "%.150s: %s", why, tail);
}

static enum keel_status read_bits(const char *out, char **bits)
{
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    KEEL_TRY(keel_path_join(path, out, "metrics.jsonl"));
    KEEL_TRY(keel_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    enum keel_status status = keel_check_bits(text, STEPS, bits);
    keel_free(text);
    return status;
}

/* One run on a device; its bits, heap. */
static enum keel_status train(const char *folder, const char *name, const char *device, uint64_t deadline_ns,
                              char **bits)
{
    char path[KEEL_PATH_BYTES], out[KEEL_PATH_BYTES], text[2 * KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, folder, "job.conf"));
    KEEL_TRY(keel_path_join(out, folder, name));
    snprintf(text, sizeof text, job, folder, STEPS, device);
    KEEL_TRY(keel_file_replace(path, text, strlen(text), 0600));
    KEEL_TRY(run_job(path, out, deadline_ns));
    enum keel_status status = read_bits(out, bits);
    (void)keel_remove_tree(out); /* what stays is removed with the folder */
    return status;
}

static bool same_as_host(struct keel_check_run *run, const char *bits, const char *host)
{
    uint32_t step = 1;
    for (; *bits == *host && *bits != '\0'; bits++, host++)
        step += *bits == '\n' ? 1 : 0;
    if (*bits != *host)
        keel_check_fail(run, "step %" PRIu32 " of a run has other bits than on the host", step);
    return *bits == *host;
}

static void soak(struct keel_check_run *run, const char *folder)
{
    uint64_t seconds = run->options->seconds, since_ns = keel_now_ns(), runs = 0;
    uint64_t until_ns = since_ns + seconds * KEEL_NS_PER_S;
    char *host = NULL, *bits = NULL;
    keel_check_progress(run, 0, seconds, "the run on the host");
    if (!keel_check_able(run, write_text(folder), "a text to train on") ||
        !keel_check_able(run, train(folder, "host", "host", deadline_of(run), &host), "a run on the host"))
        return;
    bool good = true;
    while (good && (runs < LEAST_RUNS || keel_now_ns() < until_ns)) {
        char what[64];
        snprintf(what, sizeof what, "run %" PRIu64, runs + 1);
        keel_check_progress(run, (keel_now_ns() - since_ns) / KEEL_NS_PER_S, seconds, what);
        good = keel_check_able(run, train(folder, "board", run->options->board, deadline_of(run), &bits),
                               what) &&
               bits != NULL && same_as_host(run, bits, host);
        keel_free(bits);
        bits = NULL;
        runs += good ? 1 : 0;
    }
    keel_check_note(run, "%" PRIu64 " runs of %d steps with the bits of the host", runs, STEPS);
    keel_free(host);
}

static void check_training(struct keel_check_run *run)
{
    char folder[] = "/tmp/keel-soak-XXXXXX";
    if (keel_command_program() != NULL) {
        keel_check_cannot(run, "%s has no training; check 6.2 with the program keel", keel_command_program());
        return;
    }
    if (mkdtemp(folder) == NULL) {
        keel_check_cannot(run, "/tmp takes no folder");
        return;
    }
    soak(run, folder);
    (void)keel_remove_tree(folder);
}

const struct keel_check keel_checks_soak[] = {
    {"6.1", "golden-soak", "golden operations stay right for as long as asked", NULL, 600, KEEL_OPENS_KERNELS,
     check_golden},
    {"6.2", "training-soak", "training has the host's bits in every step of every run", "6.1", 600,
     KEEL_OPENS_NOTHING, check_training},
    {.id = NULL},
};
