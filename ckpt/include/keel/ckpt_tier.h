/* ckpt_tier.h - checkpoint tiers: where the files of a snapshot may lie, each a sink and a source behind
 * one interface; copying between them, erasure sets over them, which generation to restore, restoring,
 * repairing.
 *
 * A tier holds *objects* of one run: the files of the format (ckpt/README.md), each under a name that is
 * never used for other contents. Four kinds of tier: memory (of this process), remote (the tier of another
 * process, by messages: a partner's memory), directory (a store: local disk or shared), and erasure set (a
 * source: what lost nodes held, computed from what the others hold).
 *
 * Promises. Nothing of an object is visible before its commit; commit reads back what was written and
 * compares it with the digest that the writer computed, so what is listed has been verified once. What a
 * tier gives is still checked by whoever reads it: keel_tier_verify and keel_tier_copy check every byte
 * that the format has a check for.
 *
 * Tiers may be used by any threads at once; a source or sink by one at a time. Everything here blocks;
 * remote tiers for no longer than their time-out a call, and once only for a partner that stands still.
 * Close sources and sinks before their tier. */
#ifndef KEEL_CKPT_TIER_H
#define KEEL_CKPT_TIER_H

#include <keel/api.h>
#include <keel/ckpt.h>

KEEL_API_BEGIN

/* ---- objects ------------------------------------------------------------------------------------------- */

enum keel_object_kind { /* values go over the wire */
                        KEEL_OBJECT_SHARD = 1,
                        KEEL_OBJECT_PARITY = 2,
                        KEEL_OBJECT_MANIFEST = 3
};

struct keel_object {
    uint64_t step, attempt;
    enum keel_object_kind kind;
    uint32_t set;    /* parity: the erasure set; else 0 */
    uint32_t member; /* shard: rank; parity: member of the set; manifest: 0 */
};

enum { KEEL_OBJECT_NAME_BYTES = 96, KEEL_OBJECT_DIGEST_BYTES = 16, KEEL_TIER_NAME_BYTES = 96 };

/* "step-12.3/rank-0.keel", as a directory tier has it. */
void keel_object_name(const struct keel_object *object, char out[KEEL_OBJECT_NAME_BYTES]);
/* By step, attempt, kind, set, member: below, at or above 0. */
int keel_object_compare(const struct keel_object *a, const struct keel_object *b);
/* A known kind, and numbers within the format's limits. */
bool keel_object_valid(const struct keel_object *object);

struct keel_object_info {
    struct keel_object object;
    uint64_t bytes;
    bool digest_known;
    uint8_t digest[KEEL_OBJECT_DIGEST_BYTES]; /* XXH3-128 of all bytes, canonical form; zero when not known */
};

/* ---- the interface ------------------------------------------------------------------------------------- */

/* How long a tier takes to answer: the lower, the sooner it is asked. */
enum keel_tier_latency {
    KEEL_LATENCY_MEMORY, /* the partner's memory, or our own */
    KEEL_LATENCY_LOCAL,  /* local disk */
    KEEL_LATENCY_ERASURE,
    KEEL_LATENCY_SHARED,
    KEEL_LATENCY_COUNT
};
const char *keel_tier_latency_text(enum keel_tier_latency latency);

struct keel_tier;

/* First member of what a tier hands out; the rest is the tier's own. */
struct keel_tier_source {
    struct keel_tier *tier;
    struct keel_object_info info;
};
struct keel_tier_sink {
    struct keel_tier *tier;
    struct keel_object_info info; /* bytes: what was announced */
    uint64_t written_bytes;
};

/* What a tier does. Sources and sinks are allocated and freed around these calls, as zeros but for tier,
 * object and, of a sink, bytes. A tier that is only read from has sink_bytes 0, and NULL for what writes:
 * creating and removing there is UNSUPPORTED. */
struct keel_tier_ops {
    size_t source_bytes, sink_bytes; /* of its own structs, which begin with the common ones */
    enum keel_status (*list)(struct keel_tier *tier,
                             enum keel_status (*visit)(void *context, const struct keel_object_info *info),
                             void *context);
    enum keel_status (*open)(struct keel_tier_source *source); /* fills in the rest of source->info */
    enum keel_status (*read)(struct keel_tier_source *source, uint64_t offset, void *out, size_t bytes);
    void (*close)(struct keel_tier_source *source); /* NULL: there is nothing to let go */
    enum keel_status (*create)(struct keel_tier_sink *sink);
    enum keel_status (*write)(struct keel_tier_sink *sink, const void *data, size_t bytes);
    /* Either ends the sink, a commit that fails included. */
    enum keel_status (*commit)(struct keel_tier_sink *sink, const uint8_t digest[KEEL_OBJECT_DIGEST_BYTES]);
    void (*abort)(struct keel_tier_sink *sink);
    enum keel_status (*remove)(struct keel_tier *tier, const struct keel_object *object);
    void (*end)(struct keel_tier *tier);
};

