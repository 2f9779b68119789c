/* attention_drop.h - dropout of probabilities, and the workspace, for attention.cl and attention_lanes.h
 * (OpenCL C only). */
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

/* Floats of all queries, say, when they are packed. */
static ulong part_floats(uint tokens, uint heads, uint width)
{
    return (ulong)get_num_groups(2) * heads * tokens * width;
}
