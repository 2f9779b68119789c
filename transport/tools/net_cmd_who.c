/* net_cmd_who.c - `keel net who`: whom everybody waits for, from the recordings of this host or of files. */
#include "hang_analysis.h"
#include "net_cmd.h"

#include <inttypes.h>
#include <keel/clock.h>

#define BETWEEN_LOOKS_NS (200 * KEEL_NS_PER_MS)

struct own {
    const char *directory;
    bool all;
};

/* ---- for people ---------------------------------------------------------------------------------------- */

static void print_rank(const struct keel_hang_analysis_group *group, uint32_t number)
{
    const struct keel_hang_analysis_rank *rank = &group->ranks[number];
    char text[320] = "";
    const struct keel_record_operation *operation = rank->operation;
    if (rank->recording == NULL) {
        printf("  rank %-4" PRIu32 " %s\n", number, keel_hang_analysis_state_text(rank->state));
        return;
    }
    printf("  rank %-4" PRIu32 " process %-8" PRIu32 " %s", number, rank->recording->record.header.pid,
           keel_hang_analysis_state_text(rank->state));
    if (operation != NULL && operation->state == KEEL_RECORD_LIVE) {
        uint64_t age_ns = keel_hang_analysis_age_ns(rank->recording, operation->begun_ns);
        keel_record_operation_text(operation, operation->begun_ns + age_ns, text, sizeof text);
        printf(": %s", text);
    } else if (rank->last != NULL) {
        char age[32];
        keel_format_ns(keel_hang_analysis_age_ns(rank->recording, rank->last->at_ns), age);
        printf(": last heard of in %s %" PRIu64 ", %s ago", keel_collective_name(rank->last->kind),
               rank->last->sequence, age);
    }
    putchar('\n');
}

static void print_group(const struct keel_hang_analysis_group *group, bool all)
{
    char text[512];
    printf("group %016" PRIx64 ", epoch %" PRIu64 ", %" PRIu32 " ranks: ", group->identity, group->epoch,
           group->rank_count);
    if (group->operation == NULL) {
        puts(group->living ? "nothing is in flight" : "all that left a recording are dead");
        return;
    }
    if (!group->living && !all) {
        keel_record_operation_name(group->operation, text, sizeof text);
        printf("all that left a recording are dead, in %s; --all says more\n", text);
        return;
    }
    printf("%" PRIu32 " in flight, %" PRIu32 " ranks wait%s\n", group->in_flight, group->waiting_count,
           group->moves ? "; it moves" : "; nothing moves");
    for (uint32_t k = 0; k < group->culprit_count; k++) {
        keel_hang_analysis_culprit_text(group, group->culprits[k], text, sizeof text);
        printf("%s%s\n", k == 0 ? "> " : "  ", text);
    }
    if (group->culprit_count == 0 && group->waiting_count > 0)
        puts(group->moves ? "> nobody in particular" : "> they wait for each other");
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        if (all || group->rank_count <= 16)
            print_rank(group, rank);
}

/* ---- for programs -------------------------------------------------------------------------------------- */

static void json_operation(struct keel_json *json, const struct keel_record_operation *operation)
{
    keel_json_open(json, "operation", '{');
    keel_json_text(json, "kind", keel_collective_name(operation->kind));
    keel_json_number(json, "sequence", operation->sequence);
    keel_json_number(json, "bytes", operation->bytes);
    keel_json_text(json, "element", keel_element_name(operation->element));
    keel_json_text(json, "algorithm", keel_algorithm_name(operation->algorithm));
    keel_json_number(json, "segments", operation->segments);
    keel_json_close(json, '}');
}

static void json_rank(struct keel_json *json, const struct keel_hang_analysis_group *group, uint32_t number)
{
    static const char *const states[KEEL_HANG_ANALYSIS_STATE_COUNT] = {
        "dead", "stopped", "not begun", "unseen", "failed", "left", "working", "waiting", "done"};
    const struct keel_hang_analysis_rank *rank = &group->ranks[number];
    const struct keel_record_operation *operation = rank->operation;
    keel_json_open(json, NULL, '{');
    keel_json_number(json, "rank", number);
    keel_json_text(json, "state", states[rank->state]);
    keel_json_number(json, "waited_by", rank->waited_by);
    if (rank->recording != NULL) {
        keel_json_number(json, "process", rank->recording->record.header.pid);
        keel_json_text(json, "host", rank->recording->record.header.host);
    }
    if (operation != NULL) {
        keel_json_number(json, "segment", operation->segment);
        keel_json_text(json, "wants", keel_record_want_text(operation->want));
        keel_json_text(json, "status", keel_status_name(operation->status));
        keel_json_open(json, "of", '[');
        for (uint32_t k = 0; operation->want != KEEL_RECORD_WANT_NOTHING && k < KEEL_RECORD_AWAITED &&
                             k < operation->awaited_count;
             k++)
            keel_json_number(json, NULL, operation->awaited[k]);
        keel_json_close(json, ']');
    }
    keel_json_close(json, '}');
}

