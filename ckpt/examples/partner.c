/* partner.c - a snapshot outlives the disk that it lay on: another process keeps a copy in its memory, and an
 * erasure set of two keeps its parity.
 *
 * An example for libkeel-ckpt, to be copied from. The newest snapshot of a run is copied to the partner, then
 * removed from the store as if the disk had been exchanged, and brought back from what the partner offers.
 * Messages go over a socket pair here; between hosts it would be a connection with the same two calls.
 *
 *     cc partner.c $(pkg-config --cflags --libs keel-ckpt) -o partner
 *     ./heat STORE 100 10 && ./partner STORE heat */
#include <errno.h>
#include <keel/ckpt_tier.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OFFERS = 16, OBJECTS = 64, NODES = 2 };
#define CAPACITY_BYTES (UINT64_C(1) << 28)
#define LIMIT_NS       (20 * KEEL_NS_PER_S)

/* ---- messages over a stream: four bytes of length, then the message ------------------------------------ */

static enum keel_status move(int fd, void *data, size_t bytes, short events, uint64_t deadline_ns)
{
    for (char *at = data; bytes > 0;) {
        struct pollfd socket = {.fd = fd, .events = events};
        const int ready = poll(&socket, 1, keel_remaining_poll_ms(deadline_ns));
        if (ready == 0)
            return keel_fail(KEEL_TIMEOUT, "the partner is silent");
        const ssize_t moved = ready < 0          ? -1
                              : events == POLLIN ? recv(fd, at, bytes, 0)
                                                 : send(fd, at, bytes, MSG_NOSIGNAL);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return keel_fail(KEEL_PEER_LOST, "the partner is gone");
        at += moved;
        bytes -= (size_t)moved;
    }
    return KEEL_OK;
}

static enum keel_status send_message(void *context, const void *message, size_t bytes, uint64_t deadline_ns)
{
    const int fd = *(const int *)context;
    uint32_t length = (uint32_t)bytes;
    KEEL_TRY(move(fd, &length, sizeof length, POLLOUT, deadline_ns));
    return move(fd, (void *)(uintptr_t)message, bytes, POLLOUT, deadline_ns);
}

static enum keel_status receive_message(void *context, void *message, size_t capacity, size_t *out_bytes,
                                        uint64_t deadline_ns)
{
    const int fd = *(const int *)context;
    uint32_t length = 0;
    struct pollfd socket = {.fd = fd, .events = POLLIN};
    if (poll(&socket, 1, keel_remaining_poll_ms(deadline_ns)) == 0)
        return keel_fail(KEEL_TIMEOUT, "no message yet");
    KEEL_TRY(move(fd, &length, sizeof length, POLLIN, keel_deadline_after_ns(LIMIT_NS)));
    if (length > capacity)
        return keel_fail(KEEL_CORRUPT, "a message of %u bytes", length);
    KEEL_TRY(move(fd, message, length, POLLIN, keel_deadline_after_ns(LIMIT_NS)));
    *out_bytes = length;
    return KEEL_OK;
}

/* The partner: a process whose memory is a tier, until nobody calls any more. */
static int partner_main(int fd, const char *run)
{
    const struct keel_tier_link link = {send_message, receive_message, &fd};
    struct keel_tier *memory;
    if (keel_tier_memory_open(run, CAPACITY_BYTES, "memory", &memory) != KEEL_OK)
        return 1;
    enum keel_status status = keel_tier_serve(memory, &link, LIMIT_NS);
    keel_tier_end(memory);
    return status == KEEL_PEER_LOST ? 0 : 1;
}

/* ---- the snapshot -------------------------------------------------------------------------------------- */

struct files {
    struct keel_object object[OBJECTS];
    uint32_t count;
};

static enum keel_status note(void *context, const struct keel_object_info *info)
{
    struct files *files = context;
    if (files->count < OBJECTS)
        files->object[files->count++] = info->object;
    return KEEL_OK;
}

/* All of the run, so that bases of deltas are there too. */
static enum keel_status copy_all(struct keel_tier *from, struct keel_tier *to)
{
    struct files files = {.count = 0};
    KEEL_TRY(keel_tier_list(from, note, &files));
    for (uint32_t i = 0; i < files.count; i++)
        KEEL_TRY(keel_tier_copy(from, &files.object[i], to));
    printf("%u files are with the partner\n", files.count);
    return KEEL_OK;
}

