/* bert_names.h - the tensors of BERT, as Hugging Face's programs call them, and what Keel's own has of them
 * (runtime/models/model_bert.c): the same names, those of BertForMaskedLM, but matrices [in, out].
 *
 * What differs from file to file: the prefix "bert.", which a BertModel has not; LayerNorm.gamma and .beta in
 * the first published ones; the second task (next sentence), which is not trained here; and the output layer,
 * which is the table of words and cls.predictions.bias once more. */
#ifndef KEEL_CKPT_BERT_NAMES_H
#define KEEL_CKPT_BERT_NAMES_H

#include <keel/ckpt.h>

struct keel_bert_name {
    char text[KEEL_TENSOR_NAME_BYTES]; /* as Keel calls it; "": it is none of BERT's, or too long */
    const char *left_out;              /* why it is no parameter here, or NULL */
    const char *copy_of;               /* the parameter that it is once more, or NULL */
};
void keel_bert_name(const char *name, struct keel_bert_name *out);

/* A parameter's name as a BertModel has it, without the prefix. */
const char *keel_bert_bare_name(const char *name);

/* Whether a tensor lies the other way round in Keel: a matrix, but no table. */
bool keel_bert_turns(const char *name, uint32_t dims);

#endif
