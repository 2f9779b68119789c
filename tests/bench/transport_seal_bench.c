/* transport_seal_bench.c - what it costs that nothing can be changed on its way: a header, a small message
 * and a chunk with each cipher, authenticated alone and encrypted, and two ranks over TCP loopback with
 * checksums (no key), with every message authenticated (a key), and with bulk data encrypted too. Rounds of
 * the three alternate; figures are medians. One JSON object a line. */
#include "handshake.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, WAYS = 3, ROUNDS = 9, SIZES = 5, LONG = 64 << 20, ROUND_BYTES = 32 << 20, TIMES_MAX = 200 };

static const uint32_t sizes_of_sums[SIZES] = {8, 64 << 10, 1 << 20, 16 << 20, LONG};

static const char *const ways[WAYS] = {"checksums", "authenticated", "encrypted"};
static const uint8_t key[KEEL_KEY_BYTES] = "the key of a job that is a bench";

static void die(const char *what)
{
    fprintf(stderr, "transport_seal_bench: %s: %s\n", what, keel_detail());
    exit(1);
}

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

static void say(const char *figure, const char *how, double value, const char *unit, double peer)
{
    printf("{\"room\":\"transport\",\"figure\":\"%s, %s\",\"value\":%.3f,\"unit\":\"%s\",\"peer\":\"%s\","
           "\"peer_value\":%.3f,\"ratio\":%.3f,\"goal\":null,\"met\":null}\n",
           figure, how, value, unit, ways[0], peer, value / peer);
}

/* ---- the ciphers alone --------------------------------------------------------------------------------- */

static double seal_and_open_ns(enum keel_cipher_kind kind, struct keel_envelope *envelope, uint32_t bytes,
                               bool whole)
{
    enum { TIMES = 2000 };
    struct keel_message message = {.magic = KEEL_MESSAGE_MAGIC, .bytes = bytes};
    struct keel_cipher *sealer, *opener;
    double rounds[ROUNDS];
    if (keel_cipher_create(kind, key, &sealer) != KEEL_OK ||
        keel_cipher_create(kind, key, &opener) != KEEL_OK)
        die("ciphers");
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t begun = keel_now_ns();
        for (int k = 0; k < TIMES; k++) {
            keel_cipher_seal(sealer, envelope, &message, envelope + 1, whole);
            keel_cipher_advance(sealer);
            if (!keel_cipher_open(opener, envelope, sizeof *envelope + bytes))
                die("it does not open");
        }
        rounds[round] = (double)(keel_now_ns() - begun) / TIMES;
    }
    keel_cipher_free(sealer);
    keel_cipher_free(opener);
    return median(rounds, ROUNDS);
}

static void ciphers(void)
{
    static const uint32_t sizes[] = {0, 64, 2048, KEEL_EAGER_BYTES, KEEL_CHUNK_BYTES};
    struct keel_envelope *envelope;
    if (keel_alloc(1, sizeof *envelope + KEEL_CHUNK_BYTES, &envelope) != KEEL_OK)
        die("memory");
    for (size_t k = 0; k < 2 * (sizeof sizes / sizeof *sizes); k++) {
        uint32_t bytes = sizes[k / 2];
        bool whole = k % 2 == 1;
        double chacha = seal_and_open_ns(KEEL_CIPHER_CHACHA, envelope, bytes, whole);
        double best = seal_and_open_ns(keel_cipher_best(), envelope, bytes, whole);
        printf("{\"room\":\"transport\",\"figure\":\"seal and open a header and %u bytes, %s, "
               "%s\",\"value\":%.0f,"
               "\"unit\":\"ns\",\"peer\":\"ChaCha20-Poly1305\",\"peer_value\":%.0f,\"ratio\":%.3f,"
               "\"goal\":null,\"met\":null}\n",
               (unsigned)bytes, ways[1 + whole],
               keel_cipher_best() == KEEL_CIPHER_AES ? "AES-256-GCM" : "the same", best, chacha,
               best / chacha);
    }
    keel_free(envelope);
}

/* ---- two ranks ----------------------------------------------------------------------------------------- */

struct rank {
    uint32_t rank;
    struct keel_endpoint *endpoints[WAYS];
    struct keel_group *groups[WAYS];
    uint64_t sequence;
    uint8_t *out, *in;
};

