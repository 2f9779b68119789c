/* net_cmd_check.c - `keel net check`: every operation, on several ranks, compared with what it must give.
 * This file is its command line and its host; the ranks' work is net_check.c. */
#include "net_check.h"

#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>
#include <unistd.h>

enum { WRONG_TEXTS = 16 };

struct own {
    struct keel_net_rendezvous rendezvous; /* first */
    const char *operation;
    bool full;
};

/* What all ranks together say about one operation. */
struct row {
    struct keel_net_check_count
        count;      /* cases and cannot: as rank 0 counts; wrong, time: of the worst rank */
    uint32_t ranks; /* that have told */
};

struct judging {
    const struct keel_command *cmd;
    uint32_t world;
    uint64_t total, begun_ns;
    struct row rows[KEEL_COLLECTIVE_COUNT];
    char wrong[WRONG_TEXTS][KEEL_NET_CHECK_TEXT_BYTES + 32];
    uint32_t wrong_count;
    bool terminal;
};

/* The filter that the command line asks for; false: no such operation. */
static bool filter_of(const struct own *own, struct keel_net_case_filter *out)
{
    *out = (struct keel_net_case_filter){.kind = -1, .full = own->full};
    if (own->operation == NULL)
        return true;
    for (uint32_t k = 0; k < KEEL_COLLECTIVE_COUNT; k++)
        if (k != KEEL_RECEIVE && strcmp(own->operation, keel_collective_name(k)) == 0)
            out->kind = (int32_t)k;
    return out->kind >= 0;
}

/* ---- hearing the ranks ---- */

static enum keel_status count_one(void *context, const struct keel_net_case *it)
{
    (void)it;
    (*(uint64_t *)context)++;
    return KEEL_OK;
}

static void met(void *context, uint32_t world)
{
    struct judging *judging = context;
    struct keel_net_case_filter filter;
    judging->world = world;
    judging->begun_ns = keel_now_ns();
    if (filter_of(keel_command_own(judging->cmd), &filter))
        keel_net_cases_each(world, &filter, count_one, &judging->total);
    if (judging->terminal)
        fprintf(stderr, "check: %" PRIu32 " ranks have met, %" PRIu64 " cases", world, judging->total);
}

static bool take_count(struct judging *judging, uint32_t rank, const void *payload, uint32_t bytes)
{
    struct keel_net_check_count count;
    if (bytes != sizeof count)
        return false;
    memcpy(&count, payload, sizeof count);
    if (count.kind >= KEEL_COLLECTIVE_COUNT)
        return false;
    struct row *row = &judging->rows[count.kind];
    if (rank == 0) {
        row->count.cases = count.cases;
        row->count.cannot = count.cannot;
    }
    if (count.wrong > row->count.wrong)
        row->count.wrong = count.wrong;
    if (count.took_ns > row->count.took_ns)
        row->count.took_ns = count.took_ns;
    row->ranks++;
    return true;
}

static bool take_wrong(struct judging *judging, uint32_t rank, const char *text, uint32_t bytes)
{
    if (bytes == 0 || bytes > KEEL_NET_CHECK_TEXT_BYTES || text[bytes - 1] != '\0')
        return false;
    if (judging->wrong_count < WRONG_TEXTS)
        snprintf(judging->wrong[judging->wrong_count++], sizeof judging->wrong[0], "rank %" PRIu32 ": %s",
                 rank, text);
    return true;
}

static bool take_step(const struct judging *judging, const void *payload, uint32_t bytes)
{
    uint64_t done;
    if (bytes != sizeof done)
        return false;
    memcpy(&done, payload, sizeof done);
    if (judging->terminal)
        fprintf(stderr, "\rcheck: %" PRIu32 " ranks, %" PRIu64 " of %" PRIu64 " cases   ", judging->world,
                done, judging->total);
    return true;
}

static bool frame(void *context, uint32_t rank, uint32_t kind, const uint8_t *payload, uint32_t bytes)
{
    struct judging *judging = context;
    if (kind == KEEL_NET_CHECK_DONE)
        return take_count(judging, rank, payload, bytes);
    if (kind == KEEL_NET_CHECK_WRONG)
        return take_wrong(judging, rank, (const char *)payload, bytes);
    return kind == KEEL_NET_CHECK_STEP && take_step(judging, payload, bytes);
}

/* ---- the verdict ---- */

static uint64_t right_of(const struct row *row)
{
    uint64_t not_right = row->count.wrong + row->count.cannot;
    return row->count.cases > not_right ? row->count.cases - not_right : 0;
}

static void print_table(const struct judging *judging, const char *verdict)
{
    printf("%-16s %8s %8s %8s %8s %8s\n", "operation", "cases", "right", "wrong", "cannot", "seconds");
    for (uint32_t k = 0; k < KEEL_COLLECTIVE_COUNT; k++) {
        const struct row *row = &judging->rows[k];
        if (row->ranks > 0)
            printf("%-16s %8" PRIu64 " %8" PRIu64 " %8" PRIu64 " %8" PRIu64 " %8.2f%s\n",
                   keel_collective_name(k), row->count.cases, right_of(row), row->count.wrong,
                   row->count.cannot, (double)row->count.took_ns / 1e9,
                   row->ranks < judging->world ? "  (not by all ranks)" : "");
    }
    for (uint32_t k = 0; k < judging->wrong_count; k++)
        printf("wrong: %s\n", judging->wrong[k]);
    printf("%s: %" PRIu32 " ranks, %.1f s\n", verdict, judging->world,
           (double)(keel_now_ns() - judging->begun_ns) / 1e9);
}

