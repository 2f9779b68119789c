/* run_agents.c - see run_agents.h. */
#include "run_agents.h"

#include <inttypes.h>
#include <stdio.h>

const char *keel_agent_news_event(const struct keel_gate_news *news)
{
    static const char *const names[] = {[KEEL_GATE_JOINED] = "agent-joined",
                                        [KEEL_GATE_LEFT] = "agent-left",
                                        [KEEL_GATE_WAITS] = "agent-waits",
                                        [KEEL_GATE_REFUSED] = "agent-refused"};
    return names[news->kind];
}

json_t *keel_agent_news_fields(const struct keel_gate_news *news)
{
    json_t *fields = json_pack("{s:s, s:s}", "from", news->place, "host", news->host);
    if (news->node > 0)
        json_object_set_new(fields, "node", json_integer(news->node));
    if (news->kind == KEEL_GATE_JOINED || news->kind == KEEL_GATE_LEFT)
        json_object_set_new(fields, "incarnation", json_integer(news->incarnation));
    if (news->kind == KEEL_GATE_REFUSED)
        json_object_set_new(fields, "total", json_integer((json_int_t)news->total));
    if (news->status != KEEL_OK) {
        json_object_set_new(fields, "status", json_string(keel_status_name(news->status)));
        json_object_set_new(fields, "detail", json_string(news->text));
    }
    return fields;
}

void keel_agent_news_text(const struct keel_gate_news *news, char out[KEEL_AGENT_TEXT_BYTES])
{
    const char *host = news->host[0] != '\0' ? news->host : "?";
    const bool why = news->status != KEEL_OK;
    switch (news->kind) {
    case KEEL_GATE_JOINED:
        snprintf(out, KEEL_AGENT_TEXT_BYTES, "node %u: its agent came from %s (%s)", news->node, host,
                 news->place);
        break;
    case KEEL_GATE_LEFT:
        snprintf(out, KEEL_AGENT_TEXT_BYTES, "node %u: its agent on %s (%s) is gone%s%s", news->node, host,
                 news->place[0] != '\0' ? news->place : "?", why ? ": " : "", why ? news->text : "");
        break;
    case KEEL_GATE_WAITS:
        snprintf(out, KEEL_AGENT_TEXT_BYTES, "an agent on %s (%s) waits for a node to be free", host,
                 news->place);
        break;
    case KEEL_GATE_REFUSED:
        snprintf(out, KEEL_AGENT_TEXT_BYTES, "refused a caller from %s: %s (%" PRIu64 " so far)", news->place,
                 news->text, news->total);
        break;
    }
}
