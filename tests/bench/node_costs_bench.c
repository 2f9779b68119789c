/* node_costs_bench.c - what a datagram costs a node, sealed and sent, received and opened, on the loopback:
 * the numbers of node_costs.h, by which simulated nodes pay. One JSON object a line. */
#include "seal.h"

#include <arpa/inet.h>
#include <keel/clock.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROUNDS = 200, BURST = 8, SMALL = 100, LARGE = KEEL_MESSAGE_BYTES };

static struct keel_seal from, to;
static uint8_t message[KEEL_MESSAGE_BYTES], datagram[KEEL_DATAGRAM_BYTES];

struct cost {
    uint64_t send_ns, receive_ns; /* of one datagram, the least over rounds */
};

static void print_line(const char *figure, uint32_t bytes, uint64_t value)
{
    printf("{\"room\": \"runtime\", \"figure\": \"datagram of %u bytes: %s\", \"value\": %.2f, \"unit\": "
           "\"us\", "
           "\"peer\": null, \"peer_value\": null, \"ratio\": null, \"goal\": null, \"met\": null}\n",
           bytes, figure, (double)value / 1000);
}

/* Of the table by which simulated nodes pay: of a datagram, and of a byte of it. */
static void print_costs(const char *name, uint64_t small_ns, uint64_t large_ns)
{
    const uint64_t byte_ps = large_ns > small_ns ? (large_ns - small_ns) * 1000 / (LARGE - SMALL) : 0;
    const uint64_t values[] = {small_ns - SMALL * byte_ps / 1000, byte_ps};
    for (int i = 0; i < 2; i++)
        printf(
            "{\"room\": \"runtime\", \"figure\": \"a simulated node pays: %s_%s\", \"value\": %llu, "
            "\"unit\": \"\", \"peer\": null, \"peer_value\": null, \"ratio\": null, \"goal\": null, \"met\": "
            "null}\n",
            name, i == 0 ? "ns" : "ps", (unsigned long long)values[i]);
}

static struct cost measure(int fd, const struct sockaddr_in *here, uint32_t bytes)
{
    struct cost least = {UINT64_MAX, UINT64_MAX};
    for (int round = 0; round < ROUNDS; round++) {
        const struct keel_seal_label label = {.to = 0, .tag = keel_seal_tag(&to)};
        const uint64_t begin_ns = keel_now_ns();
        for (int i = 0; i < BURST; i++) {
            const uint32_t sealed = keel_seal_wrap(&from, &label, message, bytes, datagram);
            KEEL_ASSERT(sendto(fd, datagram, sealed, 0, (const struct sockaddr *)here, sizeof *here) ==
                        (ssize_t)sealed);
        }
        const uint64_t sent_ns = keel_now_ns();
        for (int i = 0; i < BURST; i++) {
            struct keel_seal_label got;
            uint32_t opened;
            const ssize_t there = recv(fd, datagram, sizeof datagram, MSG_DONTWAIT);
            KEEL_ASSERT(there > 0 && keel_seal_open(&to, datagram, (uint32_t)there, &got, message, &opened) ==
                                         KEEL_SEAL_OPENED);
        }
        const uint64_t end_ns = keel_now_ns();
        least.send_ns = sent_ns - begin_ns < least.send_ns ? sent_ns - begin_ns : least.send_ns;
        least.receive_ns = end_ns - sent_ns < least.receive_ns ? end_ns - sent_ns : least.receive_ns;
    }
    return (struct cost){least.send_ns / BURST, least.receive_ns / BURST};
}

int main(void)
{
    static const uint8_t key[KEEL_SEAL_KEY_BYTES] = {1};
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t here_bytes = sizeof here;
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    KEEL_ASSERT(fd >= 0 && bind(fd, (const struct sockaddr *)&here, sizeof here) == 0);
    KEEL_ASSERT(getsockname(fd, (struct sockaddr *)&here, &here_bytes) == 0);
    keel_seal_init(&from, key, 1, 1, 0);
    keel_seal_init(&to, key, 1, 0, 0);
    const struct cost small = measure(fd, &here, SMALL), large = measure(fd, &here, LARGE);
    print_line("sealed and sent", SMALL, small.send_ns);
    print_line("received and opened", SMALL, small.receive_ns);
    print_line("sealed and sent", LARGE, large.send_ns);
    print_line("received and opened", LARGE, large.receive_ns);
    print_costs("send", small.send_ns, large.send_ns);
    print_costs("receive", small.receive_ns, large.receive_ns);
    close(fd);
    return 0;
}
