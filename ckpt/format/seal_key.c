/* seal_key.c - reads a key file, refuses one that others could have read, and derives from it. */
#include "seal_key.h"
#include <errno.h>
#include <keel/ckpt.h>
#include <keel/disk.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { HEX_BYTES = 2 * KEEL_KEY_BYTES, FILE_BYTES_MAX = HEX_BYTES + 1 };

struct keel_key {
    atomic_uint holders;
    uint8_t *master; /* owned, locked memory */
    char path[KEEL_PATH_BYTES];
};

static enum keel_status check_file(int fd, const char *path, size_t *out_bytes)
{
    struct stat info;
    if (keel_disk_fstat(fd, &info) != 0)
        return keel_fail_errno(errno, "%s: cannot be examined", path);
    if (!S_ISREG(info.st_mode))
        return keel_fail(KEEL_DENIED, "%s: is no regular file; a key is read from nothing else", path);
    if (info.st_size != KEEL_KEY_BYTES && info.st_size != HEX_BYTES && info.st_size != FILE_BYTES_MAX)
        return keel_fail(KEEL_INVALID,
                         "%s: has %lld bytes; a key is %d bytes, or %d hex digits and a newline", path,
                         (long long)info.st_size, KEEL_KEY_BYTES, HEX_BYTES);
    if ((info.st_mode & 0077) != 0)
        return keel_fail(KEEL_DENIED,
                         "%s: is open to others (mode %03o), so it is no secret; run: chmod 600 %s", path,
                         (unsigned)info.st_mode & 0777, path);
    if (info.st_uid != geteuid() && info.st_uid != 0)
        return keel_fail(KEEL_DENIED,
                         "%s: belongs to user %u, who could have put another key there; make it yours", path,
                         (unsigned)info.st_uid);
    *out_bytes = (size_t)info.st_size;
    return KEEL_OK;
}

static enum keel_status parse_key(const uint8_t *text, size_t bytes, const char *path, uint8_t *master)
{
    size_t parsed = 0;
    if (bytes == KEEL_KEY_BYTES) {
        memcpy(master, text, KEEL_KEY_BYTES);
        return KEEL_OK;
    }
    if (sodium_hex2bin(master, KEEL_KEY_BYTES, (const char *)text, HEX_BYTES, NULL, &parsed, NULL) != 0 ||
        parsed != KEEL_KEY_BYTES || (bytes == FILE_BYTES_MAX && text[HEX_BYTES] != '\n'))
        return keel_fail(KEEL_INVALID,
                         "%s: holds no key: it should be %d bytes, or %d hex digits and a newline", path,
                         KEEL_KEY_BYTES, HEX_BYTES);
    return KEEL_OK;
}

static enum keel_status read_key(int fd, const char *path, uint8_t *master)
{
    uint8_t text[FILE_BYTES_MAX];
    size_t bytes = 0;
    KEEL_TRY(check_file(fd, path, &bytes));
    enum keel_status status = keel_pread_all(fd, text, bytes, 0, path);
    if (status == KEEL_OK)
        status = parse_key(text, bytes, path, master);
    sodium_memzero(text, sizeof text);
    return status;
}

static enum keel_status fill_key(struct keel_key *key, int fd)
{
    key->master = sodium_malloc(KEEL_KEY_BYTES);
    if (key->master == NULL)
        return keel_fail(KEEL_NO_MEMORY, "no locked memory for a key");
    KEEL_TRY(read_key(fd, key->path, key->master));
    (void)sodium_mprotect_readonly(key->master); /* one more guard; without it the key is as right */
    return KEEL_OK;
}

static enum keel_status open_key(const char *path, int *out_fd)
{
    /* O_NONBLOCK: should a pipe lie there, opening it must not wait for a writer */
    int fd = keel_disk_open(AT_FDCWD, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0 && errno == ELOOP)
        return keel_fail(KEEL_DENIED, "%s: is a symbolic link; name the key file itself", path);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: the key file cannot be opened", path);
    *out_fd = fd;
    return KEEL_OK;
}

enum keel_status keel_key_load(const char *path, struct keel_key **out)
{
    if (sodium_init() < 0)
        return keel_fail(KEEL_UNSUPPORTED, "libsodium finds no source of random numbers");
    if (strlen(path) >= KEEL_PATH_BYTES)
        return keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", path, KEEL_PATH_BYTES);
    int fd = -1;
    struct keel_key *key;
    KEEL_TRY(open_key(path, &fd));
    enum keel_status status = keel_alloc(1, sizeof *key, &key);
    if (status != KEEL_OK) {
        keel_disk_close(fd);
        return status;
    }
    atomic_init(&key->holders, 1);
    memcpy(key->path, path, strlen(path) + 1);
    status = fill_key(key, fd);
    keel_disk_close(fd);
    if (status != KEEL_OK) {
        keel_key_release(key);
        return status;
    }
    *out = key;
    return KEEL_OK;
}

enum keel_status keel_key_check(const char *key_file)
{
    struct keel_key *key = NULL;
    KEEL_TRY(keel_key_load(key_file, &key));
    keel_key_release(key);
    return KEEL_OK;
}

struct keel_key *keel_key_retain(struct keel_key *key)
{
    if (key != NULL)
        atomic_fetch_add(&key->holders, 1);
    return key;
}

void keel_key_release(struct keel_key *key)
{
    if (key == NULL || atomic_fetch_sub(&key->holders, 1) > 1)
        return;
    sodium_free(key->master); /* wipes it */
    keel_free(key);
}

const char *keel_key_path(const struct keel_key *key)
{
    return key->path;
}

void keel_key_hash(const struct keel_key *key, const char *label, const void *data, size_t bytes,
                   uint8_t *out, size_t out_bytes)
{
    char padded[KEEL_KEY_LABEL_BYTES + 1] = {0};
    crypto_generichash_state state;
    KEEL_ASSERT(snprintf(padded, sizeof padded, "%s", label) <= KEEL_KEY_LABEL_BYTES);
    KEEL_ASSERT(crypto_generichash_init(&state, key->master, KEEL_KEY_BYTES, out_bytes) == 0);
    crypto_generichash_update(&state, (const uint8_t *)padded, KEEL_KEY_LABEL_BYTES);
    crypto_generichash_update(&state, data, bytes);
    crypto_generichash_final(&state, out, out_bytes);
    sodium_memzero(&state, sizeof state);
}

bool keel_key_equal(const void *a, const void *b, size_t bytes)
{
    return sodium_memcmp(a, b, bytes) == 0;
}
