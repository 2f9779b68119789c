/* race.h - one racer among several: a rank that reduces when it is told to, and tells how long that took.
 *
 * The racers of all libraries are started once and then wait, each rank in a read of its own pipe, so that
 * nobody polls while another one runs, and turns can alternate. Plain C that C++ takes too; each library's
 * program brings the calls. */
#ifndef KEEL_TESTS_BENCH_RACE_H
#define KEEL_TESTS_BENCH_RACE_H

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { RACE_QUIT, RACE_REDUCE, RACE_IDLE };
enum { RACE_SAMPLES = 20000 };

struct race_command {
    uint32_t what, iterations, warmup;
    uint32_t order, algorithm; /* of ours alone */
    uint32_t from_heap;        /* not from where the library would have its data */
    uint64_t bytes;
};
struct race_answer {
    double mean_us, p50_us, p99_us, max_us;
    double cpu_s;           /* of this process during the command, without warming up */
    uint64_t payload_bytes; /* sent by this rank for one operation; ours alone */
    uint32_t right;         /* the sum is what it must be */
    uint32_t cannot;        /* this way is not offered */
};
struct race_calls {
    /* float32 sum over all ranks; 0, or 1 when that way is not offered */
    int (*reduce)(void *context, const float *in, float *out, uint64_t count,
                  const struct race_command *command);
    void (*barrier)(void *context);
    uint64_t (*sent_bytes)(void *context); /* or NULL */
    void *context;
    int is_ceiling; /* it moves as many bytes and sums nothing */
    /* memory as the library itself gives it out, or NULL: of the heap */
    void *(*take_memory)(uint64_t bytes);
    void (*give_memory)(void *memory);
};

static double race_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static double race_cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static int race_by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void race_die(const char *what)
{
    fprintf(stderr, "race: %s\n", what);
    _exit(1);
}

/* DIRECTORY/NAME.RANK.in or .out */
static int race_pipe(const char *directory, const char *name, uint32_t rank, const char *way, int flags)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%u.%s", directory, name, (unsigned)rank, way);
    int fd = open(path, flags);
    if (fd < 0)
        race_die(path);
    return fd;
}

/* Rank 0 comes two seconds late; what do the others spend on waiting? */
static struct race_answer race_idle(const struct race_calls *calls, uint32_t rank,
                                    const struct race_command *command, const float *in, float *out)
{
    struct race_answer answer;
    memset(&answer, 0, sizeof answer);
    calls->barrier(calls->context);
    double cpu_s = race_cpu_s();
    if (rank == 0)
        usleep(2000000);
    calls->reduce(calls->context, in, out, 2, command);
    answer.cpu_s = race_cpu_s() - cpu_s;
    answer.right = 1;
    return answer;
}

static struct race_answer race_reduce(const struct race_calls *calls, uint32_t world,
                                      const struct race_command *command, const float *in, float *out)
{
    static double samples[RACE_SAMPLES];
    struct race_answer answer;
    uint64_t count = command->bytes / sizeof(float), sent = 0;
    memset(&answer, 0, sizeof answer);
    for (uint32_t k = 0; k < command->warmup && answer.cannot == 0; k++)
        answer.cannot = (uint32_t)calls->reduce(calls->context, in, out, count, command);
    if (answer.cannot != 0)
        return answer;
    calls->barrier(calls->context);
    if (calls->sent_bytes != NULL)
        sent = calls->sent_bytes(calls->context);
    double cpu_s = race_cpu_s(), begun_us = race_now_us(), at_us = begun_us;
    for (uint32_t k = 0; k < command->iterations; k++) {
        calls->reduce(calls->context, in, out, count, command);
        double now_us = race_now_us();
        samples[k % RACE_SAMPLES] = now_us - at_us;
        at_us = now_us;
    }
    uint32_t kept = command->iterations < RACE_SAMPLES ? command->iterations : RACE_SAMPLES;
    answer.mean_us = (at_us - begun_us) / command->iterations;
    answer.cpu_s = race_cpu_s() - cpu_s;
    if (calls->sent_bytes != NULL)
        answer.payload_bytes = (calls->sent_bytes(calls->context) - sent) / command->iterations;
    qsort(samples, kept, sizeof samples[0], race_by_value);
    answer.p50_us = samples[kept / 2];
    answer.p99_us = samples[kept * 99 / 100];
    answer.max_us = samples[kept - 1];
    float wanted = (float)(world * (world + 1) / 2);
    answer.right = (uint32_t)(calls->is_ceiling != 0 ||
                              (out[0] == wanted && out[count / 2] == wanted && out[count - 1] == wanted));
    calls->barrier(calls->context); /* nobody leaves for its pipe while another one still needs it */
    return answer;
}

static void *race_take_memory(uint64_t bytes)
{
    return malloc(bytes);
}

/* Serve until told to quit. Every rank gives rank + 1 everywhere. */
static void race_serve(const char *directory, const char *name, uint32_t rank, uint32_t world,
                       const struct race_calls *calls)
{
    struct race_command command;
    signal(SIGPIPE, SIG_DFL);
    int in_fd = race_pipe(directory, name, rank, "in", O_RDONLY);
    int out_fd = race_pipe(directory, name, rank, "out", O_WRONLY);
    while (read(in_fd, &command, sizeof command) == (ssize_t)sizeof command && command.what != RACE_QUIT) {
        uint64_t count = command.bytes / sizeof(float);
        int own = calls->take_memory != NULL && command.from_heap == 0;
        void *(*take)(uint64_t) = own ? calls->take_memory : race_take_memory;
        float *in = (float *)take(command.bytes + 64), *out = (float *)take(command.bytes + 64);
        if (in == NULL || out == NULL)
            race_die("no memory");
        for (uint64_t k = 0; k < count; k++) {
            in[k] = (float)(rank + 1);
            out[k] = 0;
        }
        struct race_answer answer = command.what == RACE_IDLE ? race_idle(calls, rank, &command, in, out)
                                                              : race_reduce(calls, world, &command, in, out);
        (own ? calls->give_memory : free)(in);
        (own ? calls->give_memory : free)(out);
        if (write(out_fd, &answer, sizeof answer) != (ssize_t)sizeof answer)
            race_die("the pipe is gone");
    }
}

#endif
