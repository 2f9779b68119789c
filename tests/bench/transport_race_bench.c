/* transport_race_bench.c - our all-reduce against MPI libraries and Gloo, and against what the machine can
 * do.
 *
 * Four ranks on this machine; float32 sums of 8 bytes to 256 MiB, of memory that each library's own call
 * gives out (keel_transport_alloc, MPI_Alloc_mem); 64 MiB of the heap besides. All racers are started once
 * and wait (race.h); turns alternate in every round, and figures are medians over rounds. MPI libraries run
 * as they are installed; Open MPI also over libfabric's tcp, which is what ours stands on. Libraries that are
 * not installed are left out.
 *
 * Ceilings. Over TCP: the same ranks send each other 2/n of the data over plain sockets, without a sum. In
 * shared memory: every rank must read its slice of all n parts and write its sum (1 + 1/n of the data) and
 * copy the others' (2(n-1)/n, read and written), while memcpy of all ranks at once moves 2 bytes for each
 * byte copied. */
#include "race.h"

#include <arpa/inet.h>
#include <errno.h>
#include <keel/clock.h>
#include <keel/transport.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { RACE_RANKS = 4, RACE_STREAM_CHUNK = 256 * 1024 };

struct own {
    uint32_t rank;
    int mesh[RACE_RANKS]; /* sockets to the others: addresses first, then the streams of the ceiling */
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    uint64_t sequence;
    int failed; /* nothing is tried any more */
};

/* ---- sockets ---- */

static void make_pair(int *left, int *right)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    *left = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) != 0 ||
        connect(*left, (struct sockaddr *)&address, sizeof address) != 0)
        race_die("making sockets");
    *right = accept(listener, NULL, NULL);
    close(listener);
    for (int k = 0; k < 2; k++) {
        int fd = k == 0 ? *left : *right;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(fd, F_SETFL, O_NONBLOCK);
    }
}

/* Send and receive `bytes` with every other rank, all at once. `in` and `out` have a share for each. */
static void exchange(const struct own *me, const uint8_t *out, uint8_t *in, size_t bytes)
{
    size_t sent[RACE_RANKS] = {0}, got[RACE_RANKS] = {0};
    for (;;) {
        struct pollfd fds[RACE_RANKS];
        bool busy = false;
        for (uint32_t r = 0; r < RACE_RANKS; r++) {
            bool other = r != me->rank;
            short events =
                (short)((other && sent[r] < bytes ? POLLOUT : 0) | (other && got[r] < bytes ? POLLIN : 0));
            fds[r] = (struct pollfd){.fd = events != 0 ? me->mesh[r] : -1, .events = events};
            busy = busy || fds[r].fd >= 0;
        }
        if (!busy)
            return;
        if (poll(fds, RACE_RANKS, -1) < 0)
            race_die("poll");
        for (uint32_t r = 0; r < RACE_RANKS; r++) {
            ssize_t done = 0;
            size_t in_left = bytes - got[r], out_left = bytes - sent[r];
            if ((fds[r].revents & (POLLIN | POLLHUP)) != 0) {
                done =
                    read(me->mesh[r], in + got[r], in_left < RACE_STREAM_CHUNK ? in_left : RACE_STREAM_CHUNK);
                if (done == 0 || (done < 0 && errno != EAGAIN))
                    race_die("a stream ended");
                got[r] += done > 0 ? (size_t)done : 0;
            }
            if ((fds[r].revents & POLLOUT) != 0 &&
                (done = write(me->mesh[r], out + sent[r],
                              out_left < RACE_STREAM_CHUNK ? out_left : RACE_STREAM_CHUNK)) > 0)
                sent[r] += (size_t)done;
        }
    }
}

static void token(void *context)
{
    uint8_t in[RACE_RANKS], out[RACE_RANKS] = {0};
    exchange(context, out, in, 1);
}

/* ---- the ceilings ---- */

/* What a sum in one hop and back moves between each pair, at least: 2/n of the data each way. */
static int streams(void *context, const float *in, float *out, uint64_t count,
                   const struct race_command *command)
{
    uint64_t share = count * sizeof(float) * 2 / RACE_RANKS;
    (void)command;
    exchange(context, (const uint8_t *)in, (uint8_t *)out, share > 0 ? share : 1);
    return 0;
}

static int copies(void *context, const float *in, float *out, uint64_t count,
                  const struct race_command *command)
{
    (void)context;
    (void)command;
    memcpy(out, in, count * sizeof(float));
    return 0;
}

