/* job_internal.h - what the files of a job check of it. Each: INVALID by the key. */
#ifndef KEEL_JOB_INTERNAL_H
#define KEEL_JOB_INTERNAL_H

#include <keel/job.h>

enum keel_status keel_job_check_devices(const struct keel_job *job);    /* job_devices.c */
enum keel_status keel_job_check_parallel(const struct keel_job *job);   /* job_axes.c */
enum keel_status keel_job_check_schedule(const struct keel_job *job);   /* job_schedule.c */
enum keel_status keel_job_check_groups(const struct keel_job *job);     /* job_groups.c */
enum keel_status keel_job_check_sizes(const struct keel_job *job);      /* job_sizes.c */
enum keel_status keel_job_check_vocabulary(const struct keel_job *job); /* job_words.c */
enum keel_status keel_job_check_text_names(const struct keel_job *job); /* job_words.c */
enum keel_status keel_job_check_holders(const struct keel_job *job);    /* job_hosts.c */

/* Written in one way: it belongs to the identity. (job_words.c) */
enum keel_status keel_job_settle_gradients(struct keel_job *job);

/* What data.vocab begins with where it names a tokenizer's files. */
#define KEEL_JOB_BPE "bpe:"

#endif
