/* canon_row.h - sixteen lanes by one work-item, or by sixteen: what canon_tree.h has, for whoever shares them
 * (OpenCL C only). KEEL_ROW_ITEMS is a tunable, launch.row_items:
 *
 *     1    a work-item has all sixteen lanes of a row, as a vector: processors
 *     16   sixteen neighbours of a group have a lane each: devices whose lanes are many and narrow, and
 *          whose memory wants neighbours to read what lies side by side
 *
 * Kernels over rows have one text for both: `row_real` is what a work-item has of sixteen elements. A row is
 * that of ROW_NUMBER; with 16, rows beyond the last have no columns, but their work-items meet the barriers
 * of row_fold. Every lane adds the same values in the same order, and folds are those of canon_fold: the same
 * bits. */
#if KEEL_ROW_ITEMS == 1
#define row_real            float16
#define row_word            uint16
#define ROW_LANE            0
#define ROW_NUMBER          get_global_id(0)
#define ROW_FOLDS(name)     __local float *const name __attribute__((unused)) = 0
#define row_load            canon_load
#define row_store           canon_store
#define row_mask            canon_mask
#define row_first           canon_first
#define row_fold(v, at)     canon_fold(v)
#define row_fold_max(v, at) canon_fold_max(v)
#define ROW_LEADS           true
#define ROW_OWNS(i)         true
#define ROW_SYNC
#define ROW_UNROLL
#define row_sum_run(x, n, at) canon_sum_run(x, n)
#else
#define row_real              float
#define row_word              uint
#define ROW_LANE              ((uint)get_local_id(0) % 16)
#define ROW_NUMBER            ((uint)get_global_id(0) / 16)
enum { ROW_GROUP = 256 /* work-items of a group at most */ };
#define ROW_FOLDS(name)       __local float name[ROW_GROUP] __attribute__((aligned(64)))
#define ROW_LEADS             (ROW_LANE == 0)
#define ROW_OWNS(i)           (ROW_LANE == (i) % 16)
#define ROW_UNROLL            _Pragma("unroll 8")
#define ROW_SYNC              barrier(CLK_GLOBAL_MEM_FENCE); /* what one of a group's only row has written, all read */

static inline float row_load(__global const float *x, uint n)
{
    return ROW_LANE < n ? x[ROW_LANE] : 0.0f;
}
static inline void row_store(float v, __global float *y, uint n)
{
    if (ROW_LANE < n)
        y[ROW_LANE] = v;
}
static inline float row_first(float v, float w, uint n)
{
    return ROW_LANE < n ? v : w;
}
static inline float row_mask(float v, uint n)
{
    return row_first(v, 0.0f, n);
}
/* The sixteen lanes of each row, for all of its work-items; the whole group has to come by. */
CANON_INLINE float16 row_gather(float v, __local float *at)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    at[get_local_id(0)] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    return ((__local const float16 *)at)[get_local_id(0) / 16];
}
#define row_fold(v, at)       canon_fold(row_gather(v, at))
#define row_fold_max(v, at)   canon_fold_max(row_gather(v, at))

static inline float row_lane_sum(__global const float *x, uint n)
{
    float s = 0.0f;
    _Pragma("unroll 8") for (uint i = 0; i < n; i += 16) s += row_load(x + i, n - i);
    return s;
}
#define row_sum_run(x, n, at) row_fold(row_lane_sum(x, n), at)

/* The sum of a number of each work-item of the group, modulo 2^64, for the first of them: in no order. */
CANON_INLINE ulong group_total(ulong v, __local ulong *at)
{
    const uint id = get_local_id(0);
    at[id] = v;
    for (uint half_size = get_local_size(0) / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id < half_size)
            at[id] += at[id + half_size];
    }
    return id == 0 ? at[0] : 0;
}
#endif
