/* serve.c - see serve.h. */
#include "serve.h"
#include "serve_wait.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <string.h>

/* So long what refused clients are told is not computed again. */
static const uint64_t told_ns = 100 * KEEL_NS_PER_MS;

const double keel_serve_bounds_s[KEEL_SERVE_BOUNDS] = {0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30};

struct keel_serve_ticket {
    struct keel_serve *serve;
    struct keel_serve_ticket *next; /* in the queue */
    struct keel_serve_request request;
    struct keel_serve_waiter waiter;
    int32_t *prompt; /* owned, as text: tokens */
    uint32_t prompt_count;
    uint64_t taken_ns;
    /* Guarded by the serve's lock, as all below. */
    char *text;
    size_t bytes, capacity;
    uint32_t tokens;
    bool waits, given_up, released, done, stopped;
    enum keel_status status;
};

/* A text that is being computed: the thread's own, but for its ticket. */
struct slot {
    struct keel_serve_ticket *ticket; /* NULL: free */
    struct keel_writing text;
    uint32_t fed; /* tokens that were computed */
};

struct keel_serve {
    struct keel_serve_config config;
    struct keel_thread thread;
    bool started;
    struct slot *slots;               /* the thread's own, as the next three */
    int32_t *tokens, *positions, *of; /* of a step; the slot that a token of a prompt is of */
    struct keel_mutex lock;
    struct keel_cond work;
    /* Guarded by the lock. */
    struct keel_serve_ticket *first, *last;
    struct keel_serve_figures figures;
    uint64_t step_ns;       /* a mean of the last ones */
    uint64_t told_until_ns; /* so long keel_serve_free_in_s says the same, */
    uint32_t told_s;        /* this */
    uint64_t *left;         /* by slot: steps until it is free; behind them as many, to count with */
    bool draining;
    bool some_left; /* a ticket was given up since the thread looked at those that wait */
    enum keel_status status;
    char why[KEEL_DETAIL_BYTES];
};

/* ---- tickets ------------------------------------------------------------------------------------------- */

static void ticket_free(struct keel_serve_ticket *ticket)
{
    keel_serve_request_free(&ticket->request);
    keel_free(ticket->prompt);
    keel_free(ticket->text);
    keel_free(ticket);
}

/* With the lock held, as the next. */
static void wake(struct keel_serve_ticket *ticket)
{
    const bool waits = ticket->waits;
    ticket->waits = false;
    if (waits)
        ticket->waiter.wake(ticket->waiter.context);
}

/* The serve is through with it; gone at once where nobody waits for it any more. */
static void end_ticket(struct keel_serve_ticket *ticket, enum keel_status status)
{
    struct keel_serve_figures *figures = &ticket->serve->figures;
    const double took_s = (double)(keel_now_ns() - ticket->taken_ns) / 1e9;
    ticket->status = status;
    ticket->done = true;
    figures->given_up += ticket->given_up;
    if (ticket->released) {
        ticket_free(ticket);
        return;
    }
    if (status == KEEL_OK) {
        figures->done++;
        figures->request_s += took_s;
        for (uint32_t i = 0; i < KEEL_SERVE_BOUNDS; i++)
            figures->below[i] += took_s <= keel_serve_bounds_s[i];
    } else {
        figures->failed += !ticket->given_up;
    }
    wake(ticket);
}

struct keel_serve_state keel_serve_ticket_look(struct keel_serve_ticket *ticket)
{
    keel_mutex_lock(&ticket->serve->lock);
    const struct keel_serve_state state = {
        .bytes = ticket->done ? ticket->bytes : keel_whole_characters(ticket->text, ticket->bytes),
        .prompt_tokens = ticket->prompt_count,
        .tokens = ticket->tokens,
        .seed = ticket->request.sampling.seed,
        .done = ticket->done,
        .stopped = ticket->stopped,
        .status = ticket->status};
    keel_mutex_unlock(&ticket->serve->lock);
    return state;
}

void keel_serve_ticket_copy(struct keel_serve_ticket *ticket, size_t from, char *out, size_t bytes)
{
    keel_mutex_lock(&ticket->serve->lock);
    KEEL_ASSERT(from <= ticket->bytes && bytes <= ticket->bytes - from);
    if (bytes > 0)
        memcpy(out, ticket->text + from, bytes);
    keel_mutex_unlock(&ticket->serve->lock);
}

