/* helper_process_main.c - what the second process of a check does: golden operations, once or until it is
 * killed, or its half of a pair. */
#include "device_fixture.h"
#include "helper_process.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/transport_device.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { SOCKET = 3, GOLDEN_S = 580, PAIR_S = 580, FLOATS = 100003, PAIR = 2 };

static struct keel_helper_process here = {.fd = SOCKET};

static int end(enum keel_status status, uint64_t value)
{
    struct keel_helper_word word = {.kind = KEEL_HELPER_DONE, .value = value};
    if (status != KEEL_OK) {
        word.kind = KEEL_HELPER_FAILED;
        word.value = (uint64_t)status;
        snprintf(word.text, sizeof word.text, "%.250s", keel_detail());
    }
    (void)keel_helper_tell(&here, &word); /* who does not listen has given up already */
    return keel_status_exit_code(status);
}

/* ---- golden -------------------------------------------------------------------------------------------- */

static enum keel_status work(const char *board)
{
    uint64_t until_ns = keel_deadline_after_ns(GOLDEN_S * KEEL_NS_PER_S);
    struct keel_helper_word word = {.kind = KEEL_HELPER_WORKS};
    struct keel_device_fixture fixture;
    KEEL_TRY(keel_device_fixture_open(board, &fixture));
    enum keel_status status = keel_helper_tell(&here, &word);
    while (status == KEEL_OK && keel_now_ns() < until_ns)
        status = keel_device_fixture_goldens(&fixture, until_ns);
    keel_device_fixture_close(&fixture);
    return status;
}

static enum keel_status once(const char *board)
{
    struct keel_device_fixture fixture;
    KEEL_TRY(keel_device_fixture_open(board, &fixture));
    enum keel_status status =
        keel_device_fixture_goldens(&fixture, keel_deadline_after_ns(GOLDEN_S * KEEL_NS_PER_S));
    keel_device_fixture_close(&fixture);
    return status;
}

/* ---- pair ---------------------------------------------------------------------------------------------- */

struct half {
    struct keel_device_fixture fixture;
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    struct keel_device_collectives *collectives;
    struct keel_buffer *part, *result; /* FLOATS, and PAIR * FLOATS */
    float *host;                       /* PAIR * FLOATS */
    uint32_t rank;
    uint64_t next_sequence; /* of the group */
    uint64_t deadline_ns;
};

/* Numbers of all sizes, the same in both processes. */
static float number(uint32_t rank, uint32_t index)
{
    uint32_t word = (index * PAIR + rank + 1) * 2654435761u;
    word = (word ^ (word >> 15)) * 2246822519u;
    return ((float)(word >> 8) - 8388608.0F) / (float)(1u << (word & 15));
}

static enum keel_status meet(struct half *half)
{
    struct keel_helper_word word = {.kind = KEEL_HELPER_ADDRESS};
    uint16_t shard_rank[PAIR] = {0, 1};
    struct keel_endpoint_config endpoint = {0};
    KEEL_TRY(keel_endpoint_open(&endpoint, &half->endpoint));
    keel_endpoint_address(half->endpoint, &word.addresses[half->rank]);
    KEEL_TRY(keel_helper_tell(&here, &word));
    KEEL_TRY(keel_helper_hear(&here, half->deadline_ns, &word));
    struct keel_group_config group = {.epoch = 1,
                                      .rank = half->rank,
                                      .rank_count = PAIR,
                                      .addresses = word.addresses,
                                      .shard_count = PAIR,
                                      .shard_rank = shard_rank};
    return keel_group_open(half->endpoint, &group, &half->group);
}

static enum keel_status run_on_device(struct half *half, enum keel_collective_kind kind, uint64_t floats)
{
    struct keel_device_place part = {.buffer = half->part};
    struct keel_device_collective call = {.what = {.kind = kind,
                                                   .sequence = half->next_sequence++,
                                                   .element = KEEL_ELEMENT_F32,
                                                   .reduction = KEEL_SUM,
                                                   .count = FLOATS,
                                                   .part_count = 1},
                                          .parts = &part,
                                          .result = {.buffer = half->result}};
    KEEL_TRY(keel_device_collective_run(half->collectives, half->group, &call, half->deadline_ns));
    KEEL_TRY(keel_queue_read(half->fixture.queue, half->result, 0, half->host, floats * sizeof(float), NULL,
                             NULL));
    return keel_queue_finish(half->fixture.queue, half->deadline_ns);
}

static enum keel_status compare(const float *got, float wanted, const char *what, uint32_t index)
{
    uint32_t got_bits, wanted_bits;
    memcpy(&got_bits, got, sizeof got_bits);
    memcpy(&wanted_bits, &wanted, sizeof wanted_bits);
    if (got_bits == wanted_bits)
        return KEEL_OK;
    return keel_fail(KEEL_MISMATCH, "%s: number %u is %.9g, and %.9g is right", what, index, (double)*got,
                     (double)wanted);
}

