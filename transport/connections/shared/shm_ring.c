/* shm_ring.c - the two rings of a ring pair.
 *
 * A record is the header and the payload, rounded up to a cache line; a small payload shares the header's
 * connection, a large one begins on its own. The producer writes it and then publishes `tail`; the consumer
 * hands it out where it lies and then publishes `head`. Sleep: a side makes `sleeps` odd, then looks once
 * more; the other publishes, then looks at `sleeps`. Both do so in the one order of sequentially consistent
 * operations, so one of them sees the other. */
#include "shm_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <keel/memory.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct ring {
    alignas(KEEL_CACHE_LINE_BYTES) _Atomic uint64_t tail; /* producer: bytes put in */
    alignas(KEEL_CACHE_LINE_BYTES) _Atomic uint64_t head; /* consumer: bytes taken out */
};

struct side {
    alignas(KEEL_CACHE_LINE_BYTES) _Atomic uint32_t sleeps; /* odd: asleep, and wants to be rung */
    _Atomic uint32_t wants;                                 /* to be rung for drops too: enum below */
    _Atomic uint32_t withdrawn;                             /* what it referred to is no longer lent */
};

enum { WANTS_MESSAGES, WANTS_ROOM, WANTS_DROPS };

struct keel_segment {
    struct ring rings[2]; /* by the producer's side */
    struct side sides[2];
};

enum {
    SEGMENT_BYTES = KEEL_PAGE_BYTES + 2 * KEEL_RING_BYTES,
    MAPPED_BYTES = KEEL_PAGE_BYTES + 4 * KEEL_RING_BYTES,
    SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
    INLINE_BYTES = KEEL_CACHE_LINE_BYTES - sizeof(struct keel_message),
    REFERENCE_MAGIC = KEEL_MESSAGE_MAGIC + 1
};
static_assert(sizeof(struct keel_reference) <= INLINE_BYTES, "a reference shares the header's line");
static_assert(sizeof(struct keel_segment) <= KEEL_PAGE_BYTES, "the words fit the first page");
static_assert(sizeof(struct keel_message) % sizeof(uint64_t) == 0, "the header is copied by words");
static_assert(sizeof(struct keel_reference) % sizeof(uint64_t) == 0, "and so is a reference");
static_assert(KEEL_RING_BYTES % KEEL_PAGE_BYTES == 0, "rings are mapped by pages");
static_assert(KEEL_RING_BYTES / 2 >= KEEL_CHUNK_BYTES + KEEL_CACHE_LINE_BYTES,
              "half a ring takes any message");

/* ---- mapping ------------------------------------------------------------------------------------------- */

static bool map_at(uint8_t *at, size_t bytes, int fd, size_t offset)
{
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) == at;
}

static enum keel_status map_segment(struct keel_shm_ring *pair, int fd, uint32_t side)
{
    void *place = mmap(NULL, MAPPED_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED)
        return keel_fail_errno(errno, "shared memory: reserving %d bytes", MAPPED_BYTES);
    uint8_t *base = place, *rings[2];
    bool mapped = map_at(base, KEEL_PAGE_BYTES, fd, 0);
    for (size_t k = 0; k < 2; k++) {
        size_t offset = KEEL_PAGE_BYTES + k * KEEL_RING_BYTES;
        rings[k] = base + KEEL_PAGE_BYTES + 2 * k * KEEL_RING_BYTES;
        mapped = mapped && map_at(rings[k], KEEL_RING_BYTES, fd, offset) &&
                 map_at(rings[k] + KEEL_RING_BYTES, KEEL_RING_BYTES, fd, offset);
    }
    if (!mapped) {
        enum keel_status status = keel_fail_errno(errno, "shared memory: mapping %d bytes", SEGMENT_BYTES);
        munmap(place, MAPPED_BYTES);
        return status;
    }
    *pair = (struct keel_shm_ring){.segment = place,
                                   .side = side,
                                   .in_tail = &((struct keel_segment *)place)->rings[1 - side].tail,
                                   .in = rings[1 - side],
                                   .out = rings[side],
                                   .in_kept = UINT64_MAX};
    return KEEL_OK;
}

enum keel_status keel_shm_ring_create(struct keel_shm_ring *pair, int *out_fd)
{
    int fd = memfd_create("keel-shm-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return keel_fail_errno(errno, "shared memory: making a segment");
    enum keel_status status = KEEL_OK;
    if (ftruncate(fd, SEGMENT_BYTES) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        status = keel_fail_errno(errno, "shared memory: sizing a segment");
    if (status == KEEL_OK)
        status = map_segment(pair, fd, 0);
    if (status != KEEL_OK) {
        close(fd);
        return status;
    }
    *out_fd = fd;
    return KEEL_OK;
}

enum keel_status keel_shm_ring_map(struct keel_shm_ring *pair, int fd)
{
    struct stat stat;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &stat) != 0 || stat.st_size != SEGMENT_BYTES)
        return keel_fail(KEEL_CORRUPT, "shared memory: what the peer sent is no sealed segment of %d bytes",
                         SEGMENT_BYTES);
    return map_segment(pair, fd, 1);
}

