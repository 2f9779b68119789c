/* job.h - a job file: what to train, on how many ranks, how safely.
 *
 * INI (inih): sections [job] [model] [data] [train] [snapshot] [cluster] [parallel]. Every key has a default,
 * a range and a line of help in one table (job_keys.c); unknown keys are errors that name file, line and the
 * nearest known key. */
#ifndef KEEL_JOB_H
#define KEEL_JOB_H

#include <keel/api.h>
#include <keel/ckpt.h>
#include <keel/file.h>
#include <keel/model_plugin.h>
#include <keel/optimizer_ops.h>
#include <keel/status.h>
#include <keel/transport_compressed.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

KEEL_API_BEGIN

enum { KEEL_JOB_NAME_BYTES = KEEL_RUN_NAME_BYTES, KEEL_SELECTOR_BYTES = 128, KEEL_SELECTORS_BYTES = 256 };
enum { KEEL_JOB_GRADIENTS_BYTES = 32, KEEL_JOB_PATTERNS_BYTES = 256 };
enum { KEEL_JOB_SIZES_BYTES = 192, KEEL_JOB_TABLES_MAX = 256, KEEL_JOB_MLP_MAX = 16 };

/* Initial data.path: of the sources; an installed Keel has it in share/keel/data. */
#define KEEL_JOB_TEXT "build/data/english.txt"

enum keel_vocab_kind { KEEL_VOCAB_CHAR, KEEL_VOCAB_BYTE, KEEL_VOCAB_BPE };
/* What the files of data.path hold. */
enum keel_data_format {
    KEEL_DATA_AUTO,
    KEEL_DATA_TEXT,
    KEEL_DATA_UINT16,
    KEEL_DATA_UINT32,
    KEEL_DATA_CRITEO,
    KEEL_DATA_CSV,
    KEEL_DATA_FOLDERS
};

enum keel_model_kind {
    KEEL_MODEL_GPT,
    KEEL_MODEL_RESNET,
    KEEL_MODEL_BERT,
    KEEL_MODEL_MOE,
    KEEL_MODEL_DLRM,
    KEEL_MODEL_LLAMA,
    KEEL_MODEL_VIT,
    KEEL_MODEL_MIXTRAL,
    KEEL_MODEL_ALEXNET,
    KEEL_MODEL_PLUGIN, /* of a file: keel_job_plugin */
    KEEL_MODEL_KIND_COUNT
};
/* What becomes of the learning rate behind the warm-up. */
enum keel_decay { KEEL_DECAY_COSINE, KEEL_DECAY_LINEAR, KEEL_DECAY_CONSTANT, KEEL_DECAY_WSD };
/* What is done about a loss that explodes. */
enum keel_spike_policy { KEEL_SPIKE_WARN, KEEL_SPIKE_STOP, KEEL_SPIKE_BACK };
/* Who starts the agents: the launcher, on its own host; people, and the launcher waits for them; the
 * launcher, through another program. */
enum keel_launch_kind { KEEL_LAUNCH_LOCAL, KEEL_LAUNCH_NONE, KEEL_LAUNCH_SSH, KEEL_LAUNCH_SLURM };
/* Of a dlrm: binary cross-entropy, or the squared error of the sigmoid. */
enum keel_click_loss { KEEL_CLICK_BCE, KEEL_CLICK_MSE };
enum keel_stem_kind { KEEL_STEM_SMALL, KEEL_STEM_LARGE };
/* What is split over the data positions instead of being on each of them, each with what is above it. */
enum keel_zero {
    KEEL_ZERO_CHOSEN,    /* as little as fits the memory */
    KEEL_ZERO_NONE,      /* parallel.zero = 0 */
    KEEL_ZERO_OPTIMIZER, /* 1 */
    KEEL_ZERO_GRADIENTS, /* 2 */
    KEEL_ZERO_WEIGHTS    /* 3 */
};

