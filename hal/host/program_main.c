/* program_main.c - main() of the programs keel, keel-board and keel-ckpt, and of no library: signals from
 * before the first constructor to the end of what was printed. */
#include <keel/command.h>
#include <keel/process.h>
#include <keel/program.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

/* Libraries load for a tenth of a second, and what they install for that time ends us silently, also by
 * signals that we were told to ignore. So signals wait from before their constructors until
 * keel_process_begin has said what becomes of them, and it is told what was ignored. */
static const int interrupts[] = {SIGINT, SIGTERM, SIGHUP};
enum { INTERRUPT_COUNT = sizeof interrupts / sizeof interrupts[0] };
enum { STACK_BYTES_LEAST = 1 << 20 }; /* of any command; those whose processes lead runs ask for more */
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
    prctl(PR_SET_NAME, keel_main_of_program.name); /* of a process that was started as /proc/self/exe too */
    signal(SIGXFSZ, SIG_IGN); /* a file beyond `ulimit -f` is an error with a name, like a full disk */
    keel_process_begin();
    sigprocmask(SIG_SETMASK, &mask_before, NULL);
}

void keel_program_print_version(void)
{
    printf("%s %s%s\n", keel_main_of_program.name, KEEL_RELEASE, KEEL_LEFT_OUT);
}

int keel_program_run_set(const char *set, int (*entry)(int argc, char **argv), int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        keel_program_print_version();
        return 0;
    }
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        printf("%s COMMAND ... is keel %s COMMAND ... without the rest of Keel.\n\n",
               keel_main_of_program.name, set);
    keel_command_set_program(keel_main_of_program.name);
    const int named = argc > 1 && strcmp(argv[1], set) == 0;
    return entry(argc - named, argv + named);
}

static int tell(enum keel_status status, int argc, char **argv)
{
    fprintf(stderr, "%s %s: %s: %s\n", keel_main_of_program.name, argc > 1 ? argv[1] : "",
            keel_status_text(status), keel_detail());
    return keel_status_exit_code(status);
}

int main(int argc, char **argv)
{
    begin();
    enum keel_status status = keel_process_has_stack(STACK_BYTES_LEAST);
    if (status != KEEL_OK)
        return tell(status, argc, argv);
    int code = keel_main_of_program.run(argc, argv);
    status = keel_command_printed();
    return status == KEEL_OK || code != 0 ? code : tell(status, argc, argv);
}
