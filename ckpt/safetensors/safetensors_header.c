/* safetensors_header.c - a header's text to a table, with every check that the format asks for, and back. */
#include "safetensors_header.h"
#include "format.h"
#include "json_scan.h"
#include "text_out.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <keel/text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- types --------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t bits;
    enum keel_ckpt_dtype ckpt; /* 0: snapshots have none such */
} dtypes[KEEL_SAFETENSORS_DTYPES] = {
    [KEEL_SAFETENSORS_BOOL] = {"BOOL", 8, KEEL_CKPT_BOOL},
    [KEEL_SAFETENSORS_F4] = {"F4", 4, 0},
    [KEEL_SAFETENSORS_F6_E2M3] = {"F6_E2M3", 6, 0},
    [KEEL_SAFETENSORS_F6_E3M2] = {"F6_E3M2", 6, 0},
    [KEEL_SAFETENSORS_U8] = {"U8", 8, KEEL_CKPT_U8},
    [KEEL_SAFETENSORS_I8] = {"I8", 8, KEEL_CKPT_I8},
    [KEEL_SAFETENSORS_F8_E5M2] = {"F8_E5M2", 8, KEEL_CKPT_F8_E5M2},
    [KEEL_SAFETENSORS_F8_E4M3] = {"F8_E4M3", 8, KEEL_CKPT_F8_E4M3},
    [KEEL_SAFETENSORS_F8_E8M0] = {"F8_E8M0", 8, KEEL_CKPT_F8_E8M0},
    [KEEL_SAFETENSORS_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8, KEEL_CKPT_F8_E4M3FNUZ},
    [KEEL_SAFETENSORS_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8, KEEL_CKPT_F8_E5M2FNUZ},
    [KEEL_SAFETENSORS_I16] = {"I16", 16, KEEL_CKPT_I16},
    [KEEL_SAFETENSORS_U16] = {"U16", 16, KEEL_CKPT_U16},
    [KEEL_SAFETENSORS_F16] = {"F16", 16, KEEL_CKPT_F16},
    [KEEL_SAFETENSORS_BF16] = {"BF16", 16, KEEL_CKPT_BF16},
    [KEEL_SAFETENSORS_I32] = {"I32", 32, KEEL_CKPT_I32},
    [KEEL_SAFETENSORS_U32] = {"U32", 32, KEEL_CKPT_U32},
    [KEEL_SAFETENSORS_F32] = {"F32", 32, KEEL_CKPT_F32},
    [KEEL_SAFETENSORS_C64] = {"C64", 64, KEEL_CKPT_C64},
    [KEEL_SAFETENSORS_F64] = {"F64", 64, KEEL_CKPT_F64},
    [KEEL_SAFETENSORS_I64] = {"I64", 64, KEEL_CKPT_I64},
    [KEEL_SAFETENSORS_U64] = {"U64", 64, KEEL_CKPT_U64},
};

const char *keel_safetensors_dtype_name(enum keel_safetensors_dtype dtype)
{
    return dtype < KEEL_SAFETENSORS_DTYPES ? dtypes[dtype].name : "?";
}

uint32_t keel_safetensors_dtype_bytes(enum keel_safetensors_dtype dtype)
{
    return dtype < KEEL_SAFETENSORS_DTYPES ? dtypes[dtype].bits / 8 : 0;
}

bool keel_safetensors_to_ckpt(enum keel_safetensors_dtype dtype, enum keel_ckpt_dtype *out)
{
    if (dtype >= KEEL_SAFETENSORS_DTYPES || dtypes[dtype].ckpt == 0)
        return false;
    *out = dtypes[dtype].ckpt;
    return true;
}

enum keel_safetensors_dtype keel_safetensors_from_ckpt(enum keel_ckpt_dtype dtype)
{
    for (int i = 0; i < KEEL_SAFETENSORS_DTYPES; i++)
        if (dtypes[i].ckpt == dtype)
            return (enum keel_safetensors_dtype)i;
    return KEEL_SAFETENSORS_DTYPES;
}

/* UINT64_MAX: more than 64 bits count. */
static uint64_t bits_of(const struct keel_safetensors_tensor *tensor)
{
    const uint64_t bits = tensor->dtype < KEEL_SAFETENSORS_DTYPES ? dtypes[tensor->dtype].bits : 0;
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensor->dims; i++)
        if (__builtin_mul_overflow(count, tensor->shape[i], &count))
            return UINT64_MAX;
    return __builtin_mul_overflow(count, bits, &count) ? UINT64_MAX : count;
}

uint64_t keel_safetensors_bytes(const struct keel_safetensors_tensor *tensor)
{
    uint64_t bits = bits_of(tensor);
    return bits % 8 == 0 ? bits / 8 : UINT64_MAX; /* that many ones are no multiple of 8 either */
}