bool keel_serve_ticket_wait(struct keel_serve_ticket *ticket, size_t seen)
{
    keel_mutex_lock(&ticket->serve->lock);
    ticket->waits = !ticket->done && keel_whole_characters(ticket->text, ticket->bytes) <= seen;
    const bool waits = ticket->waits;
    if (waits)
        ticket->waiter.suspend(ticket->waiter.context);
    keel_mutex_unlock(&ticket->serve->lock);
    return waits;
}

void keel_serve_ticket_give_up(struct keel_serve_ticket *ticket)
{
    keel_mutex_lock(&ticket->serve->lock);
    ticket->given_up = ticket->serve->some_left = true;
    keel_mutex_unlock(&ticket->serve->lock);
}

void keel_serve_ticket_release(struct keel_serve_ticket *ticket)
{
    struct keel_serve *serve = ticket->serve;
    keel_mutex_lock(&serve->lock);
    ticket->released = ticket->given_up = serve->some_left = true;
    ticket->waits = false;
    const bool done = ticket->done;
    keel_mutex_unlock(&serve->lock);
    if (done)
        ticket_free(ticket);
}

/* ---- taking -------------------------------------------------------------------------------------------- */

static enum keel_status encode(struct keel_serve *serve, const struct keel_serve_request *request,
                               struct keel_serve_ticket *ticket)
{
    const uint32_t block = serve->config.block;
    size_t count;
    if (keel_data_encode(serve->config.data, request->prompt, request->prompt_bytes, &ticket->prompt,
                         &count) != KEEL_OK) {
        char why[KEEL_DETAIL_BYTES];
        snprintf(why, sizeof why, "%.400s", keel_detail());
        return keel_fail(KEEL_INVALID, "prompt: %s", why);
    }
    /* An empty prompt is the token that text goes on from; behind the last token nothing is computed. */
    const uint64_t all = (count > 0 ? count : 1) + (uint64_t)request->tokens - 1;
    if (all > block)
        return keel_fail(KEEL_INVALID,
                         "max_tokens: a prompt of %zu tokens and %u more are beyond the %u that the model "
                         "can have together "
                         "(model.block + 1; no prompt counts as one token)",
                         count, request->tokens, block + 1);
    ticket->prompt_count = (uint32_t)count;
    return KEEL_OK;
}

/* With the lock held. */
static enum keel_status append(struct keel_serve *serve, struct keel_serve_ticket *ticket)
{
    if (serve->draining || serve->status != KEEL_OK)
        return keel_fail(KEEL_INTERRUPTED, "keel serve is about to end");
    if (serve->figures.queued == serve->config.queue_max) {
        serve->figures.refused++;
        return keel_fail(KEEL_LIMIT, "%u requests wait already", serve->config.queue_max);
    }
    if (serve->last != NULL)
        serve->last->next = ticket;
    else
        serve->first = ticket;
    serve->last = ticket;
    serve->figures.queued++;
    serve->figures.taken++;
    serve->figures.prompt_tokens += ticket->prompt_count;
    return KEEL_OK;
}

enum keel_status keel_serve_submit(struct keel_serve *serve, struct keel_serve_request *request,
                                   const struct keel_serve_waiter *waiter, struct keel_serve_ticket **out)
{
    struct keel_serve_ticket *ticket;
    KEEL_TRY(keel_alloc(1, sizeof *ticket, &ticket));
    *ticket = (struct keel_serve_ticket){
        .serve = serve, .request = *request, .waiter = *waiter, .taken_ns = keel_now_ns()};
    ticket->request.prompt = NULL; /* stays the caller's: the tokens are what is kept */
    enum keel_status status = encode(serve, request, ticket);
    if (status == KEEL_OK) {
        keel_mutex_lock(&serve->lock);
        status = append(serve, ticket);
        keel_cond_signal(&serve->work);
        keel_mutex_unlock(&serve->lock);
    }
    if (status != KEEL_OK) {
        memset(ticket->request.stops, 0, sizeof ticket->request.stops); /* the caller's */
        ticket_free(ticket);
        return status;
    }
    memset(request->stops, 0, sizeof request->stops);
    *out = ticket;
    return KEEL_OK;
}

/* ---- computing: on the thread -------------------------------------------------------------------------- */

static enum keel_status write_token(void *context, uint32_t token, const char *text, size_t bytes)
{
    struct keel_serve_ticket *ticket = context;
    struct keel_serve *serve = ticket->serve;
    (void)token;
    keel_mutex_lock(&serve->lock);
    const enum keel_status status = keel_grow(&ticket->text, &ticket->capacity, ticket->bytes + bytes + 1, 1);
    if (status == KEEL_OK) {
        memcpy(ticket->text + ticket->bytes, text, bytes);
        ticket->bytes += bytes;
        ticket->tokens++;
        serve->figures.tokens++;
        if (ticket->request.stream)
            wake(ticket);
    }
    keel_mutex_unlock(&serve->lock);
    return status;
}

