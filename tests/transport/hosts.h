/* hosts.h - several hosts on one machine: network namespaces on one bridge, and faults of the network.
 *
 * The calling process moves into a namespace of its own, the switch: there is the bridge, and a port for each
 * host. No namespace has a name and none has a way out, so the kernel removes all of it, addresses, queues
 * and rules too, when the last process in them is gone, however it ended. Faults are elements of sets that
 * one table of rules on the bridge looks up, so that making one is a single short command.
 *
 * Needs ip, tc and ss (iproute2), nft (nftables), and either root or user namespaces. */
#ifndef KEEL_TESTS_HOSTS_H
#define KEEL_TESTS_HOSTS_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HOSTS_MAX = 8 };

struct hosts {
    uint32_t count;
    int names[HOSTS_MAX]; /* network namespaces */
    bool has_netem;       /* else links are made slow by a bucket and by dropping */
    char why[256];        /* why there are none */
};

/* Run a command of the shell, in a host or (-1) on the switch; true when it says so. What it writes is lost.
 */
static inline bool hosts_run(const struct hosts *hosts, int host, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline bool hosts_run(const struct hosts *hosts, int host, const char *format, ...)
{
    char command[1024];
    int status = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        if (host >= 0 && setns(hosts->names[host], CLONE_NEWNET) != 0)
            _exit(126);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static inline bool hosts_fail(struct hosts *hosts, const char *why)
{
    snprintf(hosts->why, sizeof hosts->why, "%s", why);
    return false;
}

static inline bool hosts_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return good;
}

/* As root, or as the root of a user namespace of its own. */
static inline bool hosts_leave_home(void)
{
    char map[2][64];
    if (unshare(CLONE_NEWNET) == 0)
        return true;
    snprintf(map[0], sizeof map[0], "0 %u 1", (unsigned)geteuid());
    snprintf(map[1], sizeof map[1], "0 %u 1", (unsigned)getegid());
    return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 && hosts_write("/proc/self/setgroups", "deny") &&
           hosts_write("/proc/self/uid_map", map[0]) && hosts_write("/proc/self/gid_map", map[1]);
}

/* A namespace, and a pair of devices: eth0 there, v<n> here. */
static inline bool hosts_add(struct hosts *hosts, uint32_t host)
{
    int ready[2], done[2];
    char path[64], byte = 0;
    if (pipe2(ready, O_CLOEXEC) != 0 || pipe2(done, O_CLOEXEC) != 0)
        return false;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        byte = unshare(CLONE_NEWNET) == 0;
        _exit(write(ready[1], &byte, 1) == 1 && read(done[0], &byte, 1) == 1 ? 0 : 1);
    }
    close(ready[1]);
    bool good = pid > 0 && read(ready[0], &byte, 1) == 1 && byte == 1;
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)pid);
    hosts->names[host] = good ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    good = good && hosts_run(hosts, -1,
                             "ip link add v%u type veth peer name eth0 netns %d && "
                             "ip link set v%u master br0 up",
                             host, (int)pid, host);
    good = good && hosts_run(hosts, (int)host,
                             "ip link set lo up && ip addr add 10.77.0.%u/24 dev eth0 && ip link set eth0 up",
                             host + 1);
    good = good && write(done[1], &byte, 1) == 1;
    close(ready[0]);
    close(done[0]);
    close(done[1]);
    waitpid(pid, NULL, 0);
    return good;
}

/* The unheard say nothing that arrives; to the deaf nothing comes; of the lossy one word in twenty is lost.
 */
static const char hosts_rules[] = "table bridge faults {\n"
                                  " set unheard { type ifname; }\n"
                                  " set deaf { type ifname; }\n"
                                  " set lossy { type ifname; }\n"
                                  " chain forward {\n"
                                  "  type filter hook forward priority 0;\n"
                                  "  iifname @unheard drop\n"
                                  "  oifname @deaf drop\n"
                                  "  iifname @lossy numgen random mod 100 < 5 drop\n"
                                  " }\n"
                                  "}\n";

/* False, and `why`: it cannot be done here. For good: the calling process stays on the switch. */
static inline bool hosts_start(struct hosts *hosts, uint32_t count)
{
    *hosts = (struct hosts){.count = count};
    if (!hosts_run(hosts, -1, "command -v ip && command -v tc && command -v ss && command -v nft"))
        return hosts_fail(hosts, "ip, tc, ss or nft is not there: iproute2 and nftables");
    if (!hosts_leave_home())
        return hosts_fail(hosts, "this user may not make network namespaces");
    if (!hosts_run(hosts, -1, "ip link set lo up && ip link add br0 type bridge && ip link set br0 up"))
        return hosts_fail(hosts, "this kernel makes no bridge");
    for (uint32_t host = 0; host < count; host++)
        if (!hosts_add(hosts, host))
            return hosts_fail(hosts, "this kernel makes no namespaces with veth pairs");
    if (!hosts_run(hosts, -1, "nft '%s'", hosts_rules))
        return hosts_fail(hosts, "nft makes no rules for a bridge here");
    hosts->has_netem = hosts_run(hosts, -1, "tc qdisc add dev br0 root netem delay 1ms");
    return true;
}

static inline bool hosts_enter(const struct hosts *hosts, uint32_t host)
{
    return setns(hosts->names[host], CLONE_NEWNET) == 0;
}

static inline void hosts_address(uint32_t host, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "10.77.0.%u", host + 1);
}

/* ---- faults ---- */

/* It is not heard, or hears nobody, or both. */
static inline bool hosts_silence(const struct hosts *hosts, uint32_t host, bool from, bool to)
{
    char unheard[64] = "", deaf[64] = "";
    if (from)
        snprintf(unheard, sizeof unheard, "add element bridge faults unheard { v%u };", host);
    if (to)
        snprintf(deaf, sizeof deaf, "add element bridge faults deaf { v%u };", host);
    return hosts_run(hosts, -1, "nft '%s%s'", unheard, deaf);
}

/* Break the connections between two of them, as a reset does. */
static inline bool hosts_reset(const struct hosts *hosts, uint32_t host, uint32_t other)
{
    return hosts_run(hosts, (int)host, "ss -K -H -t dst 10.77.0.%u", other + 1);
}

static inline bool hosts_slow(const struct hosts *hosts, uint32_t host)
{
    if (hosts->has_netem)
        return hosts_run(hosts, -1, "tc qdisc add dev v%u root netem delay 20ms 10ms loss 3%% rate 50mbit",
                         host);
    return hosts_run(hosts, -1,
                     "tc qdisc add dev v%u root tbf rate 50mbit burst 16kb latency 100ms && "
                     "nft 'add element bridge faults lossy { v%u }'",
                     host, host);
}

static inline bool hosts_heal(const struct hosts *hosts, uint32_t host)
{
    return hosts_run(hosts, -1,
                     "tc qdisc del dev v%u root; nft 'flush set bridge faults unheard; "
                     "flush set bridge faults deaf; flush set bridge faults lossy'",
                     host);
}

#endif