static void print_json(const struct judging *judging, const char *verdict)
{
    const struct own *own = keel_command_own(judging->cmd);
    struct keel_json json = keel_command_json(stdout);
    keel_json_text(&json, "verdict", verdict);
    keel_json_number(&json, "ranks", judging->world);
    keel_json_text(&json, "carrier", own->rendezvous.carrier);
    keel_json_open(&json, "operations", '[');
    for (uint32_t k = 0; k < KEEL_COLLECTIVE_COUNT; k++) {
        const struct row *row = &judging->rows[k];
        if (row->ranks == 0)
            continue;
        keel_json_open(&json, NULL, '{');
        keel_json_text(&json, "operation", keel_collective_name(k));
        keel_json_number(&json, "cases", row->count.cases);
        keel_json_number(&json, "right", right_of(row));
        keel_json_number(&json, "wrong", row->count.wrong);
        keel_json_number(&json, "cannot", row->count.cannot);
        keel_json_number(&json, "ranks", row->ranks);
        keel_json_real(&json, "seconds", (double)row->count.took_ns / 1e9, 3);
        keel_json_close(&json, '}');
    }
    keel_json_close(&json, ']');
    keel_json_open(&json, "wrong", '[');
    for (uint32_t k = 0; k < judging->wrong_count; k++)
        keel_json_text(&json, NULL, judging->wrong[k]);
    keel_json_close(&json, ']');
    keel_command_json_end(&json);
}

/* All operations, by all ranks, without a wrong element. */
static enum keel_status verdict_of(const struct judging *judging, enum keel_status status)
{
    uint64_t cases = 0;
    for (uint32_t k = 0; k < KEEL_COLLECTIVE_COUNT; k++) {
        if (judging->rows[k].count.wrong > 0)
            return KEEL_MISMATCH;
        cases += judging->rows[k].ranks == judging->world ? judging->rows[k].count.cases : 0;
    }
    if (status == KEEL_OK && cases != judging->total)
        return KEEL_INTERNAL;
    return status;
}

static enum keel_status rank_work(struct keel_net_rank *rank)
{
    struct keel_net_case_filter filter;
    if (!filter_of(keel_command_own(rank->cmd), &filter))
        return keel_fail(KEEL_INVALID, "no such operation");
    return keel_net_check_rank(rank, &filter);
}

static int run(const struct keel_command *cmd)
{
    const struct own *own = keel_command_own(cmd);
    struct keel_net_case_filter filter;
    struct judging *judging;
    enum keel_status status = KEEL_OK;
    int code = 0;
    if (!filter_of(own, &filter))
        return keel_net_report(keel_command_wrong_value(cmd, "--op"));
    status = keel_alloc(1, sizeof *judging, &judging);
    if (status != KEEL_OK)
        return keel_net_report(status);
    judging->cmd = cmd;
    judging->terminal = isatty(STDERR_FILENO) == 1;
    struct keel_net_work work = {.rank = rank_work, .frame = frame, .met = met, .context = judging};
    if (keel_net_rendezvous_run(cmd, &own->rendezvous, &work, &code, &status)) {
        enum keel_status verdict = verdict_of(judging, status);
        const char *word = verdict == KEEL_OK ? "right" : verdict == KEEL_MISMATCH ? "wrong" : "failed";
        if (judging->terminal)
            fputs("\r\033[K", stderr);
        if (cmd->json)
            print_json(judging, word);
        else if (judging->world > 0)
            print_table(judging, word);
        code = keel_status_exit_code(verdict);
    }
    keel_free(judging);
    return code;
}

static void begin(void *own)
{
    keel_net_rendezvous_begin(&((struct own *)own)->rendezvous);
}

static const struct keel_command_option options[] = {
    {"--op", "NAME", KEEL_COMMAND_TEXT, offsetof(struct own, operation),
     "only this one of " KEEL_NET_OPERATIONS ",all-gather-v,all-to-all-v,barrier,send"},
    {"--full", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, full),
     "every element and reduction in every size, from every root (of few ranks)"},
    KEEL_NET_RENDEZVOUS_OPTIONS(struct own, rendezvous),
    {.name = NULL}};

const struct keel_command_kind keel_net_check = {
    .name = "check",
    .operands = "",
    .summary = "run every operation on several ranks and compare each result with what it must be",
    .details =
        "Every operation, element, reduction, order, root and algorithm, with odd counts and none, from 0 "
        "to\n"
        "4 MiB and more. Exact sums must have the same bits by every algorithm; native ones be within their\n"
        "rounding. Without --join or --hosts the ranks are processes of this machine. Wrong results: exit "
        "code 4.\n"
        "`cannot` counts what an algorithm does not do, or not with 256 connections a rank (automatic "
        "choice\n"
        "must do all but an all-to-all-v of more ranks).\n"
        "Several nodes: the same command on each, with --join, --rank, --world, --key; or --hosts on one.\n",
    .examples = "  keel net check\n"
                "  keel net check --ranks 64 --op all-reduce --carrier tcp\n"
                "  keel net check --hosts nodes.txt --join 10.0.0.1:0 --key job.key\n"
                "  keel net check --join 10.0.0.1:7000 --rank 3 --world 8 --key job.key\n",
    .options = options,
    .begin = begin,
    .run = run};
