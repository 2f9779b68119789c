/* net_place.c - see net_place.h. */
#include "net_place.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { NAME_BYTES = 256 };

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

/* ---- text ---------------------------------------------------------------------------------------------- */

static void set_v4(struct keel_net_place *place, const struct in_addr *address)
{
    memcpy(place->ip, mapped, sizeof mapped);
    memcpy(place->ip + sizeof mapped, address, sizeof *address);
}

enum keel_status keel_net_place_parse_ip(const char *text, struct keel_net_place *out)
{
    struct keel_net_place place = {.port = 0};
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, text, &four) == 1) {
        set_v4(&place, &four);
    } else if (inet_pton(AF_INET6, text, &six) == 1) {
        if (IN6_IS_ADDR_LINKLOCAL(&six))
            return keel_fail(KEEL_INVALID, "%s: is an address of one link alone; give another", text);
        memcpy(place.ip, &six, sizeof place.ip);
    } else {
        return keel_fail(KEEL_INVALID, "%s: not a numeric address of IPv4 or IPv6", text);
    }
    *out = place;
    return KEEL_OK;
}

/* HOST:PORT or [V6]:PORT into its parts; `*port` is NULL where there is none. */
static enum keel_status split(const char *text, char host[NAME_BYTES], const char **port)
{
    const bool bracket = text[0] == '[';
    const char *first = bracket ? text + 1 : text;
    const char *end = bracket ? strchr(text, ']') : strrchr(text, ':');
    if (!bracket && end != NULL && strchr(text, ':') != end) /* IPv6, bare */
        end = NULL;
    if (bracket && (end == NULL || (end[1] != '\0' && end[1] != ':')))
        return keel_fail(KEEL_INVALID, "%s: not [ADDRESS]:PORT", text);
    *port = end == NULL ? NULL : bracket ? (end[1] == ':' ? end + 2 : NULL) : end + 1;
    const size_t length = end == NULL ? strlen(first) : (size_t)(end - first);
    if (length == 0 || length >= NAME_BYTES)
        return keel_fail(KEEL_INVALID, "%s: not HOST:PORT", text);
    memcpy(host, first, length);
    host[length] = '\0';
    return KEEL_OK;
}

static enum keel_status parse_port(const char *text, const char *port, uint16_t *out)
{
    char *end;
    unsigned long value = strtoul(port, &end, 10);
    if (port[0] < '0' || port[0] > '9' || *end != '\0' || value == 0 || value > UINT16_MAX)
        return keel_fail(KEEL_INVALID, "%s: no port from 1 to 65535", text);
    *out = htons((uint16_t)value);
    return KEEL_OK;
}

enum keel_status keel_net_place_parse(const char *text, struct keel_net_place *out)
{
    char host[NAME_BYTES];
    const char *port = NULL;
    struct keel_net_place place;
    KEEL_TRY(split(text, host, &port));
    if (port == NULL)
        return keel_fail(KEEL_INVALID, "%s: not HOST:PORT, or [IPv6]:PORT", text);
    KEEL_TRY(keel_net_place_parse_ip(host, &place));
    KEEL_TRY(parse_port(text, port, &place.port));
    *out = place;
    return KEEL_OK;
}

/* The first address that is reached from elsewhere, or the first of all. */
static enum keel_status look_up(const char *host, struct keel_net_place *out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(host, NULL, &hints, &found);
    if (error != 0)
        return keel_fail(KEEL_NOT_FOUND, "%s: no such host: %s", host, gai_strerror(error));
    struct keel_net_place first = {.port = 0};
    bool some = false;
    for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        struct sockaddr_storage address = {0};
        memcpy(&address, at->ai_addr, at->ai_addrlen);
        const struct keel_net_place place = keel_net_place_of_socket(&address);
        if (!some || (keel_net_place_is_loopback(&first) && !keel_net_place_is_loopback(&place)))
            first = place;
        some = true;
    }
    freeaddrinfo(found);
    *out = first;
    return KEEL_OK;
}

/* The address, unless it is a name, and the port. */
static enum keel_status take_apart(const char *text, char host[NAME_BYTES], struct keel_net_place *out,
                                   bool *named)
{
    const char *port = NULL;
    struct keel_net_place place = {.port = 0};
    uint16_t number = 0;
    KEEL_TRY(split(text, host, &port));
    if (port != NULL)
        KEEL_TRY(parse_port(text, port, &number));
    *named = strchr(host, ':') == NULL && strspn(host, "0123456789.") != strlen(host);
    if (!*named)
        KEEL_TRY(keel_net_place_parse_ip(host, &place));
    place.port = number;
    *out = place;
    return KEEL_OK;
}

enum keel_status keel_net_place_check(const char *text, struct keel_net_place *out, bool *named)
{
    char host[NAME_BYTES];
    return take_apart(text, host, out, named);
}

enum keel_status keel_net_place_resolve(const char *text, struct keel_net_place *out)
{
    char host[NAME_BYTES];
    struct keel_net_place place, found;
    bool named;
    KEEL_TRY(take_apart(text, host, &place, &named));
    found = place;
    if (named)
        KEEL_TRY(look_up(host, &found));
    found.port = place.port;
    *out = found;
    return KEEL_OK;
}

void keel_net_place_print_ip(const struct keel_net_place *place, char out[KEEL_HOST_BYTES])
{
    if (keel_net_place_is_v4(place))
        inet_ntop(AF_INET, place->ip + sizeof mapped, out, KEEL_HOST_BYTES);
    else
        inet_ntop(AF_INET6, place->ip, out, KEEL_HOST_BYTES);
}

