/* seldom.c - see seldom.h. */
#include "seldom.h"

#include <keel/clock.h>

static const uint64_t first_ns = KEEL_NS_PER_S;
static const uint64_t longest_ns = 600 * KEEL_NS_PER_S;
static const uint64_t quiet_ns = 60 * KEEL_NS_PER_S;

bool keel_seldom_says(struct keel_seldom *seldom, uint64_t now_ns)
{
    const bool news = seldom->pause_ns == 0 || now_ns - seldom->due_ns >= quiet_ns;
    seldom->due_ns = now_ns;
    if (!news && now_ns < seldom->next_ns)
        return false;
    const uint64_t twice_ns = seldom->pause_ns < longest_ns / 2 ? seldom->pause_ns * 2 : longest_ns;
    seldom->pause_ns = news ? first_ns : twice_ns;
    seldom->next_ns = now_ns + seldom->pause_ns;
    return true;
}
