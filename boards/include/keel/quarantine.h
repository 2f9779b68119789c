/* quarantine.h - boards that computed wrong bits and are not trusted until a person releases them.
 *
 * Owns the files: one for each board, <state>/quarantine/<selector>-<alike>-<key>.json, where <state> is the
 * first of $KEEL_STATE, $XDG_STATE_HOME/keel, $HOME/.local/state/keel and /var/lib/keel. <alike> is a hash of
 * host, platform and device name, <key> one of these and the identity that the driver tells (keel/device.h):
 * a new driver or another device order does not lift a quarantine. Findings made under fault injection are
 * kept in the run's own folder, and no other run reads them. Where a driver tells no
 * identity, all boards of the host that are alike are quarantined together. A file holds all that was known
 * when the board was found out, its selector then among it, and the first evidence stays. Leaves to others:
 * finding wrong bits (golden operations, `keel board check`), and leaving the run.
 *
 * Threads. All functions may be called by any thread and process; a file is replaced whole. */
#ifndef KEEL_QUARANTINE_H
#define KEEL_QUARANTINE_H

#include <keel/api.h>
#include <keel/clock.h>
#include <keel/device.h>
#include <keel/file.h>

KEEL_API_BEGIN

/* How long a finding lasts.
 * WRONG_BITS  an operation gave other bits than its own: until a person releases the board.
 * MEMORY      one number changed where it lay, which a sound board does now and then: until the next run has
 *             put the board through all golden operations (keel_quarantine_passed); the finding still counts.
 *             KEEL_QUARANTINE_MEMORY_FINDINGS of them, each within
 *             KEEL_QUARANTINE_MEMORY_DAYS of the one before, last as WRONG_BITS does. */
enum keel_quarantine_kind { KEEL_QUARANTINE_WRONG_BITS, KEEL_QUARANTINE_MEMORY };
enum { KEEL_QUARANTINE_MEMORY_FINDINGS = 3, KEEL_QUARANTINE_MEMORY_DAYS = 30 };

enum { KEEL_QUARANTINE_MAX = 64, KEEL_QUARANTINE_EVIDENCE_BYTES = 512, KEEL_QUARANTINE_WHERE_BYTES = 128 };

struct keel_quarantine {
    char selector[KEEL_DEVICE_NAME_BYTES], name[KEEL_DEVICE_NAME_BYTES], platform[KEEL_DEVICE_NAME_BYTES];
    char identity[KEEL_DEVICE_NAME_BYTES];         /* "": the driver told none */
    char version[KEEL_DEVICE_NAME_BYTES];          /* of the driver, then */
    char host[KEEL_QUARANTINE_WHERE_BYTES];        /* where the board is */
    char where[KEEL_QUARANTINE_WHERE_BYTES];       /* what found it out: "run gpt, rank 2, step 31" */
    char evidence[KEEL_QUARANTINE_EVIDENCE_BYTES]; /* what it did: operation, hash, expected hash */
    char since[KEEL_WALL_TEXT_BYTES];              /* UTC, "2026-11-21T13:02:11Z" */
    enum keel_quarantine_kind kind;                /* of the gravest finding */
    uint32_t findings;                             /* of memory; 1 for others */
    uint64_t last_s;            /* the newest, in seconds of UTC; 0 in files of older versions */
    uint64_t passed_s;          /* when the board passed all golden operations; 0: not yet */
    char path[KEEL_PATH_BYTES]; /* of the file */
};

/* The folder of the files, whether or not it is there. LIMIT when the path is too long. */
enum keel_status keel_quarantine_folder(char out[KEEL_PATH_BYTES]);

struct keel_quarantine_finding {
    enum keel_quarantine_kind kind;
    const char *where, *evidence;
    const char *directory; /* of a run, for the findings of its drills; NULL: the host's folder */
};

/* Quarantine a board of this host; durable when it returns OK. Where it is quarantined already, the first
 * evidence stays, a further finding of memory is counted, and *out is what stands there. `out` may be NULL.
 * DENIED, NO_SPACE, IO: the board must then be kept out by other means, and the caller says so. */
enum keel_status keel_quarantine_add(const struct keel_device_info *info,
                                     const struct keel_quarantine_finding *finding,
                                     struct keel_quarantine *out);

/* Is this board quarantined, or one that cannot be told from it? OK with *out_found; a file that cannot be
 * read or is no such file is an error (DENIED, IO, CORRUPT, with its path), never a board that is trusted. */
enum keel_status keel_quarantine_find(const struct keel_device_info *info, struct keel_quarantine *out,
                                      bool *out_found);

/* OK when the board may be used, with *out_probation after a finding of memory: only when it then passes all
 * golden operations. Else DENIED with its evidence and how it is released, or what keel_quarantine_find says.
 */
enum keel_status keel_quarantine_admit(const struct keel_device_info *info, bool *out_probation);

/* A board on probation has passed all golden operations: no probation until the next finding. Its count of
 * findings stays. OK also when the board is not on record. DENIED, NO_SPACE, IO: the next run screens it
 * again. */
enum keel_status keel_quarantine_passed(const struct keel_device_info *info);

/* All files of the folder, by name; LIMIT when there are more than `capacity`. With CORRUPT, for a file that
 * is no record, *out has all the others. */
enum keel_status keel_quarantine_list(struct keel_quarantine *out, uint32_t capacity, uint32_t *out_count);

/* End the quarantine of the board of this host that had that selector when it was found out, or whose file
 * has that name: its file becomes <file>.released. NOT_FOUND names the boards that are quarantined, INVALID
 * the files when several boards had the selector. */
enum keel_status keel_quarantine_release(const char *selector);

KEEL_API_END

#endif