void keel_shm_ring_unmap(struct keel_shm_ring *pair)
{
    if (pair->segment != NULL)
        munmap(pair->segment, MAPPED_BYTES);
    pair->segment = NULL;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static struct ring *ring_out(const struct keel_shm_ring *pair)
{
    return &pair->segment->rings[pair->side];
}

static struct ring *ring_in(const struct keel_shm_ring *pair)
{
    return &pair->segment->rings[1 - pair->side];
}

static uint32_t payload_at(uint32_t bytes)
{
    return bytes <= INLINE_BYTES ? (uint32_t)sizeof(struct keel_message) : KEEL_CACHE_LINE_BYTES;
}

static uint32_t record_bytes(uint32_t bytes)
{
    return (uint32_t)keel_round_up(payload_at(bytes) + (uint64_t)bytes, KEEL_CACHE_LINE_BYTES);
}

/* False when the other side's position cannot be. */
static bool look_for_room(struct keel_shm_ring *pair)
{
    uint64_t head = atomic_load(&ring_out(pair)->head);
    if (head - pair->out_head > pair->out_tail - pair->out_head)
        return false;
    pair->out_head = head;
    return true;
}

static uint64_t room(const struct keel_shm_ring *pair)
{
    return KEEL_RING_BYTES - (pair->out_tail - pair->out_head);
}

/* Where a record of so many bytes goes. */
static enum keel_shm_ring_result find_place(struct keel_shm_ring *pair, uint32_t bytes, uint8_t **out)
{
    if (room(pair) < bytes && !look_for_room(pair))
        return KEEL_SHM_RING_BROKEN;
    if (room(pair) < bytes) {
        pair->starved = true;
        return KEEL_SHM_RING_NONE;
    }
    *out = pair->out + pair->out_tail % KEEL_RING_BYTES;
    return KEEL_SHM_RING_DONE;
}

static void publish(struct keel_shm_ring *pair, uint32_t bytes)
{
    KEEL_ASSERT(bytes % KEEL_CACHE_LINE_BYTES == 0 && bytes <= room(pair));
    pair->out_tail += bytes;
    atomic_store(&ring_out(pair)->tail, pair->out_tail);
}

enum keel_shm_ring_result keel_shm_ring_put(struct keel_shm_ring *pair, const struct keel_message *message,
                                            const void *payload)
{
    uint32_t bytes = record_bytes(message->bytes);
    uint8_t *record;
    enum keel_shm_ring_result result = find_place(pair, bytes, &record);
    if (result != KEEL_SHM_RING_DONE)
        return result;
    memcpy(record, message, sizeof *message);
    if (message->bytes > 0)
        memcpy(record + payload_at(message->bytes), payload, message->bytes);
    publish(pair, bytes);
    return KEEL_SHM_RING_DONE;
}

enum keel_shm_ring_result keel_shm_ring_refer(struct keel_shm_ring *pair, const struct keel_message *message,
                                              const struct keel_reference *reference)
{
    struct keel_message header = *message;
    uint8_t *record;
    enum keel_shm_ring_result result = find_place(pair, KEEL_CACHE_LINE_BYTES, &record);
    if (result != KEEL_SHM_RING_DONE)
        return result;
    header.magic = REFERENCE_MAGIC;
    memcpy(record, &header, sizeof header);
    memcpy(record + sizeof header, reference, sizeof *reference);
    publish(pair, KEEL_CACHE_LINE_BYTES);
    return KEEL_SHM_RING_DONE;
}

/* Each word of shared memory is read once. */
static void copy_words(uint8_t *from, void *out, size_t bytes)
{
    _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)from;
    for (size_t k = 0; k < bytes / sizeof *words; k++) {
        uint64_t word = atomic_load_explicit(&words[k], memory_order_relaxed);
        memcpy((uint8_t *)out + k * sizeof word, &word, sizeof word);
    }
}

