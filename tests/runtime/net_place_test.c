/* net_place_test.c - addresses are read, printed and told apart; what is none is refused by what is wrong
 * with it. */
#include "net_place.h"

#include "harness.h"
#include <string.h>
#include <unistd.h>

START_TEST(a_place_is_printed_as_it_was_read)
{
    static const char *const good[] = {"10.0.0.1:4711", "127.0.0.1:1", "[fd00::1]:65535", "[::1]:9",
                                       "0.0.0.0:80"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct keel_net_place place, again;
        char text[KEEL_PLACE_BYTES];
        ck_ok(keel_net_place_parse(good[i], &place));
        keel_net_place_print(&place, text);
        ck_assert_str_eq(text, good[i]);
        ck_ok(keel_net_place_resolve(good[i], &again));
        ck_assert(keel_net_place_same_ip(&place, &again) && place.port == again.port);
    }
}
END_TEST

START_TEST(what_is_no_place_is_refused)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"10.0.0.1", "not HOST:PORT"},     {"10.0.0.1:", "no port"},    {"10.0.0.1:0", "no port"},
        {"10.0.0.1:65536", "no port"},     {"10.0.0.1:9x", "no port"},  {"10.0.0.1: 9", "no port"},
        {":9", "not HOST:PORT"},           {"[::1]", "not HOST:PORT"},  {"[::1]9", "not [ADDRESS]:PORT"},
        {"[::1:9", "not [ADDRESS]:PORT"},  {"::1:9x", "not HOST:PORT"}, {"[fe80::1]:9", "of one link alone"},
        {"10.0.0.256:9", "not a numeric"}, {"host:9", "not a numeric"}, {"10.0.0.1.2:9", "not a numeric"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct keel_net_place place = {.port = 7};
        ck_status(keel_net_place_parse(bad[i].text, &place), KEEL_INVALID);
        ck_assert_msg(strstr(keel_detail(), bad[i].why) != NULL, "%s: %s", bad[i].text, keel_detail());
        ck_assert_uint_eq(place.port, 7);
    }
}
END_TEST

START_TEST(a_name_without_a_port_is_looked_up)
{
    struct keel_net_place place;
    ck_ok(keel_net_place_resolve("localhost", &place));
    ck_assert(keel_net_place_is_loopback(&place) && place.port == 0);
    ck_ok(keel_net_place_resolve("fd00::2", &place));
    ck_assert(!keel_net_place_is_v4(&place) && place.port == 0);
    ck_status(keel_net_place_resolve("no-such-host.invalid:9", &place), KEEL_NOT_FOUND);
}
END_TEST

START_TEST(kinds_of_addresses_are_told_apart)
{
    static const struct {
        const char *text;
        bool four, loopback, any;
    } rows[] = {
        {"127.0.0.1", true, true, false}, {"127.9.9.9", true, true, false},
        {"10.0.0.1", true, false, false}, {"0.0.0.0", true, false, true},
        {"::1", false, true, false},      {"::", false, false, true},
        {"fd00::1", false, false, false}, {"::ffff:127.0.0.1", true, true, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct keel_net_place place;
        ck_ok(keel_net_place_parse_ip(rows[i].text, &place));
        ck_assert(keel_net_place_is_v4(&place) == rows[i].four);
        ck_assert(keel_net_place_is_loopback(&place) == rows[i].loopback);
        ck_assert(keel_net_place_is_any(&place) == rows[i].any);
    }
}
END_TEST

START_TEST(sockets_of_both_families_take_what_they_can_reach)
{
    static const char *const texts[] = {"10.0.0.1:77", "[fd00::1]:77"};
    for (int i = 0; i < 2; i++) {
        struct keel_net_place place;
        struct sockaddr_storage address;
        ck_ok(keel_net_place_parse(texts[i], &place));
        ck_assert(keel_net_place_family(&place) == (i == 0 ? AF_INET : AF_INET6));
        ck_assert((keel_net_place_to_socket(&place, AF_INET, &address) > 0) == (i == 0));
        ck_assert(keel_net_place_to_socket(&place, AF_INET6, &address) > 0); /* IPv4 mapped */
        const struct keel_net_place back = keel_net_place_of_socket(&address);
        ck_assert(keel_net_place_same_ip(&place, &back) && place.port == back.port);
    }
}
END_TEST

START_TEST(loopback_is_a_network_that_is_found_and_never_listed)
{
    struct keel_network networks[KEEL_NETWORKS_MAX], found;
    struct keel_net_place place;
    for (uint32_t i = keel_networks_list(networks); i > 0; i--)
        ck_assert(!keel_net_place_is_loopback(&networks[i - 1].place) && networks[i - 1].name[0] != '\0');
    ck_ok(keel_net_place_parse_ip("127.0.0.1", &place));
    ck_assert(keel_network_of(&place, &found) && strcmp(found.name, "lo") == 0 && found.mtu_bytes > 1500);
    ck_ok(keel_net_place_parse_ip("192.0.2.77", &place));
    ck_assert(!keel_network_of(&place, &found));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_place_is_printed_as_it_was_read);
    tcase_add_test(tc, what_is_no_place_is_refused);
    tcase_add_test(tc, a_name_without_a_port_is_looked_up);
    tcase_add_test(tc, kinds_of_addresses_are_told_apart);
    tcase_add_test(tc, sockets_of_both_families_take_what_they_can_reach);
    tcase_add_test(tc, loopback_is_a_network_that_is_found_and_never_listed);
}

KEEL_TEST_MAIN("net_place", cases, 30)