static void json_group(struct keel_json *json, const struct keel_hang_analysis_group *group)
{
    char text[512];
    keel_json_open(json, NULL, '{');
    snprintf(text, sizeof text, "%016" PRIx64, group->identity);
    keel_json_text(json, "group", text);
    keel_json_number(json, "epoch", group->epoch);
    keel_json_number(json, "rank_count", group->rank_count);
    keel_json_number(json, "in_flight", group->in_flight);
    if (group->operation != NULL) {
        json_operation(json, group->operation);
        keel_json_number(json, "segment", group->segment);
        keel_json_number(
            json, "begun_ns_ago",
            keel_hang_analysis_age_ns(group->ranks[group->owner].recording, group->operation->begun_ns));
        keel_json_number(json, "waiting", group->waiting_count);
        keel_json_bool(json, "living", group->living);
        keel_json_bool(json, "moves", group->moves);
        keel_json_open(json, "awaited", '[');
        for (uint32_t k = 0; k < group->culprit_count; k++) {
            keel_hang_analysis_culprit_text(group, group->culprits[k], text, sizeof text);
            keel_json_open(json, NULL, '{');
            keel_json_number(json, "rank", group->culprits[k]);
            keel_json_text(json, "text", text);
            keel_json_close(json, '}');
        }
        keel_json_close(json, ']');
    }
    keel_json_open(json, "ranks", '[');
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        json_rank(json, group, rank);
    keel_json_close(json, ']');
    keel_json_close(json, '}');
}

static void print_json(const struct keel_hang_analysis *who, const struct keel_recordings *recordings)
{
    struct keel_json json = keel_command_json(stdout);
    keel_json_number(&json, "recordings", recordings->count);
    keel_json_number(&json, "unreadable", recordings->unreadable);
    keel_json_open(&json, "groups", '[');
    for (size_t k = 0; k < who->group_count; k++)
        json_group(&json, &who->groups[k]);
    keel_json_close(&json, ']');
    keel_command_json_end(&json);
}

/* ---- the command --------------------------------------------------------------------------------------- */

static enum keel_status load(const struct keel_command *cmd, struct keel_recordings *out)
{
    const struct own *own = keel_command_own(cmd);
    struct keel_recordings recordings = {.count = 0};
    enum keel_status status = KEEL_OK;
    if (cmd->operand_count == 0)
        status = keel_recordings_find(own->directory, &recordings);
    for (uint32_t k = 0; k < cmd->operand_count && status == KEEL_OK; k++)
        status = keel_recordings_add(&recordings, cmd->operands[k]);
    if (status == KEEL_OK && recordings.count == 0)
        status =
            keel_fail(KEEL_NOT_FOUND, "no recordings%s%s: no process of this user has an endpoint open here",
                      own->directory != NULL ? " in " : "", own->directory != NULL ? own->directory : "");
    if (status != KEEL_OK)
        keel_recordings_free(&recordings);
    else
        *out = recordings;
    return status;
}

static int run(const struct keel_command *cmd)
{
    const struct own *own = keel_command_own(cmd);
    struct keel_recordings recordings;
    struct keel_hang_analysis who;
    enum keel_status status = load(cmd, &recordings);
    if (status != KEEL_OK)
        return keel_net_report(status);
    keel_sleep_until_ns(keel_deadline_after_ns(BETWEEN_LOOKS_NS));
    for (uint32_t k = 0; k < recordings.count; k++)
        keel_recording_refresh(recordings.at[k]);
    status = keel_hang_analysis_judge(&recordings, &who);
    if (status == KEEL_OK && cmd->json)
        print_json(&who, &recordings);
    for (size_t k = 0; status == KEEL_OK && !cmd->json && k < who.group_count; k++)
        print_group(&who.groups[k], own->all);
    if (status == KEEL_OK && !cmd->json && who.group_count == 0)
        printf("%" PRIu32 " recordings, no group is open\n", recordings.count);
    if (status == KEEL_OK)
        keel_hang_analysis_free(&who);
    keel_recordings_free(&recordings);
    return status == KEEL_OK ? 0 : keel_net_report(status);
}

static const struct keel_command_option options[] = {
    {"--dir", "DIR", KEEL_COMMAND_TEXT, offsetof(struct own, directory),
     "read the recordings in DIR instead of the standard places"},
    {"--all", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, all),
     "list every rank, also of more than 16, and of groups that are dead"},
    {.name = NULL}};

const struct keel_command_kind keel_net_who = {
    .name = "who",
    .operands = "[PATH]...",
    .operands_max = KEEL_COMMAND_OPERANDS_MAX,
    .summary = "name the rank that everybody waits for, in which operation and where in it",
    .details =
        "Reads the flight recordings of all processes of this user on this host (PATH: only those, also\n"
        "of other hosts), twice, a fifth of a second apart. Needs nothing of the processes: they may be\n"
        "stopped, hang, or be dead; what dead ones left is kept as evidence, up to 16 of a user.\n"
        "Recordings lie in $KEEL_NET_DIR, $XDG_RUNTIME_DIR/keel, /dev/shm/keel-UID or /tmp/keel-UID.\n",
    .examples = "  keel net who\n"
                "  keel net who --json | jq '.groups[].awaited[0]'\n"
                "  keel net who --dir /shared/evidence\n",
    .options = options,
    .run = run};
