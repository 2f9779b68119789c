/* command.c - a set's table of commands: their command lines, and --help. */
#include <errno.h>
#include <keel/clock.h>
#include <keel/command.h>
#include <keel/file.h>
#include <keel/process.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char json_help[] = "print one JSON object instead of text";
static const char codes_help[] =
    "Exit codes: 0 done, 1 failed, 2 wrong use, 3 could not run here, 4 data is damaged,\n"
    "5 interrupted.\n";

/* ---- names ---- */

static const char *program; /* see keel_command_set_program */

void keel_command_set_program(const char *name)
{
    program = name;
}

const char *keel_command_program(void)
{
    return program;
}

const char *keel_command_called(const struct keel_command_set *set)
{
    return program != NULL ? program : set->name;
}

/* ---- help ---- */

/* A text that says "keel ckpt", in the words of this program. */
static void print_text(FILE *out, const struct keel_command_set *set, const char *text)
{
    for (const char *at; (at = strstr(text, set->name)) != NULL; text = at + strlen(set->name))
        fprintf(out, "%.*s%s", (int)(at - text), text, keel_command_called(set));
    fputs(text, out);
}

static void print_usage(FILE *out, const struct keel_command_set *set)
{
    fprintf(out, "usage: %s COMMAND [OPTION]...\n\n", set->name);
    for (uint32_t i = 0; i < set->kind_count; i++)
        fprintf(out, "  %s %-7s %-12s %s\n", set->name, set->kinds[i]->name, set->kinds[i]->operands,
                set->kinds[i]->summary);
    fprintf(out, "\n%s%s%s COMMAND --help tells the options of one.\n\nexamples:\n",
            set->notes != NULL ? set->notes : "", codes_help, set->name);
    for (uint32_t i = 0; i < set->kind_count; i++)
        fputs(set->kinds[i]->examples, out);
}

/* The help begins behind a column of names, or below a name that is wider. */
static void print_option(FILE *out, const char *name, const char *value, const char *help)
{
    enum { COLUMN = 22 };
    char words[64];
    snprintf(words, sizeof words, "%s%s%s", name, value != NULL ? " " : "", value != NULL ? value : "");
    const bool wide = strlen(words) > COLUMN;
    if (wide)
        fprintf(out, "  %s\n", words);
    for (const char *rest = wide ? "" : words; *help != '\0'; rest = "") {
        int length = (int)strcspn(help, "\n");
        fprintf(out, "  %-*s %.*s\n", COLUMN, rest, length, help);
        help += length + (help[length] == '\n');
    }
}

void keel_command_print_options(FILE *out, const struct keel_command_option *options)
{
    for (const struct keel_command_option *o = options; o != NULL && o->name != NULL; o++)
        if (o->help != NULL)
            print_option(out, o->name, o->value, o->help);
}

static void print_help(FILE *out, const struct keel_command_set *set, const struct keel_command_kind *kind)
{
    fprintf(out, "usage: %s %s [OPTION]...%s%s\n%s\n\n", set->name, kind->name,
            kind->operands[0] != '\0' ? " " : "", kind->operands, kind->summary);
    fputs(kind->details, out);
    fputs("\noptions:\n", out);
    keel_command_print_options(out, kind->options);
    keel_command_print_options(out, set->shared);
    print_option(out, "--json", NULL, json_help);
    fprintf(out, "\n%s%s\nexamples:\n", set->notes != NULL ? set->notes : "", codes_help);
    fputs(kind->examples, out);
}

/* Of one command, or with NULL of the set. */
static void print_own_help(const struct keel_command_set *set, const struct keel_command_kind *kind)
{
    char *text = NULL;
    size_t bytes;
    FILE *memory = open_memstream(&text, &bytes);
    FILE *out = memory != NULL ? memory : stdout;
    if (kind != NULL)
        print_help(out, set, kind);
    else
        print_usage(out, set);
    if (memory == NULL)
        return;
    fclose(memory);
    print_text(stdout, set, text);
    free(text); /* open_memstream's own allocation */
}