static enum keel_status begin_text(struct keel_serve *serve, struct slot *slot,
                                   struct keel_serve_ticket *ticket)
{
    const struct keel_generator of = {
        .data = serve->config.data,
        .sampling = ticket->request.sampling,
        .stops = {(const char *const *)ticket->request.stops, ticket->request.stop_count},
        .prompt = ticket->prompt,
        .prompt_count = ticket->prompt_count,
        .tokens = ticket->request.tokens,
        .block = serve->config.block,
        .vocab = keel_inference_logits(serve->config.inference),
        .write = write_token,
        .context = ticket};
    slot->ticket = ticket;
    slot->fed = 0;
    return keel_writing_begin(&slot->text, &of);
}

static void end_slot(struct keel_serve *serve, struct slot *slot, enum keel_status status)
{
    keel_writing_end(&slot->text);
    keel_mutex_lock(&serve->lock);
    serve->left[slot - serve->slots] = 0;
    slot->ticket->stopped = slot->text.stopped;
    end_ticket(slot->ticket, status);
    serve->figures.active--;
    keel_mutex_unlock(&serve->lock);
    slot->ticket = NULL;
}

/* The next request, in the order in which they came; NULL: none. With the lock held. */
static struct keel_serve_ticket *take_next(struct keel_serve *serve)
{
    struct keel_serve_ticket *ticket = serve->first;
    if (ticket == NULL)
        return NULL;
    serve->first = ticket->next;
    serve->last = serve->first != NULL ? serve->last : NULL;
    serve->figures.queued--;
    serve->figures.active++;
    return ticket;
}

/* A request that nobody waits for any more leaves its place in the queue to another. */
static void leave_queue(struct keel_serve *serve)
{
    keel_mutex_lock(&serve->lock);
    struct keel_serve_ticket **at = serve->some_left ? &serve->first : NULL;
    struct keel_serve_ticket *last = NULL;
    serve->some_left = false;
    while (at != NULL && *at != NULL) {
        struct keel_serve_ticket *ticket = *at;
        if (!ticket->given_up) {
            last = ticket;
            at = &ticket->next;
            continue;
        }
        *at = ticket->next;
        serve->figures.queued--;
        end_ticket(ticket, KEEL_INTERRUPTED);
    }
    serve->last = at != NULL ? last : serve->last;
    keel_mutex_unlock(&serve->lock);
}

/* Of a request that waits. Where nothing is kept, a prompt costs no step of its own. */
static uint64_t steps_of(const struct keel_serve *serve, const struct keel_serve_ticket *ticket)
{
    const uint32_t unread = serve->config.decodes && ticket->prompt_count > 0 ? ticket->prompt_count : 1;
    return keel_serve_steps(unread, ticket->request.tokens, serve->config.prompt_rows);
}

static void fill_slots(struct keel_serve *serve)
{
    for (uint32_t i = 0; i < serve->config.slots; i++) {
        struct slot *slot = &serve->slots[i];
        struct keel_serve_ticket *ticket = NULL;
        if (slot->ticket == NULL) {
            keel_mutex_lock(&serve->lock);
            ticket = take_next(serve);
            serve->left[i] = ticket != NULL ? steps_of(serve, ticket) : 0;
            keel_mutex_unlock(&serve->lock);
        }
        const enum keel_status status = ticket != NULL ? begin_text(serve, slot, ticket) : KEEL_OK;
        if (status != KEEL_OK)
            end_slot(serve, slot, status);
    }
}

/* A text that nobody waits for any more leaves its slot. */
static void leave_slots(struct keel_serve *serve)
{
    for (uint32_t i = 0; i < serve->config.slots; i++) {
        struct slot *slot = &serve->slots[i];
        keel_mutex_lock(&serve->lock);
        const bool given_up = slot->ticket != NULL && slot->ticket->given_up;
        keel_mutex_unlock(&serve->lock);
        if (given_up)
            end_slot(serve, slot, KEEL_INTERRUPTED);
    }
}

static void draw(struct keel_serve *serve, struct slot *slot, const float *logits)
{
    const enum keel_status status = keel_writing_draw(&slot->text, logits);
    if (status != KEEL_OK || keel_writing_is_whole(&slot->text))
        end_slot(serve, slot, status);
}

/* Tokens of prompts, as many as are kept at once: of the first slots that have some left beside the last one,
 * whose logits are wanted. */