/* ---- ours ---- */

static int reduce_keel(void *context, const float *in, float *out, uint64_t count,
                       const struct race_command *command)
{
    struct own *me = context;
    const void *parts[] = {in};
    struct keel_collective sum = {.kind = KEEL_ALL_REDUCE,
                                  .sequence = me->sequence++,
                                  .order = command->order,
                                  .algorithm = command->algorithm,
                                  .count = count,
                                  .parts = parts,
                                  .part_count = 1,
                                  .result = out};
    enum keel_status status = keel_group_run(me->group, &sum, keel_deadline_after_ns(60 * KEEL_NS_PER_S));
    if (status == KEEL_UNSUPPORTED)
        return 1;
    if (status != KEEL_OK)
        race_die(keel_detail());
    return 0;
}

static void barrier_keel(void *context)
{
    struct own *me = context;
    struct keel_collective barrier = {.kind = KEEL_BARRIER, .sequence = me->sequence++};
    if (keel_group_run(me->group, &barrier, keel_deadline_after_ns(60 * KEEL_NS_PER_S)) != KEEL_OK)
        race_die(keel_detail());
}

/* Payload alone. */
static uint64_t sent_keel(void *context)
{
    struct own *me = context;
    struct keel_transport_stats stats;
    keel_endpoint_stats(me->endpoint, &stats);
    return stats.data_sent;
}

static void keel_open(struct own *me, bool fabric_only)
{
    static const uint16_t shard_rank[RACE_RANKS] = {0, 1, 2, 3};
    struct keel_endpoint_config config = {.fabric_only = fabric_only};
    struct keel_address addresses[RACE_RANKS], *mine = &addresses[me->rank];
    if (keel_endpoint_open(&config, &me->endpoint) != KEEL_OK)
        race_die(keel_detail());
    keel_endpoint_address(me->endpoint, mine);
    for (uint32_t r = 0; r < RACE_RANKS; r++) {
        size_t got = 0;
        if (r == me->rank)
            continue;
        if (write(me->mesh[r], mine, sizeof *mine) != (ssize_t)sizeof *mine) /* it fits into any buffer */
            race_die("passing addresses");
        while (got < sizeof *mine) {
            struct pollfd fd = {.fd = me->mesh[r], .events = POLLIN};
            poll(&fd, 1, -1);
            ssize_t done = read(me->mesh[r], (uint8_t *)&addresses[r] + got, sizeof *mine - got);
            got += done > 0 ? (size_t)done : 0;
        }
    }
    struct keel_group_config group = {.epoch = 1,
                                      .rank = me->rank,
                                      .rank_count = RACE_RANKS,
                                      .addresses = addresses,
                                      .shard_count = RACE_RANKS,
                                      .shard_rank = shard_rank};
    if (keel_group_open(me->endpoint, &group, &me->group) != KEEL_OK)
        race_die(keel_detail());
}

/* ---- the racers ---- */

enum racer_number { KEEL_SHARED, KEEL_TCP, OPENMPI, OPENMPI_OFI, MPICH, GLOO, STREAMS, MEMCPY, RACERS };

struct racer {
    const char *name;
    const char *program; /* within the build's bench directory; NULL: this one */
    bool runs;
    pid_t pids[RACE_RANKS];
    int in[RACE_RANKS], out[RACE_RANKS];
};

static struct racer racers[RACERS] = {
    [KEEL_SHARED] = {.name = "keel"},
    [KEEL_TCP] = {.name = "keel-tcp"},
    [OPENMPI] = {.name = "openmpi", .program = "race_openmpi"},
    [OPENMPI_OFI] = {.name = "openmpi-ofi", .program = "race_openmpi"},
    [MPICH] = {.name = "mpich", .program = "race_mpich"},
    [GLOO] = {.name = "gloo", .program = "race_gloo"},
    [STREAMS] = {.name = "tcp streams"},
    [MEMCPY] = {.name = "memcpy"},
};
static char directory[64], bench_directory[256];

static void make_pipes(struct racer *racer)
{
    char path[512];
    for (uint32_t r = 0; r < RACE_RANKS; r++)
        for (int way = 0; way < 2; way++) {
            snprintf(path, sizeof path, "%s/%s.%u.%s", directory, racer->name, r, way == 0 ? "in" : "out");
            int fd = mkfifo(path, 0600) == 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
            if (fd < 0)
                race_die(path);
            *(way == 0 ? &racer->in[r] : &racer->out[r]) = fd;
        }
}

