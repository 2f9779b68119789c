/* job_members.c - see job_members.h. Who leads is asked at its gate (job_ask.h), and says what came of it. */
#include "job_members.h"

#include "job_ask.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/job.h>
#include <keel/memory.h>
#include <stdlib.h>

/* Until who leads has taken note: a beat, or until another leads. */
static const uint64_t heed_ns = 600 * KEEL_NS_PER_S;
static const uint64_t look_limit_ns = 2 * KEEL_NS_PER_S;

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

/* A run goes on in the directory, and has this node. Where its store hangs who leads knows. */
static enum keel_status find_node(const struct keel_command *command, uint16_t *out)
{
    const char *directory = command->operands[0], *text = command->operands[1];
    struct keel_run_look look = {.state = KEEL_RUN_GOES_ON};
    uint32_t count;
    char *end;
    const enum keel_status status = keel_job_look(directory, look_limit_ns, &look);
    if (status != KEEL_OK && status != KEEL_TIMEOUT)
        return status;
    if (look.state != KEEL_RUN_GOES_ON)
        return keel_fail(KEEL_NOT_FOUND, "%s: no run goes on there", directory);
    KEEL_TRY(count_nodes(directory, &count));
    const unsigned long node = strtoul(text, &end, 10);
    if (text[0] < '1' || text[0] > '9' || *end != '\0' || node > count)
        return keel_fail(KEEL_INVALID, "NODE %s: the run has nodes 1 to %" PRIu32, text, count);
    *out = (uint16_t)node;
    return KEEL_OK;
}

static void say_stays(void *context, const char *why)
{
    const struct keel_command *command = context;
    if (command->json)
        return;
    printf("%s\n", why);
    fflush(stdout);
}

static enum keel_status ask(const struct keel_command *command, enum keel_handover_wish wish,
                            uint64_t wait_ns, uint16_t *node)
{
    struct keel_job_answer answer;
    KEEL_TRY(find_node(command, node));
    return keel_job_ask(&(struct keel_job_question){.directory = command->operands[0],
                                                    .wish = wish,
                                                    .node = *node,
                                                    .deadline_ns = keel_deadline_after_ns(wait_ns),
                                                    .stays = say_stays,
                                                    .context = (void *)(uintptr_t)command},
                        &answer);
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

static int run_drain(const struct keel_command *command)
{
    const struct drain_options *options = keel_command_own(command);
    uint16_t node = 0;
    enum keel_status status = ask(command, KEEL_WISH_DRAIN, options->wait_ns, &node);
    if (status == KEEL_OK)
        status = say(command, "drained", node, "has left the run; keel job add brings it back");
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
        "it has left, and all nodes know it. Who leads is asked over TCP, where DIR/gates says, by the\n"
        "key DIR/job.key; if it is lost meanwhile, who leads next. A run that still waits for its agents\n"
        "is asked when they are there.\n",
    .examples = "  keel job drain runs/demo 3\n"
                "  keel job drain runs/demo 3 --wait 30m && ssh h3 reboot\n",
    .options = drain_options,
    .begin = begin_drain,
    .run = run_drain};

/* ---- add ----------------------------------------------------------------------------------------------- */

static int run_add(const struct keel_command *command)
{
    uint16_t node = 0;
    enum keel_status status = ask(command, KEEL_WISH_ADD, heed_ns, &node);
    if (status == KEEL_OK)
        status = say(command, "added", node, "is wanted again; keel job attach tells when it joins");
    return status == KEEL_OK ? 0 : keel_command_report(command->set, status);
}

static const struct keel_command_option add_options[] = {{.name = NULL}};

const struct keel_command_kind keel_job_add_kind = {
    .name = "add",
    .operands = "DIR NODE",
    .operands_min = 2,
    .operands_max = 2,
    .summary = "bring a node back that was drained: it is started, or may dial in, and joins",
    .details = "With cluster.launch = none somebody starts its agent, as keel agent --help says. A run that\n"
               "still waits for its agents is asked when they are there.\n",
    .examples = "  keel job add runs/demo 3\n",
    .options = add_options,
    .run = run_add};