struct keel_shown_name keel_safetensors_shown(const char *name)
{
    enum { SHOWN = 63 };
    struct keel_shown_name shown = {""};
    size_t at = 0;
    for (; name[at] != '\0' && at < SHOWN; at++)
        shown.text[at] = name[at] >= ' ' && name[at] <= '~' ? name[at] : '?';
    if (name[at] != '\0')
        memcpy(shown.text + at, "...", 4);
    return shown;
}

/* ---- text to table ------------------------------------------------------------------------------------- */

struct parse {
    struct keel_json_scan scan;
    const char *path;
    struct keel_safetensors_header *out;
    size_t entry_room, note_room;
};

static enum keel_status no_json(const struct parse *parse)
{
    return keel_fail(KEEL_CORRUPT, "%s: header, byte %zu: %s", parse->path,
                     parse->scan.at + KEEL_SAFETENSORS_LENGTH_BYTES, parse->scan.error);
}

static enum keel_status of_tensor(const struct parse *parse, enum keel_status status, const char *name,
                                  const char *what)
{
    return keel_fail(status, "%s: tensor %s: %s", parse->path, keel_safetensors_shown(name).text, what);
}

static enum keel_status find_dtype(const struct parse *parse, const char *tensor, const char *name,
                                   enum keel_safetensors_dtype *out)
{
    for (int i = 0; i < KEEL_SAFETENSORS_DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) != 0)
            continue;
        *out = (enum keel_safetensors_dtype)i;
        return KEEL_OK;
    }
    return keel_fail(
        KEEL_UNSUPPORTED,
        "%s: tensor %s: dtype %s is not known here; have it converted (BOOL, I8 to I64, U8 to U64, "
        "F4 to F64, BF16 and C64 are)",
        parse->path, keel_safetensors_shown(tensor).text, keel_safetensors_shown(name).text);
}

static enum keel_status take_shape(struct parse *parse, struct keel_safetensors_tensor *tensor)
{
    if (!keel_json_take(&parse->scan, '['))
        return no_json(parse);
    if (keel_json_next(&parse->scan, ']'))
        return KEEL_OK;
    for (bool more = true; more;) {
        uint64_t extent;
        if (!keel_json_u64(&parse->scan, &extent) || !keel_json_more(&parse->scan, ']', &more))
            return no_json(parse);
        if (tensor->dims == KEEL_TENSOR_DIMS_MAX)
            return keel_fail(KEEL_LIMIT, "%s: tensor %s: more than %d dimensions", parse->path,
                             keel_safetensors_shown(tensor->name).text, KEEL_TENSOR_DIMS_MAX);
        tensor->shape[tensor->dims++] = extent;
    }
    return KEEL_OK;
}

static enum keel_status take_offsets(struct parse *parse, struct keel_safetensors_entry *entry)
{
    struct keel_json_scan *scan = &parse->scan;
    bool good = keel_json_take(scan, '[') && keel_json_u64(scan, &entry->begin) &&
                keel_json_take(scan, ',') && keel_json_u64(scan, &entry->end) && keel_json_take(scan, ']');
    return good ? KEEL_OK : no_json(parse);
}

/* One member of a tensor's object; `seen` has a bit for each. */
static enum keel_status take_member(struct parse *parse, struct keel_safetensors_entry *entry, uint32_t *seen)
{
    static const char *const members[] = {"dtype", "shape", "data_offsets"};
    const char *tensor = entry->tensor.name;
    char *name, *dtype;
    uint32_t i = 0;
    if (!keel_json_string(&parse->scan, &name) || !keel_json_take(&parse->scan, ':'))
        return no_json(parse);
    while (i < 3 && strcmp(name, members[i]) != 0)
        i++;
    if (i == 3) /* of a later format, or somebody's own */
        return keel_json_skip(&parse->scan) ? KEEL_OK : no_json(parse);
    if ((*seen & 1U << i) != 0)
        return of_tensor(parse, KEEL_CORRUPT, tensor, "a member comes twice");
    *seen |= 1U << i;
    if (i == 1)
        return take_shape(parse, &entry->tensor);
    if (i == 2)
        return take_offsets(parse, entry);
    return keel_json_string(&parse->scan, &dtype) ? find_dtype(parse, tensor, dtype, &entry->tensor.dtype)
                                                  : no_json(parse);
}

