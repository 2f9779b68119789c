/* model.h - from a job and its data to the graph of the model. */
#ifndef KEEL_MODEL_H
#define KEEL_MODEL_H

#include "data.h"

/* Build the forward graph and its loss; its inputs are those of `data`, in that order. */
enum keel_status keel_model_build(struct keel_graph *graph, const struct keel_job *job,
                                  const struct keel_data *data);

/* What the job says of its model without effect, as warnings: for who begins a run or plans one. */
void keel_model_tell(const struct keel_job *job);

/* Adapters of train.lora_rank beside the products of a model that was built, all of whose parameters are
 * frozen then. keel_model_build asks it. INVALID: a pattern of train.lora_targets names no weight of one
 * product alone. (model_lora.c) */
enum keel_status keel_model_adapt(struct keel_graph *graph, const struct keel_job *job);

/* What the job's patterns say of the parameters of a model that was built (train.freeze, train.no_decay,
 * train.lr_scale). keel_model_build asks it. INVALID: a pattern that names none. (model_groups.c) */
enum keel_status keel_model_group(struct keel_graph *graph, const struct keel_job *job);

/* Whether the model can compute one token from what it keeps of those before it (keel_graph_decode), and the
 * graph that does, of the next token of each of `sequences`: inputs "position", "ids" and "targets" of
 * [sequences, 1]. Not where job.tensor cuts sums into slices, nor where experts may drop tokens. With `rows`
 * above 0: of so many tokens, each of any of the sequences (keel_graph_decode_rows), with an input "slot"
 * behind the position. */
bool keel_model_decodes(const struct keel_job *job, const struct keel_data *data);
enum keel_status keel_model_build_decode(struct keel_graph *graph, const struct keel_job *job,
                                         const struct keel_data *data, uint32_t sequences, uint32_t rows);

#endif
