/* transport_bench.c - what the exact all-reduce moves, against bare TCP streams of the same minute.
 *
 * Four processes on loopback. The peer is what no all-reduce over TCP can beat here: the same ranks move the
 * same bytes (2/n of the data to and from each other rank) over plain non-blocking sockets, with no sums and
 * no order. Rounds of ours and of the peer alternate; figures are medians. One JSON object a line. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <keel/clock.h>
#include <keel/transport.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, ROUNDS = 7, STREAM_CHUNK = 256 * 1024, PINGS = 300 };

struct rank {
    uint32_t rank;
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    struct keel_address addresses[RANKS];
    int sockets[RANKS]; /* to each other rank; -1 for oneself */
    uint64_t sequence;
};

static void die(const char *what)
{
    fprintf(stderr, "transport_bench: %s: %s\n", what, keel_detail());
    exit(1);
}

static uint64_t soon(void)
{
    return keel_deadline_after_ns(60 * KEEL_NS_PER_S);
}

/* ---- bare sockets -------------------------------------------------------------------------------------- */

static void tcp_pair(int *left, int *right)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    *left = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) != 0 ||
        connect(*left, (struct sockaddr *)&address, sizeof address) != 0)
        die("making sockets");
    *right = accept(listener, NULL, NULL);
    close(listener);
    for (int k = 0; k < 2; k++) {
        int fd = k == 0 ? *left : *right;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(fd, F_SETFL, O_NONBLOCK);
    }
}

static size_t chunk_of(size_t left)
{
    return left < STREAM_CHUNK ? left : STREAM_CHUNK;
}

/* Send and receive `bytes` with every other rank, all at once. */
static void tcp_exchange(const struct rank *me, uint8_t *out, uint8_t *in, size_t bytes)
{
    size_t sent[RANKS] = {0}, got[RANKS] = {0};
    for (;;) {
        struct pollfd fds[RANKS];
        bool busy = false;
        for (uint32_t r = 0; r < RANKS; r++) {
            short events = (short)((sent[r] < bytes ? POLLOUT : 0) | (got[r] < bytes ? POLLIN : 0));
            fds[r] = (struct pollfd){.fd = events != 0 ? me->sockets[r] : -1, .events = events};
            busy = busy || fds[r].fd >= 0;
        }
        if (!busy)
            return;
        if (poll(fds, RANKS, -1) < 0)
            die("poll");
        for (uint32_t r = 0; r < RANKS; r++) {
            ssize_t done = 0;
            if ((fds[r].revents & POLLIN) != 0 && (done = read(fds[r].fd, in, chunk_of(bytes - got[r]))) > 0)
                got[r] += (size_t)done;
            if ((fds[r].revents & POLLOUT) != 0 &&
                (done = write(fds[r].fd, out + sent[r], chunk_of(bytes - sent[r]))) > 0)
                sent[r] += (size_t)done;
        }
    }
}

/* ---- ours ---------------------------------------------------------------------------------------------- */

static void reduce(struct rank *me, const float *part, float *result, uint64_t floats)
{
    const void *parts[1] = {part};
    struct keel_collective sum = {.kind = KEEL_ALL_REDUCE,
                                  .sequence = me->sequence++,
                                  .element = KEEL_ELEMENT_F32,
                                  .count = floats,
                                  .parts = parts,
                                  .part_count = 1,
                                  .result = result};
    if (keel_group_run(me->group, &sum, soon()) != KEEL_OK)
        die("reduce");
}

static void barrier(struct rank *me)
{
    struct keel_collective wait = {.kind = KEEL_BARRIER, .sequence = me->sequence++};
    if (keel_group_run(me->group, &wait, soon()) != KEEL_OK)
        die("barrier");
}

static void open_group(struct rank *me, uint64_t epoch)
{
    static const uint16_t shard_rank[RANKS] = {0, 1, 2, 3};
    struct keel_group_config config = {.epoch = epoch,
                                       .rank = me->rank,
                                       .rank_count = RANKS,
                                       .addresses = me->addresses,
                                       .shard_count = RANKS,
                                       .shard_rank = shard_rank};
    if (keel_group_open(me->endpoint, &config, &me->group) != KEEL_OK)
        die("group");
}

