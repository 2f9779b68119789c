/* layer_plan.c - EMULATED_FAULTS, read: which fault is due at which call. Its words are in layer.c's head.
 *
 * Pure but for the files of `once` and `until`. */
#include "layer.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const actions[] = {[ACTION_ERROR] = "error",       [ACTION_FAIL] = "fail",
                                      [ACTION_LOSE] = "lose",         [ACTION_HANG] = "hang",
                                      [ACTION_STALL] = "stall",       [ACTION_SLOW] = "slow",
                                      [ACTION_BLOCK] = "block",       [ACTION_CRASH] = "crash",
                                      [ACTION_FLIP] = "flip",         [ACTION_DROP] = "drop",
                                      [ACTION_OPTIONS] = "options",   [ACTION_STUCK] = "stuck",
                                      [ACTION_ALIAS] = "alias",       [ACTION_UNORDERED] = "unordered",
                                      [ACTION_OVERTAKE] = "overtake", [ACTION_EARLY] = "early",
                                      [ACTION_SHORT] = "short",       [ACTION_SHIFT] = "shift",
                                      [ACTION_SPILL] = "spill",       [ACTION_REGROUP] = "regroup",
                                      [ACTION_TWICE] = "twice",       [ACTION_STALE] = "stale",
                                      [ACTION_LEAK] = "leak"};
static const char *const calls[] = {[CALL_BUFFER] = "buffer",
                                    [CALL_QUEUE] = "queue",
                                    [CALL_PROGRAM] = "program",
                                    [CALL_BUILD] = "build",
                                    [CALL_KERNEL] = "kernel",
                                    [CALL_LAUNCH] = "launch",
                                    [CALL_READ] = "read",
                                    [CALL_WRITE] = "write",
                                    [CALL_COPY] = "copy",
                                    [CALL_FILL] = "fill",
                                    [CALL_MAP] = "map",
                                    [CALL_UNMAP] = "unmap",
                                    [CALL_MARK] = "mark",
                                    [CALL_FLUSH] = "flush",
                                    [CALL_MEMORY] = "memory",
                                    [CALL_ANY] = "any",
                                    [CALL_SLICE] = "slice",
                                    [CALL_ARG] = "arg",
                                    [CALL_WAIT] = "wait",
                                    [CALL_CALLBACK] = "callback",
                                    [CALL_CONTEXT] = "context",
                                    [CALL_FREE] = "free",
                                    [CALL_CLOSE_QUEUE] = "close-queue",
                                    [CALL_CLOSE_PROGRAM] = "close-program",
                                    [CALL_CLOSE_KERNEL] = "close-kernel",
                                    [CALL_CLOSE] = "close",
                                    [CALL_EXIT] = "exit"};
static const char *const keys[] = {[KEY_CODE] = "code",       [KEY_MS] = "ms",
                                   [KEY_MBPS] = "mbps",       [KEY_DEVICE] = "device",
                                   [KEY_BANK] = "bank",       [KEY_ARG] = "arg",
                                   [KEY_BIT] = "bit",         [KEY_ADDRESS] = "address",
                                   [KEY_BYTES] = "bytes",     [KEY_TO] = "to",
                                   [KEY_VALUE] = "value",     [KEY_OVER] = "over",
                                   [KEY_RAGGED] = "ragged",   [KEY_UNALIGNED] = "unaligned",
                                   [KEY_GROUPS] = "groups",   [KEY_ROWS] = "rows",
                                   [KEY_SLABS] = "slabs",     [KEY_ITEMS] = "items",
                                   [KEY_QUEUE] = "queue",     [KEY_DEPTH] = "depth",
                                   [KEY_LIVE] = "live",       [KEY_BUSY] = "busy",
                                   [KEY_FOREIGN] = "foreign", [KEY_AFTER] = "after_ms",
                                   [KEY_IDLE] = "idle_ms",    [KEY_KEEP] = "keep",
                                   [KEY_LESS] = "less",       [KEY_WRAP] = "wrap",
                                   [KEY_ALIGN] = "align",     [KEY_PERCENT] = "percent",
                                   [KEY_GROWING] = "growing"};

const char *layer_action_name(enum layer_action action)
{
    return actions[action];
}

const char *layer_call_name(enum layer_call call)
{
    return calls[call];
}

static int find(const char *const *names, size_t count, const char *word, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(names[i]) == length && memcmp(names[i], word, length) == 0)
            return (int)i;
    return -1;
}

static bool number(const char *text, const char **end, uint64_t *out)
{
    char *after = NULL;
    if (*text < '0' || *text > '9')
        return false;
    *out = strtoull(text, &after, 0);
    *end = after;
    return true;
}

/* "7", "7+", "7/3", "*". */
static bool parse_when(const char *text, struct layer_fault *fault)
{
    const char *at = text;
    fault->first = 1;
    fault->every = 1;
    if (strcmp(text, "*") == 0)
        return true;
    if (!number(text, &at, &fault->first) || fault->first == 0)
        return false;
    if (strcmp(at, "+") == 0)
        return true;
    if (*at == '/')
        return number(at + 1, &at, &fault->every) && fault->every > 0 && *at == '\0';
    fault->every = 0;
    return *at == '\0';
}

