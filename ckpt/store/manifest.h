/* manifest.h - manifest.json: what a committed snapshot consists of.
 *
 * A JSON object whose last member, "check", is the XXH3-128 of every byte of the file before its value, so
 * that any damage shows, and a stranger needs no canonical JSON. Paths are never in it: a shard's name
 * follows from its rank. */
#ifndef KEEL_CKPT_MANIFEST_H
#define KEEL_CKPT_MANIFEST_H

#include "store.h"

enum { KEEL_MANIFEST_BYTES_MAX = 8 << 20, KEEL_METADATA_BYTES_MAX = 1 << 20 };

struct keel_manifest {
    char run[KEEL_RUN_NAME_BYTES];
    struct keel_snapshot_info info;
    struct keel_shard_summary *shards; /* info.shard_count of them, by rank; owned */
    struct keel_generation *bases;     /* those that delta chunks refer to: base_count, at most one a shard,
                                        * ascending without repetition; owned
                                        */
    uint32_t base_count;               /* direct bases: theirs are in their own manifests */
    char *metadata;                    /* JSON object; owned */
    bool proven;                       /* by reading: its mac is the key's (info.sealed: it has one) */
    const struct keel_key *key;        /* for encoding, borrowed: gives it a mac; or NULL */
};
void keel_manifest_fini(struct keel_manifest *manifest);

/* Its own memory; on failure there is nothing to undo. NO_MEMORY. */
enum keel_status keel_manifest_copy(const struct keel_manifest *manifest, struct keel_manifest *out);

/* Of a job: printable ASCII, possibly none, with its end. */
bool keel_identity_valid(const char *identity);

/* As text on the heap (free with keel_free). INVALID when metadata is no JSON object; LIMIT. */
enum keel_status keel_manifest_encode(const struct keel_manifest *manifest, char **out, size_t *out_bytes);

/* `label` is the file's path. CORRUPT or VERSION. */
enum keel_status keel_manifest_decode(const char *text, size_t bytes, const char *label,
                                      struct keel_manifest *out);

/* Read it from its directory, and see that it belongs there: MISMATCH when run, step or attempt are those
 * of another place. NOT_FOUND: not committed. With the store's key it is proven, or one without a mac is
 * accepted if the store accepts those (AUTH, FORGED). Without a key a mac is not looked at. */
enum keel_status keel_manifest_read(const struct keel_store *store, const struct keel_step_place *place,
                                    struct keel_manifest *out);

#endif
