/* middle_test.c - somebody between two ranks who changes, repeats, reorders, withholds, cuts and makes up
 * messages: a result is right or there is none, both ranks are told, and the next epoch works.
 *
 * The ranks reach each other through a process that passes TCP connections on and takes what goes over them
 * apart into messages, by the frames of libfabric's tcp provider: 32 bytes of greeting each way, then a
 * header of 16 bytes whose last 8 are the size of the whole. It leaves the frames themselves alone: they are
 * libfabric's. */
#include "connection.h"
#include "ranks.h"
#include "sums.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum {
    GREETING_BYTES = 32,
    FRAME_BYTES = 16,
    ENVELOPE = sizeof(struct keel_envelope),
    PACKET_MAX = FRAME_BYTES + ENVELOPE + KEEL_CHUNK_BYTES,
    PIPES_MAX = 16,
    RECORD_MAX = 1 << 20,
    HANDSHAKE_MESSAGES = 2, /* so many may be the handshake's, each way */
    LATEST = 12,            /* the message that is attacked at the latest */
    FLIPS = 340,            /* of a long attack, in each of its three ways */
    FLIP_GAP = 16           /* messages from one to the next, at most */
};

enum attack { FLIP, REPEAT, SWAP, OMIT, CUT, MAKE_UP, ATTACKS, RECORD = ATTACKS, FLIP_MANY, STAND_STILL };
enum sort { HANDSHAKE, CONTROL, BULK, SORTS };

/* What ranks, the one between them and the test share. */
struct middle {
    _Atomic uint32_t listening; /* ports of the one between, and of the ranks: bits 16.. are rank 1's */
    _Atomic uint32_t real[2];
    enum attack attack;
    uint32_t direction, index; /* 0: from who called */
    uint64_t seed;
    uint32_t gap; /* FLIP_MANY: messages to the next one */
    _Atomic uint32_t calls, attacks, statuses[2], lost[2], stale[2];
    /* FLIP_MANY */
    _Atomic uint32_t flipped[SORTS], arrived[2], corrupt, ended_otherwise, right;
    _Atomic bool enough;
};

static struct middle *middle;

#define STILL_NS (KEEL_HANDSHAKE_NS + KEEL_NS_PER_S)

/* ---- the one between ----------------------------------------------------------------------------------- */

struct side {
    int from, to;
    bool greeted;
    uint32_t count, fill; /* messages that went; bytes of the one that comes */
    uint32_t held;        /* bytes of the message that is held back */
    uint8_t packet[PACKET_MAX], kept[PACKET_MAX];
};

static struct pipe {
    struct side sides[2];
    bool open;
} pipes[PIPES_MAX];

static uint8_t record[RECORD_MAX];
static uint32_t recorded;

static int call_port(uint32_t port)
{
    struct sockaddr_in where = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&where, sizeof where) == 0)
        return fd;
    close(fd);
    return -1;
}

static int listen_port(uint32_t *out_port)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof where;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&where, sizeof where), 0);
    ck_assert_int_eq(listen(fd, 16), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&where, &bytes), 0);
    *out_port = ntohs(where.sin_port);
    return fd;
}

/* A rank that is gone is no trouble here. */
static void pass(int fd, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        ssize_t done = send(fd, bytes, count, MSG_NOSIGNAL);
        if (done <= 0)
            return;
        bytes += done;
        count -= (size_t)done;
    }
}

static void hang_up(struct pipe *pipe)
{
    if (pipe->open) {
        close(pipe->sides[0].from);
        close(pipe->sides[0].to);
    }
    pipe->open = false;
}

/* A bit of whatever is ours: header or payload. */
static void flip(struct side *side)
{
    uint32_t size = side->fill - FRAME_BYTES;
    uint64_t bit = test_random(&middle->seed) % (size * 8);
    side->packet[FRAME_BYTES + bit / 8] ^= (uint8_t)(1 << bit % 8);
}