/* First member of every tier. */
struct keel_tier {
    const struct keel_tier_ops *ops;
    enum keel_tier_latency latency;
    char run[KEEL_RUN_NAME_BYTES];   /* objects are of this run */
    char name[KEEL_TIER_NAME_BYTES]; /* for messages: "partner 3's memory" */
};

/* Call `visit` for every usable object, in no order; it must not call the tier. What is not committed, or
 * not sound as far as header and footer tell, is not usable. Ends with the first status that is not OK. */
enum keel_status keel_tier_list(struct keel_tier *tier,
                                enum keel_status (*visit)(void *context, const struct keel_object_info *info),
                                void *context);
/* NOT_FOUND: not there, or not committed. PEER_LOST, TIMEOUT: of a remote tier. */
enum keel_status keel_tier_open(struct keel_tier *tier, const struct keel_object *object,
                                struct keel_tier_source **out);
/* All of [offset, offset + bytes), which must lie within info.bytes, or an error. */
enum keel_status keel_tier_read(struct keel_tier_source *source, uint64_t offset, void *out, size_t bytes);
void keel_tier_close_source(struct keel_tier_source *source); /* NULL is accepted */
/* An object of exactly `bytes`. One of that name that is there stays until commit, which then takes its place
 * (for repair; the contents are the same by name). LIMIT or NO_SPACE when the tier is full. */
enum keel_status keel_tier_create(struct keel_tier *tier, const struct keel_object *object, uint64_t bytes,
                                  struct keel_tier_sink **out);
/* Append. After a failure only abort is left. */
enum keel_status keel_tier_write(struct keel_tier_sink *sink, const void *data, size_t bytes);
/* Read back, compare, make durable as far as the tier can, make visible. MISMATCH: not all bytes were
 * written. CORRUPT: what was read back has another digest. The sink is gone in any case; on failure nothing
 * is visible (or still the older object), unless making the name durable failed (IO): write it again then. */
enum keel_status keel_tier_commit(struct keel_tier_sink *sink,
                                  const uint8_t digest[KEEL_OBJECT_DIGEST_BYTES]);
void keel_tier_abort(struct keel_tier_sink *sink); /* NULL is accepted */
/* Fine when it is not there. Sources that are open on it stay readable. */
enum keel_status keel_tier_remove(struct keel_tier *tier, const struct keel_object *object);
/* All objects of a generation, its manifest first; *out_removed (may be NULL) counts them. To make room. */
enum keel_status keel_tier_remove_generation(struct keel_tier *tier, uint64_t step, uint64_t attempt,
                                             uint32_t *out_removed);
void keel_tier_end(struct keel_tier *tier); /* NULL is accepted */

/* Read the whole object and check all of it: that it is the object that its name says, of the tier's run; a
 * shard's header, index, footer, every chunk as stored; a manifest's check; a parity file's every cell.
 * CORRUPT (names tier, object, and tensor and chunk or cell), MISMATCH, VERSION, and what reading gives. */
enum keel_status keel_tier_verify(struct keel_tier *tier, const struct keel_object *object);
/* The same, and what it is: its bytes and their digest, for who sends them himself. */
enum keel_status keel_tier_look(struct keel_tier *tier, const struct keel_object *object,
                                struct keel_object_info *out);
/* Copy an object, verified at both ends: at `from` as by keel_tier_verify, at `to` by commit. */
enum keel_status keel_tier_copy(struct keel_tier *from, const struct keel_object *object,
                                struct keel_tier *to);
/* The same of a source that is open, which the caller closes: of a directory it is copied also where its
 * file is removed meanwhile. */
enum keel_status keel_tier_copy_source(struct keel_tier_source *source, struct keel_tier *to);

/* ---- tiers -------------------------------------------------------------------------------------------- */

/* A store's directories: a snapshot whose objects and manifest are there is a committed one of the store.
 * `store` is borrowed and must stay open; read-only when it is. Name: for messages, copied. */
