/* provider_test.c - providers are taken for what they can do, and refused by name of what they lack; the
 * table says what the libfabric of this machine says. */
#include "device.h"
#include "harness.h"
#include "libfabric.h"

#include <keel/transport.h>
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
    ck_ok(keel_libfabric_open());
    struct fi_info *hints = keel_fi_allocinfo(), *found = NULL;
    hints->caps = FI_MSG;
    hints->mode = FI_RX_CQ_DATA | FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = type;
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->fabric_attr->prov_name = strdup(name);
    int result = keel_fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &found);
    keel_fi_freeinfo(hints);
    if (result == 0 && strcmp(found->fabric_attr->prov_name, name) != 0) {
        keel_fi_freeinfo(found);
        found = NULL;
    }
    return result == 0 ? found : NULL;
}

/* What its queues say when asked for something to sleep on. */
static bool sleeps(struct fi_info *info)
{
    struct fi_cq_attr wanted = {.size = 16, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *queue;
    int fd = -1;
    ck_assert_int_eq(keel_fi_fabric(info->fabric_attr, &fabric, NULL), 0);
    ck_assert_int_eq(fi_domain(fabric, info, &domain, NULL), 0);
    if (fi_cq_open(domain, &wanted, &queue, NULL) == 0) {
        if (fi_control(&queue->fid, FI_GETWAIT, &fd) != 0)
            fd = -1;
        fi_close(&queue->fid);
    }
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
    return fd >= 0;
}

START_TEST(the_table_says_what_libfabric_says)
{
    uint32_t count = 0, present = 0;
    for (const struct keel_provider *it = keel_providers; it->name != NULL; it++) {
        count++;
        struct fi_info *connected = info_of(it->name, FI_EP_MSG);
        struct fi_info *unconnected = info_of(it->name, FI_EP_RDM);
        struct fi_info *info = connected != NULL ? connected : unconnected;
        if (info == NULL)
            continue; /* not on this machine */
        present++;
        ck_assert_msg(it->connected == (connected != NULL), "%s", it->name);
        ck_assert_msg(it->unconnected == (unconnected != NULL), "%s", it->name);
        ck_assert_msg(it->registers == ((info->domain_attr->mr_mode & FI_MR_LOCAL) != 0), "%s", it->name);
        ck_assert_msg(!it->remote_data || info->domain_attr->cq_data_size >= 8, "%s", it->name);
        ck_assert_msg(it->sleeps == sleeps(info), "%s", it->name);
        ck_assert_msg(unconnected == NULL || (unconnected->rx_attr->msg_order & FI_ORDER_SAS) != 0, "%s",
                      it->name);
        keel_fi_freeinfo(connected);
        keel_fi_freeinfo(unconnected);
    }
    ck_assert_uint_ge(present, 1);
    printf("note: %u of %u providers of the table are on this machine\n", present, count);
}
END_TEST

START_TEST(every_provider_is_driven_or_lacks_something)
{
    for (const struct keel_provider *it = keel_providers; it->name != NULL; it++) {
        bool driven = keel_provider_drive(it) != KEEL_DRIVE_NONE;
        ck_assert_msg(driven == (keel_provider_lacks(it) == NULL), "%s", it->name);
    }
    ck_assert_int_eq(keel_provider_drive(keel_provider_find("tcp")), KEEL_DRIVE_CONNECTED);
    ck_assert_int_eq(keel_provider_drive(keel_provider_find("tcp;ofi_rxm")), KEEL_DRIVE_EPOCH);
}
END_TEST

START_TEST(providers_with_unconnected_endpoints_alone_are_taken)
{
    struct fi_info *layered = info_of("tcp;ofi_rxm", FI_EP_RDM);
    if (layered != NULL) {
        ck_ok(open_with("tcp;ofi_rxm", NULL));
        ck_assert_int_eq(open_with("tcp;ofi_rxm", "192.0.2.1"), KEEL_IO);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "listening at 192.0.2.1"));
    }
    keel_fi_freeinfo(layered);
}
END_TEST

START_TEST(without_a_name_verbs_is_taken_where_it_is_and_tcp_elsewhere)
{
    struct keel_provider_info device;
    struct fi_info *verbs = info_of("verbs", FI_EP_MSG);
    ck_ok(keel_device_find(NULL, "127.0.0.1", &device));
    if (verbs == NULL)
        ck_assert_str_eq(device.provider->name, "tcp");
    keel_fi_freeinfo(device.info);
    keel_fi_freeinfo(verbs);
}
END_TEST

START_TEST(a_provider_is_refused_by_name_of_what_it_lacks)
{
    for (const struct keel_provider *it = keel_providers; it->name != NULL; it++) {
        const char *lacks = keel_provider_lacks(it);
        if (lacks == NULL)
            continue;
        ck_assert_int_eq(open_with(it->name, NULL), KEEL_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(keel_detail(), it->name));
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
    keel_fi_freeinfo(verbs);
    ck_ok(open_with("tcp", NULL));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, the_table_says_what_libfabric_says);
    tcase_add_test(tc, every_provider_is_driven_or_lacks_something);
    tcase_add_test(tc, providers_with_unconnected_endpoints_alone_are_taken);
    tcase_add_test(tc, without_a_name_verbs_is_taken_where_it_is_and_tcp_elsewhere);
    tcase_add_test(tc, a_provider_is_refused_by_name_of_what_it_lacks);
    tcase_add_test(tc, unknown_providers_absent_devices_and_foreign_addresses_have_each_their_words);
}
KEEL_TEST_MAIN("transport providers", cases, 60)