/* ---- failures, and the object of --json ---- */

/* Of the command that runs: there is one in a process at a time. */
static struct {
    bool json, printed;      /* an object is wanted; is there */
    enum keel_status status; /* of the first failure */
    char detail[KEEL_DETAIL_BYTES];
    FILE *memory; /* takes the object until it is whole; NULL: none is open */
    char *text;   /* open_memstream's own allocation */
    size_t bytes;
} output;

void keel_command_begin_output(bool json)
{
    output.json = json;
    output.printed = false;
    output.status = KEEL_OK;
    output.detail[0] = '\0';
    keel_process_tell_interrupts_as_json(json);
}

void keel_command_note(enum keel_status status)
{
    if (output.status != KEEL_OK)
        return;
    output.status = status;
    snprintf(output.detail, sizeof output.detail, "%s", keel_detail());
}

static void json_failure(struct keel_json *json, int code)
{
    keel_json_open(json, "error", '{');
    keel_json_text(json, "status", keel_status_name(output.status));
    keel_json_text(json, "detail", output.detail);
    keel_json_close(json, '}');
    keel_json_number(json, "exit", (uint64_t)code);
}

void keel_command_end_output(int code)
{
    keel_process_tell_interrupts_as_json(false);
    if (!output.json || output.printed || code == 0)
        return;
    struct keel_json json = {.out = stdout};
    keel_json_open(&json, NULL, '{');
    json_failure(&json, code);
    keel_json_close(&json, '}');
    putchar('\n');
}

void keel_command_leave_output(void)
{
    output.json = false;
    keel_process_tell_interrupts_as_json(false);
}

/* An interrupt that comes meanwhile is late: what is asked for is said, and nothing behind it. */
void keel_command_print_object(const char *text)
{
    keel_process_tell_interrupts_as_json(false);
    const bool held = keel_process_hold_interrupts(true);
    output.printed = true;
    fputs(text, stdout);
    fflush(stdout); /* what fails is told by keel_command_printed */
    (void)keel_process_hold_interrupts(held);
}

struct keel_json keel_command_json(FILE *out)
{
    if (out == stdout)
        output.memory = open_memstream(&output.text, &output.bytes);
    struct keel_json json = {.out = out == stdout && output.memory != NULL ? output.memory : out};
    keel_json_open(&json, NULL, '{');
    return json;
}

void keel_command_json_end(struct keel_json *json)
{
    if (output.status != KEEL_OK)
        json_failure(json, keel_status_exit_code(output.status));
    keel_json_close(json, '}');
    fputc('\n', json->out);
    if (json->out != output.memory) {
        output.printed = output.printed || json->out == stdout;
        return;
    }
    fclose(output.memory);
    output.memory = NULL;
    keel_command_print_object(output.text);
    free(output.text);
}

/* What messages begin with: a set of one command is called by that too, "keel plan". */
static const char *name_of(const struct keel_command_set *set)
{
    static char name[64];
    bool one = set->kind_count == 1;
    snprintf(name, sizeof name, "%s%s%s", keel_command_called(set), one ? " " : "",
             one ? set->kinds[0]->name : "");
    return name;
}

/* The detail of a failure, which names commands as in the program keel, as this program has them. */
static void call_by_own_name(const struct keel_command_set *set)
{
    char detail[KEEL_DETAIL_BYTES] = "";
    FILE *out = program != NULL ? fmemopen(detail, sizeof detail, "w") : NULL;
    if (out == NULL)
        return;
    print_text(out, set, keel_detail());
    fclose(out);
    detail[sizeof detail - 1] = '\0';
    keel_detail_set(detail);
}

