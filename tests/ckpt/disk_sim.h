/* disk_sim.h - a disk in memory that may lose power: what programs see, what is there for sure, and what may
 * or may not have reached it.
 *
 * The model, which is what POSIX promises and no more:
 * - A write to a file, and a change of its size, is certain once fsync of that file returned 0. Until then
 *   each sector of 512 bytes holds, independently, what was there or the state after any of the writes to
 *   it, and the size is the one before or the one after any of them. Space that was never written holds
 *   zeros or whatever lay there before.
 * - A name that was made, renamed or removed is certain once fsync of its directory returned 0. Until then
 *   each of these changes happened or did not, independently of each other and of the file that it names. A
 *   rename is one change.
 * - When fsync of a file fails, what it should have made certain is lost, while programs see it as if it
 *   were there. Names stay uncertain until an fsync of their directory works: a file system that cannot
 *   write its journal stops, and so do those on which a second fsync would say 0.
 * No links; rename within one directory only. One disk is mounted at a time; paths begin at its root. */
#ifndef KEEL_TESTS_CKPT_DISK_SIM_H
#define KEEL_TESTS_CKPT_DISK_SIM_H

#include <keel/disk.h>
#include <stdbool.h>
#include <stdint.h>

enum { DISK_CHOICES_MAX = 24 };

struct disk;
struct disk *disk_create(void);
void disk_destroy(struct disk *disk);
/* With all that is uncertain. */
struct disk *disk_copy(const struct disk *disk);

/* Calls of disk_sim_ops go to this one; NULL: to none. Descriptors of the one before are closed. */
void disk_mount(struct disk *disk);
uint32_t disk_open_descriptors(void);
extern const struct keel_disk_ops disk_sim_ops;
/* What an fsync that fails does to the mounted disk. */
void disk_sim_lose(int fd);

/* The path of what is open, for tables that wrap this one. */
const char *disk_sim_path(int fd);
bool disk_sim_is_directory(int fd);

/* ---- power loss ---------------------------------------------------------------------------------------- */

enum disk_choice_mode { DISK_KEEP_NONE, DISK_KEEP_ALL, DISK_KEEP_RANDOM, DISK_KEEP_EACH };

/* Which of the uncertain things reached the disk. Zero it, and set mode; for RANDOM the seed, for EACH call
 * disk_choice_next between crashes. */
struct disk_choice {
    enum disk_choice_mode mode;
    uint64_t seed;
    uint64_t digest;                     /* out: of what was chosen; equal for equal crashes of one disk */
    uint32_t count;                      /* out: of things chosen */
    uint32_t names_of_16, sectors_of_16; /* RANDOM: how likely each is kept */
    bool stale;                          /* space never written holds old bytes, not zeros */
    uint32_t digits[DISK_CHOICES_MAX], limits[DISK_CHOICES_MAX];
};
/* For RANDOM: draw the likelihoods too. */
struct disk_choice disk_choice_random(uint64_t seed);
/* False when all were made, or are too many for the digits. */
bool disk_choice_next(struct disk_choice *choice);

/* What a restart finds. */
struct disk *disk_crash(const struct disk *disk, struct disk_choice *choice);
/* How many things are uncertain. */
uint32_t disk_uncertain(const struct disk *disk);

/* ---- recording ----------------------------------------------------------------------------------------- */

struct disk_trace; /* changes of a disk, in order */
struct disk_trace *disk_trace_create(void);
void disk_trace_destroy(struct disk_trace *trace);
/* Changes of the mounted disk go there too, until NULL. */
void disk_record(struct disk_trace *trace);
uint32_t disk_trace_count(const struct disk_trace *trace);
/* Change number `index` again, on a copy of the disk as it was when the recording began. */
void disk_trace_apply(const struct disk_trace *trace, uint32_t index, struct disk *disk);
/* "fsync /a/b", for messages. */
const char *disk_trace_text(const struct disk_trace *trace, uint32_t index);

#endif
