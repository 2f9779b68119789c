/* hf_config.c - see hf_config.h. */
#include "hf_config.h"
#include <keel/json.h>
#include <keel/models.h>

enum { DIGITS = 6, EPSILON_DIGITS = 14 };
static const double norm_epsilon = 1e-5; /* of all but vit and bert: graph_dense.c */

static void print_tail(struct keel_json *json, const struct keel_job *job)
{
    keel_json_bool(json, "tie_word_embeddings", job->tied);
    keel_json_text(json, "bos_token_id", NULL); /* no token begins or ends a text: theirs would be others */
    keel_json_text(json, "eos_token_id", NULL);
    keel_json_text(json, "dtype", "float32");
    keel_json_text(json, "torch_dtype", "float32");
    keel_json_close(json, '}');
}

/* rope_scaling, as transformers reads it. */
static void print_scaling(struct keel_json *json, const struct keel_job *job)
{
    if (job->rope_factor <= 1.0F)
        return;
    keel_json_open(json, "rope_scaling", '{');
    keel_json_text(json, "rope_type", job->rope_context > 0 ? "llama3" : "linear");
    keel_json_real(json, "factor", (double)job->rope_factor, DIGITS);
    if (job->rope_context > 0) {
        keel_json_real(json, "low_freq_factor", 1.0, DIGITS);
        keel_json_real(json, "high_freq_factor", 4.0, DIGITS);
        keel_json_number(json, "original_max_position_embeddings", job->rope_context);
    }
    keel_json_close(json, '}');
}

static void print_llama(struct keel_json *json, const struct keel_job *job, uint32_t vocab)
{
    const struct keel_llama_config llama = {.width = job->width, .hidden = job->hidden};
    const bool experts = job->kind == KEEL_MODEL_MIXTRAL;
    keel_json_text(json, "model_type", experts ? "mixtral" : "llama");
    keel_json_number(json, "vocab_size", vocab);
    keel_json_number(json, "hidden_size", job->width);
    keel_json_number(json, "intermediate_size", keel_llama_hidden(&llama));
    keel_json_number(json, "num_hidden_layers", job->layers);
    keel_json_number(json, "num_attention_heads", job->heads);
    keel_json_number(json, "num_key_value_heads", job->kv_heads != 0 ? job->kv_heads : job->heads);
    keel_json_number(json, "head_dim", job->width / job->heads);
    keel_json_number(json, "max_position_embeddings", job->block);
    keel_json_real(json, "rms_norm_eps", norm_epsilon, DIGITS);
    keel_json_real(json, "rope_theta", (double)job->rope_base, DIGITS);
    print_scaling(json, job);
    keel_json_text(json, "hidden_act", "silu");
    keel_json_bool(json, "attention_bias", false);
    keel_json_bool(json, "mlp_bias", false);
    if (experts) {
        keel_json_number(json, "num_local_experts", job->experts);
        keel_json_number(json, "num_experts_per_tok", job->top_k);
        keel_json_text(json, "sliding_window", NULL);
    }
    print_tail(json, job);
}

static void print_bert(struct keel_json *json, const struct keel_job *job, uint32_t vocab)
{
    const struct keel_bert_config bert = {.width = job->width, .hidden = job->hidden};
    keel_json_text(json, "model_type", "bert");
    keel_json_number(json, "vocab_size", vocab);
    keel_json_number(json, "hidden_size", job->width);
    keel_json_number(json, "intermediate_size", keel_bert_hidden(&bert));
    keel_json_number(json, "num_hidden_layers", job->layers);
    keel_json_number(json, "num_attention_heads", job->heads);
    keel_json_number(json, "max_position_embeddings", job->block);
    keel_json_number(json, "type_vocab_size", 2);
    keel_json_text(json, "hidden_act", "gelu");
    keel_json_real(json, "layer_norm_eps", 1e-12, EPSILON_DIGITS);
    keel_json_real(json, "hidden_dropout_prob", (double)job->dropout, DIGITS);
    keel_json_real(json, "attention_probs_dropout_prob", (double)job->dropout, DIGITS);
    keel_json_text(json, "pad_token_id", NULL);
    print_tail(json, job);
}

