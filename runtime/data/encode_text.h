/* encode_text.h - texts of a job become token files before it runs.
 *
 * Where data.vocab names a tokenizer and data.path a text, the text is encoded once into a file of the run's
 * directory, and the job reads that from then on. The file is named by what it was made of: text (path, size,
 * time) and tokenizer. It is written beside and renamed when it is whole, so that one that is there is used.
 */
#ifndef KEEL_ENCODE_TEXT_H
#define KEEL_ENCODE_TEXT_H

#include <keel/job.h>

/* Whether the job has such a text. */
bool keel_job_has_text_to_encode(const struct keel_job *job);

/* Told about once a second. */
typedef void keel_encode_progress(void *context, const char *path, uint64_t done_bytes, uint64_t bytes);

/* Encode data.path and data.val_path into `directory`, where they are not yet, and let the job name those
 * files. Memory does not grow with the text. `make` is called before anything is written. INVALID: a text
 * that is no UTF-8, with its offset, or that has more than 64 MiB without an end of a piece; MISMATCH: it was
 * written to meanwhile; what the tokenizer or the disk says. Blocks; any thread. */
struct keel_encode_config {
    const char *directory;
    enum keel_status (*make)(void *context); /* the directory, and its lock */
    keel_encode_progress *progress;
    void *context; /* of both */
};
enum keel_status keel_job_encode_text(struct keel_job *job, const struct keel_encode_config *config);

#endif
