/* embedding.cl - token and position embedding, and its gradient.
 *
 *     embedding            y[b, t, :] = table[ids[b, t], :] + positions[t, :]
 *     embedding_grad       dtable[v, :] += s, s from +0 adding dy[row, :] for the rows with id v, ascending
 *     embedding_positions  dpositions[t, :] += s, s = dy[0, t, :] + dy[1, t, :] + ..., b ascending
 *
 * The table has the rows of ids first to first + vocab - 1; the equations are those of first = 0. Another id reads and
 * writes nothing: its row of table counts as zeros.
 *
 * Shapes: ids [batch, tokens]; y, dy [batch, tokens, width]; table [vocab, width]; positions [tokens,
 * width]. embedding_grad has items_per_row work-items for each row, which share its columns. Those of the
 * first row with an id do the work for all rows with it, and the others leave at once: ids are read rows^2 / 2
 * times at most, two hundred and fifty-six at a time, and only the rows of the table that occur are touched. Where
 * lanes are many, items_per_row is a group's: each compares some of the ids, and all add their columns of those rows. */

__kernel void keel_embedding(__global const int *ids, __global const float *table,
                             __global const float *positions, __global float *y, uint rows, uint tokens,
                             uint width, uint has_positions, uint vocab, uint first)
{
    const uint row = ROW_NUMBER;
    if (row >= rows)
        return;
    const uint id = (uint)ids[row] - first;
    const bool known = id < vocab;
    table += known ? (ulong)id * width : 0;
    positions += (ulong)(row % tokens) * width;
    y += (ulong)row * width;
    for (uint i = 0; i < width; i += 16) {
        const row_real v = known ? row_load(table + i, width - i) : (row_real)(0.0f);
        row_store(has_positions ? v + row_load(positions + i, width - i) : v, y + i, width - i);
    }
}

#if KEEL_ROW_ITEMS > 1
enum { HELD = 8 /* columns that a work-item adds at a time */, MASKS = ROW_GROUP / 32 };

/* Which of the next rows, one for each work-item of the group, have the id: bit by bit. */
CANON_INLINE void find_rows(__global const int *ids, uint base, uint rows, int id, __local uint *masks)
{
    const uint item = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < MASKS)
        masks[item] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (base + item < rows && ids[base + item] == id)
        atomic_or(masks + item / 32, 1u << item % 32);
    barrier(CLK_LOCAL_MEM_FENCE);
}

__kernel void keel_embedding_grad(__global const int *ids, __global const float *dy, __global float *dtable,
                                  uint rows, uint width, uint items_per_row, uint vocab, uint first_id)
{
    __local uint masks[MASKS];
    const uint first = get_group_id(0), size = get_local_size(0);
    const int id = ids[first];
    const uint entry = (uint)id - first_id;
    (void)items_per_row;
    if (entry >= vocab)
        return;
    for (uint base = 0; base < first; base += size) {
        uint any = 0;
        find_rows(ids, base, first, id, masks);
        for (uint w = 0; w < MASKS; w++)
            any |= masks[w];
        if (any != 0)
            return;
    }
    dtable += (ulong)entry * width;
    for (uint c = get_local_id(0); c - get_local_id(0) < width; c += HELD * size) {
        float s[HELD];
        _Pragma("unroll") for (uint h = 0; h < HELD; h++) s[h] = 0.0f;
        for (uint base = first; base < rows; base += size) {
            find_rows(ids, base, rows, id, masks);
            for (uint w = 0; w < MASKS; w++)
                for (uint bits = masks[w]; bits != 0; bits &= bits - 1) {
                    const uint row = base + 32 * w + 31 - clz(bits & -bits);
                    _Pragma("unroll") for (uint h = 0; h < HELD; h++)
                    {
                        if (c + h * size < width)
                            s[h] += dy[(ulong)row * width + c + h * size];
                    }
                }
        }
        _Pragma("unroll") for (uint h = 0; h < HELD; h++)
        {
            if (c + h * size < width)
                dtable[c + h * size] += s[h];
        }
    }
}
#else
/* Goes on to the first so many vectors of rows in which the id is, or where fewer are left. */
#define SKIP(vectors)                                                                                        \
    for (; row + 16 * vectors <= end; row += 16 * vectors) {                                                 \
        int16 others = vload16(0, ids + row) != wanted;                                                      \
        _Pragma("unroll") for (uint v = 1; v < vectors; v++) others &= vload16(v, ids + row) != wanted;      \
        if (!canon_all(others))                                                                              \
            break;                                                                                           \
    }