static void *take_memory(uint64_t bytes)
{
    void *memory = NULL;
    return keel_transport_alloc(bytes, &memory) == KEEL_OK ? memory : NULL;
}

static void serve_own(enum racer_number number, struct own *me)
{
    struct race_calls calls = {.reduce = reduce_keel,
                               .barrier = barrier_keel,
                               .sent_bytes = sent_keel,
                               .context = me,
                               .take_memory = take_memory,
                               .give_memory = keel_transport_free};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (number == STREAMS || number == MEMCPY)
        calls = (struct race_calls){
            .reduce = number == STREAMS ? streams : copies, .barrier = token, .context = me, .is_ceiling = 1};
    else
        keel_open(me, number == KEEL_TCP);
    race_serve(directory, racers[number].name, me->rank, RACE_RANKS, &calls);
    if (me->group != NULL)
        keel_group_close(me->group);
    if (me->endpoint != NULL)
        keel_endpoint_close(me->endpoint);
    exit(0);
}

static void start_own(enum racer_number number)
{
    int mesh[RACE_RANKS][RACE_RANKS];
    for (uint32_t a = 0; a < RACE_RANKS; a++) {
        mesh[a][a] = -1;
        for (uint32_t b = 0; b < a; b++)
            make_pair(&mesh[a][b], &mesh[b][a]);
    }
    for (uint32_t r = 0; r < RACE_RANKS; r++) {
        racers[number].pids[r] = fork();
        if (racers[number].pids[r] == 0) {
            struct own me = {.rank = r, .sequence = 1};
            memcpy(me.mesh, mesh[r], sizeof me.mesh);
            serve_own(number, &me);
        }
    }
    for (uint32_t a = 0; a < RACE_RANKS; a++)
        for (uint32_t b = 0; b < RACE_RANKS; b++)
            if (a != b)
                close(mesh[a][b]);
}

/* Its words go nowhere: libraries talk about the hardware that they miss. */
static pid_t spawn(char *const words[])
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* mpirun takes its ranks with it */
    int nowhere = open("/dev/null", O_RDWR);
    if (getenv("RACE_VERBOSE") == NULL) {
        dup2(nowhere, 1);
        dup2(nowhere, 2);
    }
    dup2(nowhere, 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    execvp(words[0], words);
    _exit(127);
}

static void start_program(enum racer_number number)
{
    struct racer *racer = &racers[number];
    char path[512], store[128], name[32], rank[8],
        np[] = "-n", four[] = "4", openmpi[] = "mpirun.openmpi", mpich[] = "mpirun.mpich", mca[] = "--mca",
        pml[] = "pml", cm[] = "cm", mtl[] = "mtl", ofi[] = "ofi", over[] = "--oversubscribe",
        include[] = "mtl_ofi_provider_include", provider[] = "tcp;ofi_rxm";
    snprintf(path, sizeof path, "%s/%s", bench_directory, racer->program);
    snprintf(name, sizeof name, "%s", racer->name);
    if (number == OPENMPI)
        racer->pids[0] = spawn((char *[]){openmpi, np, four, over, path, directory, name, NULL});
    else if (number == OPENMPI_OFI)
        racer->pids[0] = spawn((char *[]){openmpi, np, four, over, mca, pml, cm, mca, mtl, ofi, mca, include,
                                          provider, path, directory, name, NULL});
    else if (number == MPICH)
        racer->pids[0] = spawn((char *[]){mpich, np, four, path, directory, name, NULL});
    snprintf(store, sizeof store, "%s/gloo", directory);
    if (number == GLOO && mkdir(store, 0700) != 0)
        race_die(store);
    for (uint32_t r = 0; number == GLOO && r < RACE_RANKS; r++) {
        snprintf(rank, sizeof rank, "%u", r);
        racer->pids[r] = spawn((char *[]){path, directory, name, rank, four, NULL});
    }
}

/* ---- a turn ---- */

struct turn {
    double mean_us, p99_us, cpu_s; /* mean: of all ranks; p99, cpu: of the worst */
    double sent_bytes;             /* of all ranks, for one operation */
    bool done;
};