/* ---- figures ------------------------------------------------------------------------------------------- */

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

/* goal: of the ratio (ours over peer for rates, peer over ours for times); 0: none. */
static void print(const char *figure, const char *unit, double value, double peer_value, double goal)
{
    bool time = strcmp(unit, "GB/s") != 0;
    double ratio = time ? peer_value / value : value / peer_value;
    printf("{\"room\":\"transport\",\"figure\":\"%s\",\"value\":%.3f,\"unit\":\"%s\",", figure, value, unit);
    printf("\"peer\":\"tcp streams\",\"peer_value\":%.3f,\"ratio\":%.2f,", peer_value, ratio);
    if (goal > 0)
        printf("\"goal\":%.2f,\"met\":%s}\n", goal, ratio >= goal ? "true" : "false");
    else
        printf("\"goal\":null,\"met\":null}\n");
    fflush(stdout);
}

struct sample {
    double ours_s, peer_s; /* one operation */
};

static struct sample measure(struct rank *me, uint8_t *out, uint8_t *in, uint64_t bytes, uint32_t repeats)
{
    double ours[ROUNDS], peer[ROUNDS];
    size_t share = bytes * 2 / RANKS;
    reduce(me, (const float *)out, (float *)in, bytes / sizeof(float));
    for (int round = 0; round < ROUNDS; round++) {
        barrier(me);
        uint64_t start = keel_now_ns();
        for (uint32_t k = 0; k < repeats; k++)
            reduce(me, (const float *)out, (float *)in, bytes / sizeof(float));
        ours[round] = (double)(keel_now_ns() - start) / 1e9 / repeats;
        barrier(me);
        start = keel_now_ns();
        for (uint32_t k = 0; k < repeats; k++)
            tcp_exchange(me, out, in, share);
        peer[round] = (double)(keel_now_ns() - start) / 1e9 / repeats;
    }
    return (struct sample){median(ours, ROUNDS), median(peer, ROUNDS)};
}

static void bandwidth(struct rank *me, uint8_t *out, uint8_t *in)
{
    static const struct {
        const char *figure;
        uint64_t bytes;
        uint32_t repeats;
        double goal;
    } sizes[] = {{"exact all-reduce, 4 ranks, 64 KiB, bus bandwidth", UINT64_C(64) << 10, 60, 0},
                 {"exact all-reduce, 4 ranks, 1 MiB, bus bandwidth", UINT64_C(1) << 20, 20, 0},
                 {"exact all-reduce, 4 ranks, 16 MiB, bus bandwidth", UINT64_C(16) << 20, 3, 0.5},
                 {"exact all-reduce, 4 ranks, 64 MiB, bus bandwidth", UINT64_C(64) << 20, 1, 0.5}};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        struct sample sample = measure(me, out, in, sizes[k].bytes, sizes[k].repeats);
        double bus = (double)sizes[k].bytes * 2 * (RANKS - 1) / RANKS / 1e9;
        if (me->rank == 0)
            print(sizes[k].figure, "GB/s", bus / sample.ours_s, bus / sample.peer_s, sizes[k].goal);
    }
}

/* Peer: two exchanges of eight bytes, since a sum needs two ways. */
static void latency(struct rank *me, uint8_t *out, uint8_t *in)
{
    double ours[ROUNDS], peer[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        barrier(me);
        uint64_t start = keel_now_ns();
        for (uint32_t k = 0; k < PINGS; k++)
            reduce(me, (const float *)out, (float *)in, 2);
        ours[round] = (double)(keel_now_ns() - start) / 1e3 / PINGS;
        barrier(me);
        start = keel_now_ns();
        for (uint32_t k = 0; k < 2 * PINGS; k++)
            tcp_exchange(me, out, in, 8);
        peer[round] = (double)(keel_now_ns() - start) / 1e3 / PINGS;
    }
    if (me->rank == 0)
        print("exact all-reduce, 4 ranks, 8 bytes, latency", "us", median(ours, ROUNDS), median(peer, ROUNDS),
              0);
}

