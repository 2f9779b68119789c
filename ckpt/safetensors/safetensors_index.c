/* safetensors_index.c - the index of a model in several files: {"metadata": {"total_size": n, ...},
 * "weight_map": {tensor: file, ...}}, to a table and back. */
#include "format.h"
#include "json_scan.h"
#include "safetensors_header.h"
#include "text_out.h"
#include <keel/memory.h>
#include <keel/text.h>
#include <stdlib.h>
#include <string.h>

struct parse {
    struct keel_json_scan scan;
    const char *path;
    struct keel_safetensors_index *out;
    size_t room;
};

static enum keel_status no_json(const struct parse *parse)
{
    return keel_fail(KEEL_CORRUPT, "%s: byte %zu: %s", parse->path, parse->scan.at, parse->scan.error);
}

/* Only a name in the index's own directory: nothing that could lead out of it. */
static bool plain_name(const char *file)
{
    size_t bytes = strlen(file), suffix = sizeof KEEL_SAFETENSORS_SUFFIX - 1;
    if (bytes <= suffix || bytes > 255 || strcmp(file + bytes - suffix, KEEL_SAFETENSORS_SUFFIX) != 0)
        return false;
    if (strchr(file, '/') != NULL || strchr(file, '\\') != NULL || strstr(file, "..") != NULL)
        return false;
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)file[i] < 0x20 || file[i] == 0x7f)
            return false;
    return true;
}

static enum keel_status take_place(struct parse *parse, const char *name, const char *file)
{
    struct keel_safetensors_index *out = parse->out;
    if (!plain_name(file))
        return keel_fail(
            KEEL_CORRUPT,
            "%s: tensor %s is said to be in %s: a NAME.safetensors in the same directory is wanted",
            parse->path, keel_safetensors_shown(name).text, keel_safetensors_shown(file).text);
    KEEL_TRY(keel_grow(&out->places, &parse->room, (size_t)out->count + 1, sizeof *out->places));
    out->places[out->count++] = (struct keel_safetensors_place){name, file};
    return KEEL_OK;
}

static enum keel_status take_map(struct parse *parse)
{
    if (!keel_json_take(&parse->scan, '{'))
        return no_json(parse);
    for (bool more = !keel_json_next(&parse->scan, '}'); more;) {
        char *name, *file;
        if (!keel_json_string(&parse->scan, &name) || !keel_json_take(&parse->scan, ':') ||
            !keel_json_string(&parse->scan, &file) || !keel_json_more(&parse->scan, '}', &more))
            return no_json(parse);
        KEEL_TRY(take_place(parse, name, file));
    }
    return KEEL_OK;
}

/* Its total_size; the rest is nobody's business here. */
static enum keel_status take_metadata(struct parse *parse)
{
    struct keel_safetensors_index *out = parse->out;
    if (!keel_json_take(&parse->scan, '{'))
        return no_json(parse);
    for (bool more = !keel_json_next(&parse->scan, '}'); more;) {
        char *name;
        if (!keel_json_string(&parse->scan, &name) || !keel_json_take(&parse->scan, ':'))
            return no_json(parse);
        bool total = strcmp(name, "total_size") == 0;
        if (total && out->has_total)
            return keel_fail(KEEL_CORRUPT, "%s: total_size comes twice", parse->path);
        if (!(total ? keel_json_u64(&parse->scan, &out->total_bytes) : keel_json_skip(&parse->scan)))
            return no_json(parse);
        out->has_total = out->has_total || total;
        if (!keel_json_more(&parse->scan, '}', &more))
            return no_json(parse);
    }
    return KEEL_OK;
}

static enum keel_status take_all(struct parse *parse)
{
    bool mapped = false, described = false;
    if (!keel_json_take(&parse->scan, '{'))
        return no_json(parse);
    for (bool more = !keel_json_next(&parse->scan, '}'); more;) {
        char *name;
        if (!keel_json_string(&parse->scan, &name) || !keel_json_take(&parse->scan, ':'))
            return no_json(parse);
        bool map = strcmp(name, "weight_map") == 0, metadata = strcmp(name, "metadata") == 0;
        if ((map && mapped) || (metadata && described))
            return keel_fail(KEEL_CORRUPT, "%s: %s comes twice", parse->path, name);
        mapped = mapped || map;
        described = described || metadata;
        if (map)
            KEEL_TRY(take_map(parse));
        else if (metadata)
            KEEL_TRY(take_metadata(parse));
        else if (!keel_json_skip(&parse->scan))
            return no_json(parse);
        if (!keel_json_more(&parse->scan, '}', &more))
            return no_json(parse);
    }
    if (!keel_json_end(&parse->scan))
        return no_json(parse);
    if (parse->out->count == 0)
        return keel_fail(KEEL_CORRUPT, "%s: has no weight_map that says which tensor lies in which file",
                         parse->path);
    return KEEL_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct keel_safetensors_place *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int by_file(const void *a, const void *b)
{
    const struct keel_safetensors_place *x = a, *y = b;
    int order = strcmp(x->file, y->file);
    return order != 0 ? order : by_name(a, b);
}

static enum keel_status check_places(const struct parse *parse)
{
    struct keel_safetensors_index *index = parse->out;
    qsort(index->places, index->count, sizeof *index->places, by_name);
    for (uint32_t i = 1; i < index->count; i++)
        if (by_name(&index->places[i - 1], &index->places[i]) == 0)
            return keel_fail(KEEL_CORRUPT, "%s: tensor %s comes twice", parse->path,
                             keel_safetensors_shown(index->places[i].name).text);
    qsort(index->places, index->count, sizeof *index->places, by_file);
    return KEEL_OK;
}

enum keel_status keel_safetensors_index_parse(char *text, size_t bytes, const char *path,
                                              struct keel_safetensors_index *out)
{
    struct keel_safetensors_index index = {0};
    struct parse parse = {.scan = {.text = text, .bytes = bytes}, .path = path, .out = &index};
    size_t wrong;
    enum keel_status status = KEEL_OK;
    if (!keel_utf8_valid(text, bytes, &wrong))
        status = keel_fail(KEEL_CORRUPT, "%s: byte %zu: no UTF-8", path, wrong);
    if (status == KEEL_OK)
        status = take_all(&parse);
    if (status == KEEL_OK)
        status = check_places(&parse);
    if (status == KEEL_OK)
        *out = index;
    else
        keel_safetensors_index_fini(&index);
    return status;
}

void keel_safetensors_index_fini(struct keel_safetensors_index *index)
{
    keel_free(index->places);
    *index = (struct keel_safetensors_index){0};
}

enum keel_status keel_safetensors_index_encode(const struct keel_safetensors_index *index, char **out,
                                               size_t *out_bytes)
{
    struct keel_text text = {0};
    keel_text_add(&text, "{\n  \"metadata\": {");
    if (index->has_total) {
        keel_text_add(&text, "\n    \"total_size\": ");
        keel_text_u64(&text, index->total_bytes);
        keel_text_add(&text, "\n  ");
    }
    keel_text_add(&text, "},\n  \"weight_map\": {");
    for (uint32_t i = 0; i < index->count; i++) {
        keel_text_add(&text, i > 0 ? ",\n    " : "\n    ");
        keel_text_json(&text, index->places[i].name);
        keel_text_add(&text, ": ");
        keel_text_json(&text, index->places[i].file);
    }
    keel_text_add(&text, "\n  }\n}\n");
    return keel_text_end(&text, out, out_bytes);
}