enum keel_status keel_tier_directory_open(struct keel_store *store, enum keel_tier_latency latency,
                                          const char *name, struct keel_tier **out);

/* Objects in this process's memory, at most `capacity_bytes` of them, those being written included; LIMIT
 * when there is no room: remove an older generation. */
enum keel_status keel_tier_memory_open(const char *run, uint64_t capacity_bytes, const char *name,
                                       struct keel_tier **out);

/* ---- remote tiers ------------------------------------------------------------------------------------- */

/* Messages to one other process and back: in order, each delivered whole and once, such as a SOCK_SEQPACKET
 * pair or a connection of transport. Both return TIMEOUT when the deadline passes and PEER_LOST when the peer
 * is gone. A deadline in the past means: do not wait, but take a message that is already there. After a send
 * that timed out the tier does not use the link again, since part of the message may have been sent. */
struct keel_tier_link {
    enum keel_status (*send)(void *context, const void *message, size_t bytes, uint64_t deadline_ns);
    enum keel_status (*receive)(void *context, void *message, size_t capacity, size_t *out_bytes,
                                uint64_t deadline_ns);
    void *context;
};
enum { KEEL_TIER_MESSAGE_BYTES = (1 << 20) + 256 }; /* the largest */

/* The tier that another process serves with keel_tier_serve at the other end of `link`: a partner's memory.
 * The link is borrowed, and used by this tier alone. A call waits for at most `call_timeout_ns`, then returns
 * TIMEOUT. Until its late answer arrives, later calls return TIMEOUT at once; afterwards the tier works
 * again. After a timeout while sending, PEER_LOST, or a malformed answer, every call fails: open the tier
 * again over another link. Whether a commit that timed out took effect is unknown: list the tier, or write
 * the object again. Closing sources and sinks never waits for an answer. MISMATCH: the other side serves
 * another run. */
enum keel_status keel_tier_remote_open(const struct keel_tier_link *link, enum keel_tier_latency latency,
                                       const char *run, const char *name, uint64_t call_timeout_ns,
                                       struct keel_tier **out);
/* Serve a tier to the process on the other end, on this thread, until that is gone (PEER_LOST), is silent
 * for `idle_timeout_ns` (TIMEOUT), or sends what no client sends (CORRUPT, VERSION). What it had begun to
 * write and did not commit is aborted then. Several threads may serve one tier. */
enum keel_status keel_tier_serve(struct keel_tier *tier, const struct keel_tier_link *link,
                                 uint64_t idle_timeout_ns);

/* ---- erasure sets -------------------------------------------------------------------------------------- */

#define KEEL_ERASURE_NO_SHARD UINT32_MAX

/* A set of n nodes, each with the shard of one rank or with none, and each with parity: m cells of every
 * stripe of n, by turns. Any m nodes may be lost, with their shards and their parity. Reed-Solomon with a
 * Cauchy matrix; the placement is that of SCR (Moody et al., SC10). */
struct keel_erasure_config {
    uint64_t step, attempt;
    uint32_t set;                      /* several sets of one snapshot have different numbers */
    uint32_t node_count, parity_count; /* 2 .. KEEL_ERASURE_NODES_MAX; 1 .. node_count - 1 */
    uint32_t cell_bytes;               /* a power of two, 4096 .. 1 MiB; 0: by the size of the shards */
    const uint32_t *ranks;             /* a node: whose shard it has, or KEEL_ERASURE_NO_SHARD */
    struct keel_tier *const *from;     /* a node: where its shard is; not asked without a shard */
    struct keel_tier *const *to;       /* a node: where its parity goes */
};
/* Verify the shards, compute their parity, write and commit it: one parity object a node. Memory: n + m
 * cells. The same shards give the same parity, so what failed may be done again. */
enum keel_status keel_erasure_protect(const struct keel_erasure_config *config);

/* The shards and parity objects of one set, also those that are lost or damaged, as a tier to read from:
 * what is sound in any of `tiers` (borrowed, asked in this order) is taken, the rest is computed, cell by
 * cell. NOT_FOUND: none of them has a sound header of its parity. Reading gives CORRUPT when more is lost or
 * damaged than can be computed, naming it. To mend, or to fill a replacement node, copy from it. Memory: n
 * cells. */
enum keel_status keel_tier_erasure_open(struct keel_tier *const *tiers, uint32_t tier_count, uint64_t step,
                                        uint64_t attempt, uint32_t set, struct keel_tier **out);