/* The first row in [row, end) whose id is `id`, or end. */
static inline uint find_id(__global const int *ids, uint row, uint end, int id)
{
    const int16 wanted = (int16)(id);
    SKIP(16)
    SKIP(4)
    SKIP(1)
    while (row < end && ids[row] != id)
        row++;
    return row;
}

enum { VECTORS = 8, COLUMNS = 16 * VECTORS, LISTED = 32 }; /* rows of one id that are looked for once */
#define EACH(v) _Pragma("unroll") for (uint v = 0; v < VECTORS; v++)

/* s += x, of which `left` columns are there: a constant where all are, so that s stays in registers. */
CANON_INLINE void add_row(float16 *s, __global const float *x, const uint left)
{
    EACH(v)
    {
        if (16 * v < left)
            s[v] += canon_load(x + 16 * v, left - 16 * v);
    }
}
CANON_INLINE void add_sums(const float16 *s, __global float *y, const uint left)
{
    EACH(v)
    {
        if (16 * v < left)
            canon_store(canon_load(y + 16 * v, left - 16 * v) + s[v], y + 16 * v, left - 16 * v);
    }
}

/* Columns [0, left) but COLUMNS at most: the listed rows, and those from `more` on with the id. */
CANON_INLINE void add_rows(__global const int *ids, __global const float *dy, __global float *dtable, const uint *list,
                           uint listed, uint more, uint rows, uint width, const uint left, int id)
{
    float16 s[VECTORS];
    EACH(v) s[v] = (float16)(0.0f);
    for (uint r = 0; r < listed; r++)
        add_row(s, dy + (ulong)list[r] * width, left);
    for (uint row = more; row < rows; row = find_id(ids, row + 1, rows, id))
        add_row(s, dy + (ulong)row * width, left);
    add_sums(s, dtable, left);
}

__kernel void keel_embedding_grad(__global const int *ids, __global const float *dy, __global float *dtable,
                                  uint rows, uint width, uint items_per_row, uint vocab, uint first_id)
{
    const uint item = get_global_id(0), first = item / items_per_row;
    if (first >= rows)
        return;
    const int id = ids[first];
    const uint entry = (uint)id - first_id;
    if (entry >= vocab)
        return;
    dtable += (ulong)entry * width;
    for (uint c = 0; c < width; c += 32) { /* while ids are compared; lines come in pairs */
        CANON_FETCH(dtable + c);
        CANON_FETCH(dy + (ulong)first * width + c);
    }
    if (find_id(ids, 0, first, id) < first)
        return;
    uint list[LISTED], listed = 0, row = first;
    for (; row < rows && listed < LISTED; row = find_id(ids, row + 1, rows, id))
        list[listed++] = row;
    for (uint c = (item % items_per_row) * COLUMNS; c < width; c += items_per_row * COLUMNS) {
        if (c + COLUMNS <= width)
            add_rows(ids, dy + c, dtable + c, list, listed, row, rows, width, COLUMNS, id);
        else
            add_rows(ids, dy + c, dtable + c, list, listed, row, rows, width, width - c, id);
    }
}

#endif

__kernel void keel_embedding_positions(__global const float *dy, __global float *dpositions, uint batch,
                                       uint tokens, uint width)
{
    const uint t = ROW_NUMBER;
    if (t >= tokens)
        return;
    dy += (ulong)t * width;
    dpositions += (ulong)t * width;
    const ulong stride = (ulong)tokens * width;
    for (uint i = 0; i < width; i += 16) {
        const uint left = width - i;
        row_real s = row_load(dy + i, left);
        for (uint b = 1; b < batch; b++)
            s += row_load(dy + b * stride + i, left);
        row_store(row_load(dpositions + i, left) + s, dpositions + i, left);
    }
}
