/* device_board.h - a rank with a device, for the tests of collectives on device memory. */
#ifndef KEEL_TESTS_DEVICE_BOARD_H
#define KEEL_TESTS_DEVICE_BOARD_H

#include "ranks.h"

#include <keel/transport_device.h>

enum { PARTS_MAX = 8, OPERATIONS_MAX = 8, STAGING_BYTES = 8 << 20 };

/* What this run is about; set before ranks are forked. */
static const char *selector;
static bool staged;
static uint64_t staging_bytes = STAGING_BYTES;

struct board {
    struct keel_device *device;
    struct keel_queue *queue;
    struct keel_device_collectives *collectives;
};

static inline void board_open(struct rank *me, struct board *board)
{
    rank_ok(me, keel_device_open(selector, NULL, &board->device));
    rank_ok(me, keel_queue_create(board->device, &board->queue));
    struct keel_device_collectives_config config = {.device = board->device,
                                                    .parts_max = PARTS_MAX,
                                                    .operations_max = OPERATIONS_MAX,
                                                    .staging_bytes = staging_bytes,
                                                    .staged = staged};
    rank_ok(me, keel_device_collectives_create(&config, &board->collectives));
}

/* Memory that is not given back would show here. */
static inline void board_close(struct rank *me, struct board *board)
{
    keel_device_collectives_free(board->collectives);
    keel_queue_destroy(board->queue);
    rank_check(me, keel_device_stats(board->device).live_bytes == 0);
    keel_device_close(board->device);
}

static inline void board_write(struct rank *me, struct board *board, struct keel_buffer *buffer, uint64_t at,
                               const void *data, uint64_t bytes)
{
    if (bytes == 0)
        return;
    rank_ok(me, keel_queue_write(board->queue, buffer, at, data, bytes, NULL, NULL));
    rank_ok(me, keel_queue_finish(board->queue, in_seconds(20)));
}

static inline struct keel_buffer *board_buffer(struct rank *me, struct board *board, uint64_t bytes)
{
    struct keel_buffer *buffer = NULL;
    rank_ok(me, keel_buffer_create(board->device, bytes, &buffer));
    return buffer;
}

#endif
