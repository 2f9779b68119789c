/* embedding_host.c - embedding.cl in C: the reference, and what the host device runs. */
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_embedding;

static void host_embedding(KEEL_HOST_ARGUMENTS)
{
    const int32_t *ids = arguments[0];
    const float *table = arguments[1], *positions = arguments[2];
    float *y = arguments[3];
    uint32_t rows = u32_at(arguments, 4), tokens = u32_at(arguments, 5), width = u32_at(arguments, 6);
    const uint32_t vocab = u32_at(arguments, 8), first = u32_at(arguments, 9);
    bool has_positions = u32_at(arguments, 7) != 0;
    for (uint32_t row = 0; row < rows; row++) {
        const uint32_t id = (uint32_t)ids[row] - first;
        for (uint32_t i = 0; i < width; i++) {
            float v = id < vocab ? table[(size_t)id * width + i] : 0.0F;
            y[(size_t)row * width + i] =
                has_positions ? v + positions[(size_t)(row % tokens) * width + i] : v;
        }
    }
}

static bool seen_before(const int32_t *ids, uint32_t row)
{
    for (uint32_t i = 0; i < row; i++) {
        if (ids[i] == ids[row])
            return true;
    }
    return false;
}

/* Columns [column, column + width) of the gradient of the id at row `first`. */
static void add_rows(const int32_t *ids, const float *dy, float *target, uint32_t first, uint32_t rows,
                     size_t stride, uint32_t width)
{
    float s[KEEL_LANES] = {0};
    for (uint32_t row = first; row < rows; row++) {
        if (ids[row] != ids[first])
            continue;
        for (uint32_t i = 0; i < width; i++)
            s[i] += dy[row * stride + i];
    }
    for (uint32_t i = 0; i < width; i++)
        target[i] += s[i];
}

static void host_embedding_grad(KEEL_HOST_ARGUMENTS)
{
    const int32_t *ids = arguments[0];
    const float *dy = arguments[1];
    float *dtable = arguments[2];
    uint32_t rows = u32_at(arguments, 3), width = u32_at(arguments, 4);
    const uint32_t vocab = u32_at(arguments, 6), first_id = u32_at(arguments, 7);
    for (uint32_t first = 0; first < rows; first++) {
        const uint32_t entry = (uint32_t)ids[first] - first_id;
        if (entry >= vocab || seen_before(ids, first))
            continue;
        for (uint32_t column = 0; column < width; column += KEEL_LANES) {
            uint32_t left = width - column < KEEL_LANES ? width - column : KEEL_LANES;
            add_rows(ids, dy + column, dtable + (size_t)entry * width + column, first, rows, width, left);
        }
    }
}

static void host_embedding_positions(KEEL_HOST_ARGUMENTS)
{
    const float *dy = arguments[0];
    float *dpositions = arguments[1];
    uint32_t batch = u32_at(arguments, 2);
    size_t count = (size_t)u32_at(arguments, 3) * u32_at(arguments, 4);
    for (size_t i = 0; i < count; i++) {
        float s = dy[i];
        for (uint32_t b = 1; b < batch; b++)
            s += dy[b * count + i];
        dpositions[i] += s;
    }
}

static const struct keel_module_kernel embedding_kernels[] = {
    {"keel_embedding", host_embedding},
    {"keel_embedding_grad", host_embedding_grad},
    {"keel_embedding_positions", host_embedding_positions},
};

const struct keel_module keel_module_embedding =
    KEEL_MODULE("embedding", keel_cl_embedding, embedding_kernels);