static enum keel_status keep_prompts(struct keel_serve *serve)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < serve->config.slots; i++) {
        struct slot *slot = &serve->slots[i];
        if (slot->ticket == NULL || slot->text.count - slot->fed <= KEEL_PROMPT_LEAST)
            continue;
        for (; rows < serve->config.prompt_rows && slot->fed + 1 < slot->text.count; rows++, slot->fed++) {
            serve->tokens[rows] = slot->text.tokens[slot->fed];
            serve->positions[rows] = (int32_t)slot->fed;
            serve->of[rows] = (int32_t)i;
        }
    }
    if (rows == 0)
        return KEEL_OK;
    for (; rows < serve->config.prompt_rows; rows++) {
        serve->tokens[rows] = serve->of[rows] = 0;
        serve->positions[rows] = -1;
    }
    return keel_inference_keep(serve->config.inference, serve->tokens, serve->positions, serve->of);
}

/* One more token of each text, of its prompt or of its own. */
static enum keel_status decode(struct keel_serve *serve)
{
    const float *logits;
    const uint32_t row = keel_inference_logits(serve->config.inference);
    KEEL_TRY(keep_prompts(serve));
    for (uint32_t i = 0; i < serve->config.slots; i++) {
        const struct slot *slot = &serve->slots[i];
        const bool there = slot->ticket != NULL;
        serve->tokens[i] = there ? slot->text.tokens[slot->fed] : 0;
        serve->positions[i] = there ? (int32_t)slot->fed : -1;
    }
    KEEL_TRY(keel_inference_decode(serve->config.inference, serve->tokens, serve->positions, &logits));
    for (uint32_t i = 0; i < serve->config.slots; i++) {
        struct slot *slot = &serve->slots[i];
        if (slot->ticket != NULL && ++slot->fed == slot->text.count)
            draw(serve, slot, logits + (size_t)i * row);
    }
    return KEEL_OK;
}

static enum keel_status predict(struct keel_serve *serve)
{
    for (uint32_t i = 0; i < serve->config.slots; i++) {
        struct slot *slot = &serve->slots[i];
        const float *logits;
        uint32_t length;
        if (slot->ticket == NULL)
            continue;
        const int32_t *window = keel_writing_window(&slot->text, &length);
        KEEL_TRY(keel_inference_predict(serve->config.inference, window, length, &logits));
        draw(serve, slot, logits);
    }
    return KEEL_OK;
}

/* With the lock held. */
static void count_left(struct keel_serve *serve)
{
    for (uint32_t i = 0; i < serve->config.slots; i++) {
        const struct slot *slot = &serve->slots[i];
        const struct keel_writing *text = &slot->text;
        const uint32_t unread = serve->config.decodes ? text->count - slot->fed : 1;
        serve->left[i] = slot->ticket == NULL ? 0
                                              : keel_serve_steps(unread, text->of.tokens - text->drawn,
                                                                 serve->config.prompt_rows);
    }
}

static enum keel_status step(struct keel_serve *serve)
{
    const uint64_t begun_ns = keel_now_ns();
    const enum keel_status status = serve->config.decodes ? decode(serve) : predict(serve);
    const uint64_t took_ns = keel_now_ns() - begun_ns;
    keel_mutex_lock(&serve->lock);
    serve->figures.steps++;
    serve->figures.busy_s += (double)took_ns / 1e9;
    serve->step_ns = serve->step_ns == 0 ? took_ns : (7 * serve->step_ns + took_ns) / 8;
    count_left(serve);
    keel_mutex_unlock(&serve->lock);
    return status;
}

static bool is_idle(const struct keel_serve *serve)
{
    return serve->figures.active == 0 && serve->first == NULL;
}

/* Until there is something to do; false: there will be nothing more. */
static bool wait_for_work(struct keel_serve *serve)
{
    keel_mutex_lock(&serve->lock);
    while (is_idle(serve) && !serve->draining)
        keel_cond_wait(&serve->work, &serve->lock, UINT64_MAX);
    const bool more = !is_idle(serve);
    keel_mutex_unlock(&serve->lock);
    return more;
}

/* A device that fails has failed for all. */
static void fail_all(struct keel_serve *serve, enum keel_status status)
{
    keel_mutex_lock(&serve->lock);
    serve->status = status;
    snprintf(serve->why, sizeof serve->why, "%.400s", keel_detail());
    keel_mutex_unlock(&serve->lock);
    for (uint32_t i = 0; i < serve->config.slots; i++)
        if (serve->slots[i].ticket != NULL)
            end_slot(serve, &serve->slots[i], status);
    keel_mutex_lock(&serve->lock);
    for (struct keel_serve_ticket *ticket; (ticket = take_next(serve)) != NULL;) {
        serve->figures.active--;
        end_ticket(ticket, status);
    }
    keel_mutex_unlock(&serve->lock);
}