/* A farewell as whoever has no key would write it, or as long as the message after which it comes. */
static void make_up(const struct side *side)
{
    uint8_t packet[PACKET_MAX];
    struct keel_message bye = {.magic = KEEL_MESSAGE_MAGIC, .kind = KEEL_MESSAGE_BYE, .epoch = 1};
    uint64_t size = middle->seed % 2 == 0 ? FRAME_BYTES + sizeof bye : side->fill;
    memcpy(packet, side->packet, side->fill);
    memcpy(packet + FRAME_BYTES, &bye, sizeof bye);
    memcpy(packet + FRAME_BYTES - sizeof size, &size, sizeof size);
    pass(side->to, packet, size);
}

static void attack(struct pipe *pipe, struct side *side)
{
    atomic_fetch_add(&middle->attacks, 1);
    if (middle->attack == FLIP) {
        flip(side);
        pass(side->to, side->packet, side->fill);
    } else if (middle->attack == SWAP) {
        memcpy(side->kept, side->packet, side->fill);
        side->held = side->fill;
    } else if (middle->attack == CUT) {
        pass(side->to, side->packet, test_random(&middle->seed) % side->fill);
        hang_up(pipe);
    } else if (middle->attack != OMIT) {
        pass(side->to, side->packet, side->fill);
        if (middle->attack == REPEAT)
            pass(side->to, side->packet, side->fill);
        else
            make_up(side);
    }
}

static void flip_one_of_many(struct side *side, uint32_t index)
{
    enum sort sort = side->fill > FRAME_BYTES + ENVELOPE + KEEL_COPY_BYTES ? BULK
                     : index < HANDSHAKE_MESSAGES                          ? HANDSHAKE
                                                                           : CONTROL;
    if (middle->gap-- > 0)
        return;
    middle->gap = (uint32_t)(test_random(&middle->seed) % FLIP_GAP);
    atomic_fetch_add(&middle->attacks, 1);
    atomic_fetch_add(&middle->flipped[sort], 1);
    flip(side);
}

static void message_complete(struct pipe *pipe, struct side *side)
{
    uint32_t index = side->count++;
    if (middle->attack == FLIP_MANY)
        flip_one_of_many(side, index);
    if (middle->attack == STAND_STILL && side == &pipe->sides[middle->direction] && index == middle->index &&
        atomic_fetch_add(&middle->attacks, 1) == 0)
        keel_sleep_until_ns(keel_deadline_after_ns(STILL_NS)); /* and with it all that goes through here */
    bool now = side == &pipe->sides[middle->direction] && index == middle->index &&
               middle->attack < ATTACKS && atomic_load(&middle->attacks) == 0;
    if (middle->attack == RECORD && side == &pipe->sides[0] && recorded + side->fill <= RECORD_MAX) {
        memcpy(record + recorded, side->packet, side->fill);
        recorded += side->fill;
    }
    if (now) {
        attack(pipe, side);
    } else {
        pass(side->to, side->packet, side->fill);
        if (side->held > 0)
            pass(side->to, side->kept, side->held);
        side->held = 0;
    }
    side->fill = 0;
}

/* How many bytes the message that comes has, as far as is known. */
static uint64_t wanted(const struct side *side)
{
    uint64_t size;
    if (!side->greeted)
        return GREETING_BYTES;
    if (side->fill < FRAME_BYTES)
        return FRAME_BYTES;
    memcpy(&size, side->packet + FRAME_BYTES - sizeof size, sizeof size);
    return size >= FRAME_BYTES && size <= PACKET_MAX ? size : 0;
}

static void side_ready(struct pipe *pipe, struct side *side)
{
    uint64_t size = wanted(side);
    ssize_t got = size > side->fill ? read(side->from, side->packet + side->fill, size - side->fill) : 0;
    if (got <= 0) {
        hang_up(pipe);
        return;
    }
    side->fill += (uint32_t)got;
    if (side->fill < wanted(side))
        return;
    if (side->greeted) {
        message_complete(pipe, side);
        return;
    }
    if (middle->attack == RECORD && side == &pipe->sides[0] && recorded == 0) {
        memcpy(record, side->packet, side->fill);
        recorded = side->fill;
    }
    pass(side->to, side->packet, side->fill);
    side->greeted = true;
    side->fill = 0;
}

