/* job_members.c - see job_members.h. What is asked for is a file in the run's directory (drains.h), which who
 * leads looks at; what came of it is read from events.jsonl. */
#include "job_members.h"

#include "drains.h"
#include "launcher.h"
#include "run_look.h"
#include "run_tail.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/job.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t look_ns = 100 * KEEL_NS_PER_MS;
/* Until who leads has taken note: a beat, or until another leads. */
static const uint64_t heed_ns = 600 * KEEL_NS_PER_S;

/* ---- which node ---------------------------------------------------------------------------------------- */

static enum keel_status count_nodes(const char *directory, uint32_t *out)
{
    struct keel_job *job;
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, directory, "job.conf"));
    KEEL_TRY(keel_alloc(1, sizeof *job, &job));
    const enum keel_status status = keel_job_load(path, NULL, 0, job);
    *out = (job->nodes != 0 ? job->nodes : job->ranks) + job->spares;
    keel_free(job);
    return status;
}

/* Where it is asked for, and where it is told what came of it: a launcher that leads looks into the run's
 * directory, a node that leads from another host into the common store. */
struct asked {
    const char *directory;
    char store[KEEL_PATH_BYTES]; /* "": nobody leads from there */
    char told[KEEL_PATH_BYTES];  /* directory of events.jsonl */
};

static enum keel_status find_asked(const char *directory, struct asked *out)
{
    struct keel_run_led led;
    char store[KEEL_PATH_BYTES];
    *out = (struct asked){.directory = directory};
    const bool moves = keel_run_store_of_leaders(directory, store);
    if (moves)
        KEEL_TRY(keel_path_join(out->store, store, KEEL_REMOTE_LEADER_FOLDER));
    snprintf(out->told, sizeof out->told, "%s",
             moves && keel_run_is_led(directory, &led) ? led.folder : directory);
    return KEEL_OK;
}

/* Both: whoever leads next finds it. */
static enum keel_status ask(const struct asked *asked, uint16_t node, bool away)
{
    KEEL_TRY(away ? keel_drain_add(asked->directory, node) : keel_drain_remove(asked->directory, node));
    if (asked->store[0] == '\0')
        return KEEL_OK;
    return away ? keel_drain_add(asked->store, node) : keel_drain_remove(asked->store, node);
}

/* A run goes on in the directory, and has this node. */
static enum keel_status find_node(const struct keel_command *command, uint16_t *out)
{
    const char *directory = command->operands[0], *text = command->operands[1];
    struct keel_run_look look;
    uint32_t count;
    char *end;
    KEEL_TRY(keel_run_look_at(directory, &look));
    if (look.state != KEEL_RUN_GOES_ON)
        return keel_fail(KEEL_NOT_FOUND, "%s: no run goes on there", directory);
    KEEL_TRY(count_nodes(directory, &count));
    const unsigned long node = strtoul(text, &end, 10);
    if (text[0] < '1' || text[0] > '9' || *end != '\0' || node > count)
        return keel_fail(KEEL_INVALID, "NODE %s: the run has nodes 1 to %" PRIu32, text, count);
    *out = (uint16_t)node;
    return KEEL_OK;
}

/* ---- what comes of it ---------------------------------------------------------------------------------- */

struct wait {
    uint16_t node;
    const char *event, *undone; /* is waited for; and what comes of the opposite */
    char stays[160];            /* why it does for now; "": that was said, or it does not */
    bool json, came;
};

/* As the lines follow upon another: their clocks may be those of several hosts. */
static void take_event(void *context, const json_t *line)
{
    struct wait *wait = context;
    const char *event = json_string_value(json_object_get(line, "event"));
    const char *detail = json_string_value(json_object_get(line, "detail"));
    const bool starts = event != NULL && strcmp(event, "start") == 0; /* anew, with all nodes */
    if (event == NULL || (!starts && json_integer_value(json_object_get(line, "node")) != wait->node))
        return;
    const bool done = strcmp(event, wait->event) == 0;
    const bool undone = starts || strcmp(event, wait->undone) == 0;
    wait->came = done || (wait->came && !undone);
    if (done || undone)
        wait->stays[0] = '\0';
    if (strcmp(event, "drain-waits") == 0 && detail != NULL)
        snprintf(wait->stays, sizeof wait->stays, "%s", detail);
}

/* All that is there; and says what of it was not said yet. */
static enum keel_status read_on(struct keel_run_tail *events, struct wait *wait)
{
    uint64_t at;
    do {
        at = events->at;
        KEEL_TRY(keel_run_tail_read(events, take_event, wait));
    } while (events->at != at);
    if (wait->stays[0] != '\0' && !wait->json) {
        printf("%s\n", wait->stays);
        fflush(stdout);
    }
    wait->stays[0] = '\0';
    return KEEL_OK;
}

