/* recorder.c - writing a recording: plain stores into the mapped file, no lock, no system call.
 *
 * An operation's place is guarded by its turn (odd while it changes), so that a reader in another process
 * knows what it saw torn. An event is written before the total that makes it count. */
#include "recorder.h"
#include "recorder_file.h"
#include "recording.h"

#include <keel/bits.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct keel_recorder {
    struct keel_record *record; /* mapped, or on the heap when path is "" */
    uint32_t cursor;            /* where the next operation looks for a place first */
    char path[KEEL_PATH_BYTES];
};

/* ---- opening and closing ---- */

static void header_fill(struct keel_record_header *header, uint32_t number)
{
    *header = (struct keel_record_header){.version = KEEL_RECORD_VERSION,
                                          .header_bytes = sizeof *header,
                                          .group_bytes = sizeof(struct keel_record_group),
                                          .group_count = KEEL_RECORD_GROUPS,
                                          .operation_bytes = sizeof(struct keel_record_operation),
                                          .operation_count = KEEL_RECORD_OPERATIONS,
                                          .event_bytes = sizeof(struct keel_record_event),
                                          .event_count = KEEL_RECORD_EVENTS,
                                          .pid = (uint32_t)getpid(),
                                          .number = number,
                                          .start_ticks = keel_process_look_at(getpid()).start_ticks,
                                          .opened_ns = keel_now_ns(),
                                          .opened_wall_ns = keel_wall_ns(),
                                          .progress_ns = keel_now_ns()};
    if (gethostname(header->host, sizeof header->host - 1) != 0)
        header->host[0] = '\0';
    /* the magic is last: a file that has it has all the rest */
    atomic_signal_fence(memory_order_seq_cst);
    header->magic = KEEL_RECORD_MAGIC;
}

enum keel_status keel_recorder_open(const char *directory, struct keel_recorder **out)
{
    static _Atomic uint32_t recordings;
    struct keel_recorder *recorder;
    uint32_t number = atomic_fetch_add(&recordings, 1);
    KEEL_TRY(keel_alloc(1, sizeof *recorder, &recorder));
    recorder->record = keel_recorder_file_make(directory, number, recorder->path);
    if (recorder->record == NULL) {
        recorder->path[0] = '\0';
        enum keel_status status =
            keel_alloc_aligned(KEEL_PAGE_BYTES, sizeof *recorder->record, &recorder->record);
        if (status != KEEL_OK) {
            keel_free(recorder);
            return status;
        }
        memset(recorder->record, 0, sizeof *recorder->record);
    }
    header_fill(&recorder->record->header, number);
    *out = recorder;
    return KEEL_OK;
}

void keel_recorder_close(struct keel_recorder *recorder)
{
    if (recorder == NULL)
        return;
    if (recorder->path[0] != '\0')
        keel_recorder_file_remove(recorder->path, recorder->record);
    else
        keel_free(recorder->record);
    keel_free(recorder);
}

/* ---- groups ---- */

uint64_t keel_recorder_identity(uint64_t parent, const struct keel_address *addresses, uint32_t rank_count,
                                uint64_t epoch)
{
    uint64_t hash = keel_fnv1a(KEEL_FNV1A_BEGIN, &parent, sizeof parent);
    hash = keel_fnv1a(hash, &epoch, sizeof epoch);
    for (uint32_t rank = 0; rank < rank_count && addresses != NULL; rank++)
        hash = keel_fnv1a(hash, addresses[rank].data, addresses[rank].bytes);
    return hash;
}

uint16_t keel_recorder_group_opened(struct keel_recorder *recorder, uint64_t identity, uint64_t epoch,
                                    uint32_t rank, uint32_t rank_count)
{
    struct keel_record_group *groups = recorder->record->groups;
    uint16_t oldest = KEEL_RECORD_NONE;
    for (uint32_t k = 0; k < KEEL_RECORD_GROUPS; k++) {
        if (groups[k].state == KEEL_RECORD_LIVE)
            continue;
        if (oldest == KEEL_RECORD_NONE || groups[k].closed_ns < groups[oldest].closed_ns)
            oldest = (uint16_t)k;
    }
    if (oldest == KEEL_RECORD_NONE)
        return oldest;
    struct keel_record_group *group = &groups[oldest];
    atomic_store(&group->state, KEEL_RECORD_FREE);
    group->identity = identity;
    group->epoch = epoch;
    group->rank = rank;
    group->rank_count = rank_count;
    group->opened_ns = keel_now_ns();
    group->closed_ns = 0;
    atomic_store(&group->state, KEEL_RECORD_LIVE);
    return oldest;
}

void keel_recorder_group_closed(struct keel_recorder *recorder, uint16_t group)
{
    if (group >= KEEL_RECORD_GROUPS)
        return;
    recorder->record->groups[group].closed_ns = keel_now_ns();
    atomic_store(&recorder->record->groups[group].state, KEEL_RECORD_OVER);
}

/* ---- operations ---- */