static void caller_arrived(int listener, uint32_t rank)
{
    atomic_fetch_add(&middle->calls, 1);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC), there = call_port(atomic_load(&middle->real[rank]));
    for (uint32_t k = 0; k < PIPES_MAX && fd >= 0 && there >= 0; k++) {
        if (pipes[k].open)
            continue;
        memset(&pipes[k], 0, sizeof pipes[k]);
        pipes[k].open = true;
        pipes[k].sides[0].from = pipes[k].sides[1].to = fd;
        pipes[k].sides[0].to = pipes[k].sides[1].from = there;
        return;
    }
    close(fd);
    close(there);
}

/* What was recorded is said again, to rank 1, on a connection of its own; then wait for its answer to end. */
static void play_again(void)
{
    uint8_t heard[4096];
    int fd = call_port(atomic_load(&middle->real[1]));
    pass(fd, record, recorded);
    atomic_fetch_add(&middle->attacks, recorded > GREETING_BYTES ? 1 : 0);
    while (read(fd, heard, sizeof heard) > 0) {
    }
    close(fd);
}

static _Noreturn void stand_between(const int listeners[2], int orders, int answers)
{
    struct pollfd fds[3 + 2 * PIPES_MAX];
    struct side *sides[3 + 2 * PIPES_MAX];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        nfds_t count = 3;
        fds[0] = (struct pollfd){.fd = listeners[0], .events = POLLIN};
        fds[1] = (struct pollfd){.fd = listeners[1], .events = POLLIN};
        fds[2] = (struct pollfd){.fd = orders, .events = POLLIN};
        for (uint32_t k = 0; k < 2 * PIPES_MAX; k++)
            if (pipes[k / 2].open) {
                sides[count] = &pipes[k / 2].sides[k % 2];
                fds[count] = (struct pollfd){.fd = sides[count]->from, .events = POLLIN};
                count++;
            }
        if (poll(fds, count, -1) < 0 && errno != EINTR)
            _exit(1);
        for (nfds_t k = 3; k < count; k++) {
            struct pipe *pipe = &pipes[(size_t)((uint8_t *)sides[k] - (uint8_t *)pipes) / sizeof *pipes];
            if (fds[k].revents != 0 && pipe->open)
                side_ready(pipe, sides[k]);
        }
        for (uint32_t rank = 0; rank < 2; rank++)
            if (fds[rank].revents != 0)
                caller_arrived(listeners[rank], rank);
        uint8_t order;
        if (fds[2].revents != 0) {
            if (read(orders, &order, 1) != 1)
                _exit(0);
            play_again();
            ranks_move(answers, &order, 1, true);
        }
    }
}

/* ---- the ranks ----------------------------------------------------------------------------------------- */

static const uint8_t job_key[32] = "a key the one between has not";

static uint32_t port_of(const struct keel_address *address)
{
    struct sockaddr_in where;
    memcpy(&where, address->data, sizeof where);
    return ntohs(where.sin_port);
}

static struct keel_address through_middle(const struct rank *me, uint32_t rank)
{
    struct keel_address address = me->addresses[rank];
    struct sockaddr_in where;
    memcpy(&where, address.data, sizeof where);
    where.sin_port = htons((uint16_t)(atomic_load(&middle->listening) >> 16 * rank));
    memcpy(address.data, &where, sizeof where);
    return address;
}

static struct keel_group *group_through_middle(struct rank *me, uint64_t epoch)
{
    const uint16_t shard_rank[1] = {0};
    struct keel_address own[2] = {me->addresses[0], me->addresses[1]};
    for (uint32_t rank = 0; rank < 2; rank++) /* all must list the same: so does each for itself */
        me->addresses[rank] = through_middle(me, rank);
    struct keel_group *group = rank_group(me, epoch, 1, shard_rank);
    memcpy(me->addresses, own, sizeof own);
    return group;
}

static void meet(struct rank *me)
{
    atomic_store(&middle->real[me->rank], port_of(&me->addresses[me->rank]));
    rank_say(me, 'r');
    rank_hear(me);
}

enum { ROUNDS = 16, LONG = 200 * 1024 + 7, UNTOUCHED = 0xee };

static uint8_t byte_of(uint32_t rank, uint64_t round, uint64_t i)
{
    uint8_t byte = (uint8_t)(i * 31 + (i >> 8) * 7 + round * 13 + rank * 101);
    return byte == UNTOUCHED ? 0 : byte;
}

