/* thread.h - threads, locks and conditions with deadlines (POSIX threads underneath).
 *
 * Every wait takes a deadline. Locks are plain mutexes; lock order is stated where the
 * locks are declared. A thread is always joined by the object that created it. */
#ifndef KEEL_THREAD_H
#define KEEL_THREAD_H

#include <keel/api.h>
#include <keel/status.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

KEEL_API_BEGIN

struct keel_mutex {
    pthread_mutex_t native;
};
struct keel_cond {
    pthread_cond_t native; /* on CLOCK_MONOTONIC */
};
struct keel_thread {
    pthread_t native;
};

void keel_mutex_init(struct keel_mutex *mutex);
void keel_mutex_fini(struct keel_mutex *mutex);
void keel_mutex_lock(struct keel_mutex *mutex);
void keel_mutex_unlock(struct keel_mutex *mutex);

void keel_cond_init(struct keel_cond *cond);
void keel_cond_fini(struct keel_cond *cond);
void keel_cond_signal(struct keel_cond *cond);
void keel_cond_broadcast(struct keel_cond *cond);
/* Caller holds `mutex`. False when the deadline passed; wakes spuriously: test in a loop. */
bool keel_cond_wait(struct keel_cond *cond, struct keel_mutex *mutex, uint64_t deadline_ns);

/* Start a thread called `name` (at most 15 bytes are shown by the system). All signals are
 * blocked in it. NO_MEMORY when the system refuses. */
enum keel_status keel_thread_create(struct keel_thread *thread, const char *name, void *(*entry)(void *),
                                    void *argument);
void keel_thread_join(struct keel_thread *thread);

/* Put the calling thread into the idle scheduling class and, where the I/O scheduler supports it, the idle
 * I/O class. Permanent; best effort. A lock that it holds may block other threads for long. */
void keel_thread_to_background(void);

/* Set the calling thread's scheduler time slice; its share of the processor stays the same. A thread that
 * wakes preempts one with a longer slice, so a short slice lowers latency. No effect outside the normal
 * scheduling classes, nor before Linux 6.12. */
void keel_thread_slice(uint64_t slice_ns);

/* Number of processors this process may use (affinity and cgroup quota), at least 1. */
uint32_t keel_cpu_count(void);
/* Those of the machine, online or not, whoever may use them: the same for all processes of a host. */
uint32_t keel_cpu_installed(void);

KEEL_API_END

#endif
