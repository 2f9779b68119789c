/* table_host.c - table.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_table;

enum { SORT_BLOCK = 2048 };

static void host_gather(KEEL_HOST_ARGUMENTS)
{
    const int32_t *ids = (const int32_t *)arguments[0] + u64_at(arguments, 4);
    const float *w = arguments[1], *x = arguments[2];
    float *y = arguments[3];
    const uint32_t count = u32_at(arguments, 5), n = u32_at(arguments, 6);
    const uint32_t limit = u32_at(arguments, 7), per = u32_at(arguments, 8);
    const bool has_weights = u32_at(arguments, 9) != 0;
    for (uint32_t i = 0; i < count; i++, y += n) {
        const uint32_t id = (uint32_t)ids[i];
        for (uint32_t c = 0; c < n; c++) {
            if (id >= limit)
                y[c] = 0.0F;
            else if (has_weights)
                y[c] = x[(size_t)(id / per) * n + c] * w[id];
            else
                y[c] = x[(size_t)(id / per) * n + c];
        }
    }
}

KEEL_HOST_KERNEL static void host_bag(KEEL_HOST_ARGUMENTS)
{
    const int32_t *ids = arguments[0];
    const float *w = arguments[1], *table = arguments[2];
    float *y = arguments[3];
    const uint32_t bags = u32_at(arguments, 4), size = u32_at(arguments, 5);
    const uint32_t limit = u32_at(arguments, 6), n = u32_at(arguments, 7);
    const bool has_weights = u32_at(arguments, 8) != 0;
    for (uint32_t bag = 0; bag < bags; bag++, ids += size, w += size, y += n) {
        for (uint32_t c = 0; c < n; c++)
            y[c] = 0.0F;
        for (uint32_t j = 0; j < size; j++) {
            const float *row = table + (size_t)(uint32_t)ids[j] * n;
            for (uint32_t c = 0; c < n && (uint32_t)ids[j] < limit; c++)
                y[c] = has_weights ? canon_fma(w[j], row[c], y[c]) : y[c] + row[c];
        }
    }
}

/* ---- sorting ---- */

/* The arguments of keel_sort_count and keel_sort_place. */
struct sort {
    const int32_t *ids;
    uint32_t *work, *counts;
    uint32_t count, limit, shift, blocks;
    uint64_t from;
    bool first_pass;
};

static struct sort sort_of(void *const *arguments)
{
    struct sort sort = {.ids = arguments[0], .work = arguments[1], .count = u32_at(arguments, 2)};
    sort.counts = sort.work + 4 * (size_t)sort.count;
    sort.limit = u32_at(arguments, 3);
    sort.shift = u32_at(arguments, 4);
    sort.blocks = u32_at(arguments, 5);
    sort.from = u64_at(arguments, 6);
    sort.first_pass = u32_at(arguments, 7) != 0;
    return sort;
}

static uint32_t sort_key(const struct sort *sort, uint32_t i)
{
    if (!sort->first_pass)
        return sort->work[sort->from + i];
    return (uint32_t)sort->ids[i] < sort->limit ? (uint32_t)sort->ids[i] : sort->limit;
}

static void host_sort_count(KEEL_HOST_ARGUMENTS)
{
    const struct sort sort = sort_of(arguments);
    for (uint32_t i = 0; i < 256 * sort.blocks; i++)
        sort.counts[i] = 0;
    for (uint32_t i = 0; i < sort.count; i++)
        sort.counts[(sort_key(&sort, i) >> sort.shift & 255U) * sort.blocks + i / SORT_BLOCK]++;
}

static void host_sort_scan(KEEL_HOST_ARGUMENTS)
{
    uint32_t *counts = (uint32_t *)arguments[0] + 4 * (size_t)u32_at(arguments, 1), before = 0;
    const uint32_t blocks = u32_at(arguments, 2);
    for (uint32_t i = 0; i < 256 * blocks; i++) {
        const uint32_t here = counts[i];
        counts[i] = before;
        before += here;
    }
}

