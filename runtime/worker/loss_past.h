/* loss_past.h - what is to be known of the losses so far by who goes on: to find the same spikes
 * (train.spike) and the same early end (train.patience).
 *
 * A function of the losses in the order of their steps, of a fixed size whatever their number. It is kept in
 * some lines of metrics.jsonl, so that nobody reads all of them, and told to those who may lead next. */
#ifndef KEEL_LOSS_PAST_H
#define KEEL_LOSS_PAST_H

#include "early_stop.h"
#include "spike.h"

struct keel_loss_past {
    uint64_t step; /* the newest that is in it; 0: none */
    bool lacks;    /* not all before it are: nobody who could tell had them */
    struct keel_spike spike;
    struct keel_early_stop early;
};

struct keel_step_loss {
    uint64_t step;
    uint32_t loss_bits, val_loss_bits;
    bool has_val_loss;
};

/* Nothing but the rule. */
void keel_loss_past_begin(struct keel_loss_past *past, uint32_t patience, float min_delta);
/* The losses of the next step; those of one that is in it are left out. True: a spike begins. Where the run
 * went on behind its early end, it did so without that rule, which begins anew there. */
bool keel_loss_past_add(struct keel_loss_past *past, const struct keel_step_loss *loss);

/* As bytes, and back: false where they are not whole, or of another rule. */
enum { KEEL_LOSS_PAST_BYTES = 344 };
void keel_loss_past_write(const struct keel_loss_past *past, uint8_t out[KEEL_LOSS_PAST_BYTES]);
bool keel_loss_past_read(const uint8_t *data, uint32_t bytes, uint32_t patience, float min_delta,
                         struct keel_loss_past *out);
/* The same as text, in hexadecimal. */
enum { KEEL_LOSS_PAST_TEXT = 2 * KEEL_LOSS_PAST_BYTES + 1 };
void keel_loss_past_print(const struct keel_loss_past *past, char out[KEEL_LOSS_PAST_TEXT]);
bool keel_loss_past_parse(const char *text, uint32_t patience, float min_delta, struct keel_loss_past *out);

#endif
