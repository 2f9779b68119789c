/* callers.c - the kernel keeps silent callers to itself for a time; those that come out of it are found among
 * /proc/self/fd, and shut down when they are too many, or many and too old. What libfabric has forgotten is
 * found there too. */
#include "callers.h"

#include <dirent.h>
#include <errno.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <linux/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    LOOK_MS = 200,  /* between two looks while somebody is silent */
    GATE_S = 10,    /* the kernel keeps a caller for so long, or until it says something, */
    SPEAK_MS = 500, /*   and libfabric waits for so long for the rest of what it says */
    ESTABLISHED = 1 /* the kernel's TCP_ESTABLISHED; linux/tcp.h lacks it, netinet/tcp.h the newer figures */
};

struct silent {
    int fd;
    in_addr_t address; /* of IPv6: of its network, the first half of the address, folded */
    uint32_t age_ms;
};

struct keel_callers {
    DIR *descriptors; /* stays open: where none is left, none could be opened */
    int timer;
    in_port_t port;
    uint32_t bound, count; /* silent callers that may be there, and are */
    struct silent silent[KEEL_SILENT_MAX];
};

static uint32_t bound_of_process(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / KEEL_SILENT_SHARE < KEEL_SILENT_MIN)
        return KEEL_SILENT_MIN;
    return limit.rlim_cur / KEEL_SILENT_SHARE > KEEL_SILENT_MAX
               ? KEEL_SILENT_MAX
               : (uint32_t)(limit.rlim_cur / KEEL_SILENT_SHARE);
}

/* -1: there is none after those that were returned. */
static int next_descriptor(DIR *descriptors)
{
    for (const struct dirent *entry; (entry = readdir(descriptors)) != NULL;)
        if (entry->d_name[0] != '.')
            return (int)strtol(entry->d_name, NULL, 10);
    return -1;
}

static bool is_at_port(int fd, in_port_t port)
{
    struct sockaddr_storage own = {0};
    struct sockaddr_in place; /* the port lies there in IPv6 too */
    socklen_t bytes = sizeof own;
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) != 0)
        return false;
    memcpy(&place, &own, sizeof place);
    return (own.ss_family == AF_INET || own.ss_family == AF_INET6) && place.sin_port == port;
}

static in_addr_t address_of(const struct sockaddr_storage *peer)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    in_addr_t halves[2];
    memcpy(&four, peer, sizeof four);
    memcpy(&six, peer, sizeof six);
    memcpy(halves, &six.sin6_addr, sizeof halves);
    return peer->ss_family == AF_INET6 ? halves[0] ^ halves[1] : four.sin_addr.s_addr;
}

static bool listens(int fd)
{
    int value = 0;
    socklen_t bytes = sizeof value;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &bytes) == 0 && value != 0;
}

/* libfabric's listener is found as its callers are. Accepted sockets have the listener's time-out. A kernel
 * that refuses leaves it to the look at callers. */
static void set_gate(const struct keel_callers *callers)
{
    const struct timeval speak = {.tv_usec = SPEAK_MS * 1000};
    const int gate_s = GATE_S;
    for (int fd; (fd = next_descriptor(callers->descriptors)) >= 0;) {
        if (!is_at_port(fd, callers->port) || !listens(fd))
            continue;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &gate_s, sizeof gate_s);
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &speak, sizeof speak);
    }
}

enum keel_status keel_callers_open(in_port_t port, struct keel_callers **out)
{
    struct keel_callers *callers;
    KEEL_TRY(keel_alloc(1, sizeof *callers, &callers));
    callers->port = port;
    callers->descriptors = opendir("/proc/self/fd");
    callers->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (callers->descriptors == NULL || callers->timer < 0) {
        int error = errno;
        keel_callers_close(callers);
        return keel_fail_errno(error, "watching for silent callers");
    }
    set_gate(callers);
    *out = callers;
    return KEEL_OK;
}

void keel_callers_close(struct keel_callers *callers)
{
    if (callers == NULL)
        return;
    if (callers->descriptors != NULL)
        closedir(callers->descriptors);
    if (callers->timer >= 0)
        close(callers->timer);
    keel_free(callers);
}

