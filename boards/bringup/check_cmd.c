/* check_cmd.c - `keel board check`: its command line, and what the terminal shows while it runs. */
#include "board_kinds.h"
#include "check_reports.h"
#include "check_runner.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/json.h>
#include <stdlib.h>
#include <string.h>

enum { REPORT_FD = 3 }; /* of a check's process: the first descriptor that is kept */

struct own {
    const char *level, *run, *peer, *junit, *html, *numerics;
    uint64_t seconds, timeout_s;
    bool quick, list;
};

static void begin(void *own)
{
    *(struct own *)own = (struct own){.level = "0-5", .seconds = 600, .numerics = "canonical"};
}

static void print_list(bool as_json)
{
    struct keel_json json = as_json ? keel_command_json(stdout) : (struct keel_json){.out = stdout};
    if (as_json)
        keel_json_open(&json, "checks", '[');
    for (uint32_t i = 0; i < keel_check_count(); i++) {
        const struct keel_check *check = keel_check_at(i);
        if (!as_json) {
            printf("%-5s %-20s %s\n", check->id, check->name, check->claim);
            continue;
        }
        keel_json_open(&json, NULL, '{');
        keel_json_text(&json, "id", check->id);
        keel_json_text(&json, "name", check->name);
        keel_json_text(&json, "claim", check->claim);
        keel_json_close(&json, '}');
    }
    if (as_json) {
        keel_json_close(&json, ']');
        keel_command_json_end(&json);
    }
}

static enum keel_status write_files(const struct own *own, const struct keel_check_report *report)
{
    if (own->junit != NULL)
        KEEL_TRY(keel_check_write(report, keel_check_print_junit, own->junit));
    return own->html != NULL ? keel_check_write(report, keel_check_print_page, own->html) : KEEL_OK;
}

static int check(const struct keel_command *command, const struct own *own,
                 const struct keel_check_options *options)
{
    struct keel_check_report report;
    enum keel_status status = KEEL_OK;
    if (own->junit != NULL)
        status = keel_command_may_write(own->junit);
    if (status == KEEL_OK && own->html != NULL)
        status = keel_command_may_write(own->html);
    if (status == KEEL_OK)
        status = keel_check_session(options, own->level, !command->json, &report);
    if (status != KEEL_OK)
        return keel_board_report(status);
    status = write_files(own, &report);
    int code = status == KEEL_OK ? keel_check_exit_code(&report) : keel_board_report(status);
    (command->json ? keel_check_print_json : keel_check_print_summary)(&report, stdout);
    keel_check_report_fini(&report);
    return code;
}

static int run(const struct keel_command *command)
{
    const struct own *own = keel_command_own(command);
    struct keel_check_options options = {.board = command->operand_count > 0 ? command->operands[0] : "auto",
                                         .peer = own->peer,
                                         .numerics = keel_class_find(own->numerics),
                                         .quick = own->quick,
                                         .seconds = own->seconds,
                                         .timeout_s = own->timeout_s};
    if (options.numerics == KEEL_CLASSES)
        return keel_board_wrong_use("--numerics is canonical, native, exact8x2, exact8x3 or bf16, not ",
                                    own->numerics);
    if (own->run != NULL)
        return keel_check_child(own->run, &options, REPORT_FD);
    if (own->list) {
        print_list(command->json);
        return 0;
    }
    if (own->seconds > KEEL_BOARD_SECONDS_MAX || own->timeout_s > KEEL_BOARD_SECONDS_MAX)
        return keel_board_wrong_use("--seconds and --timeout take a year at most, 31622400", "");
    if (own->junit != NULL && own->html != NULL && strcmp(own->junit, own->html) == 0)
        return keel_board_wrong_use("--junit and --html name the same file: ", own->html);
    return check(command, own, &options);
}

static const struct keel_command_option options[] = {
    {"--level", "LEVELS", KEEL_COMMAND_TEXT, offsetof(struct own, level),
     "levels and checks: 0-5 (without it), 4, 0,2,3.1, all"},
    {"--numerics", "CLASS", KEEL_COMMAND_TEXT, offsetof(struct own, numerics),
     "the kernels of that class of job.numerics: canonical (without it), native, exact8x2, exact8x3, bf16"},
    {"--quick", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, quick),
     "the same claims by fewer repeats and smaller shapes"},
    {"--seconds", "N", KEEL_COMMAND_COUNT, offsetof(struct own, seconds),
     "how long level 6 goes on; without it 600"},
    {"--timeout", "N", KEEL_COMMAND_COUNT, offsetof(struct own, timeout_s),
     "seconds until a check is given up; without it each check's own"},
    {"--peer", "BOARD", KEEL_COMMAND_TEXT, offsetof(struct own, peer), "the second board of level 8"},
    {"--junit", "FILE", KEEL_COMMAND_TEXT, offsetof(struct own, junit), "write the results as JUnit XML"},
    {"--html", "FILE", KEEL_COMMAND_TEXT, offsetof(struct own, html), "write a page with plots"},
    {"--list", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, list), "print all checks and what they claim"},
    {"--run", "ID", KEEL_COMMAND_TEXT, offsetof(struct own, run), NULL},
    {.name = NULL}};

const struct keel_command_kind keel_board_check = {
    .name = "check",
    .operands = "[BOARD]",
    .operands_max = 1,
    .summary = "prove that a board computes, moves memory, fails and recovers right",
    .details = "BOARD is a selector of keel board list, or a board's folder; without it the best board.\n"
               "Levels: 0 identity, 1 API, 2 code, 3 memory, 4 numerics, 5 performance, 6 soak, 7 fault "
               "drill, 8 pair.\n"
               "Each check runs in its own process: a driver that crashes or hangs is a verdict, and the "
               "next check\n"
               "goes on. Verdicts: pass, fail, could-not-run, waived (by the board file, until a day).\n"
               "Exit code 0: all passed or waived; 1: something failed; 3: nothing failed, something could "
               "not run.\n",
    .examples =
        "  keel board check                              the best board, levels 0 to 5\n"
        "  keel board check pocl:0 --level 0-2 --quick   a first look\n"
        "  keel board check boards/acme/npu --html acme.html --junit acme.xml\n"
        "  keel board check --level 4 --json | jq -r '.checks[] | select(.verdict==\"fail\").reason'\n",
    .options = options,
    .begin = begin,
    .run = run};
