/* job_cmd.c - `keel job status|attach|stop DIR`: a run asked, watched and ended from other terminals than the
 * one it began in. Its nodes leave and come back in job_members.c. */
#include "job_cmd.h"

#include "job_ask.h"
#include "job_follow.h"
#include "job_members.h"
#include "metric_lines.h"
#include "run_gates.h"
#include "run_look.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/command.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { DIGITS = 6 };
static const uint64_t last_look_ns = 5 * KEEL_NS_PER_S;

static const struct keel_command_kind status_kind, attach_kind, stop_kind;
static const struct keel_command_kind *const kinds[] = {&status_kind, &attach_kind, &stop_kind,
                                                        &keel_job_drain_kind, &keel_job_add_kind};
static const struct keel_command_set job = {
    .name = "keel job", .kinds = kinds, .kind_count = sizeof kinds / sizeof kinds[0]};

/* ---- what there is to say ------------------------------------------------------------------------------ */

static void print_duration(double seconds)
{
    const uint64_t whole = (uint64_t)(seconds + 0.5);
    if (whole < 120)
        printf("%" PRIu64 " s", whole);
    else if (whole < 7200)
        printf("%" PRIu64 " min", whole / 60);
    else
        printf("%" PRIu64 " h %" PRIu64 " min", whole / 3600, whole / 60 % 60);
}

static double left_s(const struct keel_run_look *look)
{
    return look->steps > look->step ? (double)(look->steps - look->step) * look->step_s : 0;
}

static void print_lines(const char *directory, const struct keel_run_look *look)
{
    if (look->damaged[0] != '\0')
        printf(KEEL_METRIC_DAMAGED "\n", look->damaged, look->damaged_at, look->damaged_at);
    if (look->steps_lacking > 0)
        printf(KEEL_METRIC_LACKING "\n", directory, look->lacking);
}

static void print_text(const char *directory, const struct keel_run_look *look)
{
    printf("%s: %s", directory, keel_run_state_name(look->state));
    if (look->pid != 0)
        printf(", process %" PRIu64 "%s%s%s%s", look->pid, look->host[0] != '\0' ? " of " : "", look->host,
               look->place[0] != '\0' ? ", agents dial in at " : "", look->place);
    if (look->state == KEEL_RUN_DONE && look->detail[0] != '\0')
        printf(": %s", look->detail);
    if (look->waits)
        printf(": its launcher was killed just now, and no node leads yet");
    if (look->state == KEEL_RUN_KILLED)
        printf(" without a word; the same command resumes it");
    if (look->state == KEEL_RUN_FAILED || look->state == KEEL_RUN_STOPPED)
        printf(" (%s): %s", keel_status_name(look->status), look->detail);
    printf("\nstep %" PRIu64 " of %" PRIu64, look->step, look->steps);
    if (look->line_step > 0 && look->line_step == look->step)
        printf(", loss %.4f, %.3g s a step", look->loss, look->step_s);
    if (look->state == KEEL_RUN_GOES_ON && look->line_step > 0) {
        printf(", committed ");
        print_duration(look->age_s);
        printf(" ago, ");
        print_duration(left_s(look));
        printf(" to go");
    }
    printf("\n");
    if (look->view != 0)
        printf("view %" PRIu64 ": %" PRIu64 " ranks, %" PRIu64 " spares; ", look->view, look->ranks,
               look->spares);
    else if (look->state == KEEL_RUN_GOES_ON)
        printf("no view yet: its ranks, or their agents, are still to come; ");
    if (look->snapshot != 0)
        printf("newest snapshot: step %" PRIu64 "\n", look->snapshot);
    else
        printf("no snapshot yet\n");
    print_lines(directory, look);
}

static void print_json(const char *directory, const struct keel_run_look *look)
{
    struct keel_json json = keel_command_json(stdout);
    keel_json_text(&json, "directory", directory);
    keel_json_text(&json, "state", keel_run_state_name(look->state));
    if (look->pid != 0)
        keel_json_number(&json, "pid", look->pid);
    if (look->host[0] != '\0')
        keel_json_text(&json, "host", look->host);
    if (look->place[0] != '\0')
        keel_json_text(&json, "place", look->place);
    if (look->state != KEEL_RUN_GOES_ON && look->state != KEEL_RUN_KILLED) {
        keel_json_text(&json, "status", keel_status_name(look->status));
        keel_json_text(&json, "detail", look->detail);
    }
    keel_json_number(&json, "step", look->step);
    keel_json_number(&json, "steps", look->steps);
    if (look->line_step > 0 && look->line_step == look->step) {
        keel_json_real(&json, "loss", look->loss, DIGITS);
        keel_json_real(&json, "step_s", look->step_s, DIGITS);
        keel_json_real(&json, "age_s", look->age_s, DIGITS);
    }
    if (look->state == KEEL_RUN_GOES_ON && look->line_step > 0)
        keel_json_real(&json, "left_s", left_s(look), DIGITS);
    if (look->view != 0) {
        keel_json_number(&json, "view", look->view);
        keel_json_number(&json, "ranks", look->ranks);
        keel_json_number(&json, "spares", look->spares);
    }
    if (look->snapshot != 0)
        keel_json_number(&json, "snapshot", look->snapshot);
    if (look->steps_lacking > 0)
        keel_json_number(&json, "steps_lacking", look->steps_lacking);
    if (look->damaged[0] != '\0') {
        keel_json_text(&json, "damaged", look->damaged);
        keel_json_number(&json, "damaged_at", look->damaged_at);
    }
    keel_command_json_end(&json);
}