enum keel_shm_ring_result keel_shm_ring_get(struct keel_shm_ring *pair, struct keel_message *out,
                                            const uint8_t **payload, struct keel_reference *reference)
{
    uint64_t there = atomic_load_explicit(&ring_in(pair)->tail, memory_order_acquire) - pair->in_head;
    if (there == 0)
        return KEEL_SHM_RING_NONE;
    uint8_t *record = pair->in + pair->in_head % KEEL_RING_BYTES;
    if (there > KEEL_RING_BYTES || there % KEEL_CACHE_LINE_BYTES != 0)
        return KEEL_SHM_RING_BROKEN;
    copy_words(record, out, sizeof *out);
    uint32_t bytes = out->bytes, whole = record_bytes(bytes);
    bool refers = out->magic == REFERENCE_MAGIC;
    if (bytes > KEEL_CHUNK_BYTES || (!refers && (out->magic != KEEL_MESSAGE_MAGIC || whole > there)))
        return KEEL_SHM_RING_BROKEN;
    pair->got_reference = refers;
    pair->got_bytes = refers ? KEEL_CACHE_LINE_BYTES : whole;
    *payload = refers ? NULL : record + payload_at(bytes);
    if (refers) {
        out->magic = KEEL_MESSAGE_MAGIC;
        copy_words(record + sizeof *out, reference, sizeof *reference);
    }
    return KEEL_SHM_RING_DONE;
}

static void tell_dropped(struct keel_shm_ring *pair)
{
    uint64_t dropped = pair->in_head < pair->in_kept ? pair->in_head : pair->in_kept;
    if (dropped == pair->in_told)
        return;
    KEEL_ASSERT(dropped > pair->in_told); /* what was given back is never taken again */
    pair->in_told = dropped;
    atomic_store(&ring_in(pair)->head, dropped);
}

/* Who waits for room waits for half a ring, and will see that: what is not told is far less. Who lent memory
 * is told at once. */
bool keel_shm_ring_drop(struct keel_shm_ring *pair)
{
    pair->in_head += pair->got_bytes;
    pair->got_bytes = 0;
    if (!pair->got_reference && pair->in_head - pair->in_told < KEEL_RING_UNTOLD_BYTES)
        return false;
    tell_dropped(pair);
    return true;
}

void keel_shm_ring_keep(struct keel_shm_ring *pair, uint64_t from)
{
    pair->in_kept = from;
    tell_dropped(pair);
}

bool keel_shm_ring_has_room(struct keel_shm_ring *pair)
{
    if (!pair->starved || !look_for_room(pair) || room(pair) < KEEL_RING_BYTES / 2)
        return false;
    pair->starved = false;
    return true;
}

uint64_t keel_shm_ring_dropped(struct keel_shm_ring *pair)
{
    (void)look_for_room(pair);
    return pair->out_head;
}

void keel_shm_ring_withdraw(struct keel_shm_ring *pair)
{
    atomic_store(&pair->segment->sides[pair->side].withdrawn, 1);
    atomic_thread_fence(memory_order_seq_cst);
}

bool keel_shm_ring_withdrawn(const struct keel_shm_ring *pair)
{
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&pair->segment->sides[1 - pair->side].withdrawn, memory_order_relaxed) != 0;
}

/* ---- sleep --------------------------------------------------------------------------------------------- */

/* A sleep is ended by one ring. What the other side says here may be a lie, which costs a ring. */
static bool ring_once(struct keel_shm_ring *pair)
{
    uint32_t sleeps = atomic_load(&pair->segment->sides[1 - pair->side].sleeps);
    if (sleeps % 2 == 0 || sleeps == pair->rung)
        return false;
    pair->rung = sleeps;
    return true;
}

bool keel_shm_ring_must_ring_for_message(struct keel_shm_ring *pair)
{
    return ring_once(pair);
}

bool keel_shm_ring_must_ring_for_room(struct keel_shm_ring *pair)
{
    uint32_t wants = atomic_load(&pair->segment->sides[1 - pair->side].wants);
    uint64_t left = atomic_load_explicit(&ring_in(pair)->tail, memory_order_relaxed) - pair->in_told;
    return (wants == WANTS_DROPS || (wants == WANTS_ROOM && left <= KEEL_RING_BYTES / 2)) && ring_once(pair);
}

static void set_sleeps(struct keel_shm_ring *pair, bool asleep)
{
    pair->asleep = asleep;
    atomic_store(&pair->segment->sides[pair->side].sleeps, ++pair->sleeps);
}

bool keel_shm_ring_sleep(struct keel_shm_ring *pair, bool lending)
{
    uint32_t wants = pair->starved ? WANTS_ROOM : WANTS_MESSAGES;
    atomic_store(&pair->segment->sides[pair->side].wants, lending ? WANTS_DROPS : wants);
    if (!pair->asleep)
        set_sleeps(pair, true);
    if (atomic_load(&ring_in(pair)->tail) != pair->in_head ||
        (lending && atomic_load(&ring_out(pair)->head) != pair->out_head))
        return false;
    return !pair->starved || !look_for_room(pair) || room(pair) < KEEL_RING_BYTES / 2;
}

void keel_shm_ring_wake(struct keel_shm_ring *pair)
{
    if (pair->asleep)
        set_sleeps(pair, false);
}