/* How the ranks share the work: never part of the identity. */
struct keel_parallel {
    uint32_t data, tensor; /* positions along each axis: ranks are their product; 0: chosen */
    uint32_t zero;         /* enum keel_zero */
    uint32_t zero_group;   /* data positions that share what is split, others being replicas; 0: all */
    uint32_t holders;      /* of everything that is split over all data positions: 1 or 2 */
    uint64_t memory_bytes; /* of its device that a rank may use; 0: all */
    uint64_t bucket_bytes; /* that a bucket of gradients is aimed at */
    uint32_t ahead;        /* of gathered weights: how far (keel_engine_config) */
};

struct keel_job {
    /* [job] */
    char name[KEEL_JOB_NAME_BYTES];
    uint64_t seed;
    uint32_t numerics; /* enum keel_class */
    uint32_t shards;   /* logical shards: fixes the bits, not the ranks */
    uint32_t tensor;   /* slices of the tensor axis of the logical mesh: fix the bits, likewise */
    /* [model] */
    uint32_t kind;                                     /* enum keel_model_kind */
    char plugin_path[KEEL_PATH_BYTES];                 /* of KEEL_MODEL_PLUGIN: what model.kind names */
    const struct keel_job_plugin *plugin;              /* and what it is, as long as the process lives */
    uint64_t settings[KEEL_PLUGIN_SETTINGS_BYTES / 8]; /* of its own keys */
    uint32_t layers, heads, width, block;
    uint32_t vocab; /* 0: taken from the data; set for random-data benches */
    float dropout;
    bool bias, tied;
    uint32_t kv_heads;           /* llama; 0: as heads */
    bool cut_heads;              /* llama: job.tensor cuts attention too */
    uint32_t hidden;             /* llama, mixtral, vit, bert; 0: 8/3, 4 of the width */
    float rope_base;             /* llama */
    float rope_factor;           /* llama */
    uint32_t rope_context;       /* llama */
    uint32_t depth;              /* resnet; 0: stages of layers blocks */
    bool bottleneck;             /* resnet, with depth 0: blocks of three convolutions */
    uint32_t stages, stem;       /* resnet; enum keel_stem_kind */
    uint32_t patch;              /* vit: pixels of a token, down and across */
    uint32_t experts;            /* moe, mixtral */
    uint32_t top_k;              /* mixtral: experts of a token */
    float capacity, balance;     /* moe: places of an expert over its fair share; weight of the loss */
    uint32_t dense, tables, bag; /* dlrm: features, embedding tables, ids of each in a sample at most */
    uint32_t categories;         /* dlrm: rows of a table */
    char table_rows[KEEL_JOB_SIZES_BYTES]; /* dlrm: of each; "": categories (keel_job_tables) */
    char mlp_bot[KEEL_JOB_SIZES_BYTES];    /* dlrm: "": layers of 4 widths */
    char mlp_top[KEEL_JOB_SIZES_BYTES];    /* likewise */
    uint32_t click_loss;                   /* dlrm: enum keel_click_loss */
    /* [data] */
    char path[KEEL_PATH_BYTES];
    char val_path[KEEL_PATH_BYTES];   /* text: to validate with; "": val_fraction of path */
    uint32_t format;                  /* enum keel_data_format */
    char vocabulary[KEEL_PATH_BYTES]; /* data.vocab, "" is "char": keel_job_vocab */
    float val_fraction;
    uint64_t samples; /* dlrm: that the teacher labels for training */
    bool flip;        /* images: every second one mirrored, by sample and pass */
    uint32_t shift;   /* images: moved by so many pixels at most */
    float crop;  /* images of folders: least share of the area that is seen; 0: the square in the middle */
    float mixup; /* images: parameter of the Beta distribution of two images' shares; 0: none is mixed */
    uint32_t image_size; /* of folders: pixels a side */
    /* [train] */
    uint64_t steps;        /* 0: evaluate what there is */
    uint32_t microbatches; /* per shard and step */
    uint64_t total_batch;  /* of which they follow; 0: they were given */
    uint32_t batch;        /* sequences per microbatch */
    float learning_rate, min_learning_rate;
    uint32_t decay;                     /* enum keel_decay */
    uint64_t warmup_steps, decay_steps; /* decay_steps 0: steps, of the file if an override makes them 0 */
    uint64_t restart_steps;             /* of the cosine; 0: none */
    uint32_t restart_growth;            /* each cosine is so many times as long as the one before */
    uint64_t cooldown_steps;            /* wsd; 0: a tenth of decay_steps */
    uint32_t storage;                   /* enum keel_dtype: of what waits for the backward pass */
    float loss_scale;                   /* of storage f16; 0: found */
    uint32_t optimizer;                 /* enum keel_optimizer */
    bool nesterov;
    struct keel_update_settings update; /* goes as it is to the kernels */
    float ema;                          /* decay of the average of the weights; 0: none */
    float label_smoothing;
    char freeze[KEEL_JOB_PATTERNS_BYTES];   /* names of parameters, or globs of names, with commas */
    char no_decay[KEEL_JOB_PATTERNS_BYTES]; /* likewise */
    char lr_scale[KEEL_JOB_PATTERNS_BYTES]; /* each with :FACTOR behind it */
    uint32_t lora_rank;                     /* 0: no adapters */
    float lora_alpha, lora_dropout;         /* alpha 0: the rank */
    char lora_targets[KEEL_JOB_PATTERNS_BYTES];
    uint64_t eval_every; /* 0: never */
    uint32_t eval_batches;
    uint32_t patience; /* evaluations without a better one after which the run ends; 0: it does not */
    float min_delta;   /* by which one has to be below the best to be better */
    char gradients[KEEL_JOB_GRADIENTS_BYTES]; /* "" is "exact": keel_job_compression */
    bool check_products;                      /* checksums of the results of products of linear layers */
    uint32_t sample_tokens;                   /* generated at the end */
    uint32_t spike;                           /* enum keel_spike_policy */
    uint64_t screen_every;                    /* steps between golden operations; 0: never */
    /* [snapshot] */
    uint64_t snapshot_every; /* steps; 0: never */
    bool snapshot_first;     /* of step 0 */
    uint32_t snapshot_codec; /* enum keel_codec */
    uint32_t snapshot_keep;
    uint64_t snapshot_keep_every; /* steps; 0: none */
    double snapshot_keep_within_s;
    uint64_t snapshot_bandwidth_bytes_s; /* 0: no cap */
    uint64_t snapshot_arena_bytes;       /* 0: the whole state */
    bool snapshot_background;
    uint64_t snapshot_max_age_steps; /* in the background; 0: half of snapshot_every */
    uint32_t snapshot_retry;
    char snapshot_key_file[KEEL_PATH_BYTES]; /* "": snapshots are not sealed */
    bool snapshot_allow_nonfinite;
    char snapshot_local[KEEL_PATH_BYTES]; /* "": snapshots are written into the run's directory */
    bool snapshot_partner;
    char snapshot_erasure[16];            /* "K+M"; "": none */
    char snapshot_store[KEEL_PATH_BYTES]; /* "": none */
    uint64_t snapshot_store_every;        /* steps; 0: all go to the store */
    /* [cluster] */
    uint32_t ranks, nodes, spares; /* nodes 0: one per rank (spares are nodes of their own) */
    double timeout_s;
    char device[KEEL_SELECTORS_BYTES];   /* one for all workers, or one for each: keel_job_device */
    char network_costs[KEEL_PATH_BYTES]; /* "": those built in */
    bool seal_payload;                   /* between ranks, bulk data too */
    bool respawn;                    /* start a node again when it died, to join as a spare or to grow back */
    uint32_t launch;                 /* enum keel_launch_kind */
    uint32_t holders;                /* as the job says: keel_job_holders */
    char hosts[KEEL_PATH_BYTES];     /* names, or a file of them: node/hosts.h */
    char bind[KEEL_PATH_BYTES];      /* ADDRESS, or ADDRESS:PORT, where the launcher listens; "": chosen */
    char advertise[KEEL_PATH_BYTES]; /* where agents reach it; "": where it listens */
    char shell[KEEL_PATH_BYTES];     /* what starts a command on a host; "": of its kind */
    char command[KEEL_PATH_BYTES];   /* keel, as the hosts call it; "": as it is called here */
    /* [parallel] */
    struct keel_parallel parallel;
};