static struct keel_record_operation *change(struct keel_recorder *recorder, uint16_t place)
{
    struct keel_record_operation *operation = &recorder->record->operations[place];
    uint32_t turn = atomic_load_explicit(&operation->turn, memory_order_relaxed);
    atomic_store_explicit(&operation->turn, turn + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    return operation;
}

static void changed(struct keel_record_operation *operation)
{
    uint32_t turn = atomic_load_explicit(&operation->turn, memory_order_relaxed);
    atomic_store_explicit(&operation->turn, turn + 1, memory_order_release);
}

static void note(struct keel_recorder *recorder, const struct keel_record_operation *operation,
                 enum keel_record_what what, uint32_t peer, uint64_t now_ns)
{
    struct keel_record *record = recorder->record;
    uint64_t total = atomic_load_explicit(&record->header.event_total, memory_order_relaxed);
    record->events[total % KEEL_RECORD_EVENTS] = (struct keel_record_event){.at_ns = now_ns,
                                                                            .sequence = operation->sequence,
                                                                            .segment = operation->segment,
                                                                            .group = operation->group,
                                                                            .peer = (uint16_t)peer,
                                                                            .status = operation->status,
                                                                            .what = (uint8_t)what,
                                                                            .kind = operation->kind};
    atomic_store_explicit(&record->header.event_total, total + 1, memory_order_release);
}

/* Round robin, so that operations that are over stay readable as long as they can. */
static uint16_t place_find(struct keel_recorder *recorder)
{
    for (uint32_t k = 0; k < KEEL_RECORD_OPERATIONS; k++) {
        uint32_t place = (recorder->cursor + k) % KEEL_RECORD_OPERATIONS;
        if (recorder->record->operations[place].state == KEEL_RECORD_LIVE)
            continue;
        recorder->cursor = (place + 1) % KEEL_RECORD_OPERATIONS;
        return (uint16_t)place;
    }
    return KEEL_RECORD_NONE;
}

uint16_t keel_recorder_began(struct keel_recorder *recorder, uint16_t group,
                             const struct keel_collective *collective, uint64_t bytes, uint32_t segments,
                             uint64_t now_ns)
{
    uint16_t place = group < KEEL_RECORD_GROUPS ? place_find(recorder) : KEEL_RECORD_NONE;
    if (place == KEEL_RECORD_NONE)
        return place;
    struct keel_record_operation *operation = change(recorder, place);
    operation->state = KEEL_RECORD_LIVE;
    operation->sequence = collective->sequence;
    operation->bytes = bytes;
    operation->begun_ns = operation->changed_ns = now_ns;
    operation->ended_ns = 0;
    operation->group = group;
    operation->kind = (uint8_t)collective->kind;
    operation->element = (uint8_t)collective->element;
    operation->reduction = (uint8_t)collective->reduction;
    operation->algorithm = (uint8_t)collective->algorithm;
    operation->status = KEEL_OK;
    operation->root = collective->root;
    operation->segment = 0;
    operation->segments = segments;
    operation->first_count = 0;
    operation->want = KEEL_RECORD_WANT_NOTHING;
    operation->awaited_count = 0;
    changed(operation);
    note(recorder, operation, KEEL_RECORD_BEGAN, KEEL_RECORD_NONE, now_ns);
    return place;
}

void keel_recorder_first(struct keel_recorder *recorder, uint16_t place, uint32_t peer, uint64_t now_ns)
{
    if (place >= KEEL_RECORD_OPERATIONS)
        return;
    struct keel_record_operation *operation = change(recorder, place);
    operation->first_count++;
    operation->changed_ns = now_ns;
    operation->want = KEEL_RECORD_WANT_NOTHING;
    changed(operation);
    note(recorder, operation, KEEL_RECORD_FIRST, peer, now_ns);
}

void keel_recorder_segment(struct keel_recorder *recorder, uint16_t place, uint32_t segment, uint32_t peer,
                           uint64_t now_ns)
{
    if (place >= KEEL_RECORD_OPERATIONS)
        return;
    struct keel_record_operation *operation = change(recorder, place);
    operation->segment = segment;
    operation->changed_ns = now_ns;
    operation->want = KEEL_RECORD_WANT_NOTHING;
    changed(operation);
    note(recorder, operation, KEEL_RECORD_SEGMENT, peer, now_ns);
}

void keel_recorder_waits(struct keel_recorder *recorder, uint16_t place, enum keel_record_want want,
                         const uint16_t *ranks, uint32_t count)
{
    if (place >= KEEL_RECORD_OPERATIONS)
        return;
    struct keel_record_operation *operation = change(recorder, place);
    operation->want = (uint16_t)want;
    operation->awaited_count = (uint16_t)(count < UINT16_MAX ? count : UINT16_MAX);
    for (uint32_t k = 0; k < count && k < KEEL_RECORD_AWAITED; k++)
        operation->awaited[k] = ranks[k];
    changed(operation);
}

void keel_recorder_ended(struct keel_recorder *recorder, uint16_t place, enum keel_status status,
                         uint64_t now_ns)
{
    if (place >= KEEL_RECORD_OPERATIONS)
        return;
    struct keel_record_operation *operation = change(recorder, place);
    operation->state = KEEL_RECORD_OVER;
    operation->status = (uint16_t)status;
    operation->changed_ns = operation->ended_ns = now_ns;
    changed(operation);
    note(recorder, operation, KEEL_RECORD_ENDED, KEEL_RECORD_NONE, now_ns);
}

void keel_recorder_progress(struct keel_recorder *recorder, uint64_t now_ns)
{
    atomic_store_explicit(&recorder->record->header.progress_ns, now_ns, memory_order_relaxed);
}

/* ---- in words ---- */

const char *keel_record_want_text(uint32_t want)
{
    static const char *const texts[KEEL_RECORD_WANT_COUNT] = {"nothing", "the first message", "data", "room",
                                                              "the carrier"};
    return texts[want < KEEL_RECORD_WANT_COUNT ? want : KEEL_RECORD_WANT_NOTHING];
}

void keel_recorder_describe(const struct keel_recorder *recorder, uint16_t place, uint64_t now_ns, char *out,
                            size_t out_bytes)
{
    out[0] = '\0';
    if (place >= KEEL_RECORD_OPERATIONS)
        return;
    keel_record_operation_text(&recorder->record->operations[place], now_ns, out, out_bytes);
}
