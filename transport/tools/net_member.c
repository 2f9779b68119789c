/* net_member.c - one rank of a rendezvous: meets the others, opens a group of all, works, and reports. */
#include "net_member.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <sodium.h>
#include <string.h>

#define ALIVE_NS KEEL_NS_PER_S

uint64_t keel_net_rank_deadline(const struct keel_net_rank *rank)
{
    return keel_deadline_after_ns(rank->timeout_ns);
}

enum keel_status keel_net_rank_say(const struct keel_net_rank *rank, uint32_t kind, const void *payload,
                                   uint32_t bytes)
{
    return keel_rendezvous_say(rank->member, kind, payload, bytes, keel_net_rank_deadline(rank));
}

enum keel_status keel_net_rank_alive(struct keel_net_rank *rank, uint64_t now_ns)
{
    if (now_ns - rank->said_ns < ALIVE_NS)
        return KEEL_OK;
    rank->said_ns = now_ns;
    return keel_net_rank_say(rank, KEEL_NET_FRAME_ALIVE, NULL, 0);
}

/* A message's number is its sender's. */
static enum keel_status pass_on(struct keel_net_rank *rank, const struct keel_collective *what,
                                const void *part, void *result)
{
    const void *parts[] = {part};
    struct keel_operation *sending = NULL, *receiving = NULL;
    struct keel_collective send = *what, receive = *what;
    uint64_t deadline_ns = keel_net_rank_deadline(rank);
    send.root = (rank->rank + 1) % rank->world;
    send.sequence = rank->sequence + rank->rank;
    send.parts = parts;
    send.part_count = 1;
    receive.kind = KEEL_RECEIVE;
    receive.root = (rank->rank + rank->world - 1) % rank->world;
    receive.sequence = rank->sequence + receive.root;
    receive.result = result;
    rank->sequence += rank->world;
    KEEL_TRY(keel_group_begin(rank->group, &receive, &receiving));
    KEEL_TRY(keel_group_begin(rank->group, &send, &sending));
    KEEL_TRY(keel_operation_wait(sending, deadline_ns));
    return keel_operation_wait(receiving, deadline_ns);
}

enum keel_status keel_net_rank_run(struct keel_net_rank *rank, struct keel_collective what, const void *part,
                                   void *result)
{
    const void *parts[] = {part};
    bool barrier = what.kind == KEEL_BARRIER, at_root = what.root == rank->rank;
    bool from_root = what.kind == KEEL_BROADCAST || what.kind == KEEL_SCATTER;
    bool to_root = what.kind == KEEL_REDUCE || what.kind == KEEL_GATHER;
    if (what.kind == KEEL_SEND)
        return pass_on(rank, &what, part, result);
    what.sequence = rank->sequence++;
    if (!barrier && (!from_root || at_root)) {
        what.parts = parts;
        what.part_count = 1;
    }
    if (!barrier && (!to_root || at_root))
        what.result = result;
    return keel_group_run(rank->group, &what, keel_net_rank_deadline(rank));
}

/* Everybody's address, once all are here. */
static enum keel_status meet(struct keel_net_rank *rank, const struct keel_net_rendezvous *rendezvous,
                             struct keel_address *addresses)
{
    uint8_t key[KEEL_KEY_BYTES];
    char local[KEEL_RENDEZVOUS_PLACE_BYTES];
    struct keel_address mine;
    if (rendezvous->key_file == NULL)
        return keel_fail(KEEL_INVALID, "several nodes need --key FILE (make one: openssl rand -hex 32)");
    KEEL_TRY(keel_rendezvous_key_read(rendezvous->key_file, key));
    bool shared = strcmp(rendezvous->carrier, "shared") == 0;
    struct keel_endpoint_config config = {
        .provider = shared ? NULL : rendezvous->carrier, .node = local, .key = key, .fabric_only = !shared};
    uint64_t deadline_ns = keel_net_rank_deadline(rank);
    enum keel_status status =
        keel_rendezvous_connect(rendezvous->join, key, deadline_ns, local, &rank->member);
    if (status == KEEL_OK)
        status = keel_endpoint_open(&config, &rank->endpoint);
    if (status == KEEL_OK) {
        keel_endpoint_address(rank->endpoint, &mine);
        status = keel_rendezvous_enter(rank->member, rank->rank, rank->world, &mine, deadline_ns, addresses);
    }
    sodium_memzero(key, sizeof key);
    return status;
}

static enum keel_status group_of_all(struct keel_net_rank *rank, const struct keel_net_rendezvous *rendezvous,
                                     const struct keel_address *addresses)
{
    struct keel_cost_model costs;
    uint16_t *shard_rank;
    if (rendezvous->costs != NULL)
        KEEL_TRY(keel_costs_read(rendezvous->costs, &costs));
    KEEL_TRY(keel_alloc(rank->world, sizeof *shard_rank, &shard_rank));
    for (uint32_t k = 0; k < rank->world; k++)
        shard_rank[k] = (uint16_t)k;
    struct keel_group_config config = {.epoch = 1,
                                       .rank = rank->rank,
                                       .rank_count = rank->world,
                                       .addresses = addresses,
                                       .shard_count = rank->world,
                                       .shard_rank = shard_rank,
                                       .costs = rendezvous->costs != NULL ? &costs : NULL};
    enum keel_status status = keel_group_open(rank->endpoint, &config, &rank->group);
    keel_free(shard_rank);
    return status;
}

static enum keel_status take_part(struct keel_net_rank *rank, const struct keel_net_rendezvous *rendezvous,
                                  const struct keel_net_work *work)
{
    struct keel_address *addresses;
    KEEL_TRY(keel_alloc(rank->world, sizeof *addresses, &addresses));
    enum keel_status status = meet(rank, rendezvous, addresses);
    if (status == KEEL_OK)
        status = group_of_all(rank, rendezvous, addresses);
    keel_free(addresses);
    return status == KEEL_OK ? work->rank(rank) : status;
}

int keel_net_member_run(const struct keel_command *cmd, const struct keel_net_rendezvous *rendezvous,
                        const struct keel_net_work *work)
{
    struct keel_net_rank rank = {.cmd = cmd,
                                 .rank = (uint32_t)rendezvous->rank,
                                 .world = (uint32_t)rendezvous->world,
                                 .timeout_ns = rendezvous->timeout_s * KEEL_NS_PER_S,
                                 .sequence = 1,
                                 .said_ns = keel_now_ns()};
    struct keel_net_failure failure = {.status = KEEL_OK};
    if (rendezvous->world > KEEL_GROUP_RANKS_MAX)
        return keel_net_report(keel_fail(KEEL_LIMIT, "more than %d ranks", KEEL_GROUP_RANKS_MAX));
    enum keel_status status = take_part(&rank, rendezvous, work);
    if (status != KEEL_OK) {
        failure.status = status;
        snprintf(failure.text, sizeof failure.text, "%s", keel_detail());
        if (rank.group == NULL || /* nobody hears it but the person at this terminal */
            keel_net_rank_say(&rank, KEEL_NET_FRAME_FAILED, &failure, sizeof failure) != KEEL_OK) {
            keel_detail_set(failure.text);
            keel_net_report(status);
        }
    }
    if (rank.group != NULL)
        keel_group_close(rank.group);
    if (rank.endpoint != NULL)
        keel_endpoint_close(rank.endpoint);
    keel_rendezvous_leave(rank.member, true);
    return keel_status_exit_code(status);
}