int keel_command_wrong_use(const struct keel_command_set *set, const char *why, const char *what)
{
    keel_command_note(keel_fail(KEEL_INVALID, "%s%s", why, what));
    fprintf(stderr, "%s: %s%s; try %s --help\n", name_of(set), why, what, name_of(set));
    return keel_status_exit_code(KEEL_INVALID);
}

int keel_command_report(const struct keel_command_set *set, enum keel_status status)
{
    call_by_own_name(set);
    keel_command_note(status);
    fprintf(stderr, "%s: %s: %s\n", name_of(set), keel_status_text(status), keel_detail());
    return keel_status_exit_code(status);
}

/* ---- the command line ---- */

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
    *out = value;
    *out_rest = at;
    return at != text;
}

static bool parse_bytes(const char *text, uint64_t *out)
{
    static const char units[] = "KMG";
    uint64_t value;
    const char *rest;
    if (!parse_number(text, &value, &rest))
        return false;
    const char *unit = *rest != '\0' ? strchr(units, *rest) : NULL;
    uint32_t shift = unit != NULL ? 10 * (uint32_t)(unit - units + 1) : 0;
    if (value > UINT64_MAX >> shift || (*rest != '\0' && (unit == NULL || rest[1] != '\0')))
        return false;
    *out = value << shift;
    return true;
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
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (units[i].unit == rest[0] && count <= UINT64_MAX / KEEL_NS_PER_S / units[i].seconds) {
            *out = count * units[i].seconds * KEEL_NS_PER_S;
            return count > 0;
        }
    return false;
}

static bool add_text(struct keel_command_texts *texts, const char *text)
{
    if (texts->count == KEEL_COMMAND_TEXTS_MAX)
        return false;
    texts->at[texts->count++] = text;
    return true;
}

/* Into the field of the option; false where the value is none that it takes. */
static bool set_field(void *field, enum keel_command_type type, const char *text)
{
    const char *rest;
    switch (type) {
    case KEEL_COMMAND_FLAG:
        *(bool *)field = true;
        return true;
    case KEEL_COMMAND_COUNT:
    case KEEL_COMMAND_POSITIVE:
        return parse_number(text, field, &rest) && *rest == '\0' &&
               (type == KEEL_COMMAND_COUNT || *(uint64_t *)field > 0);
    case KEEL_COMMAND_BYTES:
        return parse_bytes(text, field);
    case KEEL_COMMAND_DURATION:
        return parse_duration(text, field);
    case KEEL_COMMAND_TEXTS:
        return add_text(field, text);
    case KEEL_COMMAND_TEXT:
        *(const char **)field = text;
        return true;
    case KEEL_COMMAND_CALL:
        break;
    }
    return false;
}

/* The option whose name is the first `length` characters of `word`, else the only one whose name begins so.
 */
static enum keel_status find_option(const struct keel_command_option *options,
                                    const struct keel_command_option *shared, const char *word, size_t length,
                                    const struct keel_command_option **out)
{
    const struct keel_command_option *const tables[] = {options, shared};
    uint32_t found = 0;
    for (int i = 0; i < 2; i++)
        for (const struct keel_command_option *o = tables[i]; o != NULL && o->name != NULL; o++) {
            if (length < 3 || strncmp(o->name, word, length) != 0)
                continue;
            *out = o;
            found++;
            if (o->name[length] == '\0')
                return KEEL_OK;
        }
    if (found == 1)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, found == 0 ? "unknown option %s" : "%s is short for several options",
                     word);
}

/* What values of a type are. */
static const char *range_of(enum keel_command_type type)
{
    switch (type) {
    case KEEL_COMMAND_COUNT:
        return ", a whole number";
    case KEEL_COMMAND_POSITIVE:
        return ", a whole number, 1 at least";
    case KEEL_COMMAND_BYTES:
        return ", a whole number of bytes, or of K, M or G";
    case KEEL_COMMAND_DURATION:
        return ", a whole number, 1 at least, of s, m, h or d";
    case KEEL_COMMAND_FLAG:
    case KEEL_COMMAND_TEXT:
    case KEEL_COMMAND_TEXTS:
    case KEEL_COMMAND_CALL:
        break;
    }
    return "";
}

