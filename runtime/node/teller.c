/* teller.c - see teller.h. */
#include "teller.h"

#include "view.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum kind { STEP, MISMATCH, VIEW, SHORTAGE, DRAIN, NOTE, SNAPSHOT, LEARN, AGENT };

/* Steps whose lines are lost; first 0: none are. */
struct hole {
    uint64_t first, last;
};

/* What one callback was told; its bytes follow. */
struct item {
    struct item *next;
    enum kind kind;
    struct hole before; /* it */
    uint64_t numbers[4];
    uint32_t bytes, counted; /* what it has room for, and what of that is written, with this head */
    _Alignas(16) uint8_t data[];
};

/* Of the gate, with its texts. */
struct news {
    struct keel_gate_news its;
    char host[KEEL_NAME_BYTES], place[KEEL_PLACE_BYTES], text[KEEL_REASON_BYTES];
};

struct keel_teller {
    struct keel_teller_config config;
    struct keel_thread thread;
    struct keel_launch_report to; /* the thread's, once it is open */
    struct keel_mutex lock;       /* guards all below */
    struct keel_cond moved;
    struct item *first, *last;
    uint64_t waiting_bytes, told, handed;        /* items, ever */
    struct hole hole;                            /* behind all that wait, until a step is told again */
    struct keel_teller_words words;              /* of the callbacks, last */
    bool news;                                   /* they are others than were taken last */
    bool draining, ending, ended, full, handing; /* handing: a hole is being told */
    enum keel_status status;
    char detail[KEEL_DETAIL_BYTES];
};

/* ---- the thread ---------------------------------------------------------------------------------------- */

static void hand_hole_on(const struct keel_launch_report *to, const struct hole *hole)
{
    if (hole->first != 0)
        to->hole(to->context, hole->first, hole->last);
}

static void hand_news_on(const struct keel_launch_report *to, const struct news *news)
{
    struct keel_gate_news its = news->its;
    its.host = news->host;
    its.place = news->place;
    its.text = news->text;
    to->agent(to->context, &its);
}

static void hand_on(const struct keel_launch_report *to, const struct item *item)
{
    const uint64_t *n = item->numbers;
    hand_hole_on(to, &item->before);
    switch (item->kind) {
    case STEP:
        to->step(to->context, (const struct keel_step_record *)item->data);
        break;
    case MISMATCH:
        to->mismatch(to->context, (const struct keel_step_record *)item->data,
                     (const struct keel_step_record *)item->data + 1);
        break;
    case VIEW:
        to->view(to->context, (const struct keel_view *)item->data, (const struct keel_view *)item->data + 1,
                 (enum keel_cause)n[0], n[1], n[2]);
        break;
    case SHORTAGE:
        to->shortage(to->context, (uint16_t)n[0], (uint16_t)n[1]);
        break;
    case DRAIN:
        to->drain(to->context, (uint16_t)n[0], (enum keel_drain_news)n[1], (uint16_t)n[2], (uint16_t)n[3]);
        break;
    case NOTE:
        to->note(to->context, (uint16_t)n[0], (uint8_t)n[1], item->data, item->bytes);
        break;
    case SNAPSHOT:
        to->snapshot(to->context, (const struct keel_committed *)item->data);
        break;
    case LEARN:
        if (to->learn != NULL)
            to->learn(to->context, item->data, item->bytes);
        break;
    case AGENT:
        hand_news_on(to, (const struct news *)item->data);
        break;
    }
}

/* What it has to say after that. With the lock held. */
static void hear(struct keel_teller *teller, const struct keel_teller_words *words)
{
    if (words->stop == teller->words.stop && words->past_step == teller->words.past_step)
        return;
    teller->words = *words;
    teller->news = true;
}

static void ask(const struct keel_launch_report *to, struct keel_teller_words *words)
{
    words->stop = to->stop != NULL && to->stop(to->context);
    words->past_step = to->past != NULL ? to->past(to->context, words->past, &words->past_bytes) : 0;
}