static void sum(struct rank *me, uint32_t way, uint64_t floats)
{
    const void *parts[] = {me->out};
    struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                   .sequence = ++me->sequence,
                                   .element = KEEL_ELEMENT_F32,
                                   .count = floats,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = me->in};
    if (keel_group_run(me->groups[way], &what, keel_deadline_after_ns(60 * KEEL_NS_PER_S)) != KEEL_OK)
        die("a sum");
}

static double us_of(struct rank *me, uint32_t way, uint64_t floats, int times)
{
    sum(me, way, floats);
    uint64_t begun = keel_now_ns();
    for (int k = 0; k < times; k++)
        sum(me, way, floats);
    return (double)(keel_now_ns() - begun) / 1e3 / times;
}

static void measure(struct rank *me)
{
    for (uint32_t size = 0; size < SIZES; size++) {
        double us[WAYS][ROUNDS];
        uint32_t bytes = sizes_of_sums[size];
        int times = ROUND_BYTES / bytes < 1           ? 1
                    : ROUND_BYTES / bytes > TIMES_MAX ? TIMES_MAX
                                                      : (int)(ROUND_BYTES / bytes);
        char figure[64];
        for (int round = 0; round < ROUNDS; round++)
            for (uint32_t way = 0; way < WAYS; way++)
                us[way][round] = us_of(me, way, bytes / sizeof(float), times);
        double plain = median(us[0], ROUNDS);
        snprintf(figure, sizeof figure, "%u-byte all-reduce of 2 ranks over TCP", bytes);
        for (uint32_t way = 0; way < WAYS && me->rank == 0; way++) {
            double own = median(us[way], ROUNDS);
            if (bytes < 1024)
                say(figure, ways[way], own, "us", plain);
            else
                say(figure, ways[way], bytes / 1e3 / own, "GB/s", bytes / 1e3 / plain);
        }
    }
}

static int run_rank(struct rank *me, int out, int in)
{
    struct keel_address addresses[WAYS][RANKS], own[WAYS];
    const uint16_t shard_rank[RANKS] = {0, 1};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    me->out = calloc(1, LONG);
    me->in = calloc(1, LONG);
    for (uint32_t way = 0; way < WAYS; way++) {
        struct keel_endpoint_config config = {
            .fabric_only = true, .key = way > 0 ? key : NULL, .seal_payload = way == 2};
        if (keel_endpoint_open(&config, &me->endpoints[way]) != KEEL_OK)
            die("endpoint");
        keel_endpoint_address(me->endpoints[way], &own[way]);
    }
    if (me->out == NULL || me->in == NULL || write(out, own, sizeof own) != (ssize_t)sizeof own ||
        read(in, addresses, sizeof addresses) != (ssize_t)sizeof addresses)
        die("addresses");
    for (uint32_t way = 0; way < WAYS; way++) {
        struct keel_group_config config = {.epoch = 1,
                                           .rank = me->rank,
                                           .rank_count = RANKS,
                                           .addresses = addresses[way],
                                           .shard_count = RANKS,
                                           .shard_rank = shard_rank};
        if (keel_group_open(me->endpoints[way], &config, &me->groups[way]) != KEEL_OK)
            die("group");
    }
    measure(me);
    for (uint32_t way = 0; way < WAYS; way++) {
        keel_group_close(me->groups[way]);
        keel_endpoint_close(me->endpoints[way]);
    }
    free(me->out);
    free(me->in);
    return 0;
}

int main(void)
{
    int up[RANKS][2], down[RANKS][2], failed = 0;
    struct keel_address theirs[WAYS], addresses[WAYS][RANKS];
    pid_t pids[RANKS];
    if (keel_handshake_init() != KEEL_OK)
        die("libsodium");
    ciphers();
    fflush(stdout);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (pipe(up[r]) != 0 || pipe(down[r]) != 0)
            die("pipes");
        pids[r] = fork();
        if (pids[r] == 0) {
            struct rank me = {.rank = r};
            exit(run_rank(&me, up[r][1], down[r][0]));
        }
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        if (read(up[r][0], theirs, sizeof theirs) != (ssize_t)sizeof theirs)
            die("a rank did not start");
        for (uint32_t way = 0; way < WAYS; way++)
            addresses[way][r] = theirs[way];
    }
    for (uint32_t r = 0; r < RANKS; r++)
        if (write(down[r][1], addresses, sizeof addresses) != (ssize_t)sizeof addresses)
            die("addresses");
    for (uint32_t r = 0; r < RANKS; r++) {
        int status = 0;
        waitpid(pids[r], &status, 0);
        failed = failed || status != 0;
    }
    return failed;
}
