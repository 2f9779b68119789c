/* device_source.c - the text of a module, unpacked for as long as somebody needs it: the programs' texts are
 * most of what is embedded, and are read when a program is built and at no other time. */
#include <keel/device.h>
#include <keel/memory.h>
#include <zlib.h>

enum { GZIP = 16 + MAX_WBITS };

static size_t text_bytes(const struct keel_packed_text *packed)
{
    return packed == NULL ? 0 : text_bytes(packed->before) + packed->text_bytes;
}

/* What was packed when Keel was built comes out, unless memory fails: the binary was changed otherwise. */
static enum keel_status inflate_all(const struct keel_packed_text *packed, char *out)
{
    z_stream stream = {.next_in = (z_const Bytef *)packed->bytes,
                       .avail_in = packed->packed_bytes,
                       .next_out = (Bytef *)out,
                       .avail_out = packed->text_bytes};
    if (inflateInit2(&stream, GZIP) != Z_OK)
        return keel_fail(KEEL_NO_MEMORY, "a kernel's text cannot be unpacked: no memory");
    const int result = inflate(&stream, Z_FINISH);
    inflateEnd(&stream);
    KEEL_ASSERT(result == Z_MEM_ERROR || (result == Z_STREAM_END && stream.avail_out == 0));
    return result == Z_STREAM_END
               ? KEEL_OK
               : keel_fail(KEEL_NO_MEMORY, "a kernel's text cannot be unpacked: no memory");
}

enum keel_status keel_module_source(const struct keel_module *module, char **out)
{
    char *text;
    if (module->source != NULL)
        return keel_strdup(module->source, out);
    size_t end = text_bytes(module->packed);
    KEEL_TRY(keel_alloc(end + 1, 1, &text));
    for (const struct keel_packed_text *it = module->packed; it != NULL; it = it->before) {
        end -= it->text_bytes;
        enum keel_status status = inflate_all(it, text + end);
        if (status != KEEL_OK) {
            keel_free(text);
            return status;
        }
    }
    *out = text;
    return KEEL_OK;
}
