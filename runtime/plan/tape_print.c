/* tape_print.c - the names of actions, and tapes for people and programs. */
#include "tape.h"
#include <inttypes.h>
#include <string.h>

/* Which fields say something. */
enum { SLOT = 1, PIECE = 2, SHARD = 4, MICROBATCH = 8, FROM = 16, TO = 32, WINDOW = 64 };

static const struct {
    const char *name, *class;
    unsigned fields;
} kinds[KEEL_ACTION_COUNT] = {
    [KEEL_ACTION_ZERO] = {"zero", "launch", 0},
    [KEEL_ACTION_COMPUTE] = {"compute", "launch", PIECE | SHARD | MICROBATCH},
    [KEEL_ACTION_ADD] = {"add", "launch", SLOT | PIECE},
    [KEEL_ACTION_UPDATE] = {"update", "launch", FROM},
    [KEEL_ACTION_SQUARE] = {"square", "launch", 0},
    [KEEL_ACTION_STORE] = {"store", "copy", SLOT | PIECE},
    [KEEL_ACTION_LOSS] = {"loss", "copy", 0},
    [KEEL_ACTION_ENCODE] = {"encode", "copy", SHARD | TO},
    [KEEL_ACTION_DECODE] = {"decode", "copy", FROM},
    [KEEL_ACTION_COMPARE] = {"compare", "collective", PIECE},
    [KEEL_ACTION_REDUCE] = {"reduce", "collective", PIECE | TO},
    [KEEL_ACTION_SHADOW] = {"shadow", "collective", 0},
    [KEEL_ACTION_COMMIT] = {"commit", "collective", 0},
    [KEEL_ACTION_SPREAD] = {"spread", "collective", PIECE},
    [KEEL_ACTION_WEIGHTS] = {"weights", "collective", PIECE | WINDOW},
    [KEEL_ACTION_EXCHANGE] = {"exchange", "collective", PIECE | SHARD | MICROBATCH},
    [KEEL_ACTION_NORM] = {"norm", "collective", FROM},
    [KEEL_ACTION_AGREE] = {"agree", "collective", 0},
    [KEEL_ACTION_DIGEST] = {"digest", "collective", 0},
    [KEEL_ACTION_FINISH] = {"finish", "wait", 0},
    [KEEL_ACTION_SETTLE] = {"settle", "wait", 0},
    [KEEL_ACTION_AWAIT] = {"await", "wait", PIECE},
    [KEEL_ACTION_CAPTURE] = {"capture", "wait", 0},
    [KEEL_ACTION_MARK] = {"mark", "mark", PIECE},
    [KEEL_ACTION_HOLD] = {"hold", "hold", SHARD},
    [KEEL_ACTION_RECORD] = {"record", "hook", 0},
    [KEEL_ACTION_DRILL] = {"drill", "hook", 0},
    [KEEL_ACTION_SCREEN] = {"screen", "hook", 0},
    [KEEL_ACTION_CHECK] = {"check", "hook", 0},
};

const char *keel_action_name(enum keel_action_kind kind)
{
    KEEL_ASSERT(kind < KEEL_ACTION_COUNT);
    return kinds[kind].name;
}

static bool is_collective(const struct keel_action *action)
{
    return action->kind == KEEL_ACTION_REDUCE || action->kind == KEEL_ACTION_COMPARE ||
           action->kind == KEEL_ACTION_WEIGHTS;
}

static void print_piece(const struct keel_action *action, const uint64_t *piece_bytes, FILE *out)
{
    if (action->piece == KEEL_PIECE_ALL)
        fputs(" all segments", out);
    else
        fprintf(out, " %s %" PRIu32,
                action->kind == KEEL_ACTION_COMPUTE || action->kind == KEEL_ACTION_EXCHANGE ? "segment"
                                                                                            : "piece",
                action->piece);
    if (is_collective(action))
        fprintf(out, ", %" PRIu64 " bytes", piece_bytes[action->piece]);
}

/* A slot, the gradient buffer, or the host. */
static void print_place(const char *word, int slot, FILE *out)
{
    if (slot >= 0)
        fprintf(out, " %s slot %d", word, slot);
    else
        fprintf(out, " %s %s", word,
                slot == KEEL_HOLD_GRADIENTS  ? "gradients"
                : slot == KEEL_SUM_IN_PIECES ? "pieces"
                                             : "host");
}

void keel_tape_print(const struct keel_tape *tape, const uint64_t *piece_bytes, FILE *out)
{
    for (uint32_t i = 0; i < tape->count; i++) {
        const struct keel_action *action = &tape->actions[i];
        const unsigned fields = kinds[action->kind].fields;
        fprintf(out, "  %5" PRIu32 "  %-10s %s%*s", i, kinds[action->kind].class, kinds[action->kind].name,
                fields != 0 ? (int)(8 - strlen(kinds[action->kind].name)) : 0, "");
        if ((fields & SHARD) != 0)
            fprintf(out, " shard %" PRIu32, action->shard);
        if ((fields & MICROBATCH) != 0 && action->microbatch_count > 1)
            fprintf(out, " microbatches %" PRIu32 " to %" PRIu32, action->microbatch,
                    action->microbatch + action->microbatch_count - 1);
        else if ((fields & MICROBATCH) != 0)
            fprintf(out, " microbatch %" PRIu32, action->microbatch);
        if ((fields & SLOT) != 0)
            fprintf(out, " slot %d", action->slot);
        if ((fields & PIECE) != 0)
            print_piece(action, piece_bytes, out);
        if ((fields & WINDOW) != 0)
            fprintf(out, " to window %d", action->slot);
        if ((fields & (FROM | TO)) != 0)
            print_place((fields & TO) != 0 ? "to" : "from", action->slot, out);
        fputc('\n', out);
    }
}

void keel_tape_print_json(const struct keel_tape *tape, const uint64_t *piece_bytes, struct keel_json *json,
                          const char *key)
{
    keel_json_open(json, key, '[');
    for (uint32_t i = 0; i < tape->count; i++) {
        const struct keel_action *action = &tape->actions[i];
        const unsigned fields = kinds[action->kind].fields;
        keel_json_open(json, NULL, '{');
        keel_json_text(json, "class", kinds[action->kind].class);
        keel_json_text(json, "action", kinds[action->kind].name);
        if ((fields & SHARD) != 0)
            keel_json_number(json, "shard", action->shard);
        if ((fields & MICROBATCH) != 0) {
            keel_json_number(json, "microbatch", action->microbatch);
            keel_json_number(json, "microbatches", action->microbatch_count);
        }
        if ((fields & (SLOT | FROM | TO)) != 0 && action->slot >= 0)
            keel_json_number(json, "slot", (uint64_t)action->slot);
        if ((fields & WINDOW) != 0)
            keel_json_number(json, "window", (uint64_t)action->slot);
        if ((fields & PIECE) != 0 && action->piece != KEEL_PIECE_ALL)
            keel_json_number(json, "piece", action->piece);
        if (is_collective(action))
            keel_json_number(json, "bytes", piece_bytes[action->piece]);
        keel_json_close(json, '}');
    }
    keel_json_close(json, ']');
}
