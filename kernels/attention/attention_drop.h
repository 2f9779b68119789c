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

/* Whether a probability is kept. Not called without dropout. */
static bool drop_keeps(const struct drop *drop, ulong element)
{
    uint c[4] = {(uint)(element >> 2), drop->stream, drop->microbatch, drop->step};
    canon_philox(c, drop->seed_lo, drop->seed_hi);
    const uint word = (uint)element & 3u;
    return canon_uniform(word == 0u ? c[0] : word == 1u ? c[1] : word == 2u ? c[2] : c[3]) >= drop->rate;
}
/* Which of sixteen probabilities are kept: all ones, else 0. */
static int16 drop_kept(const struct drop *drop, ulong16 element)
{
    uint16 c[4] = {convert_uint16(element >> 2), (uint16)(drop->stream), (uint16)(drop->microbatch),
                   (uint16)(drop->step)};
    canon_philox(c, drop->seed_lo, drop->seed_hi);
    const uint16 word = convert_uint16(element) & 3u;
    const uint16 pair0 = word == 0u ? c[0] : c[1], pair1 = word == 2u ? c[2] : c[3];
    return canon_uniform(word < 2u ? pair0 : pair1) >= drop->rate;
}
