/* run_led.h - lines of nodes that led the run from other hosts (cluster.holders): written there into the
 * common store (remote_leader.h), taken into the run's directory by `keel run`. */
#ifndef KEEL_RUN_LED_H
#define KEEL_RUN_LED_H

#include "agent.h"
#include <stdint.h>

/* Take them in: lines of metrics.jsonl by their steps, events behind those that are there, with the node in
 * `led_by`. Of a step of which
 * both have a line that of the directory stays; *out_differing counts those whose bits differ, each with its
 * event. Nobody has the files of `directory` open to write, or he opens them anew. *out_taken: there were
 * some. Blocks. CORRUPT, IO, NO_SPACE: what was not taken stays. */
enum keel_status keel_led_take(const char *directory, const char *store, bool *out_taken,
                               uint64_t *out_differing);

/* `keel agent`, whose node may lead. Returns the exit code. */
int keel_led_agent_main(int argc, char **argv);

#endif
