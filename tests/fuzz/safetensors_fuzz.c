/* safetensors_fuzz.c - any bytes as a safetensors header, index or file: refused, or understood so that every
 * byte belongs to one tensor, every tensor can be read, no file's name leads out of its directory, and
 * writing it again says the same; and so weights in few bits of it.
 *
 * First byte of an input: 0 a header (then 4 bytes: how much data follows it), 1 an index, 2 a whole file, 3
 * an index beside two files. The mutator of 2 keeps the length of the header right. */
#include "few_bits.h"
#include "fuzz.h"
#include "safetensors_header.h"
#include <keel/memory.h>

enum { HEADER, INDEX, WHOLE, BESIDE, MODES, LENGTH = KEEL_SAFETENSORS_LENGTH_BYTES };

static char *copy_of(const void *data, size_t bytes)
{
    char *copy;
    KEEL_ASSERT(keel_alloc(bytes + 1, 1, &copy) == KEEL_OK);
    if (bytes > 0)
        memcpy(copy, data, bytes);
    return copy;
}

/* ---- headers ------------------------------------------------------------------------------------------ */

static void same_headers(const struct keel_safetensors_header *a, const struct keel_safetensors_header *b)
{
    KEEL_ASSERT(a->count == b->count && a->note_count == b->note_count);
    for (uint32_t i = 0; i < a->count; i++) {
        const struct keel_safetensors_entry *x = &a->entries[i], *y = &b->entries[i];
        KEEL_ASSERT(strcmp(x->tensor.name, y->tensor.name) == 0 && x->tensor.dtype == y->tensor.dtype &&
                    x->tensor.dims == y->tensor.dims && x->begin == y->begin && x->end == y->end);
        KEEL_ASSERT(memcmp(x->tensor.shape, y->tensor.shape, sizeof x->tensor.shape) == 0);
    }
    for (uint32_t i = 0; i < a->note_count; i++)
        KEEL_ASSERT(strcmp(a->notes[i].key, b->notes[i].key) == 0 &&
                    strcmp(a->notes[i].value, b->notes[i].value) == 0);
}

static void check_header(const struct keel_safetensors_header *header, uint64_t data_bytes)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < header->count; i++) {
        const struct keel_safetensors_entry *entry = &header->entries[i];
        KEEL_ASSERT(i == 0 || strcmp(header->entries[i - 1].tensor.name, entry->tensor.name) < 0);
        KEEL_ASSERT(entry->end <= data_bytes && entry->end >= entry->begin &&
                    entry->end - entry->begin == keel_safetensors_bytes(&entry->tensor));
        sum += entry->end - entry->begin;
    }
    KEEL_ASSERT(sum == data_bytes);
}

static void try_header(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {.data = data, .bytes = bytes};
    uint64_t data_bytes = fuzz_take_u16(&in);
    data_bytes |= (uint64_t)fuzz_take_u16(&in) << 16;
    char *text = copy_of(data + in.at, bytes - in.at), *again = NULL;
    size_t again_bytes;
    struct keel_safetensors_header first, second;
    if (keel_safetensors_header_parse(text, bytes - in.at, data_bytes, "input", &first) == KEEL_OK) {
        check_header(&first, data_bytes);
        KEEL_ASSERT(keel_safetensors_header_encode(&first, &again, &again_bytes) == KEEL_OK);
        KEEL_ASSERT(again_bytes % 8 == 0);
        KEEL_ASSERT(keel_safetensors_header_parse(again, again_bytes, data_bytes, "again", &second) ==
                    KEEL_OK);
        same_headers(&first, &second);
        keel_safetensors_header_fini(&first);
        keel_safetensors_header_fini(&second);
        keel_free(again);
    }
    keel_free(text);
}

/* ---- indices ------------------------------------------------------------------------------------------ */

static void same_indices(const struct keel_safetensors_index *a, const struct keel_safetensors_index *b)
{
    KEEL_ASSERT(a->count == b->count && a->has_total == b->has_total && a->total_bytes == b->total_bytes);
    for (uint32_t i = 0; i < a->count; i++)
        KEEL_ASSERT(strcmp(a->places[i].name, b->places[i].name) == 0 &&
                    strcmp(a->places[i].file, b->places[i].file) == 0);
}

