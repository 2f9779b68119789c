/* run_agents.h - what a run tells of agents that dial in: as an event, and as a line for people. */
#ifndef KEEL_RUN_AGENTS_H
#define KEEL_RUN_AGENTS_H

#include "gate.h"
#include <jansson.h>

enum { KEEL_AGENT_TEXT_BYTES = 1024 };

const char *keel_agent_news_event(const struct keel_gate_news *news);
json_t *keel_agent_news_fields(const struct keel_gate_news *news); /* NULL: no memory */
void keel_agent_news_text(const struct keel_gate_news *news, char out[KEEL_AGENT_TEXT_BYTES]);

#endif
