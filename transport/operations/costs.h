/* costs.h - what the cost model goes by: the built-in figures, and their files. */
#ifndef KEEL_TRANSPORT_COSTS_H
#define KEEL_TRANSPORT_COSTS_H

#include <keel/transport.h>
#include <stdio.h>

/* What `keel net tune` found on a small machine of today, over shared memory and TCP on loopback, 2 to 8
 * ranks. A group of one host adds how many processors that has; of others' nobody knows here. */
extern const struct keel_cost_model keel_costs_built_in;

/* The figures one by one, for whoever looks for better ones: `number` below KEEL_COSTS. */
enum { KEEL_COSTS = 8 };
const char *keel_costs_name(uint32_t number);
uint64_t *keel_costs_figure(struct keel_cost_model *costs, uint32_t number);

/* A file that keel_costs_read takes; `remark` (one line) stands above. */
enum keel_status keel_costs_write(const char *path, const struct keel_cost_model *costs, const char *remark);
/* Never 0. What ranks compare: those with other figures would choose other algorithms. */
uint16_t keel_costs_hash(const struct keel_cost_model *costs);

#endif
