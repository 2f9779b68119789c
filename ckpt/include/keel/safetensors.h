/* safetensors.h - the file format that other programs exchange tensors in: read and written, streaming.
 *
 * A file is the length of a header (8 bytes, little-endian), the header (JSON) and the tensors' bytes. A
 * model in several files has an index beside them (`*.safetensors.index.json`) that says which tensor lies
 * where. The format: https://huggingface.co/docs/safetensors.
 *
 * Promises: what a file says of itself is checked before it is believed (the list is at
 * keel_safetensors_open), so that no byte is read that no tensor has; no name in a file ever becomes a path
 * outside of its directory; memory is bounded by the header, never by the tensors. What is written is there
 * whole or not at all. Leaves to others: what the tensors mean (see ckpt.h, and gpt2_names.h inside). */
#ifndef KEEL_SAFETENSORS_H
#define KEEL_SAFETENSORS_H

#include <keel/api.h>
#include <keel/ckpt.h>
#include <keel/file.h>

KEEL_API_BEGIN

/* In the order of the reference: tensors of a later type come first in a file, so that all lie aligned. */
enum keel_safetensors_dtype {
    KEEL_SAFETENSORS_BOOL,
    KEEL_SAFETENSORS_F4,
    KEEL_SAFETENSORS_F6_E2M3,
    KEEL_SAFETENSORS_F6_E3M2,
    KEEL_SAFETENSORS_U8,
    KEEL_SAFETENSORS_I8,
    KEEL_SAFETENSORS_F8_E5M2,
    KEEL_SAFETENSORS_F8_E4M3,
    KEEL_SAFETENSORS_F8_E8M0,
    KEEL_SAFETENSORS_F8_E4M3FNUZ,
    KEEL_SAFETENSORS_F8_E5M2FNUZ,
    KEEL_SAFETENSORS_I16,
    KEEL_SAFETENSORS_U16,
    KEEL_SAFETENSORS_F16,
    KEEL_SAFETENSORS_BF16,
    KEEL_SAFETENSORS_I32,
    KEEL_SAFETENSORS_U32,
    KEEL_SAFETENSORS_F32,
    KEEL_SAFETENSORS_C64, /* two F32: real, imaginary */
    KEEL_SAFETENSORS_F64,
    KEEL_SAFETENSORS_I64,
    KEEL_SAFETENSORS_U64,
    KEEL_SAFETENSORS_DTYPES
};

/* "BF16", and 2; static. Bytes: 0 of F4 and F6, which are packed: a tensor of them has whole bytes. */
const char *keel_safetensors_dtype_name(enum keel_safetensors_dtype dtype);
uint32_t keel_safetensors_dtype_bytes(enum keel_safetensors_dtype dtype);
/* Between the types of both formats. Snapshots have no F4 and F6: then false. */
bool keel_safetensors_to_ckpt(enum keel_safetensors_dtype dtype, enum keel_ckpt_dtype *out);
enum keel_safetensors_dtype keel_safetensors_from_ckpt(enum keel_ckpt_dtype dtype);

struct keel_safetensors_tensor {
    const char *name; /* UTF-8; of any length when it was read */
    enum keel_safetensors_dtype dtype;
    uint32_t dims; /* 0 is a scalar */
    uint64_t shape[KEEL_TENSOR_DIMS_MAX];
};
/* Elements x bytes of one, row-major. UINT64_MAX when that is more than 64 bits hold. */
uint64_t keel_safetensors_bytes(const struct keel_safetensors_tensor *tensor);

/* An entry of __metadata__. */
struct keel_safetensors_note {
    const char *key, *value; /* UTF-8 */
};

/* ---- read ------------------------------------------------------------------------------------------ */

struct keel_safetensors;

/* Open a .safetensors file, an index of several (*.index.json), or a directory that holds the one or the
 * other; through symbolic links too. Files stay open until the close, and are those that were checked.
 * Blocks.
 *
 * Refused as CORRUPT, with one message that names file and tensor: a file shorter than its header says or
 * longer than its tensors need; a header that is empty, does not begin with '{' (as the format wants, though
 * its own reader lets blanks pass), is no UTF-8 or no JSON, or has a string with U+0000 (at which names end
 * here, so that two would be one); a name twice; a shape whose bytes do not fit into 64 bits
 * or are not those of its data_offsets; bytes that two tensors share, or none has; an index that names a file
 * outside of its directory, a tensor that is not in the file where it should be, a file with tensors that it
 * does not name, or a total_size that is not theirs. UNSUPPORTED: a dtype that is not in the list above.
 * LIMIT: a header above 100 MB, more than 8 dimensions, more than 768 files. NOT_FOUND, DENIED, INVALID (a
 * directory with several models in it: name the one), IO. */
enum keel_status keel_safetensors_open(const char *path, struct keel_safetensors **out);
void keel_safetensors_close(struct keel_safetensors *file);

/* Tensors in byte order of their names; pointers are valid until the close. */
uint32_t keel_safetensors_count(const struct keel_safetensors *file);
const struct keel_safetensors_tensor *keel_safetensors_tensor(const struct keel_safetensors *file,
                                                              uint32_t index);
/* UINT32_MAX when there is none of that name. */
uint32_t keel_safetensors_find(const struct keel_safetensors *file, const char *name);
/* A value of __metadata__ (of the first file where there are several), or NULL. */
const char *keel_safetensors_note(const struct keel_safetensors *file, const char *key);

/* Read bytes [offset, offset + bytes) of a tensor. Any thread. CORRUPT: the file has shrunk since. IO. */
enum keel_status keel_safetensors_read(const struct keel_safetensors *file, uint32_t index,
                                       uint64_t offset_bytes, uint64_t bytes, void *out);

/* ---- write ----------------------------------------------------------------------------------------- */

struct keel_safetensors_write {
    const char *path; /* NAME.safetensors, or a directory: model.safetensors in it */
    const struct keel_safetensors_tensor *tensors; /* any order; each name once */
    uint32_t tensor_count;
    const struct keel_safetensors_note *notes; /* __metadata__, any order; each key once */
    uint32_t note_count;
    /* 0: one file. Else files of at most so many bytes of tensors (one tensor is never split), called
     * NAME-00001-of-0000N.safetensors, and NAME.safetensors.index.json; one that holds all is called
     * NAME.safetensors, and has no index. */
    uint64_t shard_bytes;
    /* What is there under these names goes, once the new is whole; of a model in several files the index is
     * away while its files change. false: nothing that is there is touched. */
    bool replace;
    /* Bytes [offset, offset + bytes) of tensor `index` (as in `tensors`) into `out`; ascending, one tensor
     * after the other, in pieces of at most 16 MiB that end at an element. */
    enum keel_status (*read)(void *context, uint32_t index, uint64_t offset_bytes, uint64_t bytes, void *out);
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *context;
};
struct keel_safetensors_written {
    uint32_t files; /* without the index */
    uint64_t tensor_bytes;
    char path[KEEL_PATH_BYTES]; /* the file, or the index of several */
};
/* Write all files under temporary names, fsync them, and then rename them (the index last). Blocks. The order
 * of tensors and the padding of headers are the reference's, so that the same tensors give the same bytes.
 * INVALID (a name twice, or none; no UTF-8; something is there and `replace` is false), LIMIT, NO_SPACE, IO,
 * DENIED, and what `read` returns: then nothing has changed, and the temporary files are gone. */
enum keel_status keel_safetensors_write(const struct keel_safetensors_write *what,
                                        struct keel_safetensors_written *out);

KEEL_API_END

#endif