/* An answer of every rank, or the racer is out. */
static struct turn take_turn(struct racer *racer, struct race_command command)
{
    struct turn turn = {.done = racer->runs};
    for (uint32_t r = 0; r < RACE_RANKS && turn.done; r++)
        turn.done = write(racer->in[r], &command, sizeof command) == (ssize_t)sizeof command;
    for (uint32_t r = 0; r < RACE_RANKS && turn.done && command.what != RACE_QUIT; r++) {
        struct race_answer answer;
        struct pollfd fd = {.fd = racer->out[r], .events = POLLIN};
        if (poll(&fd, 1, 120000) != 1 ||
            read(racer->out[r], &answer, sizeof answer) != (ssize_t)sizeof answer) {
            fprintf(stderr, "race: %s does not answer; it is left out\n", racer->name);
            racer->runs = turn.done = false;
        } else if (answer.cannot != 0) {
            turn.done = false;
        } else if (answer.right == 0) {
            fprintf(stderr, "race: %s sums wrongly; it is left out\n", racer->name);
            racer->runs = turn.done = false;
        } else {
            turn.mean_us += answer.mean_us / RACE_RANKS;
            turn.p99_us = answer.p99_us > turn.p99_us ? answer.p99_us : turn.p99_us;
            turn.cpu_s = answer.cpu_s > turn.cpu_s ? answer.cpu_s : turn.cpu_s;
            turn.sent_bytes += (double)answer.payload_bytes;
        }
    }
    return turn;
}

static void start_all(void)
{
    for (uint32_t k = 0; k < RACERS; k++) {
        char path[512];
        struct racer *racer = &racers[k];
        snprintf(path, sizeof path, "%s/%s", bench_directory, racer->program != NULL ? racer->program : "");
        if (racer->program != NULL && access(path, X_OK) != 0) {
            fprintf(stderr, "race: %s is not installed\n", racer->name);
            continue;
        }
        make_pipes(racer);
        racer->runs = true;
        if (racer->program == NULL)
            start_own(k);
        else
            start_program(k);
        take_turn(racer,
                  (struct race_command){.what = RACE_REDUCE, .bytes = 1024, .iterations = 10, .warmup = 1});
    }
}

static void end_all(void)
{
    for (uint32_t k = 0; k < RACERS; k++) {
        take_turn(&racers[k], (struct race_command){.what = RACE_QUIT});
        for (uint32_t r = 0; r < RACE_RANKS; r++) {
            if (racers[k].pids[r] <= 0)
                continue;
            if (!racers[k].runs)
                kill(racers[k].pids[r], SIGTERM);
            waitpid(racers[k].pids[r], NULL, 0);
        }
    }
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    if (system(command) != 0)
        fprintf(stderr, "race: %s stays\n", directory);
}

/* ---- figures ---- */

enum { ROUNDS = 5, TURN_US = 20 * 1000 };

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, race_by_value);
    return values[count / 2];
}

static void print(const char *figure, const char *unit, double value, const char *peer, double peer_value,
                  double ratio, double goal, bool met)
{
    printf("{\"room\":\"transport\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",", figure, value, unit);
    if (peer != NULL)
        printf("\"peer\":\"%s\",\"peer_value\":%.4g,\"ratio\":%.3f,", peer, peer_value, ratio);
    else
        printf("\"peer\":null,\"peer_value\":null,\"ratio\":null,");
    if (goal > 0)
        printf("\"goal\":%.4g,\"met\":%s}\n", goal, met ? "true" : "false");
    else
        printf("\"goal\":null,\"met\":null}\n");
    fflush(stdout);
}

struct size {
    const char *name;
    uint64_t bytes;
};
static const struct size sizes[] = {
    {"8 B", 8},           {"1 KiB", 1 << 10},   {"64 KiB", 64 << 10},  {"1 MiB", 1 << 20},
    {"16 MiB", 16 << 20}, {"64 MiB", 64 << 20}, {"256 MiB", 256 << 20}};
enum { SIZES = sizeof sizes / sizeof sizes[0], SMALL = 3 };

/* One turn: so many sums that they take a while, found by doing more and more; some libraries, where others
 * want the processors, take a thousand times longer in one turn than in another. */
static struct turn full_turn(struct racer *racer, struct race_command command)
{
    struct turn turn;
    command.what = RACE_REDUCE;
    command.warmup = 1;
    command.iterations = command.bytes > 1 << 20 ? 1 : 4;
    for (;;) {
        turn = take_turn(racer, command);
        if (!turn.done || command.iterations >= 1000 || turn.mean_us * command.iterations >= TURN_US)
            return turn;
        command.iterations *= 4;
    }
}

/* Medians of every racer's mean times at a size; 0: not there. */
static void race_size(const struct size *size, bool from_heap, double out_us[RACERS])
{
    double times[RACERS][ROUNDS];
    uint32_t rounds = size->bytes > 64 << 20 ? 3 : ROUNDS, taken[RACERS] = {0};
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t k = 0; k < RACERS; k++) {
            struct turn turn =
                full_turn(&racers[k], (struct race_command){.bytes = size->bytes, .from_heap = from_heap});
            if (turn.done)
                times[k][taken[k]++] = turn.mean_us;
        }
    for (uint32_t k = 0; k < RACERS; k++)
        out_us[k] = taken[k] > 0 ? median(times[k], taken[k]) : 0;
}

