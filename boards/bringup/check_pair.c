/* check_pair.c - level 8: with a second board, in a process of its own, sums and exchanges of device memory
 * have the right bits, and one of them outlives the other. */
#include "board_check.h"
#include "helper_process.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <signal.h>

enum { PAIR = 2, RESERVE_S = 5, OUTLIVE_S = 30 };

static const char *const sides[PAIR] = {"this board", "the second board"};

static uint64_t deadline_of(const struct keel_check_run *run)
{
    return run->deadline_ns - RESERVE_S * KEEL_NS_PER_S;
}

/* A process for each board, and where each finds the other. */
static bool start(struct keel_check_run *run, const char *what, struct keel_helper_process helpers[PAIR],
                  uint32_t *started)
{
    static const char *const ranks[PAIR] = {"0", "1"};
    const struct keel_check_options *options = run->options;
    const char *const boards[PAIR] = {options->board, options->peer};
    struct keel_helper_word word, both = {.kind = KEEL_HELPER_ADDRESS};
    if (options->peer == NULL) {
        keel_check_cannot(run, "it takes a second board: name one by --peer (the same one will do)");
        return false;
    }
    keel_check_progress(run, 0, 0, "both boards are opened");
    for (; *started < PAIR; (*started)++)
        if (!keel_check_ok(run,
                           keel_helper_start(what, boards[*started], ranks[*started], &helpers[*started]),
                           "a process for each board"))
            return false;
    for (uint32_t i = 0; i < PAIR; i++) {
        if (!keel_check_able(run, keel_helper_hear(&helpers[i], deadline_of(run), &word), sides[i]))
            return false;
        both.addresses[i] = word.addresses[i];
    }
    for (uint32_t i = 0; i < PAIR; i++)
        if (!keel_check_ok(run, keel_helper_tell(&helpers[i], &both), "meeting"))
            return false;
    return true;
}

/* ---- 8.1 ----------------------------------------------------------------------------------------------- */

static void exchange(struct keel_check_run *run, struct keel_helper_process helpers[PAIR])
{
    uint64_t hashes[PAIR];
    struct keel_helper_word word;
    keel_check_progress(run, 0, 0, "sums and exchanges");
    for (uint32_t i = 0; i < PAIR; i++) {
        if (!keel_check_ok(run, keel_helper_hear(&helpers[i], deadline_of(run), &word), sides[i]))
            return;
        hashes[i] = word.value;
    }
    if (hashes[0] != hashes[1])
        keel_check_fail(run, "the sums differ: %016" PRIx64 " here, %016" PRIx64 " there", hashes[0],
                        hashes[1]);
    keel_check_note(run, "%s and %s: an all-reduce and an all-gather of 100003 floats", run->options->board,
                    run->options->peer);
}

/* ---- 8.2 ----------------------------------------------------------------------------------------------- */

static void outlive(struct keel_check_run *run, struct keel_helper_process helpers[PAIR])
{
    struct keel_helper_word word;
    keel_check_progress(run, 0, 0, "sums until one is gone");
    for (uint32_t i = 0; i < PAIR; i++)
        if (!keel_check_ok(run, keel_helper_hear(&helpers[i], deadline_of(run), &word), sides[i]))
            return;
    uint64_t since_ns = keel_now_ns();
    if (!keel_check_ok(run, keel_process_signal(&helpers[1].process, SIGKILL), sides[1]) ||
        !keel_check_ok(run, keel_helper_hear(&helpers[0], since_ns + OUTLIVE_S * KEEL_NS_PER_S, &word),
                       "this board, left alone"))
        return;
    keel_check_note(run, "left alone and right again after %.2f s", (double)(keel_now_ns() - since_ns) / 1e9);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static void with_pair(struct keel_check_run *run, const char *what,
                      void (*part)(struct keel_check_run *, struct keel_helper_process *))
{
    struct keel_helper_process helpers[PAIR];
    uint32_t started = 0;
    if (start(run, what, helpers, &started))
        part(run, helpers);
    while (started > 0)
        keel_helper_end(&helpers[--started]);
}

static void check_exchange(struct keel_check_run *run)
{
    with_pair(run, "pair", exchange);
}

static void check_outlive(struct keel_check_run *run)
{
    with_pair(run, "outlive", outlive);
}

const struct keel_check keel_checks_pair[] = {
    {"8.1", "exchange", "two boards sum and exchange device memory with the right bits", NULL, 600,
     KEEL_OPENS_NOTHING, check_exchange},
    {"8.2", "outlive", "a board whose partner dies amid a sum hears of it, and goes on right", "8.1", 600,
     KEEL_OPENS_NOTHING, check_outlive},
    {.id = NULL},
};
