/* serve_request_fuzz.c - any bytes as what a client of keel serve asks for: refused with a reason, or a
 * request whose every value is one that may be computed. */
#include "fuzz.h"
#include "serve_request.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct keel_serve_request request;
    const enum keel_status status = keel_serve_request_read((const char *)data, bytes, "demo", 7, &request);
    KEEL_ASSERT(status == KEEL_OK || status == KEEL_INVALID || status == KEEL_NO_MEMORY);
    if (status != KEEL_OK) {
        KEEL_ASSERT(request.prompt == NULL && request.stops[0] == NULL && keel_detail()[0] != '\0');
        return 0;
    }
    KEEL_ASSERT(request.prompt != NULL && strlen(request.prompt) == request.prompt_bytes);
    KEEL_ASSERT(request.tokens >= 1 && request.tokens <= INT32_MAX);
    KEEL_ASSERT(request.sampling.seed <= INT64_MAX);
    KEEL_ASSERT(keel_sampling_check(&request.sampling) == KEEL_OK);
    const struct keel_stops stops = {(const char *const *)request.stops, request.stop_count};
    KEEL_ASSERT(keel_stops_check(&stops) == KEEL_OK);
    keel_serve_request_free(&request);
    return 0;
}
