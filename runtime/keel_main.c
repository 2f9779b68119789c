/* keel_main.c - the one binary: picks the subcommand, each of which lives in its room. */
#include "agent.h"
#include "run_cmd.h"
#include "worker.h"
#include <keel/board_cmd.h>
#include <keel/ckpt.h>
#include <keel/process.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*entry)(int argc, char **argv);
    const char *help; /* NULL: started by Keel itself */
};

static const struct command commands[] = {
    {"run", keel_run_main, "train a job; go on after any loss with the same bits"},
    {"ckpt", keel_ckpt_main, "list, show, verify and manage snapshots"},
    {"board", keel_board_main, "list the devices, and why some were passed over"},
    {"agent", keel_agent_main, NULL},
    {"worker", keel_worker_main, NULL},
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void print_help(FILE *out)
{
    fputs("usage: keel COMMAND ...\n\n", out);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (commands[i].help != NULL)
            fprintf(out, "  keel %-6s %s\n", commands[i].name, commands[i].help);
    fputs("\nkeel COMMAND --help says more. KEEL_LOG=info|debug shows what processes do.\n", out);
}

int main(int argc, char **argv)
{
    keel_process_begin();
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(name, "--version") == 0) {
        printf("keel %s\n", KEEL_RELEASE);
        return 0;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].entry(argc - 1, argv + 1);
    if (name[0] != '\0')
        fprintf(stderr, "keel: no command `%s`\n", name);
    print_help(stderr);
    return keel_status_exit_code(KEEL_INVALID);
}