static void fail(struct keel_teller *teller, enum keel_status status)
{
    keel_mutex_lock(&teller->lock);
    if (teller->status == KEEL_OK)
        snprintf(teller->detail, sizeof teller->detail, "%s", keel_detail());
    teller->status = teller->status == KEEL_OK ? status : teller->status;
    keel_mutex_unlock(&teller->lock);
}

/* With the lock held, which is given up meanwhile. */
static void hand_first_on(struct keel_teller *teller)
{
    struct item *item = teller->first;
    const bool tells = teller->status == KEEL_OK;
    teller->first = item->next;
    teller->last = teller->first != NULL ? teller->last : NULL;
    keel_mutex_unlock(&teller->lock);
    struct keel_teller_words words = {.stop = false};
    if (tells) {
        hand_on(&teller->to, item);
        ask(&teller->to, &words);
    }
    keel_mutex_lock(&teller->lock);
    if (tells)
        hear(teller, &words);
    teller->waiting_bytes -= item->counted;
    teller->full = teller->full && teller->waiting_bytes > KEEL_TELLER_BYTES / 2;
    teller->handed++;
    keel_cond_broadcast(&teller->moved);
    keel_free(item);
}

/* Nobody may tell of a step for long: what is lost is told once all else is. With the lock held, as above. */
static void hand_last_hole_on(struct keel_teller *teller)
{
    const struct hole hole = teller->hole;
    const bool tells = teller->status == KEEL_OK;
    teller->handing = true;
    teller->hole.first = 0;
    keel_mutex_unlock(&teller->lock);
    if (tells)
        hand_hole_on(&teller->to, &hole);
    keel_mutex_lock(&teller->lock);
    teller->handing = false;
    keel_cond_broadcast(&teller->moved);
}

static bool is_empty(const struct keel_teller *teller)
{
    return teller->first == NULL && teller->hole.first == 0;
}

static void *work(void *argument)
{
    struct keel_teller *teller = argument;
    uint64_t look_ns = 0;
    enum keel_status status = teller->config.open(teller->config.context, &teller->to);
    if (status != KEEL_OK)
        fail(teller, status);
    keel_mutex_lock(&teller->lock);
    while (!teller->ending && !(teller->draining && is_empty(teller))) {
        if (!teller->draining && keel_remaining_ns(look_ns) == 0) {
            const bool tells = teller->status == KEEL_OK;
            keel_mutex_unlock(&teller->lock);
            status = tells ? teller->config.look(teller->config.context) : KEEL_OK;
            if (status != KEEL_OK)
                fail(teller, status);
            look_ns = keel_deadline_after_ns(teller->config.look_ns);
            keel_mutex_lock(&teller->lock);
        } else if (teller->first != NULL) {
            hand_first_on(teller);
        } else if (teller->hole.first != 0) {
            hand_last_hole_on(teller);
        } else {
            (void)keel_cond_wait(&teller->moved, &teller->lock, look_ns);
        }
    }
    teller->ended = true;
    keel_cond_broadcast(&teller->moved);
    keel_mutex_unlock(&teller->lock);
    return NULL;
}

/* ---- telling ------------------------------------------------------------------------------------------- */

/* With the lock held: room for so many bytes, of which `written` take memory; NULL: there is none. */
static struct item *add_item(struct keel_teller *teller, enum kind kind, const uint64_t numbers[4],
                             uint32_t bytes, uint32_t written)
{
    struct item *item;
    const uint32_t counted = (uint32_t)sizeof *item + written;
    const bool room = teller->waiting_bytes + counted <= KEEL_TELLER_BYTES || kind != STEP;
    if (!room || keel_alloc(1, sizeof *item + bytes, &item) != KEEL_OK) {
        if (!teller->full)
            keel_log(KEEL_LOG_WARN, "the store takes no lines: those of some steps are lost");
        teller->full = true;
        return NULL;
    }
    item->kind = kind;
    item->before = teller->hole;
    teller->hole.first = 0;
    item->bytes = bytes;
    item->counted = counted;
    if (numbers != NULL)
        memcpy(item->numbers, numbers, sizeof item->numbers);
    *(teller->last != NULL ? &teller->last->next : &teller->first) = item;
    teller->last = item;
    teller->told++;
    teller->waiting_bytes += counted;
    keel_cond_broadcast(&teller->moved);
    return item;
}

