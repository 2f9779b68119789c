/* ckpt_cmd.c - `keel ckpt`: the table of subcommands, their command lines, and --help.
 * What a subcommand does is in its own file; what they share is in ckpt_subcommand.h. */
#include "ckpt_subcommand.h"
#include <inttypes.h>
#include <keel/ckpt_cmd.h>
#include <keel/clock.h>
#include <keel/command.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct keel_cmd_kind *const kinds[] = {&keel_cmd_ls,     &keel_cmd_show,  &keel_cmd_verify,
                                                    &keel_cmd_gc,     &keel_cmd_diff,  &keel_cmd_export,
                                                    &keel_cmd_import, &keel_cmd_repair};
enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

/* What every subcommand, or each that takes it, knows beside its own options. */
static const char json_help[] = "print one JSON object instead of text";
static const char key_help[] = "the key file of sealed snapshots; needed to read what they hold";
static const char plain_help[] = "with --key: take also snapshots that are not sealed";
static const char step_help[] = "the snapshot of that step; without it the newest is meant";

static const char paths_help[] =
    "PATH is a store, a run in it, one snapshot, or the directory of a keel run.\n"
    "Exit codes: 0 done, 1 failed, 2 wrong use, 3 could not run here, 4 data is damaged,\n"
    "5 interrupted: the same command goes on, or begins again.\n";

/* ---- help ------------------------------------------------------------------------------------------- */

static void print_usage(FILE *out)
{
    fputs("usage: keel ckpt COMMAND PATH [--json] ...\n\n", out);
    for (size_t i = 0; i < KIND_COUNT; i++)
        fprintf(out, "  keel ckpt %-6s %-12s %s\n", kinds[i]->name, kinds[i]->operands, kinds[i]->summary);
    fprintf(out, "\n%skeel ckpt COMMAND --help tells the options of one.\n\nexamples:\n", paths_help);
    for (size_t i = 0; i < KIND_COUNT; i++)
        fputs(kinds[i]->examples, out);
}

static void print_option(FILE *out, const char *name, const char *value, const char *help)
{
    char words[64];
    snprintf(words, sizeof words, "%s%s%s", name, value != NULL ? " " : "", value != NULL ? value : "");
    fprintf(out, "  %-18s %s\n", words, help);
}

static void print_help(FILE *out, const struct keel_cmd_kind *kind)
{
    fprintf(out, "usage: keel ckpt %s %s [OPTION]...\n%s\n%s\noptions:\n", kind->name, kind->operands,
            kind->summary, kind->details);
    if (kind->takes_step)
        print_option(out, "--step", "N", step_help);
    for (const struct keel_cmd_option *o = kind->options; o != NULL && o->name != NULL; o++)
        print_option(out, o->name, o->value, o->help);
    print_option(out, "--key", "FILE", key_help);
    print_option(out, "--accept-plain", NULL, plain_help);
    print_option(out, "--json", NULL, json_help);
    fprintf(out, "\n%s\nexamples:\n%s", paths_help, kind->examples);
}

int keel_cmd_wrong_use(const char *why, const char *what)
{
    keel_command_note(keel_fail(KEEL_INVALID, "%s%s", why, what));
    fprintf(stderr, "keel ckpt: %s%s; try keel ckpt --help\n", why, what);
    return keel_status_exit_code(KEEL_INVALID);
}

/* ---- values -------------------------------------------------------------------------------------------- */

/* A whole number without sign or leading zeros, followed by what *out_rest then points to. */
static bool parse_number(const char *text, uint64_t *out, const char **out_rest)
{
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    if (at == text || (text[0] == '0' && at > text + 1))
        return false;
    *out = value;
    *out_rest = at;
    return true;
}

static bool parse_count(const char *text, uint64_t *out)
{
    const char *rest;
    return parse_number(text, out, &rest) && *rest == '\0';
}

static bool parse_duration(const char *text, uint64_t *out)
{
    static const struct {
        char unit;
        uint64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    uint64_t count;
    const char *rest;
    if (!parse_number(text, &count, &rest) || rest[0] == '\0' || rest[1] != '\0')
        return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (units[i].unit != rest[0] || count > UINT64_MAX / KEEL_NS_PER_S / units[i].seconds)
            continue;
        *out = count * units[i].seconds * KEEL_NS_PER_S;
        return true;
    }
    return false;
}

static bool add_text(struct keel_cmd_texts *texts, const char *text)
{
    if (texts->count == KEEL_CMD_TEXTS_MAX)
        return false;
    texts->at[texts->count++] = text;
    return true;
}

static bool set_option(struct keel_cmd *cmd, const struct keel_cmd_option *option, const char *text)
{
    void *field = cmd->own.bytes + option->offset;
    switch (option->type) {
    case KEEL_CMD_FLAG:
        *(bool *)field = true;
        return true;
    case KEEL_CMD_COUNT:
        return parse_count(text, field) && *(uint64_t *)field > 0;
    case KEEL_CMD_DURATION:
        return parse_duration(text, field) && *(uint64_t *)field > 0;
    case KEEL_CMD_TEXT:
        *(const char **)field = text;
        return true;
    case KEEL_CMD_TEXTS:
        return add_text(field, text);
    }
    return false;
}

