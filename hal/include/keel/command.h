/* command.h - command lines by tables of options, alone or in sets: `keel SET COMMAND [OPTION]... [--]
 * [OPERAND]...`.
 *
 * A command of a set is one struct keel_command_kind: its words, its options as a table, what it does.
 * command.c parses by these tables and prints --help from them; --json is an option of all. A program that is
 * no set reads its words with keel_command_read. Nothing here knows what a command is about. Main thread. */
#ifndef KEEL_COMMAND_H
#define KEEL_COMMAND_H

#include <keel/api.h>
#include <keel/json.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

KEEL_API_BEGIN

enum { KEEL_COMMAND_OPERANDS_MAX = 64, KEEL_COMMAND_OWN_BYTES = 1024, KEEL_COMMAND_TEXTS_MAX = 48 };

enum keel_command_type {
    KEEL_COMMAND_FLAG,     /* bool */
    KEEL_COMMAND_COUNT,    /* uint64_t: a whole number */
    KEEL_COMMAND_POSITIVE, /* uint64_t: a whole number from 1 on */
    KEEL_COMMAND_BYTES,    /* uint64_t: 8, 64K, 16M, 1G */
    KEEL_COMMAND_DURATION, /* uint64_t, nanoseconds, not zero: 90s, 30m, 12h, 7d */
    KEEL_COMMAND_TEXT,     /* const char * */
    KEEL_COMMAND_TEXTS,    /* struct keel_command_texts: may be given several times */
    KEEL_COMMAND_CALL      /* `take` of the words, each time that it is given */
};

struct keel_command_texts {
    uint32_t count;
    const char *at[KEEL_COMMAND_TEXTS_MAX];
};

struct keel_command_option {
    const char *name;  /* "--ranks" */
    const char *value; /* what --help calls its value; NULL for a flag */
    enum keel_command_type type;
    size_t offset;    /* in the command's own struct; of KEEL_COMMAND_CALL for `take` to use */
    const char *help; /* NULL: given by Keel to its own processes, not told */
};

/* The words of a command line. As with getopt_long: options and operands in any order, --name VALUE or
 * --name=VALUE, the value may begin with a dash, a name may be cut short where no other begins so, `-` is an
 * operand, and so is all behind `--`. Of an option that is given again the last value counts. */
struct keel_command_words {
    const struct keel_command_option *options; /* ended by a name that is NULL */
    const struct keel_command_option *shared;  /* more of them, or NULL */
    void *own;                                 /* what they fill in */
    /* Of options of KEEL_COMMAND_CALL: INVALID with a detail when the value, which lives as long as argv, is
     * none. */
    enum keel_status (*take)(void *own, const struct keel_command_option *option, char *value);
    const char *operands[KEEL_COMMAND_OPERANDS_MAX];
    uint32_t operand_count, operands_max;
    bool *json; /* set by --json; NULL: that is no option */
    bool help;  /* out: --help or -h was given; nothing behind it was read */
};

/* Read argv[1] and what follows. INVALID: the detail names the word, and what its option takes. */
enum keel_status keel_command_read(struct keel_command_words *words, int argc, char **argv);
/* For --help: a line for each option, more where its help has more. */
void keel_command_print_options(FILE *out, const struct keel_command_option *options);

struct keel_command {
    const struct keel_command_set *set;
    const struct keel_command_kind *kind;
    const char *operands[KEEL_COMMAND_OPERANDS_MAX];
    uint32_t operand_count;
    bool json;
    int argc; /* as keel_command_main got them */
    char **argv;
    union {
        uint8_t bytes[KEEL_COMMAND_OWN_BYTES];
        uint64_t aligned;
    } own; /* the command's own struct; `begin` has filled in what holds without options */
};

struct keel_command_kind {
    const char *name;
    const char *operands; /* for --help; "" for none */
    uint32_t operands_min, operands_max;
    const char *summary;                       /* a line */
    const char *details;                       /* whole lines */
    const char *examples;                      /* whole lines */
    const struct keel_command_option *options; /* ended by a name that is NULL */
    void (*begin)(void *own);                  /* NULL: all zero */
    int (*run)(const struct keel_command *command);
};

struct keel_command_set {
    const char *name; /* "keel net" */
    const struct keel_command_kind *const *kinds;
    uint32_t kind_count;
    /* Options of every command, ended by a name that is NULL; their offsets lie in a struct that begins each
     * command's own one. NULL: none. */
    const struct keel_command_option *shared;
    const char *notes; /* whole lines for every --help; NULL: none */
};

/* This program has the commands of one set alone, as keel-ckpt has: `name` is printed in the place of the
 * set's, "keel ckpt". Once, before the set runs; and the name, NULL in a program that has all sets. */
void keel_command_set_program(const char *name);
const char *keel_command_program(void);
/* What one types before a command of the set: "keel net", or "keel-board". keel_command_report puts it in the
 * place of the set's name in the detail of a failure. */
const char *keel_command_called(const struct keel_command_set *set);

/* Run argv[1] of a set; argv[0] is the set's last word. Returns the process exit code. */
int keel_command_main(const struct keel_command_set *set, int argc, char **argv);

static inline const void *keel_command_own(const struct keel_command *command)
{
    return command->own.bytes;
}

/* Print what is wrong, note it (keel_command_note), and return the exit code. */
int keel_command_wrong_use(const struct keel_command_set *set, const char *why, const char *what);
int keel_command_report(const struct keel_command_set *set, enum keel_status status);
/* At the end of a command: was all of the standard output taken? What was printed into a full disk was not
 * said. A reader that has gone away has seen enough. Forgets the failure. */
enum keel_status keel_command_printed(void);

/* INVALID: the value that the command line gives to `option`, and what the option takes. */
enum keel_status keel_command_wrong_value(const struct keel_command *command, const char *option);

/* ---- --json ---- */

/* One object on the standard output, also of a command that fails or is interrupted:
 * begin_output; work, in which the first failure is noted; end_output, which prints
 * {"error":{"status":NAME,"detail":TEXT},"exit":CODE} when the command failed and printed no object.
 * keel_command_main does it for the commands of a set. */
void keel_command_begin_output(bool json);
void keel_command_note(enum keel_status status); /* with keel_detail(); the first one counts */
void keel_command_end_output(int code);
/* Another process of this command prints the object: this one prints none. */
void keel_command_leave_output(void);
/* The object of a command: opened; and closed, with "error" and "exit" as above when a failure was noted.
 * What goes to the standard output is printed when it is whole, also when a signal comes meanwhile. */
struct keel_json keel_command_json(FILE *out);
void keel_command_json_end(struct keel_json *json);
void keel_command_print_object(const char *text); /* made by other means than keel_command_json */

/* Replace a file that the user named, but for a device or a pipe, which is written into. */
enum keel_status keel_command_write_file(const char *path, const void *data, size_t bytes);
enum keel_status keel_command_may_write(const char *path); /* tells it beforehand; leaves nothing */

KEEL_API_END

#endif
