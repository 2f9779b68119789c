/* models.h - models written with the builder of graph.h, each a forward graph with its loss.
 *
 * Parameters bear the names of the published weights where there are any. Sizes that make no model are
 * INVALID, and the graph's status too: the message has the model, the job's key, its value and what is
 * allowed. The graph is built once; no pointer may be NULL; all of these may be called on any thread. */
#ifndef KEEL_MODELS_H
#define KEEL_MODELS_H

#include <keel/api.h>
#include <keel/graph.h>

KEEL_API_BEGIN

/* Of what a model is made of step by step; other sizes have the limits of tensors. */
enum { KEEL_MODEL_LAYERS_MAX = 256, KEEL_RESNET_STAGES_MAX = 5, KEEL_MOE_CAPACITY_MAX = 64 };
enum { KEEL_MIXTRAL_TOP_MAX = 16 };

struct keel_gpt_config {
    uint32_t layers, heads, width, block, vocab, batch;
    float dropout;
    bool bias, tied;
};
/* GPT-2 (Radford et al. 2019): pre-norm, learned positions, 4x MLP; weights normal(0, 0.02), residual
 * projections by 1/sqrt(2 layers). Inputs "ids" and "targets" of [batch, block], as of the other models of
 * text; in a graph that decodes (keel_graph_decode) of [batch, 1], behind its position. */
enum keel_status keel_model_gpt(struct keel_graph *graph, const struct keel_gpt_config *config);

struct keel_resnet_config {
    uint32_t stages, blocks; /* blocks of each stage */
    uint32_t width;          /* channels of the first stage, twice as many in each next */
    bool large_stem;         /* 7x7 by stride 2 and a max pool, for large images */
    uint32_t height, image_width, channels, classes, batch;
    uint32_t
        depth; /* 18, 34, 50, 101, 152: torchvision's network, whatever stages and blocks are; 0: theirs */
    bool bottleneck; /* with depth 0: blocks of three convolutions, which make 4 times the channels */
    bool mixed; /* labels are soft: with an input "mix" [batch, classes], 1 at the label less the soft one */
};
/* A residual network (He et al. 2016), of stages of blocks (3 stages of width 16 for 28x28), or of a depth,
 * whose blocks are bottlenecks from 50 on. torchvision's are of width 64 with the large stem, and have these
 * names. Inputs "images" [batch, height, image_width, channels] and "labels" [batch]. */
enum keel_status keel_model_resnet(struct keel_graph *graph, const struct keel_resnet_config *config);

struct keel_bert_config {
    uint32_t layers, heads, width, block, vocab, batch;
    uint32_t masked; /* tokens of a sample that are asked for */
    uint32_t hidden; /* of a perceptron; 0: 4 widths */
    float dropout;
};
/* A masked language model (Devlin et al. 2019) with the names of Hugging Face's BertForMaskedLM; matrices are
 * [in, out]. Inputs "ids" [batch, block], "positions" [batch, masked], rows of the flattened ids that are
 * asked for, and "targets" [batch, masked]. */
enum keel_status keel_model_bert(struct keel_graph *graph, const struct keel_bert_config *config);
uint32_t
keel_bert_hidden(const struct keel_bert_config *config); /* of a perceptron, also where hidden is 0 */

struct keel_vit_config {
    uint32_t layers, heads, width;
    uint32_t hidden; /* of a perceptron; 0: 4 widths */
    uint32_t patch;  /* pixels of a token, down and across */
    uint32_t height, image_width, channels, classes, batch;
    float dropout;
    bool mixed; /* as above */
};
/* A vision transformer (Dosovitskiy et al. 2021) with the names of Hugging Face's ViTForImageClassification:
 * pre-norm, GELU by its definition, learned positions, and the class from a token of its own. Matrices are
 * [in, out], the patches' convolution [down, across, channels, width]. Inputs as a residual network's. */
