/* secret.h - the job key: one secret per run directory.
 *
 * DIR/job.key holds 32 random bytes as hex, mode 0600. Whoever can read it belongs to the run; nobody
 * else does. It never appears among arguments, in the environment or in a log. What needs a key takes
 * one derived for its own purpose, so that control messages and fabric connections never share one. */
#ifndef KEEL_SECRET_H
#define KEEL_SECRET_H

#include <keel/status.h>
#include <stdbool.h>
#include <stdint.h>

enum { KEEL_SECRET_BYTES = 32, KEEL_SECRET_TEXT_BYTES = 2 * KEEL_SECRET_BYTES + 2 };

struct keel_secret {
    uint8_t key[KEEL_SECRET_BYTES];
};

/* Read DIR/job.key; with `create` make it first when it is not there (O_EXCL: two launchers cannot both).
 * Blocks on the disk. NOT_FOUND, DENIED (readable by others than its owner: chmod 600; or owned by
 * somebody else), CORRUPT (not 64 hex digits), IO. */
enum keel_status keel_secret_load(const char *directory, bool create, struct keel_secret *out);

/* The same from a copy of that file, on another host; "-" is the standard input. */
enum keel_status keel_secret_read(const char *path, struct keel_secret *out);
/* As the file has it: a line, and NUL. To DIR/job.key, in place of what is there. */
void keel_secret_text(const struct keel_secret *secret, char out[KEEL_SECRET_TEXT_BYTES]);
enum keel_status keel_secret_save(const struct keel_secret *secret, const char *directory);

/* The key for a purpose: "control" for datagrams between nodes, "fabric" for connections between ranks,
 * "handover" for agents that dial in;
 * at most 8 characters (libsodium crypto_kdf, BLAKE2b). Never fails, any thread. */
void keel_secret_derive(const struct keel_secret *secret, const char *purpose,
                        uint8_t out[KEEL_SECRET_BYTES]);

/* Forget it: overwrites the memory. */
void keel_secret_wipe(struct keel_secret *secret);

#endif