/* A number; of `code` also a negative one, and of `bytes`, `address` and `to` with k, m or g behind it. */
static bool parse_value(const char *text, enum layer_key key, uint64_t *out)
{
    const char *at = text;
    bool negative = key == KEY_CODE && *text == '-';
    if (!number(text + negative, &at, out))
        return false;
    if (negative)
        *out = (uint64_t) - (int64_t)*out;
    int shift = *at == 'k' ? 10 : *at == 'm' ? 20 : *at == 'g' ? 30 : 0;
    *out <<= shift;
    return at[shift != 0] == '\0';
}

static bool parse_text(const char *word, const char *key, char *out, size_t out_bytes)
{
    size_t length = strlen(key);
    if (strncmp(word, key, length) != 0 || word[length] != '=' || strlen(word + length + 1) >= out_bytes)
        return false;
    memcpy(out, word + length + 1, strlen(word + length + 1) + 1);
    return out[0] != '\0';
}

static bool parse_key(const char *word, struct layer_fault *fault)
{
    if (parse_text(word, "kernel", fault->kernel, sizeof fault->kernel) ||
        parse_text(word, "add", fault->add, sizeof fault->add) ||
        parse_text(word, "once", fault->once, sizeof fault->once) ||
        parse_text(word, "until", fault->until, sizeof fault->until))
        return true;
    size_t length = strcspn(word, "=");
    int key = find(keys, KEY_COUNT, word, length);
    return key >= 0 && word[length] == '=' &&
           parse_value(word + length + 1, (enum layer_key)key, &fault->value[key]);
}

/* "action:call=when" */
static bool parse_head(char *word, struct layer_fault *fault)
{
    size_t action_length = strcspn(word, ":");
    int action = find(actions, sizeof actions / sizeof actions[0], word, action_length);
    if (action < 0 || word[action_length] != ':')
        return false;
    const char *call_word = word + action_length + 1;
    size_t call_length = strcspn(call_word, "=");
    int call = find(calls, sizeof calls / sizeof calls[0], call_word, call_length);
    if (call < 0 || call_word[call_length] != '=')
        return false;
    fault->action = (enum layer_action)action;
    fault->call = (enum layer_call)call;
    bool of_memory = fault->action == ACTION_STUCK || fault->action == ACTION_ALIAS;
    return of_memory == (fault->call == CALL_MEMORY) && parse_when(call_word + call_length + 1, fault);
}

/* What went on in another process: `until` holds from the first call on, `once` was enough. */
static void look_back(struct layer_fault *fault)
{
    if (fault->once[0] != '\0' && access(fault->once, F_OK) == 0)
        fault->first = UINT64_MAX;
    if (fault->until[0] != '\0' && access(fault->until, F_OK) == 0)
        fault->first = fault->every = 1;
}

static bool parse_fault(char *text, struct layer_fault *fault, char wrong[LAYER_NAME_BYTES])
{
    *fault = (struct layer_fault){.first = 1};
    for (int i = 0; i < KEY_COUNT; i++)
        fault->value[i] = LAYER_UNSET;
    char *rest = NULL, *word = strtok_r(text, ",", &rest);
    bool good = word != NULL && parse_head(word, fault);
    while (good && (word = strtok_r(NULL, ",", &rest)) != NULL)
        good = parse_key(word, fault);
    if (!good)
        snprintf(wrong, LAYER_NAME_BYTES, "%s", word != NULL ? word : "");
    look_back(fault);
    return good;
}

bool layer_plan_parse(const char *text, struct layer_plan *out, char wrong[LAYER_NAME_BYTES])
{
    *out = (struct layer_plan){.count = 0};
    char *copy = strdup(text), *rest = NULL;
    bool good = copy != NULL;
    for (char *part = strtok_r(copy, "; \t\n", &rest); good && part != NULL;
         part = strtok_r(NULL, "; \t\n", &rest)) {
        if (out->count == LAYER_FAULTS_MAX) {
            snprintf(wrong, LAYER_NAME_BYTES, "%s (more than %d faults)", part, LAYER_FAULTS_MAX);
            good = false;
            break;
        }
        struct layer_fault *fault = &out->faults[out->count++];
        good = parse_fault(part, fault, wrong);
        out->has_memory_defects |= fault->call == CALL_MEMORY;
        out->drops_unmaps |= fault->action == ACTION_DROP && fault->call == CALL_UNMAP;
        out->counts_commands |=
            fault->value[KEY_DEPTH] != LAYER_UNSET || fault->value[KEY_BUSY] != LAYER_UNSET;
    }
    free(copy);
    return good;
}

/* True for who made the file: of several processes that come at one time, one. */
static bool leave_mark(const char *path)
{
    if (path[0] == '\0')
        return false;
    int mark = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (mark >= 0)
        close(mark);
    return mark >= 0;
}

bool layer_fault_due(struct layer_fault *fault)
{
    uint64_t call = ++fault->calls;
    bool due = call == fault->first ||
               (call > fault->first && fault->every > 0 && (call - fault->first) % fault->every == 0);
    if (due) {
        (void)leave_mark(fault->until);
        if (fault->once[0] != '\0') {
            fault->first = UINT64_MAX; /* once in all processes */
            due = leave_mark(fault->once);
        }
        if (fault->until[0] != '\0')
            fault->every = 1;
    }
    return due;
}
