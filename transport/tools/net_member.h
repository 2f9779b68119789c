/* net_member.h - a rank's side of net_rendezvous.h. */
#ifndef KEEL_TRANSPORT_NET_MEMBER_H
#define KEEL_TRANSPORT_NET_MEMBER_H

#include "net_rendezvous.h"

/* Payload of KEEL_NET_FRAME_FAILED. */
struct keel_net_failure {
    uint32_t status; /* enum keel_status */
    char text[KEEL_DETAIL_BYTES];
};

/* Join, work, report; returns the process's exit code. */
int keel_net_member_run(const struct keel_command *cmd, const struct keel_net_rendezvous *rendezvous,
                        const struct keel_net_work *work);

#endif
