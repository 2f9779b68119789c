/* clicks_fuzz.c - any bytes as a line of a log of clicks: refused, or a label, finite numbers and rows of
 * their tables. The first byte says which format. */
#include "click_log.h"
#include "fuzz.h"
#include <math.h>

enum { DENSE = 3, TABLES = 4, CATEGORIES = 7 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    const struct keel_click_log_format format = {
        .csv = (data[0] & 1) != 0, .dense = DENSE, .tables = TABLES, .categories = CATEGORIES};
    const struct keel_click_log_line line = {"input", 1};
    float label = -1.0F, dense[DENSE];
    int32_t ids[TABLES];
    char *text = malloc(bytes); /* so that a byte too far is found */
    KEEL_ASSERT(text != NULL);
    memcpy(text, data + 1, bytes - 1);
    (void)keel_click_log_is_head(&format, text, bytes - 1);
    if (keel_click_log_parse(&format, text, bytes - 1, &line, &label, dense, ids, 1) == KEEL_OK) {
        KEEL_ASSERT(label == 0.0F || label == 1.0F);
        for (uint32_t d = 0; d < DENSE; d++)
            KEEL_ASSERT(isfinite(dense[d]));
        for (int32_t t = 0; t < TABLES; t++)
            KEEL_ASSERT(ids[t] == -1 || ids[t] / CATEGORIES == t);
    }
    free(text);
    return 0;
}
