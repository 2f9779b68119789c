/* provider_test.c - providers are taken for what they can do, and refused by name of what they lack; the
 * table says what the libfabric of this machine says. */
#include "harness.h"
#include "provider.h"

#include <keel/transport.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <string.h>

static enum keel_status open_with(const char *provider, const char *node)
{
    struct keel_endpoint *endpoint;
    const struct keel_endpoint_config config = {.provider = provider, .node = node, .fabric_only = true};
    enum keel_status status = keel_endpoint_open(&config, &endpoint);
    if (status == KEEL_OK)
        keel_endpoint_close(endpoint);
    return status;
}

/* The provider's own name is the last of a layered one's parts: libfabric is asked for exactly this one. */
static struct fi_info *info_of(const char *name, enum fi_ep_type type)
{
    struct fi_info *hints = fi_allocinfo(), *found = NULL;
    hints->caps = FI_MSG;
    hints->mode = FI_RX_CQ_DATA;
    hints->ep_attr->type = type;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(name);
    int result = fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &found);
    fi_freeinfo(hints);
    if (result == 0 && strcmp(found->fabric_attr->prov_name, name) != 0) {
        fi_freeinfo(found);
        found = NULL;
    }
    return result == 0 ? found : NULL;
}

START_TEST(the_table_says_what_libfabric_says)
{
    size_t count;
    uint32_t present = 0;
    const struct keel_provider *providers = keel_providers(&count);
    for (size_t k = 0; k < count; k++) {
        struct fi_info *connected = info_of(providers[k].name, FI_EP_MSG);
        struct fi_info *other = info_of(providers[k].name, FI_EP_RDM);
        if (connected == NULL && other == NULL)
            continue; /* not on this machine */
        const struct fi_info *info = connected != NULL ? connected : other;
        present++;
        ck_assert_msg(providers[k].connected == (connected != NULL), "%s", providers[k].name);
        ck_assert_msg(providers[k].registers == ((info->domain_attr->mr_mode & FI_MR_LOCAL) != 0), "%s",
                      providers[k].name);
        ck_assert_msg(!providers[k].remote_data || info->domain_attr->cq_data_size >= 8, "%s",
                      providers[k].name);
        fi_freeinfo(connected);
        fi_freeinfo(other);
    }
    ck_assert_uint_ge(present, 1);
    printf("note: %u of %zu providers of the table are on this machine\n", present, count);
}
END_TEST

START_TEST(a_provider_is_refused_by_name_of_what_it_lacks)
{
    size_t count;
    const struct keel_provider *providers = keel_providers(&count);
    for (size_t k = 0; k < count; k++) {
        const char *lacks = keel_provider_lacks(&providers[k]);
        if (lacks == NULL)
            continue;
        ck_assert_int_eq(open_with(providers[k].name, NULL), KEEL_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(keel_detail(), providers[k].name));
        ck_assert_ptr_nonnull(strstr(keel_detail(), lacks));
    }
}
END_TEST

START_TEST(unknown_providers_absent_devices_and_foreign_addresses_have_each_their_words)
{
    ck_assert_int_eq(open_with("carrier-pigeon", NULL), KEEL_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "\"carrier-pigeon\" is not known"));
    ck_assert_int_eq(open_with("tcp", "192.0.2.1"), KEEL_IO); /* of a network for documentation */
    ck_assert_ptr_nonnull(strstr(keel_detail(), "listening at 192.0.2.1"));
    struct fi_info *verbs = info_of("verbs", FI_EP_MSG);
    if (verbs == NULL) {
        ck_assert_int_eq(open_with("verbs", NULL), KEEL_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "finds no device here"));
    }
    fi_freeinfo(verbs);
    ck_ok(open_with("tcp", NULL));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, the_table_says_what_libfabric_says);
    tcase_add_test(tc, a_provider_is_refused_by_name_of_what_it_lacks);
    tcase_add_test(tc, unknown_providers_absent_devices_and_foreign_addresses_have_each_their_words);
}
KEEL_TEST_MAIN("transport providers", cases, 60)