/* The sum, then each other's numbers. */
static enum keel_status exchange(struct half *half, uint64_t *out_hash)
{
    for (uint32_t i = 0; i < FLOATS; i++)
        half->host[i] = number(half->rank, i);
    KEEL_TRY(
        keel_queue_write(half->fixture.queue, half->part, 0, half->host, FLOATS * sizeof(float), NULL, NULL));
    KEEL_TRY(keel_queue_finish(half->fixture.queue, half->deadline_ns));
    KEEL_TRY(run_on_device(half, KEEL_ALL_REDUCE, FLOATS));
    for (uint32_t i = 0; i < FLOATS; i++)
        KEEL_TRY(compare(&half->host[i], number(0, i) + number(1, i), "all-reduce", i));
    *out_hash = keel_digest_host(half->host, FLOATS, 0);
    KEEL_TRY(run_on_device(half, KEEL_ALL_GATHER, PAIR * FLOATS));
    for (uint32_t i = 0; i < PAIR * FLOATS; i++)
        KEEL_TRY(compare(&half->host[i], number(i / FLOATS, i % FLOATS), "all-gather", i));
    return KEEL_OK;
}

static enum keel_status prepare(struct half *half, const char *board)
{
    KEEL_TRY(keel_device_fixture_open(board, &half->fixture));
    KEEL_TRY(keel_device_fixture_golden(&half->fixture, 0, half->deadline_ns));
    /* By copies on every board: that is what is to be shown to work. */
    struct keel_device_collectives_config config = {
        .device = half->fixture.device,
        .parts_max = 1,
        .operations_max = 1,
        .staging_bytes =
            keel_round_up(FLOATS * sizeof(float), KEEL_CACHE_LINE_BYTES) + PAIR * FLOATS * sizeof(float),
        .staged = true};
    KEEL_TRY(keel_device_collectives_create(&config, &half->collectives));
    KEEL_TRY(keel_alloc(PAIR * FLOATS, sizeof(float), &half->host));
    KEEL_TRY(keel_buffer_create(half->fixture.device, FLOATS * sizeof(float), &half->part));
    return keel_buffer_create(half->fixture.device, PAIR * FLOATS * sizeof(float), &half->result);
}

/* Exchange until the other is gone, which is how it is meant to end; then this board must be as before. */
static enum keel_status outlive(struct half *half, uint64_t *out_hash)
{
    struct keel_helper_word word = {.kind = KEEL_HELPER_WORKS};
    enum keel_status status = exchange(half, out_hash);
    if (status == KEEL_OK)
        status = keel_helper_tell(&here, &word);
    while (status == KEEL_OK)
        status = exchange(half, out_hash);
    if (status != KEEL_PEER_LOST)
        return status;
    keel_group_close(half->group);
    half->group = NULL;
    KEEL_TRY(keel_device_collectives_reset(half->collectives, half->deadline_ns));
    return keel_device_fixture_golden(&half->fixture, 0, half->deadline_ns);
}

static enum keel_status pair(const char *board, uint32_t rank, bool alone_at_last, uint64_t *out_hash)
{
    struct half half = {.rank = rank, .deadline_ns = keel_deadline_after_ns(PAIR_S * KEEL_NS_PER_S)};
    enum keel_status status = prepare(&half, board);
    if (status == KEEL_OK)
        status = meet(&half);
    if (status == KEEL_OK)
        status = (alone_at_last ? outlive : exchange)(&half, out_hash);
    if (half.group != NULL)
        keel_group_close(half.group);
    keel_device_collectives_free(half.collectives);
    if (half.endpoint != NULL)
        keel_endpoint_close(half.endpoint);
    keel_buffer_destroy(half.part);
    keel_buffer_destroy(half.result);
    keel_free(half.host);
    keel_device_fixture_close(&half.fixture);
    return status;
}

int keel_board_helper_main(int argc, char **argv)
{
    uint64_t hash = 0;
    int type;
    socklen_t bytes = sizeof type;
    bool linked = getsockopt(SOCKET, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0;
    if (linked && argc == 3 && strcmp(argv[1], "golden") == 0)
        return end(work(argv[2]), 0);
    if (linked && argc == 3 && strcmp(argv[1], "once") == 0)
        return end(once(argv[2]), 0);
    bool alone = argc > 1 && strcmp(argv[1], "outlive") == 0;
    if (linked && argc == 4 && (alone || strcmp(argv[1], "pair") == 0)) {
        enum keel_status status = pair(argv[2], argv[3][0] == '0' ? 0 : 1, alone, &hash);
        return end(status, hash);
    }
    fprintf(stderr, "keel board: helper is started by keel board check\n");
    return keel_status_exit_code(KEEL_INVALID);
}
