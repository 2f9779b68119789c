/* thread.c - POSIX threads with deadlines on the monotonic clock. */
#include <errno.h>
#include <keel/clock.h>
#include <keel/thread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void keel_mutex_init(struct keel_mutex *mutex)
{
    KEEL_ASSERT(pthread_mutex_init(&mutex->native, NULL) == 0);
}

void keel_mutex_fini(struct keel_mutex *mutex)
{
    KEEL_ASSERT(pthread_mutex_destroy(&mutex->native) == 0);
}

void keel_mutex_lock(struct keel_mutex *mutex)
{
    KEEL_ASSERT(pthread_mutex_lock(&mutex->native) == 0);
}

void keel_mutex_unlock(struct keel_mutex *mutex)
{
    KEEL_ASSERT(pthread_mutex_unlock(&mutex->native) == 0);
}

void keel_cond_init(struct keel_cond *cond)
{
    pthread_condattr_t attributes;
    KEEL_ASSERT(pthread_condattr_init(&attributes) == 0);
    KEEL_ASSERT(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    KEEL_ASSERT(pthread_cond_init(&cond->native, &attributes) == 0);
    pthread_condattr_destroy(&attributes);
}

void keel_cond_fini(struct keel_cond *cond)
{
    KEEL_ASSERT(pthread_cond_destroy(&cond->native) == 0);
}

void keel_cond_signal(struct keel_cond *cond)
{
    pthread_cond_signal(&cond->native);
}

void keel_cond_broadcast(struct keel_cond *cond)
{
    pthread_cond_broadcast(&cond->native);
}

bool keel_cond_wait(struct keel_cond *cond, struct keel_mutex *mutex, uint64_t deadline_ns)
{
    if (deadline_ns == KEEL_NEVER) {
        KEEL_ASSERT(pthread_cond_wait(&cond->native, &mutex->native) == 0);
        return true;
    }
    struct timespec t = {.tv_sec = (time_t)(deadline_ns / KEEL_NS_PER_S),
                         .tv_nsec = (long)(deadline_ns % KEEL_NS_PER_S)};
    int error = pthread_cond_timedwait(&cond->native, &mutex->native, &t);
    KEEL_ASSERT(error == 0 || error == ETIMEDOUT);
    return error == 0;
}

enum keel_status keel_thread_create(struct keel_thread *thread, const char *name, void *(*entry)(void *),
                                    void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread->native, NULL, entry, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return keel_fail(KEEL_NO_MEMORY, "cannot start thread %s: %s", name, strerror(error));
    char short_name[16];
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(thread->native, short_name);
    return KEEL_OK;
}

void keel_thread_join(struct keel_thread *thread)
{
    KEEL_ASSERT(pthread_join(thread->native, NULL) == 0);
}

void keel_thread_to_background(void)
{
    enum { IOPRIO_WHO_PROCESS = 1, IOPRIO_IDLE = 3 << 13 };
    struct sched_param none = {0};
    (void)sched_setscheduler(0, SCHED_IDLE, &none); /* of this thread alone, as Linux counts them */
    (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE);
}

/* As the system call has it; the C library has neither it nor a wrapper. */
struct scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

void keel_thread_slice(uint64_t slice_ns)
{
    struct scheduling now = {0};
    if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) != 0 ||
        (now.policy != SCHED_OTHER && now.policy != SCHED_BATCH) || now.runtime == 0 ||
        now.runtime == slice_ns)
        return;
    now.runtime = slice_ns;
    (void)syscall(SYS_sched_setattr, 0, &now, 0);
}

/* A cgroup v2 quota ("max 100000" or "200000 100000") in whole processors, 0 for none. */
static uint32_t quota_cpus(void)
{
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file == NULL)
        return 0;
    unsigned long long quota, period;
    int fields = fscanf(file, "%llu %llu", &quota, &period);
    fclose(file);
    return fields == 2 && period > 0 ? (uint32_t)((quota + period - 1) / period) : 0;
}

uint32_t keel_cpu_installed(void)
{
    long installed = sysconf(_SC_NPROCESSORS_CONF);
    return installed > 0 ? (uint32_t)installed : 1;
}

uint32_t keel_cpu_count(void)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t count = online > 0 ? (uint32_t)online : 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) /* fails on more than CPU_SETSIZE processors */
        count = (uint32_t)CPU_COUNT(&set);
    uint32_t quota = quota_cpus();
    if (quota > 0 && quota < count)
        count = quota;
    return count > 0 ? count : 1;
}
