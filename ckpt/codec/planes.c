/* planes.c - the planes codec, for arrays of numbers of 1, 2, 4 or 8 bytes.
 *
 * split.c makes byte planes of the elements, or of their differences to a base. Exponents of trained weights
 * have some 2.75 bits of entropy, mantissas nearly 8: so each plane is stored on its own, in the way that
 * suits it:
 *
 *   element_bytes x 8 bytes   for each plane, lowest byte first: kind, 3 zeros, stored bytes (u32)
 *   ...                       the planes, one behind the other
 *
 *   kind 0 plain     the plane as it is
 *   kind 1 deflate   raw DEFLATE (RFC 1951); any inflate reads it
 *   kind 2 fill      one byte, repeated
 */
#include "planes.h"
#include "deflate_decode.h"
#include "deflate_encode.h"
#include "format.h"
#include "split.h"
#include <keel/memory.h>
#include <string.h>
#include <zlib.h>

enum { PLANE_PLAIN = 0, PLANE_DEFLATE = 1, PLANE_FILL = 2 };

struct plane_entry {
    uint8_t kind, zero[3];
    uint32_t bytes;
};
_Static_assert(sizeof(struct plane_entry) == 8, "plane entry");

/* ---- encode -------------------------------------------------------------------------------------------- */

/* True when bytes are spread so evenly that their entropy is above 7.8 bits. In integers: the collision
 * entropy -log2(sum p^2) is never above Shannon's, and 2^7.8 = 222.9. Pairs of a byte with itself do not
 * count. */
static bool spread_evenly(const uint32_t histogram[256], uint64_t bytes)
{
    uint64_t collisions = 0;
    for (uint32_t i = 0; i < 256; i++)
        collisions += (uint64_t)histogram[i] * histogram[i];
    return (collisions - bytes) * 2229 < 10 * bytes * bytes;
}

/* Which planes are plain, from a sample of sixteen pieces, so that mantissas are not counted in full; bit k
 * for plane k. `work` is as large as the sample's planes. */
enum { SAMPLE_PIECES = 16, SAMPLE_ELEMENTS = 256 };
static uint32_t find_plain(uint32_t element_bytes, const uint8_t *raw, const uint8_t *base, size_t count,
                           uint8_t *work)
{
    uint32_t plain = 0, histogram[256];
    size_t stride = count / SAMPLE_PIECES * element_bytes, sample = (size_t)SAMPLE_PIECES * SAMPLE_ELEMENTS;
    uint8_t *planes[KEEL_PLANES_MAX] = {NULL};
    if (count < 8 * sample)
        return 0;
    for (size_t i = 0; i < SAMPLE_PIECES; i++) {
        for (uint32_t k = 0; k < element_bytes; k++)
            planes[k] = work + k * sample + i * SAMPLE_ELEMENTS;
        keel_planes_split(element_bytes, raw + i * stride, base != NULL ? base + i * stride : NULL,
                          SAMPLE_ELEMENTS, planes);
    }
    for (uint32_t k = 0; k < element_bytes; k++) {
        keel_byte_histogram(work + k * sample, sample, histogram);
        if (spread_evenly(histogram, sample))
            plain |= 1U << k;
    }
    return plain;
}

static struct plane_entry keep_plain(const uint8_t *plane, size_t bytes, uint8_t *out)
{
    if (plane != out)
        memcpy(out, plane, bytes);
    return (struct plane_entry){.kind = PLANE_PLAIN, .bytes = (uint32_t)bytes};
}

/* Encode one plane to `out`, in at most `bytes`. */
static struct plane_entry encode_plane(const uint8_t *plane, size_t bytes, uint8_t *out)
{
    uint32_t histogram[256];
    keel_byte_histogram(plane, bytes, histogram);
    if (histogram[plane[0]] == bytes) {
        out[0] = plane[0];
        return (struct plane_entry){.kind = PLANE_FILL, .bytes = 1};
    }
    uint32_t different = 0;
    for (uint32_t i = 0; i < 256; i++)
        different += histogram[i] > 0;
    if (different > bytes / 2) /* a short plane, which its codes would outweigh */
        return keep_plain(plane, bytes, out);
    size_t limit = bytes / 40 * 39; /* 7.8 bits for each byte */
    size_t size =
        spread_evenly(histogram, bytes) ? 0 : keel_deflate_encode(plane, bytes, histogram, out, limit);
    if (size > 0)
        return (struct plane_entry){.kind = PLANE_DEFLATE, .bytes = (uint32_t)size};
    return keep_plain(plane, bytes, out);
}