static enum keel_status check_entry(const struct parse *parse, const struct keel_safetensors_entry *entry)
{
    uint64_t wanted = keel_safetensors_bytes(&entry->tensor), bits = bits_of(&entry->tensor);
    if (wanted == UINT64_MAX)
        return of_tensor(parse, KEEL_CORRUPT, entry->tensor.name,
                         bits == UINT64_MAX ? "its shape is of more bytes than 64 bits count"
                                            : "its elements, smaller than a byte, do not fill the last byte");
    if (entry->end < entry->begin)
        return of_tensor(parse, KEEL_CORRUPT, entry->tensor.name, "its data_offsets end before they begin");
    if (entry->end - entry->begin != wanted)
        return keel_fail(
            KEEL_CORRUPT, "%s: tensor %s: data_offsets hold %" PRIu64 " bytes, shape and dtype need %" PRIu64,
            parse->path, keel_safetensors_shown(entry->tensor.name).text, entry->end - entry->begin, wanted);
    return KEEL_OK;
}

static enum keel_status take_tensor(struct parse *parse, const char *name)
{
    struct keel_safetensors_entry entry = {.tensor = {.name = name}};
    uint32_t seen = 0;
    if (!keel_json_take(&parse->scan, '{'))
        return no_json(parse);
    for (bool more = !keel_json_next(&parse->scan, '}'); more;) {
        KEEL_TRY(take_member(parse, &entry, &seen));
        if (!keel_json_more(&parse->scan, '}', &more))
            return no_json(parse);
    }
    if (seen != 7)
        return of_tensor(parse, KEEL_CORRUPT, name, "dtype, shape or data_offsets is missing");
    KEEL_TRY(check_entry(parse, &entry));
    struct keel_safetensors_header *out = parse->out;
    KEEL_TRY(keel_grow(&out->entries, &parse->entry_room, (size_t)out->count + 1, sizeof *out->entries));
    out->entries[out->count++] = entry;
    return KEEL_OK;
}

static enum keel_status take_notes(struct parse *parse)
{
    struct keel_safetensors_header *out = parse->out;
    if (keel_json_null(&parse->scan))
        return KEEL_OK;
    if (!keel_json_take(&parse->scan, '{'))
        return no_json(parse);
    for (bool more = !keel_json_next(&parse->scan, '}'); more;) {
        char *key, *value;
        if (!keel_json_string(&parse->scan, &key) || !keel_json_take(&parse->scan, ':') ||
            !keel_json_string(&parse->scan, &value) || !keel_json_more(&parse->scan, '}', &more))
            return no_json(parse);
        KEEL_TRY(keel_grow(&out->notes, &parse->note_room, (size_t)out->note_count + 1, sizeof *out->notes));
        out->notes[out->note_count++] = (struct keel_safetensors_note){key, value};
    }
    return KEEL_OK;
}

static enum keel_status take_all(struct parse *parse)
{
    static const char notes_name[] = "__metadata__";
    bool noted = false;
    if (!keel_json_take(&parse->scan, '{'))
        return no_json(parse);
    for (bool more = !keel_json_next(&parse->scan, '}'); more;) {
        char *name;
        if (!keel_json_string(&parse->scan, &name) || !keel_json_take(&parse->scan, ':'))
            return no_json(parse);
        bool notes = strcmp(name, notes_name) == 0;
        if (notes && noted)
            return keel_fail(KEEL_CORRUPT, "%s: header: __metadata__ comes twice", parse->path);
        noted = noted || notes;
        KEEL_TRY(notes ? take_notes(parse) : take_tensor(parse, name));
        if (!keel_json_more(&parse->scan, '}', &more))
            return no_json(parse);
    }
    return keel_json_end(&parse->scan) ? KEEL_OK : no_json(parse);
}

/* ---- checks of the whole ------------------------------------------------------------------------------- */

int keel_safetensors_by_name(const void *a, const void *b)
{
    const struct keel_safetensors_entry *x = a, *y = b;
    return strcmp(x->tensor.name, y->tensor.name);
}

static int by_place(const void *a, const void *b)
{
    const struct keel_safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return keel_safetensors_by_name(a, b);
}

int keel_safetensors_by_key(const void *a, const void *b)
{
    const struct keel_safetensors_note *x = a, *y = b;
    return strcmp(x->key, y->key);
}

/* All bytes belong to one tensor each. */
static enum keel_status check_places(const struct parse *parse, uint64_t data_bytes)
{
    const struct keel_safetensors_header *header = parse->out;
    uint64_t end = 0;
    if (header->count > 0)
        qsort(header->entries, header->count, sizeof *header->entries, by_place);
    for (uint32_t i = 0; i < header->count; i++) {
        const struct keel_safetensors_entry *entry = &header->entries[i];
        if (entry->begin != end)
            return of_tensor(parse, KEEL_CORRUPT, entry->tensor.name,
                             entry->begin < end ? "lies where another tensor does"
                                                : "bytes before it belong to no tensor");
        end = entry->end;
    }
    if (end == data_bytes)
        return KEEL_OK;
    return keel_fail(KEEL_CORRUPT,
                     "%s: its tensors have %" PRIu64 " bytes, but %" PRIu64
                     " follow the header: the file is %s; fetch it again",
                     parse->path, end, data_bytes, end > data_bytes ? "cut short" : "too long");
}