/* The words of one option, argv[*at] first; moves *at to its last. */
static enum keel_status read_option(struct keel_command_words *words, int argc, char **argv, int *at)
{
    const struct keel_command_option *option = NULL;
    char *word = argv[*at], *value = NULL;
    uint8_t *own = words->own;
    size_t length = strcspn(word, "=");
    KEEL_TRY(find_option(words->options, words->shared, word, length, &option));
    KEEL_ASSERT(option != NULL);
    const bool flag = option->type == KEEL_COMMAND_FLAG;
    if (word[length] == '=')
        value = word + length + 1;
    if (value != NULL && flag)
        return keel_fail(KEEL_INVALID, "%s takes no value", option->name);
    if (value == NULL && !flag && *at + 1 < argc)
        value = argv[++*at];
    if (value != NULL && option->type == KEEL_COMMAND_CALL) {
        KEEL_ASSERT(words->take != NULL);
        return words->take(own, option, value);
    }
    if ((value != NULL || flag) && set_field(own + option->offset, option->type, value))
        return KEEL_OK;
    if (value != NULL && option->type == KEEL_COMMAND_TEXTS) /* any text will do */
        return keel_fail(KEEL_LIMIT, "more than %d %s", (int)KEEL_COMMAND_TEXTS_MAX, option->name);
    const char *help = option->help != NULL ? option->help : "";
    return keel_fail(KEEL_INVALID, "%s needs %s%s: %.*s", option->name, option->value, range_of(option->type),
                     (int)strcspn(help, "\n"), help);
}

enum keel_status keel_command_read(struct keel_command_words *words, int argc, char **argv)
{
    bool options = true; /* none behind "--" */
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!options || word[0] != '-' || word[1] == '\0') {
            if (words->operand_count == words->operands_max)
                return keel_fail(KEEL_INVALID, "one word too many: %s", word);
            words->operands[words->operand_count++] = word;
        } else if (strcmp(word, "--") == 0) {
            options = false;
        } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            words->help = true;
            return KEEL_OK;
        } else if (words->json != NULL && strcmp(word, "--json") == 0) {
            *words->json = true;
        } else if (words->json != NULL && strncmp(word, "--j", 3) == 0 &&
                   strncmp("--json", word, strcspn(word, "=")) == 0) {
            return keel_fail(KEEL_INVALID, "%s: --json is written in full, and takes no value", word);
        } else {
            KEEL_TRY(read_option(words, argc, argv, &i));
        }
    }
    return KEEL_OK;
}

enum keel_status keel_command_wrong_value(const struct keel_command *command, const char *option)
{
    const struct keel_command_option *found = NULL;
    const char *value = NULL;
    (void)find_option(command->kind->options, command->set->shared, option, strlen(option), &found);
    KEEL_ASSERT(found != NULL);
    for (int i = 2; i + 1 < command->argc; i++)
        if (strcmp(command->argv[i], option) == 0)
            value = command->argv[i + 1];
    return keel_fail(KEEL_INVALID, "%s%s%s: %s wanted: %s", option, value != NULL ? " " : "",
                     value != NULL ? value : "", found->value, found->help);
}

static int parse(const struct keel_command_set *set, const struct keel_command_kind *kind, int argc,
                 char **argv, struct keel_command *out)
{
    *out = (struct keel_command){.set = set, .kind = kind, .argc = argc, .argv = argv};
    if (kind->begin != NULL)
        kind->begin(out->own.bytes);
    struct keel_command_words words = {.options = kind->options,
                                       .shared = set->shared,
                                       .own = out->own.bytes,
                                       .operands_max = kind->operands_max,
                                       .json = &out->json};
    if (keel_command_read(&words, argc - 1, argv + 1) != KEEL_OK)
        return keel_command_wrong_use(set, keel_detail(), "");
    memcpy(out->operands, words.operands, sizeof out->operands);
    out->operand_count = words.operand_count;
    if (out->operand_count < kind->operands_min)
        return keel_command_wrong_use(set, "missing: ", kind->operands);
    return 0;
}

