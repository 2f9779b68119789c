/* job_keys.h - the table of job keys (job_keys.c), and what its marks say. For the files of this folder, and
 * for the test that walks all rows. */
#ifndef KEEL_JOB_KEYS_H
#define KEEL_JOB_KEYS_H

#include <keel/ini.h>
#include <keel/job.h>
#include <keel/optimizer_ops.h>
#include <stddef.h>

enum { KEEL_JOB_MICROBATCHES_MAX = 65536 };

/* In the order in which job files are written; without keys of a plug-in. */
extern const struct keel_ini_table keel_job_keys;

#define FIELD(field) offsetof(struct keel_job, field), sizeof(((struct keel_job *)0)->field)

/* The mark of a row. BITS: the bits of the run depend on the key, which is then part of the job's identity;
 * LATER, too: only where it is not the default, so that runs begun before there was such a key are known.
 * OF_DATA, in [model]: it is of the data, so a plug-in has it that trains on such. Above those, which models,
 * optimizers, decays or launches use it, where not all do: elsewhere it is an error. */
enum { FREE, BITS, LATER, OF_DATA = 4 };

/* A key by whose choice others are used or not: a bit of their marks for each choice. */
enum { KEEL_BY_MODEL, KEEL_BY_OPTIMIZER, KEEL_BY_DECAY, KEEL_BY_LAUNCH, KEEL_KEY_CHOOSERS };
struct keel_key_chooser {
    const char *section, *name;
    unsigned shift, count;
};
extern const struct keel_key_chooser keel_key_choosers[KEEL_KEY_CHOOSERS];

/* A bit for each choice with which the key is used; 0: with all. */
static inline unsigned keel_key_users(const struct keel_ini_key *key, const struct keel_key_chooser *chooser)
{
    return key->mark >> chooser->shift & ((1U << chooser->count) - 1);
}

/* Sets of choices, as the rows name them. */
enum { GPT = 1 << KEEL_MODEL_GPT, RESNET = 1 << KEEL_MODEL_RESNET, BERT = 1 << KEEL_MODEL_BERT };
enum { MOE = 1 << KEEL_MODEL_MOE, DLRM = 1 << KEEL_MODEL_DLRM, LLAMA = 1 << KEEL_MODEL_LLAMA };
enum { VIT = 1 << KEEL_MODEL_VIT, ALEXNET = 1 << KEEL_MODEL_ALEXNET, MIXTRAL = 1 << KEEL_MODEL_MIXTRAL };
enum { IMAGES = RESNET | VIT | ALEXNET, LLAMAS = LLAMA | MIXTRAL, GPTS = GPT | MOE };
enum { TEXT = GPTS | BERT | LLAMAS };
enum { SGD = 1 << KEEL_OPTIMIZER_SGD, LARS = 1 << KEEL_OPTIMIZER_LARS };
enum { ADAMS = 1 << KEEL_OPTIMIZER_ADAMW | 1 << KEEL_OPTIMIZER_ADAM | 1 << KEEL_OPTIMIZER_LAMB };
enum { COSINE = 1 << KEEL_DECAY_COSINE, WSD = 1 << KEEL_DECAY_WSD };
enum { FALLING = COSINE | WSD | 1 << KEEL_DECAY_LINEAR };
enum { STARTED = 1 << KEEL_LAUNCH_SSH | 1 << KEEL_LAUNCH_SLURM, AGENTS = STARTED | 1 << KEEL_LAUNCH_NONE };

#endif
