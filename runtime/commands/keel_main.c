/* keel_main.c - the one binary: picks the subcommand, each of which lives in its room. */
#include "eval_cmd.h"
#include "export_cmd.h"
#include "import_cmd.h"
#include "job_cmd.h"
#include "plan_cmd.h"
#include "plugin_try.h"
#include "run_cmd.h"
#include "run_led.h"
#include "run_lives.h"
#include "sample_cmd.h"
#include "serve_cmd.h"
#include "sim_cmd.h"
#include "worker.h"
#include <keel/board_cmd.h>
#include <keel/ckpt_cmd.h>
#include <keel/net_cmd.h>
#include <keel/process.h>
#include <keel/program.h>
#include <keel/status.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*entry)(int argc, char **argv);
    const char *help; /* NULL: started by Keel itself */
    bool leads;       /* or may come to: a step of the control plane has tables of all ranks on the stack */
};
enum { STACK_BYTES_OF_LEADERS = 6 << 20 };

static const struct command commands[] = {
    {"run", keel_run_main, "train a job; go on after any loss with the same bits", true},
    {"job", keel_job_main, "how far a run is, or how it ended; watch it, stop it", false},
    {"plan", keel_plan_main, "what a step of a job will be: memory, tiles, sums, each rank's actions", false},
    {"eval", keel_eval_main, "loss, perplexity or accuracy of a snapshot", false},
    {"sample", keel_sample_main, "text by a snapshot of a language model", false},
    {"serve", keel_serve_main, "texts by a snapshot of a language model, over HTTP", false},
    {"export", keel_export_main, "the weights of a snapshot for other programs, in few bits if asked to",
     false},
    {"sim", keel_sim_main, "what failures will cost a run: goodput, lost seconds by cause", false},
    {"import-model", keel_import_main, "look whether an .onnx file can be trained; a job for it", false},
    {"ckpt", keel_ckpt_main, "list, show, verify and manage snapshots", false},
    {"net", keel_net_main, "who waits for whom; check and measure the network", false},
    {"board", keel_board_main, "bring up, prove, measure and list boards", false},
    {"agent", keel_led_agent_main, "one node of a run, on another host: dials in", true},
    {"lead", keel_lead_main, NULL, true},
    {"worker", keel_worker_main, NULL, false},
    {KEEL_PLUGIN_TRY_COMMAND, keel_plugin_try_main, NULL, false},
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void print_help(FILE *out)
{
    fputs("usage: keel COMMAND ...\n\n", out);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (commands[i].help != NULL)
            fprintf(out, "  keel %-12s %s\n", commands[i].name, commands[i].help);
    fputs("\nkeel COMMAND --help says more. KEEL_LOG=info|debug shows what processes do.\n", out);
}

static int start(const struct command *command, int argc, char **argv)
{
    enum keel_status status = command->leads ? keel_process_has_stack(STACK_BYTES_OF_LEADERS) : KEEL_OK;
    if (status == KEEL_OK)
        return command->entry(argc, argv);
    fprintf(stderr, "keel %s: %s: %s\n", command->name, keel_status_text(status), keel_detail());
    return keel_status_exit_code(status);
}

static int run(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(name, "--version") == 0) {
        keel_program_print_version();
        return 0;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(name, commands[i].name) == 0)
            return start(&commands[i], argc - 1, argv + 1);
    if (name[0] != '\0')
        fprintf(stderr, "keel: no command `%s`\n", name);
    print_help(stderr);
    return keel_status_exit_code(KEEL_INVALID);
}

const struct keel_main keel_main_of_program = {.name = "keel", .run = run};