static void print_gpt(struct keel_json *json, const struct keel_job *job, uint32_t vocab)
{
    keel_json_text(json, "model_type", "gpt2");
    keel_json_number(json, "vocab_size", vocab);
    keel_json_number(json, "n_embd", job->width);
    keel_json_number(json, "n_layer", job->layers);
    keel_json_number(json, "n_head", job->heads);
    keel_json_number(json, "n_positions", job->block);
    keel_json_real(json, "layer_norm_epsilon", norm_epsilon, DIGITS);
    keel_json_text(json, "activation_function", "gelu_new");
    print_tail(json, job);
}

static void print_labels(struct keel_json *json, uint32_t classes)
{
    char number[16], label[24];
    keel_json_open(json, "id2label", '{');
    for (uint32_t i = 0; i < classes; i++) {
        snprintf(number, sizeof number, "%u", i);
        snprintf(label, sizeof label, "LABEL_%u", i);
        keel_json_text(json, number, label);
    }
    keel_json_close(json, '}');
    keel_json_open(json, "label2id", '{');
    for (uint32_t i = 0; i < classes; i++) {
        snprintf(label, sizeof label, "LABEL_%u", i);
        keel_json_number(json, label, i);
    }
    keel_json_close(json, '}');
}

static void print_vit(struct keel_json *json, const struct keel_job *job, const struct keel_data *data,
                      uint32_t classes)
{
    const struct keel_vit_config vit = {.width = job->width, .hidden = job->hidden};
    const uint64_t *size = keel_data_input(data, 0)->shape.size; /* [batch, height, width, channels] */
    keel_json_text(json, "model_type", "vit");
    keel_json_number(json, "hidden_size", job->width);
    keel_json_number(json, "intermediate_size", keel_vit_hidden(&vit));
    keel_json_number(json, "num_hidden_layers", job->layers);
    keel_json_number(json, "num_attention_heads", job->heads);
    keel_json_open(json, "image_size", '[');
    keel_json_number(json, NULL, size[1]);
    keel_json_number(json, NULL, size[2]);
    keel_json_close(json, ']');
    keel_json_number(json, "num_channels", size[3]);
    keel_json_number(json, "patch_size", job->patch);
    keel_json_bool(json, "qkv_bias", true);
    keel_json_text(json, "hidden_act", "gelu");
    keel_json_real(json, "layer_norm_eps", 1e-12, EPSILON_DIGITS);
    keel_json_real(json, "hidden_dropout_prob", (double)job->dropout, DIGITS);
    keel_json_real(json, "attention_probs_dropout_prob", (double)job->dropout, DIGITS);
    print_labels(json, classes);
    keel_json_text(json, "dtype", "float32");
    keel_json_text(json, "torch_dtype", "float32");
    keel_json_close(json, '}');
}

enum keel_status keel_hf_config_print(const struct keel_job *job, const struct keel_data *data, FILE *out)
{
    static const char *const classes[KEEL_MODEL_KIND_COUNT] = {[KEEL_MODEL_LLAMA] = "LlamaForCausalLM",
                                                               [KEEL_MODEL_MIXTRAL] = "MixtralForCausalLM",
                                                               [KEEL_MODEL_VIT] = "ViTForImageClassification",
                                                               [KEEL_MODEL_BERT] = "BertForMaskedLM",
                                                               [KEEL_MODEL_GPT] = "GPT2LMHeadModel"};
    struct keel_json json = {.out = out};
    const uint32_t vocab = job->vocab != 0 ? job->vocab : keel_data_vocab(data);
    const char *class = job->kind != KEEL_MODEL_GPT || job->bias ? classes[job->kind] : NULL;
    if (class == NULL)
        return keel_fail(
            KEEL_UNSUPPORTED,
            "--config-json: job %s: of llama, mixtral, bert, vit, and gpt with model.bias, there "
            "is a config.json",
            job->name);
    keel_json_open(&json, NULL, '{');
    keel_json_open(&json, "architectures", '[');
    keel_json_text(&json, NULL, class);
    keel_json_close(&json, ']');
    switch (job->kind) {
    case KEEL_MODEL_LLAMA:
    case KEEL_MODEL_MIXTRAL:
        print_llama(&json, job, vocab);
        break;
    case KEEL_MODEL_BERT:
        print_bert(&json, job, vocab);
        break;
    case KEEL_MODEL_VIT:
        print_vit(&json, job, data, vocab);
        break;
    default:
        print_gpt(&json, job, vocab);
    }
    fputc('\n', out);
    return KEEL_OK;
}
