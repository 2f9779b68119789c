/* drill_fuzz.c - any text as --drill: refused with a reason, or a drill whose text can stand in a line of
 * JSON as it is, since that is how it is remembered. */
#include "drill.h"
#include "fuzz.h"
#include <jansson.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static char text[4096], line[4096];
    struct keel_drill drill, again;
    if (bytes >= sizeof text)
        return 0;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    if (keel_drill_parse(text, &drill) != KEEL_OK) {
        KEEL_ASSERT(keel_detail()[0] != '\0');
        return 0;
    }
    KEEL_ASSERT(strcmp(drill.text, text) == 0);
    KEEL_ASSERT(drill.head.kind < KEEL_DRILL_ACTION_COUNT && drill.head.target <= KEEL_DRILL_ALL &&
                drill.phase < KEEL_AT_COUNT);
    KEEL_ASSERT(keel_drill_parse(drill.text, &again) == KEEL_OK && again.step == drill.step);
    snprintf(line, sizeof line, "{\"drill\":\"%s\"}", drill.text);
    json_t *object = json_loads(line, 0, NULL);
    KEEL_ASSERT(object != NULL);
    KEEL_ASSERT(strcmp(json_string_value(json_object_get(object, "drill")), drill.text) == 0);
    json_decref(object);
    return 0;
}