/* Ours against one other at this size: rates from 1 MiB on, times below. A ratio above 1 is ours to the good.
 */
static void compare(const struct size *size, const char *carrier, double ours_us, const char *peer,
                    double peer_us, double goal)
{
    char figure[96];
    double bus_bytes = (double)size->bytes * 2 * (RACE_RANKS - 1) / RACE_RANKS, ratio = peer_us / ours_us;
    if (ours_us <= 0 || peer_us <= 0)
        return;
    bool small = size->bytes < 1 << 20;
    snprintf(figure, sizeof figure, "all-reduce, 4 ranks, %s, %s, %s", carrier, size->name,
             small ? "latency" : "bus bandwidth");
    if (small)
        print(figure, "us", ours_us, peer, peer_us, ratio, goal, ratio >= goal);
    else
        print(figure, "GB/s", bus_bytes / ours_us / 1e3, peer, bus_bytes / peer_us / 1e3, ratio, goal,
              ratio >= goal);
}

/* The time that the machine's memcpy alone would need. */
static double memory_ceiling_us(double memcpy_us)
{
    double n = RACE_RANKS, moved = 1 + 1 / n + 2 * 2 * (n - 1) / n / 2;
    return memcpy_us * moved / 2;
}

static double better_mpi(const double us[RACERS])
{
    bool mpich = us[MPICH] > 0 && (us[OPENMPI] <= 0 || us[MPICH] < us[OPENMPI]);
    return us[mpich ? MPICH : OPENMPI];
}

static void heap(void)
{
    static const struct size size = {"64 MiB", 64 << 20};
    double us[RACERS];
    race_size(&size, true, us);
    compare(&size, "shared memory, of the heap", us[KEEL_SHARED], "the better MPI", better_mpi(us), 0);
}

static void bandwidth_and_latency(void)
{
    for (uint32_t k = 0; k < SIZES; k++) {
        const struct size *size = &sizes[k];
        double us[RACERS];
        race_size(size, false, us);
        double mpi_us = better_mpi(us);
        compare(size, "shared memory", us[KEEL_SHARED], "Open MPI", us[OPENMPI], 0);
        compare(size, "shared memory", us[KEEL_SHARED], "MPICH", us[MPICH], 0);
        compare(size, "shared memory", us[KEEL_SHARED], "the better MPI", mpi_us,
                size->bytes == 8          ? 1
                : size->bytes == 64 << 20 ? 2
                                          : 0);
        if (size->bytes >= 1 << 20)
            compare(size, "shared memory", us[KEEL_SHARED], "memcpy ceiling", memory_ceiling_us(us[MEMCPY]),
                    size->bytes == 64 << 20 ? 0.6 : 0);
        compare(size, "TCP", us[KEEL_TCP], "Open MPI, ofi", us[OPENMPI_OFI],
                size->bytes == 8          ? 1
                : size->bytes == 64 << 20 ? 1.5
                                          : 0);
        compare(size, "TCP", us[KEEL_TCP], "Gloo", us[GLOO], 0);
        compare(size, "TCP", us[KEEL_TCP], "tcp streams", us[STREAMS], size->bytes >= 16 << 20 ? 0.85 : 0);
    }
}

/* Native is exact's peer: how much slower is exact? */
static void cost_of_exact(enum racer_number number, const char *carrier)
{
    for (uint32_t k = SMALL; k < SIZES - 1; k++) {
        const struct size *size = &sizes[k];
        double exact[ROUNDS], native[ROUNDS];
        char figure[96];
        uint32_t taken = 0;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            struct race_command command = {.bytes = size->bytes, .order = KEEL_ORDER_EXACT};
            struct turn one = full_turn(&racers[number], command);
            command.order = KEEL_ORDER_NATIVE;
            struct turn other = full_turn(&racers[number], command);
            if (!one.done || !other.done)
                return;
            exact[taken] = one.mean_us;
            native[taken++] = other.mean_us;
        }
        double ours = median(exact, taken), theirs = median(native, taken);
        snprintf(figure, sizeof figure, "exact against native, 4 ranks, %s, %s", carrier, size->name);
        print(figure, "us", ours, "keel, native", theirs, theirs / ours, 0.909, theirs / ours >= 0.909);
    }
}