/* Nothing but what was there before and what belongs there; all of the latter if it is done. */
static void check_result(struct rank *me, const uint8_t *all, uint64_t bytes, uint64_t round, bool done)
{
    for (uint64_t i = 0; i < 2 * bytes; i++) {
        bool right = all[i] == byte_of(i < bytes ? 0 : 1, round, i % bytes);
        rank_check(me, right || (!done && all[i] == UNTOUCHED));
    }
}

/* All-gathers, short and long in turn, until one fails. */
static enum keel_status gather_until_failure(struct rank *me, struct keel_group *group)
{
    static uint8_t mine[LONG], all[2 * LONG];
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t bytes = round % 2 == 0 ? 100 : LONG;
        struct keel_operation *operation = NULL;
        for (uint64_t i = 0; i < bytes; i++)
            mine[i] = byte_of(me->rank, round, i);
        memset(all, UNTOUCHED, 2 * bytes);
        enum keel_status status = all_gather_begin(group, round, mine, bytes, all, &operation);
        if (status == KEEL_OK)
            status = keel_operation_wait(operation, in_seconds(middle->index < HANDSHAKE_MESSAGES ? 2 : 20));
        check_result(me, all, bytes, round, status == KEEL_OK);
        if (status != KEEL_OK)
            return status;
    }
    return KEEL_OK;
}

static void check_next_epoch(struct rank *me)
{
    const uint16_t shard_rank[2] = {0, 1};
    float *parts[2], result[5000];
    struct keel_operation *operation = NULL;
    struct keel_group *group = rank_group(me, 2, 2, shard_rank);
    uint32_t count = make_parts(2, shard_rank, me->rank, 5000, parts);
    rank_ok(me, sum_begin(group, 1, (const float *const *)parts, count, result, 5000, &operation));
    rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
    rank_check(me, first_wrong(result, 2, 5000) == 5000);
    keel_group_close(group);
    free_parts(parts, count);
}

static int attacked_body(struct rank *me)
{
    struct keel_transport_stats stats;
    uint32_t lost = 99;
    meet(me);
    struct keel_group *group = group_through_middle(me, 1);
    atomic_store(&middle->statuses[me->rank], gather_until_failure(me, group));
    (void)keel_group_lost(group, &lost);
    atomic_store(&middle->lost[me->rank], lost);
    keel_endpoint_stats(me->endpoint, &stats);
    atomic_store(&middle->stale[me->rank], (uint32_t)stats.stale_dropped);
    keel_group_close(group);
    check_next_epoch(me);
    rank_say(me, 'd');
    rank_hear(me);
    return 0;
}

/* ---- the test ------------------------------------------------------------------------------------------ */

struct scene {
    struct ranks ranks;
    pid_t between;
    int orders, answers;
};