/* Tiers of one erasure tier: one for each node, and a store. One repair takes all but the store. */
enum { KEEL_TIER_SOURCES_MAX = KEEL_ERASURE_NODES_MAX + 1 };

/* ---- which generation ---------------------------------------------------------------------------------- */

/* A generation that a rank can have (its own shard, and all that this needs: the bases of deltas), and from
 * where. Several of one generation: the nearest counts. */
struct keel_offer {
    uint64_t step, attempt;
    enum keel_tier_latency latency;
};
struct keel_rank_offers {
    const struct keel_offer *offers; /* any order */
    uint32_t count;
    const char *why_not; /* why the rank has no more to offer: "its partner is gone"; may be NULL */
};
struct keel_choice {
    uint64_t step, attempt;
    /* The newest that some rank offers and not all can have, when there is one newer than the choice. */
    bool passed_over;
    uint64_t newer_step, newer_attempt;
    uint32_t missing_rank, missing_count; /* the first that lacks it, and how many do */
};
/* The newest generation (highest step, then attempt) that every rank can have; out_from[rank], rank_count of
 * them, says from where: for each the nearest. A pure function: every rank that is given the same offers
 * comes to the same. NOT_FOUND: none that all can have; the detail says what the newest lacks. NO_MEMORY. */
enum keel_status keel_tier_choose(const struct keel_rank_offers *ranks, uint32_t rank_count,
                                  struct keel_choice *out, enum keel_tier_latency *out_from);
enum { KEEL_CHOICE_TEXT_BYTES = 256 };
/* "step 120.3 from memory; 130.1 is missing on rank 5: its partner is gone": for that rank's log. */
void keel_tier_choice_text(const struct keel_choice *choice, const struct keel_rank_offers *ranks,
                           enum keel_tier_latency from, char out[KEEL_CHOICE_TEXT_BYTES]);
/* What `rank` can have from these tiers: generations of which the manifest and the rank's shard are listed,
 * and so of all bases under them, each in any of the tiers. `latency` is that of the shard; with bases, of
 * the one that is furthest away. Into `out`, newest first, at most `capacity`; *out_count. A tier that cannot
 * be listed offers nothing, nor does a manifest that cannot be read. NO_MEMORY, EXHAUSTED (of descriptors):
 * nobody can tell then. */
enum keel_status keel_tier_inventory(struct keel_tier *const *tiers, uint32_t tier_count, uint32_t rank,
                                     struct keel_offer *out, uint32_t capacity, uint32_t *out_count);

/* ---- repairing and restoring --------------------------------------------------------------------------- */

enum keel_repair_outcome { KEEL_REPAIR_SOUND, KEEL_REPAIR_DONE, KEEL_REPAIR_LOST };

struct keel_repair_config {
    uint64_t step, attempt;
    /* Where else objects of the run may be, NULL when source_count is 0; at most KEEL_TIER_SOURCES_MAX - 1.
     * Taken by nearness, then in this order; erasure sets whose parity lies in them or in the store are used
     * by themselves. */
    struct keel_tier *const *sources;
    uint32_t source_count;
    bool dry_run; /* tell what would be mended, write nothing */
    /* May be NULL. `detail`: from where it is mended, or why it is lost; "" when sound. */
    void (*report)(void *context, const struct keel_object *object, enum keel_repair_outcome outcome,
                   const char *detail);
    void *context;
};
struct keel_repair_result {
    uint32_t sound, repaired, lost; /* files */
};

/* Bring a snapshot, and the bases of its deltas, into the store's directory: what is there and sound stays;
 * what is missing or damaged is mended byte for byte, from another tier, from parity, from the sound chunks
 * of several damaged copies, or from replicas of the same elements in other shards of the snapshot; then the
 * manifest, where it is not there or damaged. So this restores a generation into an empty store, too. Parity
 * files that lie in the store's directory are mended as well.
 * Everything new is verified against the manifest, written under a temporary name, read back and renamed: a
 * crash leaves each file as it was or mended; do it again. One at a time for a snapshot; temporary files that
 * a crash left in its directory are removed. OK: all is sound now. CORRUPT: something is lost (the first is
 * the detail), what could be mended is. NOT_FOUND: no manifest is anywhere. *out (may be NULL) is set in all
 * these cases. */
enum keel_status keel_store_repair(struct keel_store *store, const struct keel_repair_config *config,
                                   struct keel_repair_result *out);

KEEL_API_END

#endif