enum keel_status keel_model_vit(struct keel_graph *graph, const struct keel_vit_config *config);
uint32_t keel_vit_hidden(const struct keel_vit_config *config); /* of a perceptron, also where hidden is 0 */

struct keel_moe_config {
    struct keel_gpt_config gpt;
    uint32_t experts;
    float capacity; /* tokens that an expert takes, over its fair share: (0, KEEL_MOE_CAPACITY_MAX] */
    float balance;  /* weight of the loss that spreads them */
};
/* A GPT with experts in every second block (Fedus et al. 2022). Inputs as GPT's. */
enum keel_status keel_model_moe(struct keel_graph *graph, const struct keel_moe_config *config);

struct keel_llama_config {
    uint32_t layers, heads, width, block, vocab, batch;
    uint32_t kv_heads; /* of keys and values, a divisor of heads, which are 64 at most */
    uint32_t hidden;   /* of a perceptron; 0: 8/3 of the width, in whole 32 */
    float rope_base;   /* of rotary positions */
    /* Slower by this, 0 or 1: not; of a context of 0 tokens: all, else as Llama 3 does, between 1 and 4
     * turns. */
    float rope_factor;
    uint32_t rope_context;
    bool tied;
    bool cut_heads; /* slices have groups of heads, at most kv_heads of them; else attention is whole */
};
/* Llama (Touvron et al. 2023) with the names and layouts of Hugging Face's LlamaForCausalLM; its rms_norm_eps
 * is 1e-5. Inputs as GPT's. */
enum keel_status keel_model_llama(struct keel_graph *graph, const struct keel_llama_config *config);
uint32_t
keel_llama_hidden(const struct keel_llama_config *config); /* of a perceptron, also where hidden is 0 */

struct keel_mixtral_config {
    struct keel_llama_config llama; /* hidden is an expert's */
    uint32_t experts;
    uint32_t top_k; /* experts of a token: 1 to KEEL_MIXTRAL_TOP_MAX */
    float balance;  /* weight of the loss that spreads tokens over experts, in each layer */
};
/* A Llama of experts in each block (Jiang et al. 2024) with the names of Hugging Face's MixtralForCausalLM,
 * but that the experts of a layer share a tensor: block_sparse_moe.experts.w1.weight is [experts, hidden,
 * width]. No token is dropped. Inputs as GPT's. */
enum keel_status keel_model_mixtral(struct keel_graph *graph, const struct keel_mixtral_config *config);

struct keel_alexnet_config {
    uint32_t width; /* channels of the first convolution: 64 is torchvision's */
    uint32_t height, image_width, channels, classes, batch;
    float dropout; /* 0.5 there */
    bool mixed;    /* as above */
};
/* AlexNet (Krizhevsky 2014) with the names of torchvision's, for images of 63x63 and more. Inputs as a
 * residual network's. */
enum keel_status keel_model_alexnet(struct keel_graph *graph, const struct keel_alexnet_config *config);

struct keel_dlrm_config {
    uint32_t dense;         /* features that are numbers */
    uint32_t tables, bag;   /* features that are categories; most of them in one sample */
    uint32_t categories;    /* rows of a table */
    uint32_t width, layers; /* of a vector; hidden layers of each perceptron, of 4 width */
    uint32_t batch;
    const uint32_t *rows;          /* of each table; NULL: categories */
    const uint32_t *bot, *top;     /* widths of the perceptrons' layers: the last is width, and 1 */
    uint32_t bot_count, top_count; /* how many; 0: as layers says */
    bool squared;                  /* the loss: the squared error of the sigmoid, and not BCE */
};
/* A recommendation model (Naumov et al. 2019). Inputs "dense" f32 [batch, dense], "ids" [batch tables, bag]
 * of rows counted through all tables, -1 for none, and "labels" f32 [batch, 1]. */
enum keel_status keel_model_dlrm(struct keel_graph *graph, const struct keel_dlrm_config *config);

KEEL_API_END

#endif