static void try_index(const uint8_t *data, size_t bytes)
{
    char *text = copy_of(data, bytes), *again = NULL;
    size_t again_bytes;
    struct keel_safetensors_index first, second;
    if (keel_safetensors_index_parse(text, bytes, "input", &first) == KEEL_OK) {
        for (uint32_t i = 0; i < first.count; i++)
            KEEL_ASSERT(strchr(first.places[i].file, '/') == NULL &&
                        strstr(first.places[i].file, "..") == NULL);
        KEEL_ASSERT(keel_safetensors_index_encode(&first, &again, &again_bytes) == KEEL_OK);
        KEEL_ASSERT(keel_safetensors_index_parse(again, again_bytes, "again", &second) == KEEL_OK);
        same_indices(&first, &second);
        keel_safetensors_index_fini(&first);
        keel_safetensors_index_fini(&second);
        keel_free(again);
    }
    keel_free(text);
}

/* ---- files -------------------------------------------------------------------------------------------- */

/* Weights in few bits: refused, or as many floats as their shape says. */
static void read_few(const struct keel_safetensors *file, uint32_t index)
{
    struct keel_few few;
    enum keel_few_role role;
    uint64_t count = 1;
    float *floats;
    if (keel_few_find(file, index, &role, &few) != KEEL_OK || role != KEEL_FEW_MATRIX)
        return;
    for (uint32_t d = 0; d < few.dims; d++)
        count *= few.shape[d];
    KEEL_ASSERT(count > 0 && count == few.copies * few.outputs * few.inputs);
    KEEL_ASSERT(keel_alloc(count, sizeof *floats, &floats) == KEEL_OK);
    (void)keel_few_read(file, &few, floats);
    keel_free(floats);
}

static void read_all(const char *path)
{
    struct keel_safetensors *file;
    if (keel_safetensors_open(path, &file) != KEEL_OK)
        return;
    for (uint32_t i = 0; i < keel_safetensors_count(file); i++) {
        const struct keel_safetensors_tensor *tensor = keel_safetensors_tensor(file, i);
        uint64_t bytes = keel_safetensors_bytes(tensor);
        uint8_t *data;
        KEEL_ASSERT(keel_alloc(bytes, 1, &data) == KEEL_OK);
        KEEL_ASSERT(keel_safetensors_read(file, i, 0, bytes, data) == KEEL_OK);
        KEEL_ASSERT(keel_safetensors_find(file, tensor->name) == i);
        keel_free(data);
        read_few(file, i);
    }
    keel_safetensors_close(file);
}

static void try_file(const char *name, const uint8_t *data, size_t bytes)
{
    char path[KEEL_PATH_BYTES];
    KEEL_ASSERT(keel_path_join(path, fuzz_directory(), name) == KEEL_OK);
    fuzz_write(path, data, bytes);
    read_all(path);
}

static void make_model(const char *name, const char *header)
{
    uint8_t file[256] = {0};
    char path[KEEL_PATH_BYTES];
    size_t bytes = strlen(header);
    KEEL_ASSERT(bytes + LENGTH + 8 <= sizeof file && bytes < 256);
    file[0] = (uint8_t)bytes;
    snprintf((char *)file + LENGTH, sizeof file - LENGTH, "%s", header);
    KEEL_ASSERT(keel_path_join(path, fuzz_directory(), name) == KEEL_OK);
    fuzz_write(path, file, LENGTH + bytes + 8);
}

static void try_beside(const uint8_t *data, size_t bytes)
{
    static bool made;
    if (!made) {
        make_model("1.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}");
        make_model("2.safetensors", "{\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}");
        made = true;
    }
    try_file("m.safetensors.index.json", data, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    switch (data[0] % MODES) {
    case HEADER:
        try_header(data + 1, bytes - 1);
        break;
    case INDEX:
        try_index(data + 1, bytes - 1);
        break;
    case WHOLE:
        try_file("x.safetensors", data + 1, bytes - 1);
        break;
    default:
        try_beside(data + 1, bytes - 1);
    }
    return 0;
}

/* Of a file the header ends where its last brace does; without that hardly an input would get further. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    bytes = LLVMFuzzerMutate(data, bytes, max_bytes);
    if (bytes <= LENGTH + 1 || data[0] % MODES != WHOLE || seed % 16 == 0)
        return bytes;
    size_t end = bytes;
    while (end > LENGTH + 1 && data[end - 1] != '}')
        end--;
    uint64_t length = end - LENGTH - 1;
    for (size_t i = 0; i < LENGTH; i++)
        data[1 + i] = (uint8_t)(length >> 8 * i);
    return bytes;
}