static bool is_special(const char *path)
{
    return keel_path_exists(path) && !keel_path_is_file(path);
}

enum keel_status keel_command_write_file(const char *path, const void *data, size_t bytes)
{
    if (is_special(path))
        return keel_file_append(path, data, bytes, false);
    return keel_file_replace(path, data, bytes, 0644);
}

enum keel_status keel_command_may_write(const char *path)
{
    char inside[KEEL_PATH_BYTES];
    if (path[0] == '\0')
        return keel_fail(KEEL_INVALID, "a file is to be written whose name is empty; name one");
    KEEL_TRY(keel_path_join(inside, path, "."));
    if (keel_path_exists(inside))
        return keel_fail(KEEL_INVALID, "%s: is a directory; name a file", path);
    if (is_special(path))
        return KEEL_OK;
    if (keel_path_exists(path))
        return keel_file_append(path, "", 0, false);
    static const uint8_t block[4096]; /* a full disk takes a name, but nothing behind it */
    enum keel_status status = keel_file_append(path, block, sizeof block, false);
    enum keel_status removed = keel_path_exists(path) ? keel_remove_tree(path) : KEEL_OK;
    return status == KEEL_OK ? removed : status;
}

enum keel_status keel_command_printed(void)
{
    bool failed = ferror(stdout) != 0;
    errno = EIO; /* when it failed before, nobody knows why any more */
    failed = fflush(stdout) != 0 || failed;
    int error = errno;
    clearerr(stdout);
    struct pollfd reader = {.fd = STDOUT_FILENO};
    bool left = failed && poll(&reader, 1, 0) == 1 && (reader.revents & POLLERR) != 0;
    return failed && !left ? keel_fail_errno(error, "the standard output cannot be written") : KEEL_OK;
}

/* Told also after another failure: a code that is not 0 may be an answer (`keel ckpt diff`). */
static int printed(const struct keel_command_set *set, int code)
{
    enum keel_status status = keel_command_printed();
    int unprinted = status == KEEL_OK ? 0 : keel_command_report(set, status);
    return code != 0 ? code : unprinted;
}

/* Is that word among the options? */
static bool has_word(int argc, char **argv, const char *word)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], word) == 0)
            return true;
    return false;
}

static int run_command(const struct keel_command_set *set, int argc, char **argv)
{
    const struct keel_command_kind *kind = NULL;
    bool help = has_word(argc, argv, "--help") || has_word(argc, argv, "-h") ||
                (argc > 1 && strcmp(argv[1], "help") == 0);
    for (uint32_t i = 0; i < set->kind_count && argc > 1; i++)
        if (strcmp(argv[1], set->kinds[i]->name) == 0)
            kind = set->kinds[i];
    if (argc < 2)
        return keel_command_wrong_use(set, "a command is missing", "");
    if (help && kind != NULL)
        print_own_help(set, kind);
    else if (help && (argv[1][0] == '-' || strcmp(argv[1], "help") == 0))
        print_own_help(set, NULL);
    else if (kind == NULL)
        return keel_command_wrong_use(set, "unknown command ", argv[1]);
    if (help)
        return 0;
    struct keel_command cmd;
    int code = parse(set, kind, argc, argv, &cmd);
    return code != 0 ? code : kind->run(&cmd);
}

int keel_command_main(const struct keel_command_set *set, int argc, char **argv)
{
    keel_command_begin_output(has_word(argc, argv, "--json"));
    int code = run_command(set, argc, argv);
    keel_command_end_output(code);
    return printed(set, code);
}
