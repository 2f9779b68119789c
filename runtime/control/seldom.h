/* seldom.h - what may have to be said again and again is said once, and then ever more seldom.
 *
 * A second after the first time, two after the second, and so on, ten minutes at most, as long as the reason
 * lasts. What was not due for a minute is news again. One a reason; zeroed at first, and by who sees that the
 * reason is gone. One owner, one thread; never blocks. */
#ifndef KEEL_SELDOM_H
#define KEEL_SELDOM_H

#include <stdbool.h>
#include <stdint.h>

struct keel_seldom {
    uint64_t due_ns, next_ns, pause_ns; /* it was due last; not said before; pause_ns 0: it never was */
};

/* It is due: is it to be said now? */
bool keel_seldom_says(struct keel_seldom *seldom, uint64_t now_ns);

#endif