/* Sum until a peer is gone; when that was. */
static uint64_t until_lost(struct rank *me, uint8_t *out, uint8_t *in, int to_parent)
{
    const void *parts[1] = {out};
    enum keel_status status = KEEL_OK;
    barrier(me);
    if (write(to_parent, "r", 1) != 1)
        die("pipe");
    while (status == KEEL_OK) {
        struct keel_collective sum = {.kind = KEEL_ALL_REDUCE,
                                      .sequence = me->sequence++,
                                      .element = KEEL_ELEMENT_F32,
                                      .count = 1 << 20,
                                      .parts = parts,
                                      .part_count = 1,
                                      .result = in};
        status = keel_group_run(me->group, &sum, soon());
    }
    if (status != KEEL_PEER_LOST)
        die("a killed rank was not noticed");
    return keel_now_ns();
}

static int run_rank(struct rank *me, int to_parent, int from_parent)
{
    struct keel_endpoint_config config = {.fabric_only = true};
    uint8_t *out = calloc(1, 64 << 20), *in = calloc(1, 64 << 20);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (out == NULL || in == NULL || keel_endpoint_open(&config, &me->endpoint) != KEEL_OK)
        die("endpoint");
    keel_endpoint_address(me->endpoint, &me->addresses[me->rank]);
    if (write(to_parent, &me->addresses[me->rank], sizeof me->addresses[0]) < 0 ||
        read(from_parent, me->addresses, sizeof me->addresses) != (ssize_t)sizeof me->addresses)
        die("addresses");
    memset(out, 1, 64 << 20);
    memset(in, 1, 64 << 20);
    open_group(me, 1);
    bandwidth(me, out, in);
    latency(me, out, in);
    uint64_t lost_ns = until_lost(me, out, in, to_parent);
    if (write(to_parent, &lost_ns, sizeof lost_ns) < 0)
        die("pipe");
    keel_group_close(me->group);
    keel_endpoint_close(me->endpoint);
    free(out);
    free(in);
    return 0;
}

/* The last rank dies in the middle of a sum: how long until every survivor's call has returned? */
static void kill_one(const pid_t *pids, int up[RANKS][2])
{
    uint64_t latest = 0, at;
    char word;
    for (uint32_t r = 0; r < RANKS; r++)
        if (read(up[r][0], &word, 1) != 1)
            die("a rank ended early");
    keel_sleep_until_ns(keel_deadline_after_ns(30 * KEEL_NS_PER_MS));
    uint64_t killed = keel_now_ns();
    kill(pids[RANKS - 1], SIGKILL);
    for (uint32_t r = 0; r < RANKS - 1; r++) {
        if (read(up[r][0], &at, sizeof at) != (ssize_t)sizeof at)
            die("a survivor ended early");
        latest = at > latest ? at : latest;
    }
    double took_ms = (double)(latest - killed) / 1e6;
    printf("{\"room\":\"transport\",\"figure\":\"a rank killed in a sum: last survivor's call returns\","
           "\"value\":%.3f,\"unit\":\"ms\",\"peer\":null,\"peer_value\":null,\"ratio\":null,"
           "\"goal\":50,\"met\":%s}\n",
           took_ms, took_ms <= 50 ? "true" : "false");
}

int main(void)
{
    int mesh[RANKS][RANKS], up[RANKS][2], down[RANKS][2];
    pid_t pids[RANKS];
    struct keel_address addresses[RANKS];
    for (uint32_t a = 0; a < RANKS; a++) {
        mesh[a][a] = -1;
        for (uint32_t b = 0; b < a; b++)
            tcp_pair(&mesh[a][b], &mesh[b][a]);
        if (pipe(up[a]) != 0 || pipe(down[a]) != 0)
            die("pipes");
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            struct rank me = {.rank = r};
            memcpy(me.sockets, mesh[r], sizeof me.sockets);
            exit(run_rank(&me, up[r][1], down[r][0]));
        }
    }
    for (uint32_t r = 0; r < RANKS; r++)
        if (read(up[r][0], &addresses[r], sizeof addresses[r]) != (ssize_t)sizeof addresses[r])
            die("a rank did not start");
    for (uint32_t r = 0; r < RANKS; r++)
        if (write(down[r][1], addresses, sizeof addresses) < 0)
            die("addresses");
    kill_one(pids, up);
    int failed = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        int status = 0;
        waitpid(pids[r], &status, 0);
        failed = failed || (status != 0 && r != RANKS - 1);
    }
    return failed;
}