static void open_scene(struct scene *scene, enum attack attack, bool keyed, int (*body)(struct rank *))
{
    static const uint8_t *keys[] = {job_key, job_key};
    uint32_t ports[2];
    int listeners[2], down[2], up[2];
    for (uint32_t rank = 0; rank < 2; rank++)
        listeners[rank] = listen_port(&ports[rank]);
    middle->attack = attack;
    middle->attacks = 0;
    middle->gap = 0;
    atomic_store(&middle->calls, 0);
    atomic_store(&middle->listening, ports[0] | ports[1] << 16);
    ck_assert_int_eq(pipe2(down, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(up, O_CLOEXEC), 0);
    scene->between = fork();
    ck_assert_int_ge(scene->between, 0);
    if (scene->between == 0) {
        close(down[1]);
        stand_between(listeners, down[0], up[1]);
    }
    for (uint32_t rank = 0; rank < 2; rank++)
        close(listeners[rank]);
    close(down[0]);
    close(up[1]);
    scene->orders = down[1];
    scene->answers = up[0];
    ranks_start(&scene->ranks, 2, 1, keyed ? keys : NULL, body);
    ranks_together(&scene->ranks);
}

static void close_scene(struct scene *scene)
{
    int status;
    ranks_end(&scene->ranks, -1);
    kill(scene->between, SIGKILL);
    ck_assert_int_eq(waitpid(scene->between, &status, 0), scene->between);
    close(scene->orders);
    close(scene->answers);
}

static void share_middle(void)
{
    middle = mmap(NULL, sizeof *middle, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(middle, MAP_FAILED);
    setenv("KEEL_SHARED_MEMORY", "0", 1);
}

enum { SEEDS = 6 };

/* Once both have proven themselves, both are told, and who received it knows that it was changed; before,
 * what the attack breaks may be set right by a call the other way. Where both called, the second call may
 * come when its caller is lost already, and counts too; so does what is on its way to who has just left.
 */
static void check_outcome(void)
{
    uint32_t stale = middle->stale[0] + middle->stale[1], broken = middle->attack == CUT ? 0 : 1;
    ck_assert_uint_eq(middle->attacks, 1);
    if (middle->index < HANDSHAKE_MESSAGES)
        return;
    uint32_t corrupt = 0;
    for (uint32_t rank = 0; rank < 2; rank++) {
        corrupt += middle->statuses[rank] == KEEL_CORRUPT;
        ck_assert_msg(middle->statuses[rank] == KEEL_PEER_LOST || middle->statuses[rank] == KEEL_CORRUPT,
                      "rank %u: %s", rank, keel_status_name((enum keel_status)middle->statuses[rank]));
        ck_assert_uint_eq(middle->lost[rank], 1 - rank);
    }
    ck_assert_uint_ge(corrupt, broken);
    ck_assert_uint_ge(stale, broken);
    ck_assert_uint_lt(stale, broken + middle->calls + KEEL_CONNECTION_SENDS);
}

/* _i: the attack, and in the lowest bit whether bulk payloads are sealed. */
START_TEST(whatever_the_one_between_does_a_result_is_right_or_there_is_none)
{
    share_middle();
    if (_i % 2 == 1)
        setenv("KEEL_TEST_SEALED", "1", 1);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct scene scene;
        uint64_t state = seed * 100 + (uint64_t)_i;
        middle->direction = (uint32_t)(test_random(&state) % 2);
        middle->index = seed == 0 ? 0 : (uint32_t)(test_random(&state) % LATEST);
        middle->seed = test_random(&state);
        open_scene(&scene, (enum attack)(_i / 2), true, attacked_body);
        ranks_together(&scene.ranks);
        close_scene(&scene);
        check_outcome();
    }
}
END_TEST

/* Epoch after epoch through the one between, who flips one bit in every eighth message or so. */
static int flipped_body(struct rank *me)
{
    meet(me);
    for (uint64_t epoch = 1;; epoch++) {
        struct keel_group *group = group_through_middle(me, epoch);
        enum keel_status status = gather_until_failure(me, group);
        if (status == KEEL_CORRUPT)
            rank_check(me, strstr(keel_detail(), "was changed on the connection with 127.0.0.1:") != NULL);
        atomic_fetch_add(status == KEEL_OK        ? &middle->right
                         : status == KEEL_CORRUPT ? &middle->corrupt
                                                  : &middle->ended_otherwise,
                         1);
        keel_group_close(group);
        if (me->rank == 0 && atomic_load(&middle->attacks) >= FLIPS)
            atomic_store(&middle->enough, true);
        atomic_store(&middle->arrived[me->rank], (uint32_t)epoch);
        while (atomic_load(&middle->arrived[1 - me->rank]) < epoch)
            usleep(100);
        if (atomic_load(&middle->enough))
            return 0;
    }
}

/* _i: no key, a key, a key and bulk data encrypted. What a rank finds wrong in a result that is OK ends it.
 */
START_TEST(a_thousand_bits_flipped_in_messages_of_every_sort_give_no_wrong_result)
{
    struct scene scene;
    share_middle();
    if (_i == 2)
        setenv("KEEL_TEST_SEALED", "1", 1);
    middle->seed = (uint64_t)_i + 1;
    middle->index = HANDSHAKE_MESSAGES; /* the longer deadline */
    open_scene(&scene, FLIP_MANY, _i > 0, flipped_body);
    close_scene(&scene);
    printf("%s: %u bits flipped (%u in handshakes, %u in control messages, %u in bulk data): %u operations "
           "CORRUPT, %u ended otherwise, 0 wrong\n",
           _i == 0   ? "no key"
           : _i == 1 ? "key"
                     : "encrypted",
           middle->attacks, middle->flipped[HANDSHAKE], middle->flipped[CONTROL], middle->flipped[BULK],
           middle->corrupt, middle->ended_otherwise);
    ck_assert_uint_ge(middle->attacks, FLIPS);
    for (uint32_t sort = 0; sort < SORTS; sort++)
        ck_assert_uint_gt(middle->flipped[sort], 0);
    ck_assert_uint_gt(middle->corrupt, 0);
}
END_TEST

static int still_body(struct rank *me)
{
    uint32_t lost;
    meet(me);
    struct keel_group *group = group_through_middle(me, 1);
    rank_ok(me, barrier(group, 1, in_seconds(60)));
    rank_ok(me, barrier(group, 2, in_seconds(60)));
    rank_check(me, !keel_group_lost(group, &lost));
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    return 0;
}

/* _i: which message, from who calls or to it. On a machine that is very busy a member takes as long. */
START_TEST(a_handshake_that_takes_long_loses_nobody)
{
    struct scene scene;
    share_middle();
    middle->direction = (uint32_t)_i % 2;
    middle->index = (uint32_t)_i / 2;
    open_scene(&scene, STAND_STILL, true, still_body);
    ranks_together(&scene.ranks);
    close_scene(&scene);
    ck_assert_uint_ge(middle->attacks, 1);
}
END_TEST

static int recorded_body(struct rank *me)
{
    struct keel_transport_stats before, after;
    const uint16_t shard_rank[1] = {0};
    meet(me);
    struct keel_group *group = group_through_middle(me, 1);
    rank_check(me, gather_until_failure(me, group) == KEEL_OK);
    rank_ok(me, barrier(group, ROUNDS, in_seconds(20)));
    keel_group_close(group);
    group = rank_group(me, 2, 1, shard_rank);
    rank_check(me, gather_until_failure(me, group) == KEEL_OK);
    keel_endpoint_stats(me->endpoint, &before);
    rank_say(me, 'r');
    rank_hear(me); /* the record was played to rank 1 */
    keel_endpoint_stats(me->endpoint, &after);
    rank_check(me, (after.stale_dropped > before.stale_dropped) == (me->rank == 1));
    rank_check(me, after.connections == before.connections);
    rank_ok(me, barrier(group, ROUNDS, in_seconds(20)));
    keel_group_close(group);
    return 0;
}

START_TEST(a_recorded_connection_played_again_after_a_view_change_is_dropped_and_counted)
{
    struct scene scene;
    uint8_t word = 'p';
    share_middle();
    open_scene(&scene, RECORD, true, recorded_body);
    for (uint32_t rank = 0; rank < 2; rank++)
        ck_assert_int_eq(ranks_listen(&scene.ranks, rank), 'r');
    ranks_move(scene.orders, &word, 1, true);
    ranks_move(scene.answers, &word, 1, false);
    for (uint32_t rank = 0; rank < 2; rank++)
        ranks_tell(&scene.ranks, rank, 'c');
    close_scene(&scene);
    ck_assert_uint_eq(middle->attacks, 1);
}
END_TEST

static int refused_option_body(struct rank *me)
{
    struct keel_endpoint *endpoint;
    struct keel_endpoint_config config = {.seal_payload = true};
    rank_check(me, keel_endpoint_open(&config, &endpoint) == KEEL_INVALID);
    return 0;
}

START_TEST(sealing_payloads_without_a_key_is_refused)
{
    struct ranks ranks;
    ranks_start(&ranks, 1, 1, NULL, refused_option_body);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, whatever_the_one_between_does_a_result_is_right_or_there_is_none, 0, 2 * ATTACKS);
    tcase_add_loop_test(tc, a_thousand_bits_flipped_in_messages_of_every_sort_give_no_wrong_result, 0, 3);
    tcase_add_loop_test(tc, a_handshake_that_takes_long_loses_nobody, 0, 2 * HANDSHAKE_MESSAGES);
    tcase_add_test(tc, a_recorded_connection_played_again_after_a_view_change_is_dropped_and_counted);
    tcase_add_test(tc, sealing_payloads_without_a_key_is_refused);
}
KEEL_TEST_MAIN("transport with somebody between", cases, 120)