/* Every core has a job that never waits; 8 bytes all the same. */
static void crowded(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    pid_t busy[256];
    static const struct {
        enum racer_number number;
        const char *figure;
    } asked[] = {{KEEL_SHARED, "8 bytes, shared memory, every core taken: p99"},
                 {KEEL_TCP, "8 bytes, TCP, every core taken: p99"}};
    for (long k = 0; k < cores && k < 256; k++) {
        busy[k] = fork();
        if (busy[k] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (volatile uint64_t n = 0;; n++)
                continue;
        }
    }
    for (uint32_t a = 0; a < 2; a++) {
        struct race_command command = {.what = RACE_REDUCE, .bytes = 8, .iterations = 2000, .warmup = 20};
        struct turn ours = take_turn(&racers[asked[a].number], command);
        command.iterations = 100; /* the others take their time */
        struct turn theirs = take_turn(&racers[a == 0 ? MPICH : OPENMPI_OFI], command);
        if (ours.done)
            print(asked[a].figure, "us", ours.p99_us, theirs.done ? a == 0 ? "MPICH" : "Open MPI, ofi" : NULL,
                  theirs.p99_us, theirs.p99_us / ours.p99_us, 1000, ours.p99_us < 1000);
    }
    for (long k = 0; k < cores && k < 256; k++) {
        kill(busy[k], SIGKILL);
        waitpid(busy[k], NULL, 0);
    }
}

static void idle(void)
{
    static const struct {
        enum racer_number number;
        const char *figure;
    } asked[] = {{KEEL_SHARED, "waiting for two seconds, shared memory: part of a core"},
                 {KEEL_TCP, "waiting for two seconds, TCP: part of a core"}};
    for (uint32_t a = 0; a < 2; a++) {
        struct race_command command = {.what = RACE_IDLE, .bytes = 8};
        struct turn ours = take_turn(&racers[asked[a].number], command);
        struct turn theirs = take_turn(&racers[a == 0 ? MPICH : OPENMPI_OFI], command);
        if (ours.done)
            print(asked[a].figure, "%", ours.cpu_s / 2 * 100,
                  theirs.done ? a == 0 ? "MPICH" : "Open MPI, ofi" : NULL, theirs.cpu_s / 2 * 100,
                  ours.cpu_s > 0 ? theirs.cpu_s / ours.cpu_s : 0, 2, ours.cpu_s / 2 * 100 < 2);
    }
}

/* What all ranks send for one sum, against 2(n-1) times its size, which every way without waste sends. */
static void wire(void)
{
    static const enum keel_algorithm ways[] = {KEEL_ALGORITHM_DIRECT, KEEL_ALGORITHM_RING,
                                               KEEL_ALGORITHM_HALVING};
    for (uint32_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
        char figure[96];
        uint64_t bytes = 16 << 20;
        struct race_command command = {.what = RACE_REDUCE,
                                       .bytes = bytes,
                                       .iterations = 8,
                                       .warmup = 1,
                                       .order = KEEL_ORDER_NATIVE,
                                       .algorithm = ways[k]};
        struct turn turn = take_turn(&racers[KEEL_TCP], command);
        double formula = 2.0 * (RACE_RANKS - 1) * (double)bytes;
        if (!turn.done)
            continue;
        snprintf(figure, sizeof figure, "payload of all ranks, 16 MiB, %s", keel_algorithm_name(ways[k]));
        print(figure, "bytes", turn.sent_bytes, "2(n-1) x size", formula, formula / turn.sent_bytes, 1,
              turn.sent_bytes == formula);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    const char *slash = strrchr(argv[0], '/');
    snprintf(bench_directory, sizeof bench_directory, "%.*s", slash != NULL ? (int)(slash - argv[0]) : 1,
             slash != NULL ? argv[0] : ".");
    snprintf(directory, sizeof directory, "/tmp/keel-race-XXXXXX");
    if (mkdtemp(directory) == NULL)
        race_die("no directory for pipes");
    signal(SIGPIPE, SIG_IGN);
    start_all();
    bandwidth_and_latency();
    heap();
    cost_of_exact(KEEL_SHARED, "shared memory");
    cost_of_exact(KEEL_TCP, "TCP");
    wire();
    idle();
    crowded();
    end_all();
    return 0;
}