static int report(enum keel_status status)
{
    return status == KEEL_OK ? 0 : keel_command_report(&job, status);
}

static enum keel_status say(const struct keel_command *command)
{
    struct keel_run_look look;
    const char *directory = command->operands[0];
    KEEL_TRY(keel_run_look_at(directory, &look));
    if (command->json)
        print_json(directory, &look);
    else
        print_text(directory, &look);
    return keel_command_printed();
}

/* ---- status -------------------------------------------------------------------------------------------- */

static int run_status(const struct keel_command *command)
{
    return report(say(command));
}

static const struct keel_command_option no_options[] = {{.name = NULL}};

static const struct keel_command_kind status_kind = {
    .name = "status",
    .operands = "DIR",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "how far a run is, who carries it, what is saved; or how it ended",
    .details =
        "Reads what the run's directory says, and writes nothing there. States: running, done, stopped\n"
        "(the same command resumes it), failed (a person must act), killed (it ended without a word;\n"
        "the same command resumes it).\n",
    .examples = "  keel job status runs/demo\n"
                "  keel job status runs/demo --json | jq .left_s\n",
    .options = no_options,
    .run = run_status};

/* ---- attach -------------------------------------------------------------------------------------------- */

/* Says how the run ended, and ends as that did. */
static int run_attach(const struct keel_command *command)
{
    struct keel_run_look end = {.state = KEEL_RUN_GOES_ON};
    const char *directory = command->operands[0];
    keel_process_heed_interrupts();
    enum keel_status status = keel_run_look_at(directory, &end);
    const bool goes_on = status == KEEL_OK && end.state == KEEL_RUN_GOES_ON; /* else it is told once */
    if (goes_on && !command->json)
        status = say(command);
    if (status == KEEL_OK && goes_on)
        status = keel_job_follow(directory, command->json);
    if (status == KEEL_OK)
        status = say(command);
    if (status == KEEL_OK)
        status = keel_run_look_at(directory, &end);
    if (status != KEEL_OK)
        return report(status);
    return keel_status_exit_code(end.state == KEEL_RUN_KILLED ? KEEL_INTERRUPTED : end.status);
}

static const struct keel_command_kind attach_kind = {
    .name = "attach",
    .operands = "DIR",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "watch a run until it ends, and end as it does; it minds neither your coming nor your going",
    .details =
        "Says where the run stands, then what happens: views, recoveries, snapshots, losses, and steps\n"
        "(on a terminal in one line). An interrupt ends this command, never the run. With --json it\n"
        "waits, and prints one object at the end.\n",
    .examples = "  keel job attach runs/demo\n"
                "  keel job attach runs/demo && keel eval runs/demo\n",
    .options = no_options,
    .run = run_attach};

/* ---- stop ---------------------------------------------------------------------------------------------- */

struct stop_options {
    uint64_t wait_ns;
};

static void begin_stop(void *own)
{
    ((struct stop_options *)own)->wait_ns = 600 * KEEL_NS_PER_S;
}

/* Tell who leads, and wait until it has ended. */
static enum keel_status stop_leader(const char *directory, uint64_t wait_ns, uint64_t deadline_ns)
{
    struct keel_process process;
    KEEL_TRY(keel_run_find(directory, &process));
    struct pollfd ends = {.fd = process.pidfd, .events = POLLIN};
    enum keel_status status = keel_process_signal(&process, SIGTERM);
    int ended = status == KEEL_OK ? 0 : 1;
    while (ended <= 0 && keel_remaining_ns(deadline_ns) > 0)
        ended = poll(&ends, 1, keel_remaining_poll_ms(deadline_ns));
    keel_process_close(&process);
    if (ended <= 0)
        return keel_fail(KEEL_TIMEOUT,
                         "%s: process %ld was told to end, and still runs after %" PRIu64
                         " s; wait longer (--wait 30m, or 90s), or kill it",
                         directory, (long)process.pid, wait_ns / KEEL_NS_PER_S);
    return status == KEEL_NOT_FOUND ? KEEL_OK : status; /* it ended before it was told */
}