/* Defaults, then the file, then each override "section.key=value". INVALID names file and line (or the
 * override), NOT_FOUND the file. Where model.kind is a file, that plug-in is loaded, and its keys are the
 * job's: errors as of keel/model_plugin.h, and VERSION. Checks what depends on one another (width divides
 * into heads, ranks divide into nodes). */
enum keel_status keel_job_load(const char *path, const char *const *overrides, uint32_t override_count,
                               struct keel_job *out);

/* The file that model.kind names, or "" where it is a model of Keel's. Nothing of it is loaded, so that it
 * can be tried in another process first: what runs when it is loaded may crash. Errors: as of keel_job_load.
 */
enum keel_status keel_job_plugin_file(const char *path, const char *const *overrides, uint32_t override_count,
                                      char out[KEEL_PATH_BYTES]);

/* Write it all, defaults included, as a job file that loads to the same job. A job that was loaded can be
 * written; INVALID when a text was changed since to one that a line cannot hold. */
enum keel_status keel_job_write(const struct keel_job *job, FILE *out);

/* What the bits of the run depend on (model, data contents, train, seed, shards; not ranks, not
 * snapshots), as 64 hex digits: a hash, and the version of the arithmetic in the last four. data_digest: of
 * keel_data_digest. */
void keel_job_identity(const struct keel_job *job, uint64_t data_digest, char out[KEEL_IDENTITY_BYTES]);

