/* gemm_part.h - what a group has of a product, whichever way it is computed (OpenCL C only, before gemm.cl):
 * operands, its part of C, and the slices of k. */

#ifndef KEEL_GEMM_ITEMS
#define KEEL_GEMM_ITEMS 1 /* a tunable: work-items to a group */
#endif
/* Of `flags`, with those of gemm_tile.h; types are two bits each. */
enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, CHECKSUM = 32, CHAIN = 64, OVER_K = 16384 };
enum { A_TYPE_AT = 8, B_TYPE_AT = 10, C_TYPE_AT = 12, TYPE_MASK = 3 };

/* The kernel that a function is part of: all know it where they are called. */
enum way { OWN, SMALL, SLICED };

/* op(X), element (k, j) as tile_pack_a and tile_pack_b want it. */
struct operand {
    __global const void *x;
    ulong at;
    uint row, type;
    bool down;
};

static inline ulong operand_at(const struct operand *o, ulong p, ulong j)
{
    return o->at + (o->down ? j * o->row + p : p * o->row + j);
}

/* The part of a product that a group has. */
struct part {
    struct operand a, b;
    struct tile_end end;
    ulong corner; /* of C */
    uint rows, columns, k, first_column;
    __global uint *checksums; /* that of the first tile */
    uint tiles_across;
    uint slices, units, unit; /* of k, as the kernel is given them */
};

/* Where slice i of the part's own ends. */
static inline uint slice_end(const struct part *g, uint i)
{
    return g->slices == 0 ? g->k : canon_slice_begin(g->slices, g->units, g->unit, i + 1);
}

/* Of the slices that wait, those that end with slice i: all, where it is the last. */
static inline uint slice_joins(uint i, uint waiting, bool last)
{
    uint joins = 0;
    while (last ? joins < waiting : (i >> joins & 1) != 0)
        joins++;
    return joins;
}

static uint group_begin(__global const int *offsets, uint groups, uint group, uint end)
{
    return group < groups ? min((uint)max(offsets[group], 0), end) : end;
}