static enum keel_status check_names(const struct parse *parse)
{
    struct keel_safetensors_header *header = parse->out;
    if (header->count > 0)
        qsort(header->entries, header->count, sizeof *header->entries, keel_safetensors_by_name);
    if (header->note_count > 0)
        qsort(header->notes, header->note_count, sizeof *header->notes, keel_safetensors_by_key);
    for (uint32_t i = 0; i < header->count; i++) {
        if (i > 0 && keel_safetensors_by_name(&header->entries[i - 1], &header->entries[i]) == 0)
            return of_tensor(parse, KEEL_CORRUPT, header->entries[i].tensor.name, "comes twice");
    }
    for (uint32_t i = 1; i < header->note_count; i++)
        if (keel_safetensors_by_key(&header->notes[i - 1], &header->notes[i]) == 0)
            return keel_fail(KEEL_CORRUPT, "%s: header: %s comes twice in __metadata__", parse->path,
                             keel_safetensors_shown(header->notes[i].key).text);
    return KEEL_OK;
}

static enum keel_status parse_all(struct parse *parse, uint64_t data_bytes)
{
    size_t wrong;
    const struct keel_json_scan *scan = &parse->scan;
    if (scan->bytes == 0 || scan->text[0] != '{')
        return keel_fail(KEEL_CORRUPT, "%s: header: does not begin with '{': no safetensors file",
                         parse->path);
    if (!keel_utf8_valid(scan->text, scan->bytes, &wrong))
        return keel_fail(KEEL_CORRUPT, "%s: header, byte %zu: no UTF-8", parse->path,
                         wrong + KEEL_SAFETENSORS_LENGTH_BYTES);
    KEEL_TRY(take_all(parse));
    KEEL_TRY(check_places(parse, data_bytes));
    return check_names(parse);
}

enum keel_status keel_safetensors_header_parse(char *text, size_t bytes, uint64_t data_bytes,
                                               const char *path, struct keel_safetensors_header *out)
{
    struct keel_safetensors_header header = {0};
    struct parse parse = {.scan = {.text = text, .bytes = bytes}, .path = path, .out = &header};
    enum keel_status status = parse_all(&parse, data_bytes);
    if (status == KEEL_OK)
        *out = header;
    else
        keel_safetensors_header_fini(&header);
    return status;
}

void keel_safetensors_header_fini(struct keel_safetensors_header *header)
{
    keel_free(header->entries);
    keel_free(header->notes);
    *header = (struct keel_safetensors_header){0};
}

/* ---- table to text ------------------------------------------------------------------------------------- */

static void put_entry(struct keel_text *text, const struct keel_safetensors_entry *entry)
{
    keel_text_json(text, entry->tensor.name);
    keel_text_add(text, ":{\"dtype\":");
    keel_text_json(text, dtypes[entry->tensor.dtype].name);
    keel_text_add(text, ",\"shape\":[");
    for (uint32_t i = 0; i < entry->tensor.dims; i++) {
        keel_text_add(text, i > 0 ? "," : "");
        keel_text_u64(text, entry->tensor.shape[i]);
    }
    keel_text_add(text, "],\"data_offsets\":[");
    keel_text_u64(text, entry->begin);
    keel_text_add(text, ",");
    keel_text_u64(text, entry->end);
    keel_text_add(text, "]}");
}

static void put_notes(struct keel_text *text, const struct keel_safetensors_header *header)
{
    keel_text_add(text, "\"__metadata__\":{");
    for (uint32_t i = 0; i < header->note_count; i++) {
        keel_text_add(text, i > 0 ? "," : "");
        keel_text_json(text, header->notes[i].key);
        keel_text_add(text, ":");
        keel_text_json(text, header->notes[i].value);
    }
    keel_text_add(text, "}");
}

enum keel_status keel_safetensors_header_encode(const struct keel_safetensors_header *header, char **out,
                                                size_t *out_bytes)
{
    struct keel_text text = {0};
    keel_text_add(&text, "{");
    if (header->note_count > 0)
        put_notes(&text, header);
    for (uint32_t i = 0; i < header->count; i++) {
        keel_text_add(&text, i > 0 || header->note_count > 0 ? "," : "");
        put_entry(&text, &header->entries[i]);
    }
    keel_text_add(&text, "}");
    while (text.status == KEEL_OK && text.bytes % 8 != 0)
        keel_text_add(&text, " ");
    if (text.status == KEEL_OK && text.bytes > KEEL_SAFETENSORS_HEADER_BYTES_MAX)
        text.status =
            keel_fail(KEEL_LIMIT, "%u tensors make a header above %d bytes; export fewer, or in shards",
                      header->count, KEEL_SAFETENSORS_HEADER_BYTES_MAX);
    return keel_text_end(&text, out, out_bytes);
}
