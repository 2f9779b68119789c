/* secret.c - makes, reads and derives from the job key.
 *
 * Owns DIR/job.key. Promises that a key that others could have read is refused, never used. Sealing with
 * the derived keys is seal.c's. */
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <keel/file.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The file: 64 hex digits and an end of line. */
enum { HEX_BYTES = 2 * KEEL_SECRET_BYTES, FILE_BYTES = HEX_BYTES + 1 };

_Static_assert(KEEL_SECRET_BYTES == crypto_kdf_KEYBYTES, "the job key is the master key of crypto_kdf");

static enum keel_status write_new(int fd, const char *path)
{
    uint8_t key[KEEL_SECRET_BYTES];
    char text[FILE_BYTES + 1];
    randombytes_buf(key, sizeof key);
    sodium_bin2hex(text, sizeof text, key, sizeof key);
    text[HEX_BYTES] = '\n';
    enum keel_status status = keel_pwrite_all(fd, text, FILE_BYTES, 0, path);
    if (status == KEEL_OK && fsync(fd) != 0)
        status = keel_fail_errno(errno, "%s: cannot be synced", path);
    sodium_memzero(key, sizeof key);
    sodium_memzero(text, sizeof text);
    return status;
}

/* Make the file unless it is there. */
static enum keel_status create_key(const char *directory, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == EEXIST ? KEEL_OK : keel_fail_errno(errno, "%s: cannot be created", path);
    enum keel_status status = write_new(fd, path);
    close(fd);
    if (status != KEEL_OK)
        unlink(path); /* half a key would be refused for ever */
    return status == KEEL_OK ? keel_sync_path(directory) : status;
}

/* Only its owner may read it, and that must be us. `instead`: what to do about another one. */
static enum keel_status check_owner(int fd, const char *path, const char *instead)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return keel_fail_errno(errno, "%s: cannot be examined", path);
    if (!S_ISREG(info.st_mode))
        return keel_fail(KEEL_DENIED, "%s: not a regular file; %s", path, instead);
    if ((info.st_mode & 0077) != 0)
        return keel_fail(KEEL_DENIED, "%s: open to others (mode %03o); chmod 600 it, or %s", path,
                         (unsigned)info.st_mode & 0777, instead);
    if (info.st_uid != geteuid())
        return keel_fail(KEEL_DENIED, "%s: belongs to user %u, not to %u; run as its owner", path,
                         (unsigned)info.st_uid, (unsigned)geteuid());
    if (info.st_size != FILE_BYTES)
        return keel_fail(KEEL_CORRUPT, "%s: %lld bytes, a key has %d; %s", path, (long long)info.st_size,
                         FILE_BYTES, instead);
    return KEEL_OK;
}

static enum keel_status parse_key(const char text[FILE_BYTES], const char *path, const char *instead,
                                  struct keel_secret *out)
{
    size_t bytes = 0;
    struct keel_secret read_back;
    int bad = sodium_hex2bin(read_back.key, sizeof read_back.key, text, HEX_BYTES, NULL, &bytes, NULL);
    bad = bad != 0 || bytes != sizeof read_back.key || text[HEX_BYTES] != '\n';
    if (!bad)
        *out = read_back;
    sodium_memzero(&read_back, sizeof read_back);
    if (bad)
        return keel_fail(KEEL_CORRUPT, "%s: not %d hex digits on a line; %s", path, HEX_BYTES, instead);
    return KEEL_OK;
}

static enum keel_status read_key(const char *path, const char *instead, struct keel_secret *out)
{
    char text[FILE_BYTES];
    int fd =
        open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a pipe is refused, not waited for */
    if (fd < 0 && errno == ELOOP)
        return keel_fail(KEEL_DENIED, "%s: is a symbolic link; name the file that it leads to", path);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: the job key cannot be opened", path);
    enum keel_status status = check_owner(fd, path, instead);
    if (status == KEEL_OK)
        status = keel_pread_all(fd, text, sizeof text, 0, path);
    close(fd);
    if (status == KEEL_OK)
        status = parse_key(text, path, instead, out);
    sodium_memzero(text, sizeof text);
    return status;
}

/* Whoever writes to our standard input has the key already. */
static enum keel_status read_input(const char *instead, struct keel_secret *out)
{
    char text[FILE_BYTES];
    size_t bytes = 0;
    ssize_t got = 1;
    while (bytes < sizeof text && got > 0) {
        got = read(STDIN_FILENO, text + bytes, sizeof text - bytes);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got > 0)
            bytes += (size_t)got;
    }
    enum keel_status status = bytes == sizeof text
                                  ? parse_key(text, "standard input", instead, out)
                                  : keel_fail(KEEL_CORRUPT, "standard input: %zu bytes, a key has %d; %s",
                                              bytes, FILE_BYTES, instead);
    sodium_memzero(text, sizeof text);
    return status;
}

static enum keel_status begin(void)
{
    if (sodium_init() < 0)
        return keel_fail(KEEL_UNSUPPORTED, "libsodium finds no source of random numbers");
    return KEEL_OK;
}

enum keel_status keel_secret_read(const char *path, struct keel_secret *out)
{
    static const char instead[] = "copy job.key of the run's directory";
    KEEL_TRY(begin());
    return strcmp(path, "-") == 0 ? read_input(instead, out) : read_key(path, instead, out);
}

void keel_secret_text(const struct keel_secret *secret, char out[KEEL_SECRET_TEXT_BYTES])
{
    _Static_assert((int)KEEL_SECRET_TEXT_BYTES == (int)FILE_BYTES + 1, "a line and NUL");
    sodium_bin2hex(out, KEEL_SECRET_TEXT_BYTES, secret->key, sizeof secret->key);
    memcpy(out + HEX_BYTES, "\n", 2);
}

enum keel_status keel_secret_save(const struct keel_secret *secret, const char *directory)
{
    char path[KEEL_PATH_BYTES], text[KEEL_SECRET_TEXT_BYTES];
    KEEL_TRY(keel_path_join(path, directory, "job.key"));
    keel_secret_text(secret, text);
    enum keel_status status = keel_file_replace(path, text, FILE_BYTES, 0600);
    sodium_memzero(text, sizeof text);
    return status;
}

enum keel_status keel_secret_load(const char *directory, bool create, struct keel_secret *out)
{
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(begin());
    KEEL_TRY(keel_path_join(path, directory, "job.key"));
    if (create)
        KEEL_TRY(create_key(directory, path));
    return read_key(path, "remove it for a new one", out);
}

void keel_secret_derive(const struct keel_secret *secret, const char *purpose, uint8_t out[KEEL_SECRET_BYTES])
{
    char context[crypto_kdf_CONTEXTBYTES] = {0};
    size_t length = strlen(purpose);
    KEEL_ASSERT(length > 0 && length <= sizeof context);
    memcpy(context, purpose, length);
    KEEL_ASSERT(crypto_kdf_derive_from_key(out, KEEL_SECRET_BYTES, 1, context, secret->key) == 0);
}

void keel_secret_wipe(struct keel_secret *secret)
{
    sodium_memzero(secret, sizeof *secret);
}