static void *compute(void *context)
{
    struct keel_serve *serve = context;
    enum keel_status status = KEEL_OK;
    while (status == KEEL_OK && wait_for_work(serve)) {
        leave_slots(serve);
        leave_queue(serve);
        fill_slots(serve);
        if (keel_serve_figures(serve).active > 0)
            status = step(serve);
    }
    if (status != KEEL_OK)
        fail_all(serve, status);
    serve->config.ended(serve->config.context);
    return NULL;
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

static enum keel_status allocate(struct keel_serve *serve)
{
    KEEL_TRY(keel_alloc(serve->config.slots, sizeof *serve->slots, &serve->slots));
    const struct keel_serve_config *config = &serve->config;
    const uint32_t rows = config->slots > config->prompt_rows ? config->slots : config->prompt_rows;
    KEEL_TRY(keel_alloc(2 * (uint64_t)config->slots, sizeof *serve->left, &serve->left));
    KEEL_TRY(keel_alloc(rows, sizeof *serve->tokens, &serve->tokens));
    KEEL_TRY(keel_alloc(rows, sizeof *serve->positions, &serve->positions));
    return keel_alloc(rows, sizeof *serve->of, &serve->of);
}

enum keel_status keel_serve_create(const struct keel_serve_config *config, struct keel_serve **out)
{
    struct keel_serve *serve;
    KEEL_ASSERT(config->slots > 0);
    KEEL_TRY(keel_alloc(1, sizeof *serve, &serve));
    serve->config = *config;
    keel_mutex_init(&serve->lock);
    keel_cond_init(&serve->work);
    enum keel_status status = allocate(serve);
    if (status == KEEL_OK)
        status = keel_thread_create(&serve->thread, "keel-serve", compute, serve);
    serve->started = status == KEEL_OK;
    if (status != KEEL_OK) {
        (void)keel_serve_destroy(serve);
        return status;
    }
    *out = serve;
    return KEEL_OK;
}

void keel_serve_drain(struct keel_serve *serve)
{
    keel_mutex_lock(&serve->lock);
    serve->draining = true;
    keel_cond_signal(&serve->work);
    keel_mutex_unlock(&serve->lock);
}

enum keel_status keel_serve_destroy(struct keel_serve *serve)
{
    if (serve == NULL)
        return KEEL_OK;
    keel_serve_drain(serve);
    if (serve->started)
        keel_thread_join(&serve->thread);
    const enum keel_status status =
        serve->status == KEEL_OK ? KEEL_OK : keel_fail(serve->status, "%s", serve->why);
    keel_mutex_fini(&serve->lock);
    keel_cond_fini(&serve->work);
    keel_free(serve->slots);
    keel_free(serve->tokens);
    keel_free(serve->positions);
    keel_free(serve->of);
    keel_free(serve->left);
    keel_free(serve);
    return status;
}

struct keel_serve_figures keel_serve_figures(struct keel_serve *serve)
{
    keel_mutex_lock(&serve->lock);
    const struct keel_serve_figures figures = serve->figures;
    keel_mutex_unlock(&serve->lock);
    return figures;
}

/* In seconds, by the queue. Caller holds the lock. */
static uint32_t free_in_s(struct keel_serve *serve)
{
    const uint32_t slots = serve->config.slots;
    uint64_t *left = serve->left + slots;
    memcpy(left, serve->left, slots * sizeof *left);
    for (const struct keel_serve_ticket *ticket = serve->first; ticket != NULL; ticket = ticket->next)
        (void)keel_serve_wait(left, slots, steps_of(serve, ticket));
    const double in_s = (double)serve->step_ns * 1e-9 * (double)keel_serve_wait(left, slots, 0);
    return in_s < 1 ? 1 : in_s > 600 ? 600 : (uint32_t)in_s;
}

/* Walks a long queue a few times a second at most, however many clients are refused: the same lock is taken
 * for each token. */
uint32_t keel_serve_free_in_s(struct keel_serve *serve)
{
    keel_mutex_lock(&serve->lock);
    const uint64_t now_ns = keel_now_ns();
    if (now_ns >= serve->told_until_ns) {
        serve->told_s = free_in_s(serve);
        serve->told_until_ns = now_ns + told_ns;
    }
    const uint32_t told_s = serve->told_s;
    keel_mutex_unlock(&serve->lock);
    return told_s;
}