/* ---- command line -------------------------------------------------------------------------------------- */

static const struct keel_cmd_option *find_option(const struct keel_cmd_kind *kind, const char *name)
{
    for (const struct keel_cmd_option *o = kind->options; o != NULL && o->name != NULL; o++)
        if (strcmp(o->name, name) == 0)
            return o;
    return NULL;
}

/* The words of one option, argv[*at] first; moves *at to its last. 0, or the exit code. */
static int take_option(struct keel_cmd *cmd, int argc, char **argv, int *at)
{
    const char *name = argv[*at];
    if (strcmp(name, "--json") == 0) {
        cmd->json = true;
        return 0;
    }
    if (cmd->kind->takes_step && strcmp(name, "--step") == 0) {
        if (++*at == argc || !parse_count(argv[*at], &cmd->step))
            return keel_cmd_wrong_use("--step needs the number of a step", "");
        cmd->has_step = true;
        return 0;
    }
    if (strcmp(name, "--accept-plain") == 0) {
        cmd->accept_plain = true;
        return 0;
    }
    if (strcmp(name, "--key") == 0) {
        if (++*at == argc)
            return keel_cmd_wrong_use("--key needs a FILE: ", key_help);
        cmd->key_file = argv[*at];
        return 0;
    }
    const struct keel_cmd_option *option = find_option(cmd->kind, name);
    if (option == NULL)
        return keel_cmd_wrong_use("unknown option ", name);
    const char *value = NULL;
    if (option->type != KEEL_CMD_FLAG && ++*at < argc)
        value = argv[*at];
    if ((option->type != KEEL_CMD_FLAG && value == NULL) || !set_option(cmd, option, value)) {
        char why[128];
        snprintf(why, sizeof why, "%s needs %s: %s", option->name, option->value, option->help);
        return keel_cmd_wrong_use(why, "");
    }
    return 0;
}

static int parse(const struct keel_cmd_kind *kind, int argc, char **argv, struct keel_cmd *out)
{
    struct keel_cmd cmd = {.kind = kind};
    uint32_t operands = 0;
    for (int i = 2; i < argc; i++) {
        int code = 0;
        if (argv[i][0] == '-')
            code = take_option(&cmd, argc, argv, &i);
        else if (operands == kind->operands_max)
            code = keel_cmd_wrong_use("one PATH too many: ", argv[i]);
        else
            cmd.operands[operands++] = argv[i];
        if (code != 0)
            return code;
    }
    if (cmd.accept_plain && cmd.key_file == NULL)
        return keel_cmd_wrong_use("--accept-plain needs --key FILE: without a key plain snapshots are taken",
                                  "");
    if (operands < kind->operands_min)
        return keel_cmd_wrong_use("missing: ", kind->operands);
    *out = cmd;
    return 0;
}

/* What was printed into a full disk was not said; what was to be done is done. */
static int printed(int code)
{
    enum keel_status status = keel_command_printed();
    int unprinted = status == KEEL_OK ? 0 : keel_cmd_report(status); /* also where 1 means that they differ */
    return code != 0 ? code : unprinted;
}

static int run_command(int argc, char **argv)
{
    const struct keel_cmd_kind *kind = NULL;
    bool help = false;
    for (size_t i = 0; i < KIND_COUNT && argc > 1; i++)
        if (strcmp(argv[1], kinds[i]->name) == 0)
            kind = kinds[i];
    for (int i = 1; i < argc; i++)
        help = help || strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
    if (help && kind != NULL)
        print_help(stdout, kind);
    else if (help)
        print_usage(stdout);
    if (help)
        return 0;
    if (argc < 2)
        return keel_cmd_wrong_use("a command is missing", "");
    if (kind == NULL)
        return keel_cmd_wrong_use("unknown command ", argv[1]);
    struct keel_cmd cmd;
    int code = parse(kind, argc, argv, &cmd);
    return code != 0 ? code : kind->run(&cmd);
}

/* With --json whoever reads the output gets an object also where the command failed before it had one. */
static int run_and_print(int argc, char **argv)
{
    bool json = false;
    for (int i = 1; i < argc; i++)
        json = json || strcmp(argv[i], "--json") == 0;
    keel_command_begin_output(json);
    int code = run_command(argc, argv);
    keel_command_end_output(code);
    return printed(code);
}

/* A reader that goes away (`keel ckpt gc out | head`) stops no work half-way. */
int keel_ckpt_main(int argc, char **argv)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGPIPE, &ignore, &before);
    int code = run_and_print(argc, argv);
    sigaction(SIGPIPE, &before, NULL);
    return code;
}
