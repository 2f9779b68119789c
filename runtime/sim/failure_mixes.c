/* failure_mixes.c - published failure rates, as texts that failures.h reads. */
#include "failures.h"

#include <string.h>

/* Table 5 of "The Llama 3 Herd of Models" (arXiv 2407.21783): 419 unexpected interruptions in 54 days on
 * 16,384 GPUs, which is 2,048 nodes of 8, or 110.592 thousand node-days. Its authors do not say how long
 * repairs took: those of LANL stand here (below), and 2 minutes for what a new process cures. Each ended the
 * whole job there; here it is what it does to a run that goes on without that node. */
#define LLAMA3                                                                                               \
    "rate 148/110.592 process 64m mean=342m  # faulty GPU\n"                                                 \
    "rate  72/110.592 process 64m mean=342m  # GPU memory (HBM3)\n"                                          \
    "rate  54/110.592 process 2m             # software bug\n"                                               \
    "rate  35/110.592 node    70m mean=247m  # network switch or cable\n"                                    \
    "rate  32/110.592 node    64m mean=342m  # unplanned maintenance of a host\n"                            \
    "rate  19/110.592 process 64m mean=342m  # GPU memory (SRAM)\n"                                          \
    "rate  17/110.592 process 64m mean=342m  # GPU system processor\n"                                       \
    "rate   7/110.592 node    64m mean=342m  # network card\n"                                               \
    "rate   7/110.592 hang    2m             # watchdog of collectives\n"                                    \
    "rate   6/110.592 corrupt 64m mean=342m  # silent data corruption\n"                                     \
    "rate   6/110.592 process 64m mean=342m  # GPU thermal interface and sensor\n"                           \
    "rate   3/110.592 node    64m mean=342m  # SSD\n"                                                        \
    "rate   3/110.592 node    64m mean=342m  # power supply\n"                                               \
    "rate   2/110.592 node    64m mean=342m  # chassis\n"                                                    \
    "rate   2/110.592 node    64m mean=342m  # IO expansion board\n"                                         \
    "rate   2/110.592 process 2m             # dependency\n"                                                 \
    "rate   2/110.592 node    64m mean=342m  # CPU\n"                                                        \
    "rate   2/110.592 node    64m mean=342m  # memory of the host\n"

/* After LANL's systems (Schroeder and Gibson, "A large-scale study of failures in high-performance computing
 * systems", DSN 2006): 3.0 to 3.6 failures per 1,000 node-days on those of 1,024 nodes, in bursts (Weibull's
 * shape 0.7 to 0.95), repairs lognormal, median and mean by root cause. 2% hit several nodes at once: here
 * the environment's. How much each cause has differs between the systems; these shares lie between. */
#define LANL                                                                                                 \
    "rate 1.90 node    64m  mean=342m shape=0.8           # hardware\n"                                      \
    "rate 0.65 process 33m  mean=369m shape=0.8           # software\n"                                      \
    "rate 0.15 node    70m  mean=247m shape=0.8           # network\n"                                       \
    "rate 0.07 node    269m mean=572m shape=0.8 nodes=16  # environment\n"                                   \
    "rate 0.03 node    44m  mean=163m shape=0.8           # people\n"                                        \
    "rate 0.50 node    32m  mean=398m shape=0.8           # unknown\n"

/* Llama 3's, and nodes that are slow: 1.34 is the mean delay that Greyhound measured. How often and how long
 * is an assumption (once a 1,000 node-days; median 10 minutes, mean 70): give your own. */
#define GRAY LLAMA3 "rate 1 slow 10m mean=70m factor=1.34\n"

const char *keel_failures_mix(const char *name)
{
    static const struct {
        const char *name, *text;
    } mixes[] = {{"llama3", LLAMA3}, {"lanl", LANL}, {"gray", GRAY}};
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++)
        if (strcmp(name, mixes[i].name) == 0)
            return mixes[i].text;
    return NULL;
}
