/* http_library.c - see http_library.h. */
#include "http_library.h"
#include <keel/library.h>

static struct keel_microhttpd functions;

#define ENTRY(name) {"MHD_" #name, (void *)&functions.name},
static const struct keel_library_entry entries[] = {KEEL_MICROHTTPD(ENTRY)};
static struct keel_library library = {
    .file = "libmicrohttpd.so.12", .entries = entries, .entry_count = sizeof entries / sizeof entries[0]};

enum keel_status keel_microhttpd_open(const struct keel_microhttpd **out)
{
    const char *missing = keel_library_open(&library);
    if (missing != NULL)
        return keel_fail(KEEL_UNSUPPORTED,
                         "keel serve speaks HTTP by libmicrohttpd, which cannot be opened (%s): install it "
                         "(Debian: libmicrohttpd12)",
                         missing);
    *out = &functions;
    return KEEL_OK;
}
