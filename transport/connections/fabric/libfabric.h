/* libfabric.h - libfabric's entry points, opened when they are first needed.
 *
 * Linked, libfabric and what its providers pull in were mapped by every command, which took 200 ms of each.
 * So it is opened by whoever opens a backend over it (keel_libfabric_open), and stays open: its providers
 * keep threads and thread-local data that outlive any use. Everything else of libfabric is inline, over the
 * tables of the objects that these calls return. Any thread. */
#ifndef KEEL_TRANSPORT_LIBFABRIC_H
#define KEEL_TRANSPORT_LIBFABRIC_H

#include <keel/status.h>
#include <rdma/fabric.h>

/* UNSUPPORTED: it is not installed, or lacks a call; the detail says why. */
enum keel_status keel_libfabric_open(void);

/* After it was opened: as the functions of libfabric without the prefix; allocinfo is fi_allocinfo. */
int keel_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                    const struct fi_info *hints, struct fi_info **out);
struct fi_info *keel_fi_allocinfo(void);
void keel_fi_freeinfo(struct fi_info *info);
int keel_fi_fabric(struct fi_fabric_attr *attributes, struct fid_fabric **out, void *context);
const char *keel_fi_strerror(int number);

#endif
