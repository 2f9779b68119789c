/* keel_main.c - the one binary: picks the subcommand, each of which lives in its room. */
#include "agent.h"
#include "plan_cmd.h"
#include "run_cmd.h"
#include "worker.h"
#include <keel/board_cmd.h>
#include <keel/ckpt_cmd.h>
#include <keel/command.h>
#include <keel/net_cmd.h>
#include <keel/process.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*entry)(int argc, char **argv);
    const char *help; /* NULL: started by Keel itself */
};

static const struct command commands[] = {
    {"run", keel_run_main, "train a job; go on after any loss with the same bits"},
    {"plan", keel_plan_main, "what a step of a job will be: memory, tiles, sums, each rank's actions"},
    {"ckpt", keel_ckpt_main, "list, show, verify and manage snapshots"},
    {"net", keel_net_main, "who waits for whom; check and measure the network"},
    {"board", keel_board_main, "bring up, prove, measure and list boards"},
    {"agent", keel_agent_main, "one node of a run: keel run starts these itself"},
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

/* Libraries load for a tenth of a second, and what they install for that time ends us silently, also by
 * signals that we were told to ignore. So signals wait from before their constructors until
 * keel_process_begin has said what becomes of them, and it is told what was ignored. */
static const int interrupts[] = {SIGINT, SIGTERM, SIGHUP};
enum { INTERRUPT_COUNT = sizeof interrupts / sizeof interrupts[0] };
static bool ignored[INTERRUPT_COUNT];
static sigset_t mask_before;

static void hold_signals(void)
{
    sigset_t held;
    sigemptyset(&held);
    for (size_t i = 0; i < INTERRUPT_COUNT; i++) {
        struct sigaction action;
        ignored[i] = sigaction(interrupts[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN;
        sigaddset(&held, interrupts[i]);
    }
    sigprocmask(SIG_BLOCK, &held, &mask_before);
}

__attribute__((section(".preinit_array"), used)) static void (*const hold_signals_first)(void) = hold_signals;

static void begin(void)
{
    for (size_t i = 0; i < INTERRUPT_COUNT; i++)
        if (ignored[i])
            signal(interrupts[i], SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond `ulimit -f` is an error with a name, like a full disk */
    keel_process_begin();
    sigprocmask(SIG_SETMASK, &mask_before, NULL);
}

static int run_command(const char *name, int argc, char **argv)
{
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

int main(int argc, char **argv)
{
    begin();
    const char *name = argc > 1 ? argv[1] : "";
    int code = run_command(name, argc, argv);
    enum keel_status printed = keel_command_printed();
    if (printed == KEEL_OK || code != 0)
        return code;
    fprintf(stderr, "keel %s: %s: %s\n", name, keel_status_text(printed), keel_detail());
    return keel_status_exit_code(printed);
}
