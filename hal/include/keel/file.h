/* file.h - files and directories, durable where it says so.
 *
 * Paths are UTF-8 C strings. Calls block; any thread. Errors name the path. EINTR and short
 * reads and writes are handled inside. */
#ifndef KEEL_FILE_H
#define KEEL_FILE_H

#include <keel/api.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KEEL_API_BEGIN

enum { KEEL_PATH_BYTES = 1024 };

/* Join with '/', LIMIT when longer than KEEL_PATH_BYTES. */
enum keel_status keel_path_join(char out[KEEL_PATH_BYTES], const char *directory, const char *name);

/* The directory in which it lies: "." for a bare name. LIMIT. */
enum keel_status keel_path_parent(char out[KEEL_PATH_BYTES], const char *path);

bool keel_path_exists(const char *path);
/* A regular file, by itself or through links: what can be read again, and ends. */
bool keel_path_is_file(const char *path);

/* Make a directory and its parents; fine when it is there. DENIED, NO_SPACE, IO. */
enum keel_status keel_mkdir_all(const char *path);

/* Read a whole file of at most `max_bytes` (and of what an address can reach) into heap memory (one extra NUL
 * byte follows the data); the caller frees *out with keel_free. NOT_FOUND, DENIED, LIMIT, IO. */
enum keel_status keel_file_read(const char *path, uint64_t max_bytes, char **out, size_t *out_bytes);

/* Replace `path` so that a crash leaves the old or the new contents, whole: temporary file in the
 * same directory (O_EXCL, mode), write, fsync, rename, fsync of the directory. */
enum keel_status keel_file_replace(const char *path, const void *data, uint64_t bytes, unsigned mode);

/* Append and, when `durable`, fsync. Creates the file. One write(2) for up to 64 KiB. */
enum keel_status keel_file_append(const char *path, const void *data, uint64_t bytes, bool durable);

/* All bytes or an error, on a descriptor; the path is for the message alone. */
enum keel_status keel_pread_all(int fd, void *data, uint64_t bytes, uint64_t offset, const char *path);
enum keel_status keel_pwrite_all(int fd, const void *data, uint64_t bytes, uint64_t offset, const char *path);

/* The end of an open file, as text that fits into `room` bytes with its NUL; "" where it cannot be read. */
void keel_read_tail(int fd, char *out, size_t room);

/* fsync a file or a directory by path. */
enum keel_status keel_sync_path(const char *path);

/* Call `visit` for each entry of a directory (not . and ..), in byte order of the names, so that
 * results never depend on the file system. Stops at the first status that is not OK. */
enum keel_status keel_dir_list(const char *path, enum keel_status (*visit)(void *context, const char *name),
                               void *context);

/* Take an advisory lock on a file, which is created when missing: exclusive, or shared with others that
 * take it shared. BUSY when the deadline passes (0: do not wait). The lock goes with the process, however
 * that ends, or with keel_file_unlock. */
enum keel_status keel_file_lock(const char *path, bool shared, uint64_t deadline_ns, int *out_fd);
void keel_file_unlock(int fd);
/* Somebody holds that lock exclusively. Takes no permission to write; false for what cannot be opened. */
bool keel_file_is_locked(const char *path);

/* Make a directory, if it is not there, that nobody else can write to. DENIED when somebody else made it,
 * when others may write there, or when it is a link. Its parent must be there. */
enum keel_status keel_dir_private(const char *path);

/* Make a new file of `bytes` zeros, all of them reserved on the disk, and map it: what is written to *out is
 * in the file, also when the process is killed. Only its owner can read it. The caller unmaps. */
enum keel_status keel_file_map_new(const char *path, uint64_t bytes, void **out);
/* Map a regular file to read it; it must not be empty. NOT_FOUND, INVALID; a file that shrinks while it is
 * mapped ends who reads behind its end. The caller unmaps. */
enum keel_status keel_file_map(const char *path, void **out, uint64_t *out_bytes);
void keel_file_unmap(void *mapped, uint64_t bytes);

/* Remove a directory tree (symbolic links are removed, never followed). Fine when it is not there. */
enum keel_status keel_remove_tree(const char *path);

KEEL_API_END

#endif
