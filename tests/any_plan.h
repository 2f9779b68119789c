/* any_plan.h - every number of ranks has a plan, for tests in which plans play no part. */
#ifndef KEEL_TESTS_ANY_PLAN_H
#define KEEL_TESTS_ANY_PLAN_H

#include <keel/node.h>

/* By ranks: the number of their plan. Static. */
static inline const uint64_t *any_plan(void)
{
    static uint64_t plans[KEEL_MEMBERS_MAX + 1];
    for (uint32_t ranks = 1; ranks <= KEEL_MEMBERS_MAX; ranks++)
        plans[ranks] = 100 + ranks;
    return plans;
}

#endif
