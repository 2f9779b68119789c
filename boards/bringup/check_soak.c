/* check_soak.c - level 6: for as long as one likes (--seconds), the board computes what it computed before.
 *
 * 6.1 runs all golden operations again and again. 6.2 trains a small model again and again, each run in a
 * process of its own (`keel run`), and wants in every step the bits that the host has. */
#include "board_check.h"
#include "check_runner.h"
#include "check_tables.h"
#include "device_fixture.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RESERVE_S = 10, LEAST_RUNS = 2, STEPS = 20, TEXT_BYTES = 30000, FILE_BYTES_MAX = 1 << 20 };

static uint64_t deadline_of(const struct keel_check_run *run)
{
    return keel_check_deadline_ns(run) - RESERVE_S * KEEL_NS_PER_S;
}

/* ---- 6.1 ----------------------------------------------------------------------------------------------- */

static void check_golden(struct keel_check_run *run)
{
    uint64_t seconds = keel_check_options(run)->seconds, since_ns = keel_now_ns(), rounds = 0;
    uint64_t until_ns = since_ns + seconds * KEEL_NS_PER_S;
    struct keel_device_fixture fixture = {0};
    if (!keel_check_able(run, keel_device_fixture_open(keel_check_options(run)->board, &fixture),
                         "the board"))
        return;
    enum keel_status status;
    do {
        char what[64];
        snprintf(what, sizeof what, "round %" PRIu64 " of golden operations", rounds + 1);
        keel_check_progress(run, (keel_now_ns() - since_ns) / KEEL_NS_PER_S, seconds, what);
        status = keel_device_fixture_goldens(&fixture, deadline_of(run));
        if (!keel_check_ok(run, status, what))
            break;
        rounds++;
    } while (keel_now_ns() < until_ns);
    keel_check_note(run, "%" PRIu64 " rounds of %" PRIu32 " golden operations", rounds, keel_golden_count());
    if (status != KEEL_TIMEOUT) /* what still computes keeps its memory to the end of this process */
        keel_device_fixture_close(&fixture);
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

static enum keel_status run_job(const char *job_path, const char *out, const char *log_path,
                                uint64_t deadline_ns)
{
    char self[KEEL_PATH_BYTES];
    struct keel_process process;
    struct keel_process_end end = {0};
    KEEL_TRY(keel_self_path(self, sizeof self));
    char *argv[] = {self, (char *)"run", (char *)job_path, (char *)"--out", (char *)out, NULL};
    FILE *log = fopen(log_path, "we");
    if (log == NULL)
        return keel_fail(KEEL_IO, "%s cannot be written", log_path);
    enum keel_status status = keel_process_spawn(argv, NULL, 0, fileno(log), &process);
    fclose(log);
    KEEL_TRY(status);
    status = keel_process_wait(&process, deadline_ns, &end);
    if (status != KEEL_OK) {
        (void)keel_process_signal(&process, SIGKILL);
        (void)keel_process_wait(&process, keel_deadline_after_ns(KEEL_NS_PER_S), &end);
    }
    keel_process_close(&process);
    KEEL_TRY(status);
    if (end.signaled || end.code != 0)
        return keel_fail(KEEL_IO, "the run ended with %s %d", end.signaled ? "signal" : "code", end.code);
    return KEEL_OK;
}

/* The last words of a run that failed, behind what it failed with. */
static enum keel_status quote_log(enum keel_status status, const char *log_path)
{
    char why[KEEL_DETAIL_BYTES], *text;
    size_t bytes;
    snprintf(why, sizeof why, "%s", keel_detail());
    if (keel_file_read(log_path, FILE_BYTES_MAX, &text, &bytes) != KEEL_OK)
        return keel_fail(status, "%s", why);
    const char *tail = bytes > 300 ? text + bytes - 300 : text;
    keel_fail(status, "%.150s: %s", why, tail);
    keel_free(text);
    return status;
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
    char path[KEEL_PATH_BYTES], out[KEEL_PATH_BYTES], log[KEEL_PATH_BYTES], text[2 * KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, folder, "job.conf"));
    KEEL_TRY(keel_path_join(out, folder, name));
    KEEL_TRY(keel_path_join(log, folder, "log"));
    snprintf(text, sizeof text, job, folder, STEPS, device);
    KEEL_TRY(keel_file_replace(path, text, strlen(text), 0600));
    enum keel_status status = run_job(path, out, log, deadline_ns);
    if (status != KEEL_OK)
        return quote_log(status, log);
    status = read_bits(out, bits);
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
    uint64_t seconds = keel_check_options(run)->seconds, since_ns = keel_now_ns(), runs = 0;
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
        good =
            keel_check_able(
                run, train(folder, "board", keel_check_options(run)->board, deadline_of(run), &bits), what) &&
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
    if (mkdtemp(folder) == NULL) {
        keel_check_cannot(run, "/tmp takes no folder");
        return;
    }
    soak(run, folder);
    (void)keel_remove_tree(folder);
}

const struct keel_check keel_checks_soak[] = {
    {"6.1", "golden-soak", "golden operations stay right for as long as asked", NULL, 600, true,
     check_golden},
    {"6.2", "training-soak", "training has the host's bits in every step of every run", "6.1", 600, true,
     check_training},
    {NULL, NULL, NULL, NULL, 0, false, NULL},
};