/* Where the store hangs nothing more can be read; who led said how it ended. */
static enum keel_status say_as_told(const struct keel_command *command,
                                    const struct keel_handover_reason *end)
{
    const char *directory = command->operands[0];
    const char *state = keel_run_state_name(end->status == KEEL_OK ? KEEL_RUN_DONE : KEEL_RUN_STOPPED);
    if (end->status != KEEL_OK && end->status != KEEL_INTERRUPTED)
        return keel_fail(end->status, "%s: %s", directory, end->text);
    if (command->json) {
        struct keel_json json = keel_command_json(stdout);
        keel_json_text(&json, "directory", directory);
        keel_json_text(&json, "state", state);
        keel_json_text(&json, "status", keel_status_name(end->status));
        keel_json_text(&json, "detail", end->text);
        keel_command_json_end(&json);
    } else {
        printf("%s: %s (%s): %s; the store does not answer, when it does keel job status says more\n",
               directory, state, keel_status_name(end->status), end->text);
    }
    return keel_command_printed();
}

static bool is_unsaved(const char *detail)
{
    return strncmp(detail, KEEL_RUN_UNSAVED, strlen(KEEL_RUN_UNSAVED)) == 0;
}

/* It ended, maybe without its last steps: these were not saved in time (run_lives.c, agent.c). */
static enum keel_status say_end(const struct keel_command *command, const struct keel_job_answer *answer)
{
    const char *directory = command->operands[0];
    struct keel_run_look look;
    enum keel_status status = keel_job_look(directory, last_look_ns, &look);
    if (status == KEEL_TIMEOUT && answer->told)
        return say_as_told(command, &answer->end);
    KEEL_TRY(status);
    KEEL_TRY(say(command)); /* it has ended, which is what was asked for */
    if (answer->told && answer->end.status == KEEL_TIMEOUT)
        return keel_fail(KEEL_TIMEOUT, "%s: %s", directory, answer->end.text);
    if (answer->told && is_unsaved(answer->end.text)) /* the line that says so may lack for the same reason */
        return keel_fail(KEEL_IO, "%s: %s", directory, answer->end.text);
    if (look.state == KEEL_RUN_STOPPED && is_unsaved(look.detail))
        return keel_fail(KEEL_IO, "%s: %s", directory, look.detail);
    return look.state == KEEL_RUN_FAILED && look.status == KEEL_TIMEOUT
               ? keel_fail(look.status, "%s: %s", directory, look.detail)
               : KEEL_OK;
}

static enum keel_status stop(const struct keel_command *command)
{
    const struct stop_options *options = keel_command_own(command);
    const uint64_t deadline_ns = keel_deadline_after_ns(options->wait_ns);
    const char *directory = command->operands[0];
    struct keel_job_answer answer = {.told = false};
    enum keel_status status;
    do /* one that was killed meanwhile has another in its place, which may not know of it */
        status = stop_leader(directory, options->wait_ns, deadline_ns);
    while (status == KEEL_OK);
    const bool elsewhere = status == KEEL_NOT_FOUND || status == KEEL_UNSUPPORTED;
    if (elsewhere && keel_run_gates_are_there(directory) && !keel_job_is_local(directory))
        status = keel_job_ask(&(struct keel_job_question){.directory = directory,
                                                          .wish = KEEL_WISH_STOP,
                                                          .deadline_ns = deadline_ns},
                              &answer);
    return status == KEEL_OK || status == KEEL_NOT_FOUND ? say_end(command, &answer) : status;
}

static int run_stop(const struct keel_command *command)
{
    return report(stop(command));
}

static const struct keel_command_option stop_options[] = {
    {"--wait", "DURATION", KEEL_COMMAND_DURATION, offsetof(struct stop_options, wait_ns),
     "so long for it to end (10m); the run is stopped all the same"},
    {.name = NULL}};

static const struct keel_command_kind stop_kind = {
    .name = "stop",
    .operands = "DIR",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "end a run in order, whoever leads it, and say where it stands then",
    .details =
        "As a signal to keel run does: the step at hand is finished, and the same command goes on from\n"
        "the newest snapshot. Waits until it has ended. Of a run that has ended it says how. Who leads on\n"
        "another host is asked over TCP, where DIR/gates says, by the key DIR/job.key: no store is needed.\n",
    .examples = "  keel job stop runs/demo\n"
                "  keel job stop runs/demo --wait 30m\n",
    .options = stop_options,
    .begin = begin_stop,
    .run = run_stop};

int keel_job_main(int argc, char **argv)
{
    return keel_command_main(&job, argc, argv);
}
