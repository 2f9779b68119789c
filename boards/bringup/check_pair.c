/* check_pair.c - level 8: with a second board, in a process of its own, sums and exchanges of device memory
 * have the right bits. */
#include "board_check.h"
#include "check_tables.h"
#include "member.h"
#include <inttypes.h>
#include <keel/clock.h>

enum { PAIR = 2, RESERVE_S = 5 };

/* Tell each where the other is, and hear how it went. */
static bool lead(struct keel_check_run *run, struct keel_member members[PAIR])
{
    uint64_t deadline_ns = keel_check_deadline_ns(run) - RESERVE_S * KEEL_NS_PER_S, hashes[PAIR];
    struct keel_member_word word, both = {.kind = KEEL_MEMBER_ADDRESS};
    keel_check_progress(run, 1, 3, "both boards are opened");
    for (uint32_t i = 0; i < PAIR; i++) {
        if (!keel_check_able(run, keel_member_hear(&members[i], deadline_ns, &word),
                             i == 0 ? "this board" : "the second board"))
            return false;
        both.addresses[i] = word.addresses[i];
    }
    keel_check_progress(run, 2, 3, "sums and exchanges");
    for (uint32_t i = 0; i < PAIR; i++)
        if (!keel_check_ok(run, keel_member_tell(&members[i], &both), "meeting"))
            return false;
    for (uint32_t i = 0; i < PAIR; i++) {
        if (!keel_check_ok(run, keel_member_hear(&members[i], deadline_ns, &word),
                           i == 0 ? "this board" : "the second board"))
            return false;
        hashes[i] = word.value;
    }
    if (hashes[0] != hashes[1])
        keel_check_fail(run, "the sums differ: %016" PRIx64 " here, %016" PRIx64 " there", hashes[0],
                        hashes[1]);
    return hashes[0] == hashes[1];
}

static void check_exchange(struct keel_check_run *run)
{
    const struct keel_check_options *options = keel_check_options(run);
    const char *const boards[PAIR] = {options->board, options->peer};
    static const char *const ranks[PAIR] = {"0", "1"};
    struct keel_member members[PAIR];
    if (options->peer == NULL) {
        keel_check_cannot(run, "it takes a second board: name one by --peer (the same one will do)");
        return;
    }
    uint32_t started = 0;
    while (started < PAIR &&
           keel_check_ok(run, keel_member_start("pair", boards[started], ranks[started], &members[started]),
                         "a process for each board"))
        started++;
    if (started == PAIR && lead(run, members))
        keel_check_note(run, "%s and %s: an all-reduce and an all-gather of 100003 floats", boards[0],
                        boards[1]);
    while (started > 0)
        keel_member_end(&members[--started]);
}

const struct keel_check keel_checks_pair[] = {
    {"8.1", "exchange", "two boards sum and exchange device memory with the right bits", NULL, 600, false,
     check_exchange},
    {NULL, NULL, NULL, NULL, 0, false, NULL},
};