static void host_sort_place(KEEL_HOST_ARGUMENTS)
{
    const struct sort sort = sort_of(arguments);
    const size_t to = sort.from == 0 ? 2 * (size_t)sort.count : 0;
    uint32_t next[256] = {0};
    for (uint32_t i = 0; i < sort.count; i++) {
        for (uint32_t d = 0; d < 256 && i % SORT_BLOCK == 0; d++)
            next[d] = sort.counts[d * sort.blocks + i / SORT_BLOCK];
        const uint32_t key = sort_key(&sort, i);
        const uint32_t place = next[key >> sort.shift & 255U]++;
        if (place >= sort.count)
            continue;
        const size_t at = to + place;
        sort.work[at] = key;
        sort.work[at + sort.count] = sort.first_pass ? i : sort.work[sort.from + sort.count + i];
    }
}

static void host_scatter_add(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[1];
    float *table = arguments[2];
    const uint32_t count = u32_at(arguments, 3), limit = u32_at(arguments, 4);
    const uint32_t per = u32_at(arguments, 5), n = u32_at(arguments, 6);
    const uint32_t *keys = arguments[0], *positions = keys + count;
    for (uint32_t i = 0, end; i < count && keys[i] < limit; i = end) {
        for (end = i + 1; end < count && keys[end] == keys[i];)
            end++;
        for (uint32_t c = 0; c < n; c++) {
            float s = 0.0F;
            for (uint32_t j = i; j < end; j++)
                s = positions[j] < count ? s + x[(size_t)(positions[j] / per) * n + c] : s;
            table[(size_t)keys[i] * n + c] += s;
        }
    }
}

/* ---- pairs ---- */

static void host_pairwise(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *y = arguments[1];
    const uint32_t batch = u32_at(arguments, 2), f = u32_at(arguments, 3), n = u32_at(arguments, 4);
    for (uint32_t b = 0; b < batch; b++, x += (size_t)f * n) {
        for (uint32_t i = 1; i < f; i++) {
            for (uint32_t j = 0; j < i; j++) {
                float lanes[KEEL_LANES] = {0};
                for (uint32_t c = 0; c < n; c++)
                    lanes[c % KEEL_LANES] += x[(size_t)i * n + c] * x[(size_t)j * n + c];
                *y++ = canon_fold(lanes);
            }
        }
    }
}

static size_t pair_of(size_t a, size_t b)
{
    return a > b ? a * (a - 1) / 2 + b : b * (b - 1) / 2 + a;
}

KEEL_HOST_KERNEL static void host_pairwise_grad(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0], *dy = arguments[1];
    float *dx = arguments[2];
    const uint32_t batch = u32_at(arguments, 3), f = u32_at(arguments, 4), n = u32_at(arguments, 5);
    for (uint32_t b = 0; b < batch; b++, x += (size_t)f * n, dy += (size_t)f * (f - 1) / 2) {
        for (uint32_t i = 0; i < f; i++, dx += n) {
            for (uint32_t c = 0; c < n; c++) {
                float s = 0.0F;
                for (uint32_t j = 0; j < f; j++)
                    s = j == i ? s : canon_fma(dy[pair_of(i, j)], x[(size_t)j * n + c], s);
                dx[c] = s;
            }
        }
    }
}

static const struct keel_module_kernel table_kernels[] = {
    {"keel_gather", host_gather},         {"keel_bag", host_bag},
    {"keel_sort_count", host_sort_count}, {"keel_sort_scan", host_sort_scan},
    {"keel_sort_place", host_sort_place}, {"keel_scatter_add", host_scatter_add},
    {"keel_pairwise", host_pairwise},     {"keel_pairwise_grad", host_pairwise_grad},
};

const struct keel_module keel_module_table = KEEL_MODULE("table", keel_cl_table, table_kernels);