int keel_callers_descriptor(const struct keel_callers *callers)
{
    return callers->timer;
}

/* Accepted at our port, and nothing has come over it yet. */
static bool is_silent(const struct keel_callers *callers, int fd, struct silent *out)
{
    struct sockaddr_storage peer;
    struct tcp_info info;
    socklen_t peer_bytes = sizeof peer, info_bytes = sizeof info;
    if (!is_at_port(fd, callers->port) || getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) != 0 ||
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_bytes) != 0 || info.tcpi_bytes_received > 0 ||
        info.tcpi_state != ESTABLISHED)
        return false;
    *out = (struct silent){fd, address_of(&peer), info.tcpi_last_data_recv}; /* since it was accepted */
    return true;
}

/* Where there is no room, the oldest goes; of its own address, if that has more than its share. */
static void admit(struct keel_callers *callers, struct silent caller)
{
    struct silent *oldest = NULL, *oldest_there = NULL;
    uint32_t there = 0;
    if (callers->count < callers->bound) {
        callers->silent[callers->count++] = caller;
        return;
    }
    for (uint32_t k = 0; k < callers->count; k++) {
        struct silent *at = &callers->silent[k];
        bool same = at->address == caller.address;
        there += same;
        if (oldest == NULL || at->age_ms > oldest->age_ms)
            oldest = at;
        if (same && (oldest_there == NULL || at->age_ms > oldest_there->age_ms))
            oldest_there = at;
    }
    struct silent *place = there > callers->bound / KEEL_SILENT_ADDRESS_SHARE ? oldest_there : oldest;
    KEEL_ASSERT(place != NULL); /* the bound is above 0 */
    struct silent gone = *place;
    if (place->age_ms >= caller.age_ms)
        *place = caller;
    else
        gone = caller;
    shutdown(gone.fd, SHUT_RDWR);
}

/* A few may take their time: a member that was stopped before its greeting is one of them. */
static void end_old(struct keel_callers *callers)
{
    for (uint32_t k = 0; k < callers->count && callers->count > KEEL_SILENT_FEW; k++)
        if (callers->silent[k].age_ms >= KEEL_SILENT_MS)
            shutdown(callers->silent[k].fd, SHUT_RDWR);
}

static void set_timer(const struct keel_callers *callers)
{
    struct itimerspec when = {{0, 0}, {0, 0}};
    if (callers->count > KEEL_SILENT_FEW)
        when.it_value.tv_nsec = LOOK_MS * (long)KEEL_NS_PER_MS;
    timerfd_settime(callers->timer, 0, &when, NULL);
}

void keel_callers_look(struct keel_callers *callers, bool asked)
{
    uint64_t times;
    bool due = callers->count > 0 && read(callers->timer, &times, sizeof times) == (ssize_t)sizeof times;
    if (!asked && !due)
        return;
    callers->count = 0;
    callers->bound = bound_of_process();
    rewinddir(callers->descriptors);
    for (int fd; (fd = next_descriptor(callers->descriptors)) >= 0;) {
        struct silent caller;
        if (is_silent(callers, fd, &caller))
            admit(callers, caller);
    }
    end_old(callers);
    set_timer(callers);
}

static ino_t inode_of(int fd)
{
    struct stat found;
    return fstat(fd, &found) == 0 ? found.st_ino : 0;
}

void keel_accepted_find(in_port_t port, struct keel_accepted *out)
{
    DIR *descriptors = port != 0 ? opendir("/proc/self/fd") : NULL;
    out->count = 0;
    if (descriptors == NULL)
        return;
    for (int fd; out->count < KEEL_SILENT_MAX && (fd = next_descriptor(descriptors)) >= 0;)
        if (is_at_port(fd, port) && !listens(fd))
            out->sockets[out->count++] = (struct keel_accepted_socket){fd, inode_of(fd)};
    closedir(descriptors);
}

void keel_accepted_close(const struct keel_accepted *accepted)
{
    for (uint32_t k = 0; k < accepted->count; k++)
        if (inode_of(accepted->sockets[k].fd) == accepted->sockets[k].inode)
            close(accepted->sockets[k].fd);
}