/* Whether an identity is that of this job in its class of numerics, as the class was before products of
 * convolutions, or of attention, were of it: such a run cannot go on to the bit either. */
bool keel_job_is_older_class(const struct keel_job *job, uint64_t data_digest, const char *identity);

/* Whether an identity is of this program's arithmetic. A run of another cannot go on: what is left of it are
 * its weights (keel ckpt export, keel ckpt import --for-training into a new directory). */
bool keel_job_is_arithmetic(const char *identity);

/* A hash of the keys that plans follow from: those of the identity, all of [parallel], and how many ranks and
 * nodes there are. */
uint64_t keel_job_plan_keys(const struct keel_job *job);

/* How many keys of the identity differ between the job of a run that is there and one that is given here; as
 * text "model.width is 64 there and 32 here, ...", the first four and how many more there are. None: if
 * identities differ, the data do. */
uint32_t keel_job_difference(const struct keel_job *there, const struct keel_job *here, char *out,
                             size_t bytes);

/* INVALID: so many ranks are no product of parallel.data and parallel.tensor, as far as the job gives them,
 * or parallel.zero_group does not divide their data positions; the detail has what could be. Loading does not
 * ask, since a plan may be for more ranks than a run has. */
enum keel_status keel_job_check_ranks(const struct keel_job *job, uint32_t ranks);

/* What becomes of a shard's gradients before they are added to those of others (train.gradients). False: they
 * stay as they are, and *out too. The job was loaded. */
bool keel_job_compression(const struct keel_job *job, struct keel_compression *out);

/* The learning rate of a step, counted from 0: a function of the job and the step alone, so that every rank
 * has it in every life. With lr, min_lr, warm-up W, decay_steps D:
 *     step < W   lr (step + 1) / W
 *     step >= D  min_lr (constant: D is none)
 *     cosine     min_lr + (lr - min_lr) (1 + cos(pi t)) / 2, with t = (step - W) / (D - W)  (Loshchilov and
 *                Hutter 2017, "SGDR"); with restarts t = (step - begin) / length of the cosine that the step
 *                is in: they begin at W, the first is restart_steps long, the next restart_growth times as
 *                long as the one before
 *     linear     min_lr + (lr - min_lr) (1 - t)
 *     wsd        lr; in the last cooldown_steps C before D linear, with t = (step - (D - C)) / C  (Hu et al.
 *                2024, "MiniCPM")
 * in float32, with the canonical cosine. */
float keel_job_learning_rate(const struct keel_job *job, uint64_t step);

/* Floats of the state for each parameter that is trained: itself, the optimizer's moments, its average. */
uint32_t keel_job_state_parts(const struct keel_job *job);

