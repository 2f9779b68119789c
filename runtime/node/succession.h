/* succession.h - an agent of the launcher's host sees to it that somebody leads.
 *
 * The launcher is a process like any other: when it ends without a word, the kernel gives leader.lock
 * (run_locks.h) to the first agent that asks, and that agent starts another process in its place, with the
 * lock, the launcher's socket and what makes it lead the same run (keel lead). So there are never two, and no
 * clock decides whether one is there: its end is seen at once, by pidfd. One that has the lock but is silent
 * for three timeouts (it was stopped, or hangs) is killed first; but as long as it reads what the one before
 * wrote, which takes a while after millions of steps, it touches the lock's file instead.
 *
 * Agents of other hosts have no share in it: they dial the launcher again. Private to node/. */
#ifndef KEEL_SUCCESSION_H
#define KEEL_SUCCESSION_H

#include "control.h"
#include "run_locks.h"
#include "seldom.h"
#include <keel/process.h>

/* Descriptors that a launcher hands to agents of its host; and an agent to the process that it has lead. */
enum { KEEL_AGENT_RUN_FD = 3, KEEL_AGENT_SOCKET_FD, KEEL_AGENT_LOCK_FD, KEEL_AGENT_FDS_END };
enum { KEEL_LEAD_RUN_FD = 3, KEEL_LEAD_LEADER_FD, KEEL_LEAD_SOCKET_FD, KEEL_LEAD_FDS_END };

struct keel_succession {
    const char *directory, *self; /* borrowed, as the next */
    char *const *passed_on;       /* options of workers */
    uint32_t passed_on_count;
    uint64_t run, timeout_ns;
    uint16_t node;                /* of this agent, */
    uint32_t incarnation;         /* and which life of it */
    uint64_t keep_ns;             /* its lock is looked at again then */
    uint64_t look_ns;             /* not before */
    uint64_t change_ns;           /* another led then than before */
    uint64_t touched_ns;          /* leader.lock was, by the file system's clock */
    struct keel_lock_words words; /* of leader.lock, as they were read last */
    struct keel_process leader; /* who leads, as leader.lock says; pidfd -1: its end was seen, or cannot be */
    uint32_t hasty;             /* so many in a row came soon after the one before */
    struct keel_process started; /* pidfd -1: none is to be reaped */
    struct keel_seldom unkept;   /* that the locks cannot be kept */
    struct keel_seldom vacant;   /* that none can take the leader's place */
};

/* `incarnation`: of this agent. Says in its lock who has it. BUSY: another agent of this node has. */
enum keel_status keel_succession_begin(struct keel_succession *succession, uint16_t node,
                                       uint32_t incarnation);
/* Once a turn of the agent's loop. `gone`: the leader's pidfd is readable. */
void keel_succession_turn(struct keel_succession *succession, struct keel_control_plane *control, bool gone);
/* This agent ends in order, though the run goes on. */
void keel_succession_leave(const struct keel_succession *succession);
/* The leader told this agent how the run ended, and this agent has ended its workers: if the leader is gone,
 * another says it in its place. */
void keel_succession_end(struct keel_succession *succession, enum keel_status status, const char *detail);

#endif