/* Rank 0's shard and an empty node: either parity file is enough to have it again. What was tried is removed:
 * this snapshot comes back from the copy. */
static enum keel_status protect(const struct keel_snapshot_info *info, struct keel_tier *disk,
                                struct keel_tier *partner)
{
    const uint32_t ranks[NODES] = {0, KEEL_ERASURE_NO_SHARD};
    struct keel_tier *const from[NODES] = {disk, disk}, *const to[NODES] = {disk, partner};
    const struct keel_erasure_config config = {.step = info->step,
                                               .attempt = info->attempt,
                                               .node_count = NODES,
                                               .parity_count = 1,
                                               .ranks = ranks,
                                               .from = from,
                                               .to = to};
    const struct keel_object parity = {
        .step = info->step, .attempt = info->attempt, .kind = KEEL_OBJECT_PARITY, .member = 1};
    KEEL_TRY(keel_erasure_protect(&config));
    KEEL_TRY(keel_tier_verify(partner, &parity));
    printf("parity of step %llu is sound\n", (unsigned long long)info->step);
    return keel_tier_remove(partner, &parity);
}

/* What all ranks can have, here one, and back into the store with it. */
static enum keel_status restore(struct keel_store *store, struct keel_tier *partner)
{
    struct keel_offer offers[OFFERS];
    struct keel_rank_offers rank = {.offers = offers, .why_not = "the partner has no more"};
    struct keel_choice choice;
    enum keel_tier_latency from;
    char text[KEEL_CHOICE_TEXT_BYTES];
    KEEL_TRY(keel_tier_inventory(&partner, 1, 0, offers, OFFERS, &rank.count));
    KEEL_TRY(keel_tier_choose(&rank, 1, &choice, &from));
    keel_tier_choice_text(&choice, &rank, from, text);
    const struct keel_repair_config config = {
        .step = choice.step, .attempt = choice.attempt, .sources = &partner, .source_count = 1};
    struct keel_repair_result result;
    KEEL_TRY(keel_store_repair(store, &config, &result));
    printf("restored %u files: %s\n", result.repaired, text);
    return KEEL_OK;
}

static enum keel_status outlive(struct keel_store *store, struct keel_tier *disk, struct keel_tier *partner)
{
    struct keel_snapshot_info newest;
    uint32_t count, damaged, removed;
    KEEL_TRY(keel_store_list(store, &newest, 1, &count, &damaged));
    if (count == 0)
        return keel_fail(KEEL_NOT_FOUND, "no snapshot is there; make one with heat");
    KEEL_TRY(copy_all(disk, partner));
    KEEL_TRY(protect(&newest, disk, partner));
    KEEL_TRY(keel_tier_remove_generation(disk, newest.step, newest.attempt, &removed));
    printf("lost %u files of step %llu\n", removed, (unsigned long long)newest.step);
    return restore(store, partner);
}

static enum keel_status work(const char *root, const char *run, int fd)
{
    const struct keel_tier_link link = {send_message, receive_message, &fd};
    const struct keel_store_config config = {.root = root, .run = run};
    struct keel_store *store = NULL;
    struct keel_tier *disk = NULL, *partner = NULL;
    KEEL_TRY(keel_store_open(&config, &store));
    enum keel_status status = keel_tier_directory_open(store, KEEL_LATENCY_LOCAL, "disk", &disk);
    if (status == KEEL_OK)
        status = keel_tier_remote_open(&link, KEEL_LATENCY_MEMORY, run, "partner", LIMIT_NS, &partner);
    if (status == KEEL_OK)
        status = outlive(store, disk, partner);
    keel_tier_end(partner);
    keel_tier_end(disk);
    keel_store_close(store);
    return status;
}

int main(int argc, char **argv)
{
    int ends[2];
    if (argc != 3) {
        fprintf(stderr, "usage: partner STORE RUN\n");
        return 2;
    }
    keel_log_set_level(KEEL_LOG_ERROR); /* the rest this program says itself */
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return 1;
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        _exit(partner_main(ends[1], argv[2]));
    }
    close(ends[1]);
    enum keel_status status = child < 0 ? keel_fail_errno(errno, "fork") : work(argv[1], argv[2], ends[0]);
    if (status != KEEL_OK)
        fprintf(stderr, "partner: %s: %s\n", keel_status_text(status), keel_detail());
    close(ends[0]);
    if (child > 0)
        waitpid(child, NULL, 0);
    return keel_status_exit_code(status);
}
