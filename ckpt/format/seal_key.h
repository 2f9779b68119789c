/* seal_key.h - the master key of sealed snapshots: from a file that only its owner reads, and what is derived
 * from it.
 *
 * The key lies in locked memory between guard pages and is wiped when the last holder lets it go. Nothing is
 * sealed with it: every use is a keyed BLAKE2b under a label of its own (keel_key_hash), so that no two uses
 * share a key. Left to others: what is sealed (chunk_seal.c). */
#ifndef KEEL_CKPT_SEAL_KEY_H
#define KEEL_CKPT_SEAL_KEY_H

#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KEEL_KEY_BYTES = 32, KEEL_KEY_LABEL_BYTES = 16 };

struct keel_key;

/* A regular file, no link, of its user or root, closed to all others: 32 bytes, or 64 hex digits and at most
 * a newline. Held once. NOT_FOUND, DENIED (with what to do), INVALID (no key in it), IO. */
enum keel_status keel_key_load(const char *path, struct keel_key **out);
/* Shared by whoever needs it; any thread. NULL is fine with both. */
struct keel_key *keel_key_retain(struct keel_key *key);
void keel_key_release(struct keel_key *key);
const char *keel_key_path(const struct keel_key *key); /* for messages */

/* BLAKE2b of `out_bytes` (16 or 32), keyed with the master key, over the label (16 bytes, padded with NUL)
 * and `data`. Any thread. */
void keel_key_hash(const struct keel_key *key, const char *label, const void *data, size_t bytes,
                   uint8_t *out, size_t out_bytes);
/* Takes as long whether they differ early, late or not at all. */
bool keel_key_equal(const void *a, const void *b, size_t bytes);

#endif