/* `second`, as long as `first`, may be NULL. */
static void tell(struct keel_teller *teller, enum kind kind, const uint64_t numbers[4], const void *first,
                 const void *second, uint32_t bytes)
{
    const uint32_t all = second != NULL ? 2 * bytes : bytes;
    keel_mutex_lock(&teller->lock);
    struct item *item = add_item(teller, kind, numbers, all, all);
    if (item != NULL && bytes > 0)
        memcpy(item->data, first, bytes);
    if (item != NULL && second != NULL)
        memcpy(item->data + bytes, second, bytes);
    keel_mutex_unlock(&teller->lock);
}

static void on_step(void *context, const struct keel_step_record *record)
{
    struct keel_teller *teller = context;
    keel_mutex_lock(&teller->lock);
    struct item *item = add_item(teller, STEP, NULL, sizeof *record, sizeof *record);
    if (item != NULL)
        memcpy(item->data, record, sizeof *record);
    else {
        teller->hole.first = teller->hole.first != 0 ? teller->hole.first : record->step;
        teller->hole.last = record->step;
    }
    keel_mutex_unlock(&teller->lock);
}

static void on_mismatch(void *context, const struct keel_step_record *a, const struct keel_step_record *b)
{
    tell(context, MISMATCH, NULL, a, b, sizeof *a);
}

static void on_view(void *context, const struct keel_view *old_view, const struct keel_view *new_view,
                    enum keel_cause cause, uint64_t alive_ns, uint64_t evidence_ns)
{
    struct keel_teller *teller = context;
    const uint64_t numbers[4] = {cause, alive_ns, evidence_ns};
    const uint32_t written =
        (uint32_t)(2 * offsetof(struct keel_view, members)) +
        (uint32_t)((old_view->member_count + new_view->member_count) * sizeof old_view->members[0]) +
        (uint32_t)((old_view->shard_count + new_view->shard_count) * sizeof old_view->shard_rank[0]);
    keel_mutex_lock(&teller->lock);
    struct item *item = add_item(teller, VIEW, numbers, 2 * sizeof *old_view, written);
    struct keel_view *views = item != NULL ? (struct keel_view *)item->data : NULL;
    if (views != NULL) {
        keel_view_copy(&views[0], old_view);
        keel_view_copy(&views[1], new_view);
    }
    keel_mutex_unlock(&teller->lock);
}

static void on_shortage(void *context, uint16_t ranks, uint16_t fewest)
{
    tell(context, SHORTAGE, (const uint64_t[4]){ranks, fewest}, NULL, NULL, 0);
}

static void on_drain(void *context, uint16_t node, enum keel_drain_news news, uint16_t ranks, uint16_t fewest)
{
    tell(context, DRAIN, (const uint64_t[4]){node, news, ranks, fewest}, NULL, NULL, 0);
}

static void on_note(void *context, uint16_t node, uint8_t local, const uint8_t *data, uint32_t bytes)
{
    tell(context, NOTE, (const uint64_t[4]){node, local}, data, NULL, bytes);
}

static void on_learn(void *context, const uint8_t *data, uint32_t bytes)
{
    tell(context, LEARN, NULL, data, NULL, bytes);
}

static void on_agent(void *context, const struct keel_gate_news *its)
{
    struct news news = {.its = *its};
    snprintf(news.host, sizeof news.host, "%s", its->host);
    snprintf(news.place, sizeof news.place, "%s", its->place);
    snprintf(news.text, sizeof news.text, "%s", its->text);
    tell(context, AGENT, NULL, &news, NULL, sizeof news);
}

static void on_snapshot(void *context, const struct keel_committed *snapshot)
{
    tell(context, SNAPSHOT, NULL, snapshot, NULL, sizeof *snapshot);
}

