/* net_check.h - `keel net check`: what its ranks tell its host. */
#ifndef KEEL_TRANSPORT_NET_CHECK_H
#define KEEL_TRANSPORT_NET_CHECK_H

#include "net_cases.h"
#include "net_rendezvous.h"

enum keel_net_check_frame {
    KEEL_NET_CHECK_DONE = KEEL_NET_FRAME_OWN, /* all cases of one operation: struct keel_net_check_count */
    KEEL_NET_CHECK_WRONG,                     /* text that ends with a NUL byte */
    KEEL_NET_CHECK_STEP                       /* rank 0, now and then: uint64_t cases done */
};
enum { KEEL_NET_CHECK_TEXT_BYTES = 512, KEEL_NET_CHECK_WRONG_MAX = 8 /* texts of a rank */ };

struct keel_net_check_count {
    uint32_t kind; /* enum keel_collective_kind */
    uint32_t unused;
    uint64_t cases, wrong, cannot; /* cannot: the algorithm does not do that, and says so */
    uint64_t took_ns;
};

/* A rank's work. */
enum keel_status keel_net_check_rank(struct keel_net_rank *rank, const struct keel_net_case_filter *filter);

#endif
