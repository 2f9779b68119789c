/* hosts.h - which hosts a run's nodes are on, and what starts an agent there.
 *
 * Reads cluster.hosts (or asks Slurm), says which node is on which host, and makes the words of a command
 * that runs on it. Promises that no name of a host is taken for an option, and that the job key is in no
 * word. Of the launcher, and of an agent that leads, which was handed the names; blocks only where it reads a
 * file or asks Slurm. */
#ifndef KEEL_HOSTS_H
#define KEEL_HOSTS_H

#include "net_place.h"
#include <keel/job.h>
#include <keel/process.h>

enum { KEEL_HOST_WORDS_MAX = 48, KEEL_HOST_COMMAND_BYTES = 8192 };

struct keel_hosts {
    char *text; /* heap: all names, each with its NUL */
    const char *names[KEEL_NODES_MAX];
    uint32_t count; /* 0: nobody said */
};

/* INVALID names the host that is none; NOT_FOUND, UNSUPPORTED (no Slurm here). */
enum keel_status keel_hosts_read(const struct keel_job *job, struct keel_hosts *out);
/* As who let this agent in read them: names between commas; "" if nobody said. INVALID, LIMIT. */
enum keel_status keel_hosts_parse(const char *text, struct keel_hosts *out);
/* The same text, for who is let in here. The caller frees it. */
enum keel_status keel_hosts_text(const struct keel_hosts *hosts, char **out);
void keel_hosts_free(struct keel_hosts *hosts);
/* The host of a node (keel_job_host_of); "": nobody said. */
const char *keel_hosts_of(const struct keel_hosts *hosts, const struct keel_job *job, uint16_t node);

/* Where the launcher listens, and where agents reach it (port 0: the one that it gets). INVALID: a name or an
 * address that other hosts cannot reach, and what could be given instead. */
struct keel_listen {
    struct keel_net_place bind, advertised;
};
enum keel_status keel_hosts_listen(const struct keel_job *job, const struct keel_hosts *hosts,
                                   struct keel_listen *out);
/* " (eth0, MTU 1500); also here: eth1 10.0.0.5 (cluster.advertise chooses)" */
void keel_hosts_network_text(const struct keel_net_place *advertised, char *out, size_t out_bytes);

/* "eth0 10.0.0.2, eth1 10.1.0.2", without `but` (may be NULL); "": none but loopback. */
void keel_hosts_list_networks(char *out, size_t out_bytes, const struct keel_net_place *but);

/* The words of `keel agent` for a node; `key_file` is "-" where the key comes by standard input. */
struct keel_host_command {
    const char *program, *place, *key_file;
    uint16_t node;
    uint32_t wait_s;
};
/* As one line for a shell. */
enum keel_status keel_host_command_line(const struct keel_host_command *command, char *out, size_t out_bytes);
/* Start it on a host by the job's shell; `key_text` goes to its standard input. */
enum keel_status keel_host_start(const struct keel_job *job, const char *host,
                                 const struct keel_host_command *command, const char *key_text,
                                 struct keel_process *out);

#endif
