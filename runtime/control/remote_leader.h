/* remote_leader.h - a node of another host than the launcher's leads (cluster.holders): what the common store
 * of snapshots says of it, for the launcher's host, which may have no connection to it.
 *
 *   STORE/.leader/leader      who leads: run, node, process, host, folder, and where agents dial in; touched
 *                             each half timeout
 *   STORE/.leader/now         touched by who asks whether it leads still
 *   STORE/.leader/TIME-NODE/  metrics.jsonl and events.jsonl of one that led, until `keel run` takes them
 *                             over
 *
 * Nothing is decided by it: who leads is told by the register (node_moves.c). Blocks as the file system does;
 * any thread. */
#ifndef KEEL_REMOTE_LEADER_H
#define KEEL_REMOTE_LEADER_H

#include <keel/file.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stdint.h>

#define KEEL_REMOTE_LEADER_FOLDER ".leader"

struct keel_remote_leader {
    uint64_t run;
    uint16_t node;
    long pid;
    char host[65];
    char folder[48]; /* its name in STORE/.leader */
    char place[56];  /* HOST:PORT, where it lets agents in; "": nowhere */
};

/* The path of what lies in STORE/.leader under this name. LIMIT. */
enum keel_status keel_remote_leader_path(const char *store, const char *name, char out[KEEL_PATH_BYTES]);

/* It leads from now on: makes its folder. DENIED, IO, NO_SPACE. */
enum keel_status keel_remote_leader_begin(const char *store, const struct keel_remote_leader *leader);
/* It still does: says so anew where another, that ended at the same moment, or somebody removed the file. */
void keel_remote_leader_touch(const char *store, const struct keel_remote_leader *leader);
/* It does no more; its lines stay. Of another one nothing is changed. */
void keel_remote_leader_end(const char *store, const struct keel_remote_leader *leader);

/* Who led last, whether or not it still does: false when nobody wrote it. */
bool keel_remote_leader_read(const char *store, struct keel_remote_leader *out);
/* Who leads: false when nobody wrote there for six timeouts, after which agents have ended too. By the clock
 * of the store; by this host's, where that file cannot be written. */
bool keel_remote_leader_lives(const char *store, double timeout_s, struct keel_remote_leader *out);

#endif
