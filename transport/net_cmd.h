/* net_cmd.h - what the subcommands of `keel net` share: their tables, their command lines, JSON.
 *
 * A subcommand is one struct keel_net_kind: its words, its options as a table, what it does. net_cmd.c parses
 * by these tables and prints --help from them. */
#ifndef KEEL_TRANSPORT_NET_CMD_H
#define KEEL_TRANSPORT_NET_CMD_H

#include <keel/net_cmd.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { KEEL_NET_OPERANDS_MAX = 64, KEEL_NET_OWN_BYTES = 512 };

enum keel_net_type {
    KEEL_NET_FLAG,  /* bool */
    KEEL_NET_COUNT, /* uint64_t: a whole number */
    KEEL_NET_BYTES, /* uint64_t: 8, 64K, 16M, 1G */
    KEEL_NET_TEXT   /* const char * */
};

struct keel_net_option {
    const char *name;  /* "--ranks" */
    const char *value; /* what --help calls its value; NULL for a flag */
    enum keel_net_type type;
    size_t offset;    /* in the subcommand's own struct */
    const char *help; /* NULL: given by Keel to its own processes, not told */
};

struct keel_net_cmd {
    const struct keel_net_kind *kind;
    const char *operands[KEEL_NET_OPERANDS_MAX];
    uint32_t operand_count;
    bool json;
    int argc; /* as keel_net_main got them */
    char **argv;
    union {
        uint8_t bytes[KEEL_NET_OWN_BYTES];
        uint64_t aligned;
    } own; /* the subcommand's own struct; `begin` has filled in what holds without options */
};

struct keel_net_kind {
    const char *name;
    const char *operands; /* for --help; "" for none */
    uint32_t operands_max;
    const char *summary;                   /* a line */
    const char *details;                   /* whole lines */
    const char *examples;                  /* whole lines */
    const struct keel_net_option *options; /* ended by a name that is NULL */
    void (*begin)(void *own);              /* NULL: all zero */
    int (*run)(const struct keel_net_cmd *cmd);
};
extern const struct keel_net_kind keel_net_who, keel_net_check, keel_net_bench, keel_net_tune;

static inline const void *keel_net_own(const struct keel_net_cmd *cmd)
{
    return cmd->own.bytes;
}

/* Print what is wrong, and return the exit code. */
int keel_net_wrong_use(const char *why, const char *what);
int keel_net_report(enum keel_status status);

/* Replace a file that the user named, but for a device or a pipe, which is written into. */
enum keel_status keel_net_write_file(const char *path, const void *data, size_t bytes);
enum keel_status keel_net_may_write(const char *path); /* tells it beforehand; makes an empty file */

/* ---- JSON, written as it comes: objects and lists within each other, commas by themselves ---- */

struct keel_json {
    FILE *out;
    bool follows; /* something stands before in this object or list */
};
/* `key` is NULL within a list and at the top. */
void keel_json_open(struct keel_json *json, const char *key, char bracket); /* '{' or '[' */
void keel_json_close(struct keel_json *json, char bracket);
void keel_json_text(struct keel_json *json, const char *key, const char *value); /* NULL: null */
void keel_json_number(struct keel_json *json, const char *key, uint64_t value);
void keel_json_real(struct keel_json *json, const char *key, double value, int digits);
void keel_json_bool(struct keel_json *json, const char *key, bool value);

#endif