/* Lines of steps up to that one are lost, and that is not told yet. */
static bool is_hidden(const struct keel_teller *teller, uint64_t step)
{
    return teller->handing || (teller->hole.first != 0 && teller->hole.first <= step);
}

/* Of what was told so far. */
static enum keel_status on_settle(void *context, uint64_t step)
{
    struct keel_teller *teller = context;
    keel_mutex_lock(&teller->lock);
    const uint64_t told = teller->told;
    while ((teller->handed < told || is_hidden(teller, step)) && teller->status == KEEL_OK && !teller->ending)
        (void)keel_cond_wait(&teller->moved, &teller->lock, KEEL_NEVER);
    const bool whole = teller->handed >= told && !is_hidden(teller, step) && teller->status == KEEL_OK;
    keel_mutex_unlock(&teller->lock);
    if (!whole)
        return keel_fail(KEEL_IO, "the lines of step %llu are not in the store", (unsigned long long)step);
    return teller->to.settle == NULL ? KEEL_OK : teller->to.settle(teller->to.context, step);
}

struct keel_launch_report keel_teller_report(struct keel_teller *teller)
{
    return (struct keel_launch_report){.context = teller,
                                       .step = on_step,
                                       .mismatch = on_mismatch,
                                       .view = on_view,
                                       .shortage = on_shortage,
                                       .drain = on_drain,
                                       .note = on_note,
                                       .agent = on_agent,
                                       .snapshot = on_snapshot,
                                       .learn = on_learn,
                                       .settle = on_settle};
}

/* ---- life ---------------------------------------------------------------------------------------------- */

enum keel_status keel_teller_failure(struct keel_teller *teller)
{
    keel_mutex_lock(&teller->lock);
    const enum keel_status status = teller->status;
    if (status != KEEL_OK)
        (void)keel_fail(status, "%s", teller->detail);
    keel_mutex_unlock(&teller->lock);
    return status;
}

bool keel_teller_take(struct keel_teller *teller, struct keel_teller_words *out)
{
    keel_mutex_lock(&teller->lock);
    const bool news = teller->news;
    if (news)
        *out = teller->words;
    teller->news = false;
    keel_mutex_unlock(&teller->lock);
    return news;
}

bool keel_teller_drain(struct keel_teller *teller, uint64_t deadline_ns)
{
    keel_mutex_lock(&teller->lock);
    bool in_time = true;
    teller->draining = true;
    keel_cond_broadcast(&teller->moved);
    while (!teller->ended && in_time)
        in_time = keel_cond_wait(&teller->moved, &teller->lock, deadline_ns);
    const bool ended = teller->ended;
    keel_mutex_unlock(&teller->lock);
    return ended;
}

const struct keel_launch_report *keel_teller_opened(const struct keel_teller *teller)
{
    return &teller->to;
}

enum keel_status keel_teller_open(const struct keel_teller_config *config, struct keel_teller **out)
{
    struct keel_teller *teller;
    KEEL_TRY(keel_alloc(1, sizeof *teller, &teller));
    teller->config = *config;
    keel_mutex_init(&teller->lock);
    keel_cond_init(&teller->moved);
    const enum keel_status status = keel_thread_create(&teller->thread, "keel-tell", work, teller);
    if (status != KEEL_OK) {
        keel_cond_fini(&teller->moved);
        keel_mutex_fini(&teller->lock);
        keel_free(teller);
        return status;
    }
    *out = teller;
    return KEEL_OK;
}

void keel_teller_close(struct keel_teller *teller)
{
    if (teller == NULL)
        return;
    keel_mutex_lock(&teller->lock);
    teller->ending = true;
    keel_cond_broadcast(&teller->moved);
    keel_mutex_unlock(&teller->lock);
    keel_thread_join(&teller->thread);
    while (teller->first != NULL) {
        struct item *item = teller->first;
        teller->first = item->next;
        keel_free(item);
    }
    keel_cond_fini(&teller->moved);
    keel_mutex_fini(&teller->lock);
    keel_free(teller);
}