static enum keel_status await(const char *directory, struct keel_run_tail *events, struct wait *wait,
                              uint64_t wait_ns)
{
    const uint64_t until_ns = keel_deadline_after_ns(wait_ns);
    bool goes_on = true;
    for (;;) {
        struct keel_run_led led; /* before: what it says as it ends is read too */
        const bool held = keel_launch_is_locked(directory) || keel_run_is_led(directory, &led) ||
                          keel_run_waits_for_leader(directory);
        KEEL_TRY(read_on(events, wait));
        if (wait->came)
            return KEEL_OK;
        if (!held && !goes_on) /* twice: another may just take its place */
            return keel_fail(KEEL_NOT_FOUND, "%s: the run ended first", directory);
        goes_on = held;
        if (keel_remaining_ns(until_ns) == 0)
            return keel_fail(KEEL_TIMEOUT,
                             "%s: nothing came of it in %" PRIu64 " s, and it is still asked for", directory,
                             wait_ns / KEEL_NS_PER_S);
        keel_sleep_until_ns(keel_deadline_after_ns(look_ns));
    }
}

static enum keel_status say(const struct keel_command *command, const char *key, uint16_t node,
                            const char *text)
{
    if (command->json) {
        struct keel_json json = keel_command_json(stdout);
        keel_json_text(&json, "directory", command->operands[0]);
        keel_json_number(&json, key, node);
        keel_command_json_end(&json);
    } else {
        printf("node %u %s\n", node, text);
    }
    return keel_command_printed();
}

/* ---- drain --------------------------------------------------------------------------------------------- */

struct drain_options {
    uint64_t wait_ns;
};

static void begin_drain(void *own)
{
    ((struct drain_options *)own)->wait_ns = 600 * KEEL_NS_PER_S;
}

static enum keel_status drain(const struct keel_command *command)
{
    const struct drain_options *options = keel_command_own(command);
    const char *directory = command->operands[0];
    struct wait wait = {.event = "drained", .undone = "drain-over", .json = command->json};
    struct keel_run_tail events;
    struct asked asked;
    KEEL_TRY(find_node(command, &wait.node));
    KEEL_TRY(find_asked(directory, &asked));
    enum keel_status status = keel_run_tail_open(&events, asked.told, "events.jsonl");
    if (keel_drain_is_asked(directory, wait.node)) /* before, and it may have left */
        events.at = 0;
    else if (status == KEEL_OK)
        status = ask(&asked, wait.node, true);
    if (status == KEEL_OK)
        status = await(directory, &events, &wait, options->wait_ns);
    keel_run_tail_close(&events);
    KEEL_TRY(status);
    return say(command, "drained", wait.node, "has left the run; keel job add brings it back");
}

static int run_drain(const struct keel_command *command)
{
    const enum keel_status status = drain(command);
    return status == KEEL_OK ? 0 : keel_command_report(command->set, status);
}

static const struct keel_command_option drain_options[] = {
    {"--wait", "DURATION", KEEL_COMMAND_DURATION, offsetof(struct drain_options, wait_ns),
     "so long for it to leave (10m); it leaves all the same when it can"},
    {.name = NULL}};

const struct keel_command_kind keel_job_drain_kind = {
    .name = "drain",
    .operands = "DIR NODE",
    .operands_min = 2,
    .operands_max = 2,
    .summary = "have a node leave a run that goes on: others take its ranks, and its agent ends",
    .details =
        "Spares take its ranks, or fewer ranks go on, if so few have a plan; else it stays until others\n"
        "have come. No step is done again where others have copies of what its ranks have, as after a\n"
        "loss. It is not started again before keel job add, or until the run is begun anew. Waits until\n"
        "it has left.\n",
    .examples = "  keel job drain runs/demo 3\n"
                "  keel job drain runs/demo 3 --wait 30m && ssh h3 reboot\n",
    .options = drain_options,
    .begin = begin_drain,
    .run = run_drain};

/* ---- add ----------------------------------------------------------------------------------------------- */

static enum keel_status add(const struct keel_command *command)
{
    const char *directory = command->operands[0];
    struct wait wait = {.event = "drain-over", .undone = "drained", .json = command->json};
    struct keel_run_tail events;
    struct asked asked;
    KEEL_TRY(find_node(command, &wait.node));
    KEEL_TRY(find_asked(directory, &asked));
    if (!keel_drain_is_asked(directory, wait.node))
        return keel_fail(KEEL_INVALID, "NODE %u: was not drained, and is started again by itself", wait.node);
    enum keel_status status = keel_run_tail_open(&events, asked.told, "events.jsonl");
    if (status == KEEL_OK)
        status = ask(&asked, wait.node, false);
    if (status == KEEL_OK)
        status = await(directory, &events, &wait, heed_ns);
    keel_run_tail_close(&events);
    KEEL_TRY(status);
    return say(command, "added", wait.node, "is wanted again; keel job attach tells when it joins");
}

static int run_add(const struct keel_command *command)
{
    const enum keel_status status = add(command);
    return status == KEEL_OK ? 0 : keel_command_report(command->set, status);
}

static const struct keel_command_option add_options[] = {{.name = NULL}};

const struct keel_command_kind keel_job_add_kind = {
    .name = "add",
    .operands = "DIR NODE",
    .operands_min = 2,
    .operands_max = 2,
    .summary = "bring a node back that was drained: it is started, or may dial in, and joins",
    .details = "With cluster.launch = none somebody starts its agent, as keel agent --help says.\n",
    .examples = "  keel job add runs/demo 3\n",
    .options = add_options,
    .run = run_add};
