/* loss_past.c - see loss_past.h. Format: magic, step, lacks, spike, early end, rule, checksum; floats as
 * bits. */
#include "loss_past.h"

#include "wire_bytes.h"
#include <keel/bits.h>
#include <keel/status.h>
#include <stdio.h>
#include <string.h>

#define MAGIC UINT64_C(0x315453415056454b) /* "KEVPAST1" */

void keel_loss_past_begin(struct keel_loss_past *past, uint32_t patience, float min_delta)
{
    memset(past, 0, sizeof *past);
    past->early = (struct keel_early_stop){.patience = patience, .min_delta = min_delta};
}

bool keel_loss_past_add(struct keel_loss_past *past, const struct keel_step_loss *loss)
{
    if (loss->step <= past->step)
        return false;
    past->step = loss->step;
    if (past->early.end_step != 0 && loss->step > past->early.end_step)
        keel_early_stop_forget(&past->early);
    if (loss->has_val_loss)
        keel_early_stop_add(&past->early, loss->step, keel_float_of(loss->val_loss_bits));
    return keel_spike_add(&past->spike, keel_float_of(loss->loss_bits));
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

static void write_float(struct keel_writer *w, float value)
{
    keel_writer_number(w, keel_bits_of(value), 4);
}

static float read_float(struct keel_wire_reader *r)
{
    return keel_float_of((uint32_t)keel_reader_number(r, 4));
}

void keel_loss_past_write(const struct keel_loss_past *past, uint8_t out[KEEL_LOSS_PAST_BYTES])
{
    struct keel_writer w = {.data = out, .capacity = KEEL_LOSS_PAST_BYTES};
    keel_writer_number(&w, MAGIC, 8);
    keel_writer_number(&w, past->step, 8);
    keel_writer_number(&w, past->lacks ? 1 : 0, 4);
    for (uint32_t i = 0; i < KEEL_SPIKE_WINDOW; i++)
        write_float(&w, past->spike.last[i]);
    keel_writer_number(&w, past->spike.count, 8);
    keel_writer_number(&w, past->spike.outside, 4);
    write_float(&w, past->spike.first);
    write_float(&w, past->spike.lowest);
    keel_writer_number(&w, past->early.step, 8);
    keel_writer_number(&w, past->early.worse, 4);
    keel_writer_number(&w, past->early.end_step, 8);
    keel_writer_number(&w, past->early.best.step, 8);
    write_float(&w, past->early.best.loss);
    keel_writer_number(&w, past->early.patience, 4);
    write_float(&w, past->early.min_delta);
    keel_writer_number(&w, keel_fnv1a(KEEL_FNV1A_BEGIN, out, w.bytes), 8);
    KEEL_ASSERT(!w.failed && w.bytes == KEEL_LOSS_PAST_BYTES);
}

bool keel_loss_past_read(const uint8_t *data, uint32_t bytes, uint32_t patience, float min_delta,
                         struct keel_loss_past *out)
{
    struct keel_loss_past past;
    struct keel_wire_reader r = {.data = data, .bytes = bytes};
    memset(&past, 0, sizeof past);
    const uint64_t magic = keel_reader_number(&r, 8);
    past.step = keel_reader_number(&r, 8);
    past.lacks = keel_reader_number(&r, 4) != 0;
    for (uint32_t i = 0; i < KEEL_SPIKE_WINDOW; i++)
        past.spike.last[i] = read_float(&r);
    past.spike.count = keel_reader_number(&r, 8);
    past.spike.outside = (uint32_t)keel_reader_number(&r, 4);
    past.spike.first = read_float(&r);
    past.spike.lowest = read_float(&r);
    past.early.step = keel_reader_number(&r, 8);
    past.early.worse = (uint32_t)keel_reader_number(&r, 4);
    past.early.end_step = keel_reader_number(&r, 8);
    past.early.best.step = keel_reader_number(&r, 8);
    past.early.best.loss = read_float(&r);
    past.early.patience = (uint32_t)keel_reader_number(&r, 4);
    past.early.min_delta = read_float(&r);
    const uint64_t sum = keel_reader_number(&r, 8);
    if (!keel_reader_complete(&r) || magic != MAGIC || sum != keel_fnv1a(KEEL_FNV1A_BEGIN, data, bytes - 8) ||
        past.early.patience != patience || keel_bits_of(past.early.min_delta) != keel_bits_of(min_delta))
        return false;
    *out = past;
    return true;
}

/* ---- text ---------------------------------------------------------------------------------------------- */

void keel_loss_past_print(const struct keel_loss_past *past, char out[KEEL_LOSS_PAST_TEXT])
{
    uint8_t bytes[KEEL_LOSS_PAST_BYTES];
    keel_loss_past_write(past, bytes);
    for (uint32_t i = 0; i < KEEL_LOSS_PAST_BYTES; i++)
        snprintf(out + (size_t)2 * i, 3, "%02x", bytes[i]);
}

static int digit_of(char character)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = character != '\0' ? strchr(digits, character) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

bool keel_loss_past_parse(const char *text, uint32_t patience, float min_delta, struct keel_loss_past *out)
{
    uint8_t bytes[KEEL_LOSS_PAST_BYTES];
    if (strlen(text) != KEEL_LOSS_PAST_TEXT - 1)
        return false;
    for (uint32_t i = 0; i < KEEL_LOSS_PAST_BYTES; i++) {
        const int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        bytes[i] = (uint8_t)(16 * high + low);
    }
    return keel_loss_past_read(bytes, sizeof bytes, patience, min_delta, out);
}
