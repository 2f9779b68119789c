/* attention_drop.h - dropout of probabilities, for attention.cl and attention_lanes.h (OpenCL C only). */
#ifndef KEEL_ATTENTION_ITEMS
#define KEEL_ATTENTION_ITEMS 1 /* a tunable: work-items to a group */
#endif
/* Which probabilities are kept. `control` is not read when rate is 0. */
struct drop {
    uint seed_lo, seed_hi, stream, microbatch, step;
    float rate, keep_scale;
};

static void drop_init(struct drop *drop, float rate, float keep_scale, uint stream,
                      __global const uint *control)
{
    drop->rate = rate;
    drop->keep_scale = keep_scale;
    drop->stream = stream;
    if (rate > 0.0f) {
        drop->seed_lo = control[0];
        drop->seed_hi = control[1];
        drop->step = control[2];
        drop->microbatch = control[3];
    }
}
