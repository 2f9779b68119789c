/* serve.h - texts for many clients by one model on one device: a bounded queue, and so many texts at once,
 * each of which gets one more token in every step, so that all go on alike. A text depends on its own request
 * alone.
 *
 * One thread of its own computes; the functions may be called on any other. */
#ifndef KEEL_SERVE_H
#define KEEL_SERVE_H

#include "inference.h"
#include "serve_request.h"

struct keel_serve;
struct keel_serve_ticket; /* of a request that was taken */

struct keel_serve_config {
    struct keel_inference *inference; /* borrowed: for the thread alone until destroy */
    const struct keel_data *data;     /* borrowed: its texts are read on the callers' threads too */
    uint32_t block;                   /* tokens that the model sees at once */
    uint32_t slots;                   /* texts at once; with keys and values as many as the inference keeps */
    uint32_t prompt_rows;             /* tokens of prompts at once, as the inference keeps; 0: one by one */
    uint32_t queue_max;               /* requests that wait */
    bool decodes; /* keel_inference_decode computes them, all together; else each is computed whole */
    /* The thread has ended, by a failure or since all is done: called once, on it. */
    void (*ended)(void *context);
    void *context;
};
enum keel_status keel_serve_create(const struct keel_serve_config *config, struct keel_serve **out);
/* Nothing more is taken; what was taken is done, and then the thread ends. */
void keel_serve_drain(struct keel_serve *serve);
/* Joins the thread, and gives the failure that has ended it. All tickets were released. */
enum keel_status keel_serve_destroy(struct keel_serve *serve);

/* Who waits for the text of a request. Both are called with the serve's lock held, `wake` on its thread: they
 * call nothing of this header. */
struct keel_serve_waiter {
    void (*suspend)(void *context);
    void (*wake)(void *context);
    void *context;
};
/* Take a request, whose stops are taken over where it is OK; its prompt is read before the return. INVALID: a
 * prompt that the model does not have tokens for, or more tokens than it sees at once. LIMIT: the queue is
 * full. INTERRUPTED: nothing more is taken. */
enum keel_status keel_serve_submit(struct keel_serve *serve, struct keel_serve_request *request,
                                   const struct keel_serve_waiter *waiter, struct keel_serve_ticket **out);

/* What is there of a text. */
struct keel_serve_state {
    size_t bytes; /* in whole characters */
    uint32_t prompt_tokens, tokens;
    uint64_t seed;
    bool done;
    bool stopped;            /* by a text to stop at; else it has all of its tokens */
    enum keel_status status; /* once it is done: OK, or what has ended it */
};
struct keel_serve_state keel_serve_ticket_look(struct keel_serve_ticket *ticket);
/* Bytes from `from` on, at most `room`, which are there. */
void keel_serve_ticket_copy(struct keel_serve_ticket *ticket, size_t from, char *out, size_t bytes);
/* True: nothing is there behind `seen` bytes; the waiter was suspended, and is woken when something is. */
bool keel_serve_ticket_wait(struct keel_serve_ticket *ticket, size_t seen);
/* Nobody is there any more who could take it: it ends by INTERRUPTED, and the waiter is woken. */
void keel_serve_ticket_give_up(struct keel_serve_ticket *ticket);
/* The waiter is no more: what is not done is given up. */
void keel_serve_ticket_release(struct keel_serve_ticket *ticket);

/* Counted since the beginning, but for what is now. */
enum { KEEL_SERVE_BOUNDS = 9 };
extern const double keel_serve_bounds_s[KEEL_SERVE_BOUNDS]; /* of the times below */
struct keel_serve_figures {
    uint64_t taken, refused, done, given_up, failed; /* requests; refused: the queue was full */
    uint64_t prompt_tokens, tokens, steps;
    uint32_t queued, active; /* now */
    double busy_s;           /* in steps */
    uint64_t below[KEEL_SERVE_BOUNDS];
    double request_s; /* from taken to done, summed over `done`; below[i] of them within bound i */
};
struct keel_serve_figures keel_serve_figures(struct keel_serve *serve);
/* Seconds, from 1 to 600, until a request may begin that comes now: by the steps that the texts that are
 * computed, and then those that wait, have left (their tokens to draw, and their prompts as the model reads
 * them), each in the slot that is free first, and by how long a step took of late. A text that a stop ends
 * takes less. Any thread. */
uint32_t keel_serve_free_in_s(struct keel_serve *serve);

#endif
