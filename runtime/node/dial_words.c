/* dial_words.c - what an agent is told of places: --join and --address, each refused by its own name and with
 * the next move, as far as that can be known without asking anybody. */
#include "dial.h"

#include "hosts.h"
#include <stdio.h>
#include <string.h>

bool keel_dial_next_place(const char **list, char out[KEEL_DIAL_PLACE_BYTES])
{
    const char *text = *list;
    if (text == NULL || text[0] == '\0')
        return false;
    const size_t bytes = strcspn(text, ",");
    snprintf(out, KEEL_DIAL_PLACE_BYTES, "%.*s",
             (int)(bytes < KEEL_DIAL_PLACE_BYTES ? bytes : KEEL_DIAL_PLACE_BYTES - 1), text);
    *list = text[bytes] == ',' && text[bytes + 1] != '\0' ? text + bytes + 1 : NULL;
    return true;
}

static enum keel_status refuse_place(const char *why)
{
    char text[KEEL_DETAIL_BYTES];
    snprintf(text, sizeof text, "%.380s", why);
    return keel_fail(KEEL_INVALID,
                     "--join %s; give HOST:PORT or [IPv6]:PORT, as keel run prints it (agents dial in at)",
                     text);
}

static enum keel_status check_place(const char *place)
{
    char why[KEEL_DETAIL_BYTES];
    struct keel_net_place found;
    bool named;
    if (keel_net_place_check(place, &found, &named) != KEEL_OK) {
        const bool whole = strncmp(keel_detail(), place, strlen(place)) == 0; /* else it names a part */
        snprintf(why, sizeof why, "%s%s%s", whole ? "" : place, whole ? "" : ": ", keel_detail());
        return refuse_place(why);
    }
    if (found.port == 0 && !named && place[0] != '[' && strchr(place, ':') != NULL)
        snprintf(why, sizeof why, "%s: an address of IPv6 stands in brackets, and a port behind them", place);
    else if (found.port == 0)
        snprintf(why, sizeof why, "%s: has no port", place);
    else if (!named && keel_net_place_is_any(&found))
        snprintf(why, sizeof why, "%s: is every address of a host", place);
    else
        return KEEL_OK;
    return refuse_place(why);
}

static bool has_before(const char *places, const char *end, const char *place)
{
    char other[KEEL_DIAL_PLACE_BYTES];
    for (const char *list = places; list != NULL && list < end && keel_dial_next_place(&list, other);)
        if (strcmp(other, place) == 0)
            return true;
    return false;
}

static enum keel_status check_join(const char *places)
{
    char place[KEEL_DIAL_PLACE_BYTES];
    const size_t bytes = strlen(places);
    if (bytes == 0 || places[0] == ',' || places[bytes - 1] == ',' || strstr(places, ",,") != NULL)
        return keel_fail(KEEL_INVALID,
                         "--join %.300s: a place is empty; give HOST:PORT[,HOST:PORT]..., as keel run prints "
                         "it (agents dial in at)",
                         places);
    for (const char *at = places, *list = places; keel_dial_next_place(&list, place); at = list) {
        KEEL_TRY(check_place(place));
        if (has_before(places, at, place))
            return keel_fail(KEEL_INVALID, "--join %.300s: is given twice; give each place once", place);
    }
    return KEEL_OK;
}

static enum keel_status check_address(const char *address)
{
    char why[KEEL_DETAIL_BYTES];
    struct keel_net_place own;
    bool named;
    if (keel_net_place_check(address, &own, &named) == KEEL_OK) {
        if (named || !keel_net_place_is_any(&own))
            return KEEL_OK;
        return keel_fail(KEEL_INVALID,
                         "--address %s: is every address of this host; give the one by which the others "
                         "reach it",
                         address);
    }
    snprintf(why, sizeof why, "%.300s", keel_detail());
    return keel_fail(
        KEEL_INVALID,
        "--address %s; give an address of this host, as 10.0.0.2, 10.0.0.2:4712 or [fd00::2]:4712", why);
}

enum keel_status keel_dial_refuse_address(const char *address, const char *why)
{
    char networks[160];
    keel_hosts_list_networks(networks, sizeof networks, NULL);
    return keel_fail(KEEL_INVALID, "--address %.100s: %.160s; give one of this host's addresses%s%s%s",
                     address, why, networks[0] != '\0' ? " (" : "", networks, networks[0] != '\0' ? ")" : "");
}

enum keel_status keel_dial_check(const char *places, const char *address)
{
    KEEL_TRY(check_join(places));
    return address == NULL ? KEEL_OK : check_address(address);
}
