/* net_place.h - where a process of a run is reached: addresses of IPv4 and IPv6, as text and as sockets take
 * them.
 *
 * Reads, prints and compares places, resolves names, and says which networks this host has. Promises that a
 * text that is no place is refused by what is wrong with it. Link-local addresses of IPv6 are none: they mean
 * something on one link of one host alone. Any thread; blocks only where it resolves a name. */
#ifndef KEEL_NET_PLACE_H
#define KEEL_NET_PLACE_H

#include <keel/status.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
    KEEL_HOST_BYTES = 46,  /* an address as text, and NUL */
    KEEL_PLACE_BYTES = 56, /* "[address]:65535", and NUL */
    KEEL_IP_BYTES = 16,
    KEEL_NETWORKS_MAX = 16
};

struct keel_net_place {
    uint8_t ip[KEEL_IP_BYTES]; /* of IPv4 mapped into IPv6 (RFC 4291, 2.5.5.2) */
    uint16_t port;             /* network order */
};

/* Numeric: "10.0.0.1:4711" or "[fd00::1]:4711"; an address alone. INVALID. */
enum keel_status keel_net_place_parse(const char *text, struct keel_net_place *out);
enum keel_status keel_net_place_parse_ip(const char *text, struct keel_net_place *out);
/* What can be said of any of them without a look-up: *named, and then only the port is known; 0 where none is
 * given. INVALID. */
enum keel_status keel_net_place_check(const char *text, struct keel_net_place *out, bool *named);
/* The same, with names, which are looked up; the port may be left out, and is 0 then. INVALID, NOT_FOUND. */
enum keel_status keel_net_place_resolve(const char *text, struct keel_net_place *out);

void keel_net_place_print(const struct keel_net_place *place, char out[KEEL_PLACE_BYTES]);
void keel_net_place_print_ip(const struct keel_net_place *place, char out[KEEL_HOST_BYTES]);

bool keel_net_place_same_ip(const struct keel_net_place *a, const struct keel_net_place *b);
bool keel_net_place_is_loopback(const struct keel_net_place *place);
bool keel_net_place_is_any(const struct keel_net_place *place); /* 0.0.0.0 or :: */
bool keel_net_place_is_v4(const struct keel_net_place *place);

/* For a socket of `family`: how many bytes of *out are the address; 0 where that family cannot reach it. */
socklen_t keel_net_place_to_socket(const struct keel_net_place *place, sa_family_t family,
                                   struct sockaddr_storage *out);
struct keel_net_place keel_net_place_of_socket(const struct sockaddr_storage *address);
/* The family of the socket that listens there. */
sa_family_t keel_net_place_family(const struct keel_net_place *place);
/* This side of a socket, and the other. IO. */
enum keel_status keel_net_place_of_descriptor(int fd, bool other_side, struct keel_net_place *out);

/* A network interface of this host with an address. */
struct keel_network {
    char name[16];
    struct keel_net_place place; /* port 0 */
    uint32_t mtu_bytes;          /* 0: the kernel does not say */
};
/* Those that are up, loopback left out; at most KEEL_NETWORKS_MAX. */
uint32_t keel_networks_list(struct keel_network out[KEEL_NETWORKS_MAX]);
/* The one that has this address, loopback too. False: none has. */
bool keel_network_of(const struct keel_net_place *place, struct keel_network *out);

#endif
