/* clicks_fuzz.c - any bytes as a line of a log of clicks: refused, or a label, finite numbers and rows of
 * their tables. The first byte says which format. */
#include "click_log.h"
#include "fuzz.h"
#include <math.h>

enum { DENSE = 3, TABLES = 4, BAG = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    static const uint32_t rows[TABLES] = {7, 1, 16777216, 5};
    const struct keel_click_log_format format = {.csv = (data[0] & 1) != 0,
                                                 .dense = DENSE,
                                                 .tables = TABLES,
                                                 .rows = rows,
                                                 .bag = BAG,
                                                 .real_labels = (data[0] & 2) != 0};
    const struct keel_click_log_line line = {"input", 1};
    float label = -1.0F, dense[DENSE];
    int32_t ids[TABLES * BAG];
    char *text = malloc(bytes); /* so that a byte too far is found */
    KEEL_ASSERT(text != NULL);
    memcpy(text, data + 1, bytes - 1);
    (void)keel_click_log_is_head(&format, text, bytes - 1);
    if (keel_click_log_parse(&format, text, bytes - 1, &line, &label, dense, ids) == KEEL_OK) {
        KEEL_ASSERT(format.real_labels ? isfinite(label) : label == 0.0F || label == 1.0F);
        for (uint32_t d = 0; d < DENSE; d++)
            KEEL_ASSERT(isfinite(dense[d]));
        for (uint32_t t = 0, first = 0; t < TABLES; first += rows[t++])
            for (uint32_t i = t * BAG; i < (t + 1) * BAG; i++)
                KEEL_ASSERT(ids[i] == -1 || (uint32_t)ids[i] - first < rows[t]);
    }
    free(text);
    return 0;
}
