/* spike.c - see spike.h. */
#include "spike.h"
#include <math.h>
#include <string.h>

static const double deviations = 7, least_factor = 1.5, rise_factor = 2;

static double mean_of_newest(const struct keel_spike *spike, uint32_t many)
{
    double sum = 0;
    for (uint32_t i = 1; i <= many; i++)
        sum += (double)spike->last[(spike->count - i) % KEEL_SPIKE_WINDOW];
    return sum / many;
}

/* Above what the next loss is a jump. */
static void set_limit(struct keel_spike *spike)
{
    uint32_t many = spike->count < KEEL_SPIKE_WINDOW ? (uint32_t)spike->count : KEEL_SPIKE_WINDOW;
    double squares = 0;
    spike->mean = mean_of_newest(spike, many);
    for (uint32_t i = 0; i < many; i++) {
        double off = (double)spike->last[i] - spike->mean;
        squares += off * off;
    }
    spike->limit = fmax(spike->mean + deviations * sqrt(squares / many), spike->mean * least_factor);
}

static bool rises(struct keel_spike *spike)
{
    float newest = (float)mean_of_newest(spike, KEEL_SPIKE_LEAST);
    if (spike->lowest <= 0.0F || newest < spike->lowest)
        spike->lowest = newest;
    return (double)newest > rise_factor * (double)spike->lowest && newest > spike->first;
}

static void take(struct keel_spike *spike, float loss)
{
    spike->first = spike->count == 0 ? loss : spike->first;
    spike->last[spike->count++ % KEEL_SPIKE_WINDOW] = loss;
}

bool keel_spike_add(struct keel_spike *spike, float loss)
{
    if (spike->count < KEEL_SPIKE_LEAST) {
        take(spike, loss);
        return false;
    }
    set_limit(spike);
    bool jump = !((double)loss <= spike->limit);
    if (!jump)
        take(spike, loss);
    if (!jump && !rises(spike)) {
        spike->outside = 0;
        return false;
    }
    spike->outside++;
    if (spike->outside >= KEEL_SPIKE_WINDOW) {
        memset(spike, 0, sizeof *spike);
        take(spike, loss);
        return false;
    }
    return spike->outside == 1;
}