/* The whole numbers above 0 of "4-3-2"; 0: it is no such list, or has more than `capacity`. */
uint32_t keel_job_read_sizes(const char *text, uint32_t *out, uint32_t capacity);
/* The rows of each embedding table of a dlrm, job->tables of them. The job was loaded. */
void keel_job_tables(const struct keel_job *job, uint32_t out[KEEL_JOB_TABLES_MAX]);

/* The next pattern of a list with commas; where the one after it is looked for, NULL: there was none. */
const char *keel_job_next_pattern(const char *at, char out[KEEL_JOB_PATTERNS_BYTES]);
/* PATTERN:FACTOR of train.lr_scale: the pattern is left in `text`. False: no factor above 0 is behind it. */
bool keel_job_read_factor(char *text, float *out);

/* What the tokens of the text are (data.vocab); of BPE *out_files names the tokenizer's, else it is NULL. The
 * job was loaded. */
enum keel_vocab_kind keel_job_vocab(const struct keel_job *job, const char **out_files);
/* Bytes of a token in files of data.path without a header of their own; 0: it is a text (data.format). */
uint32_t keel_job_token_width(const struct keel_job *job);

/* The plug-in that model.kind names, whose keys are in job->settings, else NULL. */
const struct keel_model_plugin *keel_job_plugin(const struct keel_job *job);
/* The .onnx file that it stands for; NULL: it is none. */
struct keel_onnx_file;
struct keel_onnx_file *keel_job_onnx(const struct keel_job *job);
/* The kind whose data the job's model trains on: job->kind, or of a plug-in the one that it says. */
enum keel_model_kind keel_job_data_kind(const struct keel_job *job);

/* Nodes of the run, spares too, the launcher not. */
uint32_t keel_job_node_count(const struct keel_job *job);
/* Nodes that hold the view, of which another leads when who leads is gone: as the job says, or as many as its
 * hosts and its snapshots allow, 3 or 1. */
uint32_t keel_job_holders(const struct keel_job *job);
/* Hosts that cluster.hosts lists itself; 0: none, or a file or Slurm does. */
uint32_t keel_job_host_count(const struct keel_job *job);
/* Which of so many hosts a node is on: they have neighbours in blocks. With host_count 0 each node is a host
 * of its own, by its number. What shares a host fails together. */
uint32_t keel_job_host_of(const struct keel_job *job, uint32_t host_count, uint32_t node);

/* Whether the job asks for any snapshot. */
bool keel_job_takes_snapshots(const struct keel_job *job);
/* What [snapshot] asks for and cannot be had: INVALID by the key. keel_job_load asks it. */
enum keel_status keel_job_check_snapshots(const struct keel_job *job);
/* Whether each node has a directory of its own for them. */
static inline bool keel_job_has_local_snapshots(const struct keel_job *job)
{
    return job->snapshot_local[0] != '\0';
}
/* Nodes of an erasure set, and how many of them may be lost: false, and zeros, where the job wants none. */
bool keel_job_erasure(const struct keel_job *job, uint32_t *out_nodes, uint32_t *out_parity);
/* Whether that of a step goes to snapshot.store. */
bool keel_job_stores(const struct keel_job *job, uint64_t step);
/* What snapshot.keep and its like say. */
struct keel_retention keel_job_retention(const struct keel_job *job);

/* The device or board of worker `local` of node `node` (from 1, as the agents number them; spares come after
 * all ranks): the only entry of cluster.device, or that of its number (COUNT*NAME is COUNT entries); spares
 * beyond the list begin it anew.
 */
void keel_job_device(const struct keel_job *job, uint32_t node, uint32_t local,
                     char out[KEEL_SELECTOR_BYTES]);

/* snapshot.key_file, as struct keel_store_config wants it: NULL when there is none. */
const char *keel_job_key_file(const struct keel_job *job);

/* What a run counts: "tokens" of text, else "samples". */
const char *keel_job_unit(const struct keel_job *job);

/* The model in a few words, for the head of a report: "gpt, 4 layers, width 128, ...". */
void keel_job_describe(const struct keel_job *job, char *out, size_t bytes);

/* The table of keys for --help. */
void keel_job_print_keys(FILE *out);

KEEL_API_END

#endif
