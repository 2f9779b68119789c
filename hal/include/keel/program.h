/* program.h - what makes a program of Keel: its name and what it does. hal/host/program_main.c has main(). */
#ifndef KEEL_PROGRAM_H
#define KEEL_PROGRAM_H

#include <keel/api.h>

KEEL_API_BEGIN

/* Defined once in each program. `run` gets main's arguments, on the main thread, after keel_process_begin,
 * and returns the exit code; what it printed is looked after by main. */
struct keel_main {
    const char *name;
    int (*run)(int argc, char **argv);
};
extern const struct keel_main keel_main_of_program;

/* The same for a program that is one set of commands (keel-board, keel-ckpt): PROGRAM COMMAND ... is
 * `keel SET COMMAND ...`, and so is PROGRAM SET COMMAND ..., as Keel starts its own processes. */
int keel_program_run_set(const char *set, int (*entry)(int argc, char **argv), int argc, char **argv);

/* `keel 0.1.0`, and what this build was made without. */
void keel_program_print_version(void);

KEEL_API_END

#endif