void keel_net_place_print(const struct keel_net_place *place, char out[KEEL_PLACE_BYTES])
{
    char host[KEEL_HOST_BYTES];
    keel_net_place_print_ip(place, host);
    snprintf(out, KEEL_PLACE_BYTES, keel_net_place_is_v4(place) ? "%s:%u" : "[%s]:%u", host,
             ntohs(place->port));
}

/* ---- what it is ---------------------------------------------------------------------------------------- */

bool keel_net_place_same_ip(const struct keel_net_place *a, const struct keel_net_place *b)
{
    return memcmp(a->ip, b->ip, sizeof a->ip) == 0;
}

bool keel_net_place_is_v4(const struct keel_net_place *place)
{
    return memcmp(place->ip, mapped, sizeof mapped) == 0;
}

bool keel_net_place_is_loopback(const struct keel_net_place *place)
{
    struct in6_addr six;
    memcpy(&six, place->ip, sizeof six);
    return keel_net_place_is_v4(place) ? place->ip[12] == 127 : IN6_IS_ADDR_LOOPBACK(&six);
}

bool keel_net_place_is_any(const struct keel_net_place *place)
{
    static const uint8_t zero[KEEL_IP_BYTES];
    const uint32_t first = keel_net_place_is_v4(place) ? sizeof mapped : 0;
    return memcmp(place->ip + first, zero, sizeof zero - first) == 0;
}

/* ---- sockets ------------------------------------------------------------------------------------------- */

sa_family_t keel_net_place_family(const struct keel_net_place *place)
{
    return keel_net_place_is_v4(place) ? AF_INET : AF_INET6;
}

socklen_t keel_net_place_to_socket(const struct keel_net_place *place, sa_family_t family,
                                   struct sockaddr_storage *out)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = place->port};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = place->port};
    if (family == AF_INET && !keel_net_place_is_v4(place))
        return 0;
    memset(out, 0, sizeof *out);
    memcpy(&four.sin_addr, place->ip + sizeof mapped, sizeof four.sin_addr);
    memcpy(&six.sin6_addr, place->ip, sizeof six.sin6_addr);
    if (family == AF_INET)
        memcpy(out, &four, sizeof four);
    else
        memcpy(out, &six, sizeof six);
    return family == AF_INET ? (socklen_t)sizeof four : (socklen_t)sizeof six;
}

struct keel_net_place keel_net_place_of_socket(const struct sockaddr_storage *address)
{
    struct keel_net_place place = {.port = 0};
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    if (address->ss_family == AF_INET) {
        memcpy(&four, address, sizeof four);
        set_v4(&place, &four.sin_addr);
        place.port = four.sin_port;
    } else if (address->ss_family == AF_INET6) {
        memcpy(&six, address, sizeof six);
        memcpy(place.ip, &six.sin6_addr, sizeof place.ip);
        place.port = six.sin6_port;
    }
    return place;
}

enum keel_status keel_net_place_of_descriptor(int fd, bool other_side, struct keel_net_place *out)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    int error = other_side ? getpeername(fd, (struct sockaddr *)&address, &bytes)
                           : getsockname(fd, (struct sockaddr *)&address, &bytes);
    if (error != 0)
        return keel_fail_errno(errno, "a socket has no address");
    *out = keel_net_place_of_socket(&address);
    return KEEL_OK;
}

/* ---- networks ------------------------------------------------------------------------------------------ */

static uint32_t mtu_of(const char *name)
{
    struct ifreq request = {.ifr_mtu = 0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    int answered = fd >= 0 ? ioctl(fd, SIOCGIFMTU, &request) : -1;
    if (fd >= 0)
        close(fd);
    return answered == 0 && request.ifr_mtu > 0 ? (uint32_t)request.ifr_mtu : 0;
}

/* Visit the interfaces that are up and have an address that others can use; until `take` says enough. */
static void each_network(bool (*take)(void *context, const struct keel_network *network), void *context)
{
    struct ifaddrs *all;
    bool enough = false;
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *at = all; at != NULL && !enough; at = at->ifa_next) {
        const sa_family_t family = at->ifa_addr != NULL ? at->ifa_addr->sa_family : AF_UNSPEC;
        if ((family != AF_INET && family != AF_INET6) || (at->ifa_flags & IFF_UP) == 0)
            continue;
        struct sockaddr_storage address = {0};
        struct keel_network network = {.mtu_bytes = 0};
        memcpy(&address, at->ifa_addr,
               family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
        network.place = keel_net_place_of_socket(&address);
        if (!keel_net_place_is_v4(&network.place) && network.place.ip[0] == 0xfe &&
            network.place.ip[1] >> 6 == 2)
            continue; /* link-local */
        snprintf(network.name, sizeof network.name, "%s", at->ifa_name);
        network.mtu_bytes = mtu_of(network.name);
        enough = take(context, &network);
    }
    freeifaddrs(all);
}

struct list {
    struct keel_network *out;
    uint32_t count;
};

static bool take_one(void *context, const struct keel_network *network)
{
    struct list *list = context;
    if (!keel_net_place_is_loopback(&network->place))
        list->out[list->count++] = *network;
    return list->count == KEEL_NETWORKS_MAX;
}

uint32_t keel_networks_list(struct keel_network out[KEEL_NETWORKS_MAX])
{
    struct list list = {.out = out};
    each_network(take_one, &list);
    return list.count;
}

struct search {
    const struct keel_net_place *place;
    struct keel_network *out;
    bool found;
};

static bool take_same(void *context, const struct keel_network *network)
{
    struct search *search = context;
    search->found = keel_net_place_same_ip(search->place, &network->place);
    if (search->found)
        *search->out = *network;
    return search->found;
}

bool keel_network_of(const struct keel_net_place *place, struct keel_network *out)
{
    struct search search = {.place = place, .out = out};
    each_network(take_same, &search);
    return search.found;
}