/* Plain planes before all others, as mantissas are, are split to where they stay. */
uint32_t keel_planes_encode(uint32_t element_bytes, const uint8_t *raw, const uint8_t *base,
                            uint32_t raw_bytes, uint8_t *out, uint8_t *scratch)
{
    size_t count = raw_bytes / element_bytes;
    KEEL_ASSERT(count * element_bytes == raw_bytes && count > 0);
    struct plane_entry entries[KEEL_PLANES_MAX];
    uint8_t *planes[KEEL_PLANES_MAX] = {NULL};
    size_t used = element_bytes * sizeof entries[0];
    uint32_t plain = find_plain(element_bytes, raw, base, count, scratch);
    bool in_place = true;
    for (uint32_t k = 0; k < element_bytes; k++) {
        in_place = in_place && (plain >> k & 1) != 0 && k + 1 < element_bytes;
        planes[k] = in_place ? out + used + k * count : scratch + k * count;
    }
    keel_planes_split(element_bytes, raw, base, count, planes);
    for (uint32_t k = 0; k < element_bytes; k++) {
        entries[k] = (plain >> k & 1) != 0 ? keep_plain(planes[k], count, out + used)
                                           : encode_plane(planes[k], count, out + used);
        used += entries[k].bytes;
    }
    if (used >= raw_bytes)
        return 0;
    memcpy(out, entries, element_bytes * sizeof entries[0]);
    return (uint32_t)used;
}

/* ---- decode -------------------------------------------------------------------------------------------- */

static voidpf zlib_alloc(voidpf opaque, uInt items, uInt item_bytes)
{
    (void)opaque;
    void *pointer = NULL;
    return keel_alloc(items, item_bytes, &pointer) == KEEL_OK ? pointer : Z_NULL;
}

static void zlib_free(voidpf opaque, voidpf pointer)
{
    (void)opaque;
    keel_free(pointer);
}

static enum keel_status inflate_plane(const uint8_t *stored, uint32_t stored_bytes, uint8_t *plane,
                                      size_t bytes)
{
    z_stream stream = {.zalloc = zlib_alloc, .zfree = zlib_free};
    if (inflateInit2(&stream, -15) != Z_OK)
        return keel_fail(KEEL_NO_MEMORY, "no memory to decode a chunk");
    stream.next_in = (z_const Bytef *)stored;
    stream.avail_in = stored_bytes;
    stream.next_out = plane;
    stream.avail_out = (uInt)bytes;
    int result = inflate(&stream, Z_FINISH);
    bool whole = result == Z_STREAM_END && stream.avail_in == 0 && stream.avail_out == 0;
    inflateEnd(&stream);
    return whole ? KEEL_OK : keel_fail(KEEL_CORRUPT, "a plane cannot be decoded");
}

/* Where a chunk's planes are decoded: `next` is the first byte of scratch that no plane has taken. */
struct room {
    uint8_t *next, *end;
    uint8_t *spare; /* raw_bytes that are written only later, or NULL */
    size_t spare_bytes;
};

static enum keel_status decode_deflate(const uint8_t *stored, uint32_t stored_bytes, uint8_t *plane,
                                       size_t bytes, const struct room *room)
{
    size_t left = (size_t)(room->end - plane) - bytes;
    bool beside = left > room->spare_bytes;
    if (keel_deflate_decode(stored, stored_bytes, plane, bytes, beside ? plane + bytes : room->spare,
                            beside ? left : room->spare_bytes))
        return KEEL_OK;
    return inflate_plane(stored, stored_bytes, plane, bytes);
}

/* One plane of `bytes`; *out is where it lies: in `stored` if that is possible, else in the room. */
static enum keel_status decode_plane(struct plane_entry entry, const uint8_t *stored, size_t bytes,
                                     struct room *room, const uint8_t **out)
{
    if (entry.kind == PLANE_PLAIN && entry.bytes == bytes) {
        *out = stored;
        return KEEL_OK;
    }
    uint8_t *plane = room->next;
    room->next += bytes;
    *out = plane;
    if (entry.kind == PLANE_DEFLATE)
        return decode_deflate(stored, entry.bytes, plane, bytes, room);
    if (entry.kind != PLANE_FILL || entry.bytes != 1)
        return keel_fail(KEEL_CORRUPT, "a plane's entry makes no sense");
    memset(plane, stored[0], bytes);
    return KEEL_OK;
}

enum keel_status keel_planes_decode(uint32_t element_bytes, const uint8_t *stored, uint32_t stored_bytes,
                                    const uint8_t *base, uint8_t *raw, uint32_t raw_bytes, uint8_t *scratch)
{
    struct plane_entry entries[KEEL_PLANES_MAX];
    const uint8_t *planes[KEEL_PLANES_MAX] = {NULL};
    size_t table_bytes = element_bytes * sizeof entries[0], count = raw_bytes / element_bytes;
    if (stored_bytes < table_bytes || raw_bytes % element_bytes != 0)
        return keel_fail(KEEL_CORRUPT, "a chunk of planes has no room for its table");
    struct room room = {.next = scratch, .end = scratch + raw_bytes};
    if (raw != base) {
        room.spare = raw;
        room.spare_bytes = raw_bytes;
    }
    memcpy(entries, stored, table_bytes);
    size_t at = table_bytes;
    for (uint32_t k = 0; k < element_bytes; k++) {
        if (entries[k].bytes > stored_bytes - at || !keel_format_all_zero(entries[k].zero, 3))
            return keel_fail(KEEL_CORRUPT, "a plane's entry makes no sense");
        KEEL_TRY(decode_plane(entries[k], stored + at, count, &room, &planes[k]));
        at += entries[k].bytes;
    }
    if (at != stored_bytes)
        return keel_fail(KEEL_CORRUPT, "a chunk of planes has bytes too many");
    keel_planes_join(element_bytes, planes, base, count, raw);
    return KEEL_OK;
}
