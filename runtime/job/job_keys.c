/* job_keys.c - the table of job keys.
 *
 * A row says all that is known of a key: where it lies in struct keel_job, its type, default, range, mark and
 * help. Reading, --set, checks of range and users, the identity, DIR/job.conf, keel run --help, the page
 * keel-job-file(5) and tests/runtime/job_keys_test.c follow from it, so a key is added here and in the
 * struct, and read where it is used. */
#include "job_keys.h"
#include <keel/kernels.h>
#include <keel/models.h>
#include <keel/node.h>

_Static_assert((int)KEEL_F32 == 0 && (int)KEEL_BF16 == 1 && (int)KEEL_F16 == 2,
               "the choices of train.storage");
_Static_assert((int)KEEL_OPTIMIZER_ADAMW == 0 && (int)KEEL_OPTIMIZER_ADAM == 1 &&
                   (int)KEEL_OPTIMIZER_SGD == 2 && (int)KEEL_OPTIMIZER_LARS == 3 &&
                   (int)KEEL_OPTIMIZER_LAMB == 4,
               "the choices of train.optimizer");
_Static_assert((int)KEEL_DECAY_COSINE == 0 && (int)KEEL_DECAY_LINEAR == 1 && (int)KEEL_DECAY_CONSTANT == 2 &&
                   (int)KEEL_DECAY_WSD == 3,
               "the choices of train.decay");
_Static_assert((int)KEEL_CODEC_RAW == 0 && (int)KEEL_CODEC_PLANES == 1 && (int)KEEL_CODEC_DELTA == 2,
               "the choices of snapshot.codec");
_Static_assert((int)KEEL_ZERO_CHOSEN == 0 && (int)KEEL_ZERO_WEIGHTS == 4, "the choices of parallel.zero");

#define STEP_MAX  4294967295.0
#define BYTES_MAX 1e15

const struct keel_key_chooser keel_key_choosers[KEEL_KEY_CHOOSERS] = {
    [KEEL_BY_MODEL] = {"model", "kind", 3, 12},
    [KEEL_BY_OPTIMIZER] = {"train", "optimizer", 15, 6},
    [KEEL_BY_DECAY] = {"train", "decay", 21, 6},
    [KEEL_BY_LAUNCH] = {"cluster", "launch", 27, 4}};
#define OF_MODELS(models)         ((unsigned)(models) << 3)
#define OF_OPTIMIZERS(optimizers) ((unsigned)(optimizers) << 15)
#define OF_DECAYS(decays)         ((unsigned)(decays) << 21)
#define OF_LAUNCHES(launches)     ((unsigned)(launches) << 27)
_Static_assert(KEEL_MODEL_KIND_COUNT <= 12 && KEEL_OPTIMIZER_COUNT <= 6 && KEEL_DECAY_WSD < 6 &&
                   KEEL_LAUNCH_SLURM < 4,
               "bits of a key's mark");

static const struct keel_ini_key keys[] = {
    {"job", "name", KEEL_INI_TEXT, FIELD(name), "run", 1, 0, NULL, FREE,
     "name of the run and of its snapshots"},
    {"job", "seed", KEEL_INI_U64, FIELD(seed), "1337", 0, 18446744073709551615.0, NULL, BITS,
     "seed of weights, data order, dropout"},
    {"job", "numerics", KEEL_INI_CHOICE, FIELD(numerics), "canonical", 0, 0,
     "canonical|native|exact8x2|exact8x3|bf16", BITS,
     "canonical: the same bits on every board; exact8x2, exact8x3: so too, with products as sums of integers "
     "of 2 or "
     "3 times 8 bits, for boards with matrix units; bf16: so too, with products of bf16 pairs, for "
     "processors with "
     "AVX512-BF16; native: the variants of kernels/README.md, faster on some boards, rounded otherwise"},
    {"job", "shards", KEEL_INI_U32, FIELD(shards), "4", 1, KEEL_SHARDS_MAX, NULL, BITS,
     "logical shards of the data; ranks carry them"},
    {"job", "tensor", KEEL_INI_U32, FIELD(tensor), "1", 1, KEEL_SLICES_MAX, NULL,
     BITS | LATER | OF_MODELS(TEXT | VIT),
     "slices that heads, hidden layers and vocabulary are cut into: sums over them go slice by slice, then "
     "by a "
     "tree, whatever holds them"},
    {"model", "kind", KEEL_INI_CHOICE, FIELD(kind), "gpt", 0, 0,
     "gpt|resnet|bert|moe|dlrm|llama|vit|mixtral|alexnet", BITS | OF_DATA,
     "gpt; resnet, vit, alexnet: images; bert: masked text; moe: a gpt of experts; dlrm: recommendation; "
     "llama; "
     "mixtral: a llama of experts; or a file, "
     "./mymodel.so: a plug-in (keel/model_plugin.h) with keys of its own; ./model.onnx: `keel import-model` "
     "says what is "
     "covered"},
    {"model", "layers", KEEL_INI_U32, FIELD(layers), "4", 1, KEEL_MODEL_LAYERS_MAX, NULL, BITS,
     "transformer blocks; resnet: blocks of each stage; dlrm: hidden layers of each perceptron"},
    {"model", "heads", KEEL_INI_U32, FIELD(heads), "4", 1, 256, NULL, BITS | OF_MODELS(TEXT | VIT),
     "attention heads"},
    {"model", "width", KEEL_INI_U32, FIELD(width), "128", 1, 65536, NULL, BITS,
     "embedding width; resnet: channels of the first stage"},
    {"model", "block", KEEL_INI_U32, FIELD(block), "64", 1, 65536, NULL, BITS | OF_DATA | OF_MODELS(TEXT),
     "tokens of context"},
    {"model", "vocab", KEEL_INI_U32, FIELD(vocab), "0", 0, 1 << 20, NULL,
     BITS | OF_DATA | OF_MODELS(TEXT | IMAGES),
     "vocabulary, or classes; 0: what the data needs. Larger sizes train on the same data"},
    {"model", "dropout", KEEL_INI_FLOAT, FIELD(dropout), "0", 0, 0.95, NULL,
     BITS | OF_MODELS(GPTS | BERT | VIT | ALEXNET), "dropout rate"},
    {"model", "bias", KEEL_INI_BOOL, FIELD(bias), "true", 0, 0, NULL, BITS | OF_MODELS(GPTS),
     "bias in products and norms"},
    {"model", "tied", KEEL_INI_BOOL, FIELD(tied), "true", 0, 0, NULL, BITS | OF_MODELS(GPTS | LLAMAS),
     "output uses the embedding table"},
    {"model", "kv_heads", KEEL_INI_U32, FIELD(kv_heads), "0", 0, 64, NULL, BITS | LATER | OF_MODELS(LLAMAS),
     "llama: heads of keys and values, which heads share in groups; 0: one for each head"},
    {"model", "cut_heads", KEEL_INI_BOOL, FIELD(cut_heads), "false", 0, 0, NULL,
     BITS | LATER | OF_MODELS(LLAMAS),
     "llama, mixtral: job.tensor cuts attention too, by heads of keys with the heads that share them, as far "
     "as "
     "they are as many as slices; else each rank has attention whole"},
    {"model", "hidden", KEEL_INI_U32, FIELD(hidden), "0", 0, 1 << 20, NULL,
     BITS | LATER | OF_MODELS(LLAMAS | BERT | VIT),
     "llama, mixtral, vit, bert: width of the perceptron; 0: 8/3 of the width, in whole 32; vit, bert: 4 "
     "widths"},
    {"model", "rope_base", KEEL_INI_FLOAT, FIELD(rope_base), "10000", 1.5, 1e9, NULL,
     BITS | LATER | OF_MODELS(LLAMAS), "llama: base of the rotary positions"},
    {"model", "rope_factor", KEEL_INI_FLOAT, FIELD(rope_factor), "1", 1, 65536, NULL,
     BITS | LATER | OF_MODELS(LLAMAS), "llama: by how much rotary angles grow more slowly, for longer texts"},
    {"model", "rope_context", KEEL_INI_U32, FIELD(rope_context), "0", 0, 1 << 30, NULL,
     BITS | LATER | OF_MODELS(LLAMAS),
     "llama: with rope_factor, tokens that a model was made for: those that turn seldom in it are slower, as "
     "in "
     "Llama 3.1; 0: all are"},
    {"model", "depth", KEEL_INI_U32, FIELD(depth), "0", 0, 152, NULL, BITS | LATER | OF_MODELS(RESNET),
     "resnet: 18, 34, 50, 101 or 152 layers in 4 stages, as torchvision has them (width = 64, stem = large); "
     "0: "
     "model.stages of model.layers blocks"},
    {"model", "bottleneck", KEEL_INI_BOOL, FIELD(bottleneck), "false", 0, 0, NULL,
     BITS | LATER | OF_MODELS(RESNET),
     "resnet: blocks of 1x1, 3x3 and 1x1 convolutions, which make 4 times the channels; those of model.depth "
     "have them from 50 on"},
    {"model", "patch", KEEL_INI_U32, FIELD(patch), "4", 1, 1024, NULL, BITS | LATER | OF_MODELS(VIT),
     "vit: pixels of a token, down and across; they divide an image's"},
    {"model", "stages", KEEL_INI_U32, FIELD(stages), "3", 1, KEEL_RESNET_STAGES_MAX, NULL,
     BITS | OF_MODELS(RESNET),
     "resnet: stages, each with twice the channels and half the height and width of the one before"},
    {"model", "stem", KEEL_INI_CHOICE, FIELD(stem), "small", 0, 0, "small|large", BITS | OF_MODELS(RESNET),
     "resnet begins with: small: 3x3 convolution; large: 7x7 by stride 2 and a max pool"},
    {"model", "experts", KEEL_INI_U32, FIELD(experts), "8", 2, 256, NULL, BITS | OF_MODELS(MOE | MIXTRAL),
     "moe: experts of every second block; mixtral: of each"},
    {"model", "top_k", KEEL_INI_U32, FIELD(top_k), "2", 1, KEEL_MIXTRAL_TOP_MAX, NULL,
     BITS | LATER | OF_MODELS(MIXTRAL), "mixtral: experts that a token goes to"},
    {"model", "capacity", KEEL_INI_FLOAT, FIELD(capacity), "1.25", 0.25, KEEL_MOE_CAPACITY_MAX, NULL,
     BITS | OF_MODELS(MOE), "moe: tokens that an expert takes, over its fair share"},
    {"model", "balance", KEEL_INI_FLOAT, FIELD(balance), "0.01", 0, 10, NULL, BITS | OF_MODELS(MOE | MIXTRAL),
     "moe, mixtral: weight of the loss that spreads tokens over experts"},
    {"model", "dense", KEEL_INI_U32, FIELD(dense), "13", 1, 4096, NULL, BITS | OF_DATA | OF_MODELS(DLRM),
     "dlrm: features that are numbers"},
    {"model", "tables", KEEL_INI_U32, FIELD(tables), "8", 1, 256, NULL, BITS | OF_DATA | OF_MODELS(DLRM),
     "dlrm: features that are categories, each with an embedding table"},
    {"model", "categories", KEEL_INI_U32, FIELD(categories), "1000", 1, 1 << 24, NULL,
     BITS | OF_DATA | OF_MODELS(DLRM), "dlrm: rows of a table"},
    {"model", "table_rows", KEEL_INI_TEXT, FIELD(table_rows), "", 0, 0, NULL,
     BITS | LATER | OF_DATA | OF_MODELS(DLRM),
     "dlrm: rows of each table, as 1460-583-305; empty: model.categories"},
    {"model", "mlp_bot", KEEL_INI_TEXT, FIELD(mlp_bot), "", 0, 0, NULL, BITS | LATER | OF_MODELS(DLRM),
     "dlrm: sizes of the perceptron of numbers, from model.dense to model.width, as 13-512-64-16; empty: "
     "model.layers of 4 widths"},
    {"model", "mlp_top", KEEL_INI_TEXT, FIELD(mlp_top), "", 0, 0, NULL, BITS | LATER | OF_MODELS(DLRM),
     "dlrm: sizes of the second perceptron behind what it is given, as 512-256-1; empty: likewise"},
    {"model", "loss", KEEL_INI_CHOICE, FIELD(click_loss), "bce", 0, 0, "bce|mse",
     BITS | LATER | OF_MODELS(DLRM),
     "dlrm: binary cross-entropy; or the squared error of the sigmoid, whose labels may be any numbers"},
    {"model", "bag", KEEL_INI_U32, FIELD(bag), "4", 1, 256, NULL, BITS | OF_DATA | OF_MODELS(DLRM),
     "dlrm: categories of a feature in one sample, at most"},
    {"data", "path", KEEL_INI_TEXT, FIELD(path), KEEL_JOB_TEXT, 1, 0, NULL, FREE,
     "to train on: a text, or token files, where DIR/*.bin names several; images: directory of IDX files, "
     "or of folders of images; dlrm: a log of clicks, where data.format names one"},
    {"data", "val_path", KEEL_INI_TEXT, FIELD(val_path), "", 0, 0, NULL, OF_MODELS(TEXT | DLRM | IMAGES),
     "to validate with, as data.path; empty: the share of data.path that data.val_fraction says"},
    {"data", "format", KEEL_INI_CHOICE, FIELD(format), "auto", 0, 0,
     "auto|text|uint16|uint32|criteo|csv|folders", OF_MODELS(TEXT | DLRM | IMAGES),
     "of data.path and data.val_path: text; uint16, uint32: token files, whose own header wins; auto: uint16 "
     "where the name ends in .bin, else text. dlrm: criteo: label, whole numbers and hexadecimal categories "
     "between tabs; csv: label, numbers and categories between commas; auto: samples are drawn. Images: "
     "folders: of PNG and JPEG, one for each class; auto: IDX files"},
    {"data", "vocab", KEEL_INI_TEXT, FIELD(vocabulary), "char", 1, 0, NULL, BITS | OF_MODELS(TEXT),
     "char: the bytes that occur in the text; byte: all 256; bpe:tokenizer.json or "
     "bpe:vocab.json,merges.txt: "
     "tokens of GPT-2's byte-level BPE, into which a text is encoded first"},
    {"data", "val_fraction", KEEL_INI_FLOAT, FIELD(val_fraction), "0.1", 0, 0.9, NULL,
     BITS | OF_MODELS(TEXT | DLRM | IMAGES),
     "share at the end of data.path kept for validation, where there is no data.val_path"},
    {"data", "samples", KEEL_INI_U64, FIELD(samples), "262144", 1, STEP_MAX, NULL, BITS | OF_MODELS(DLRM),
     "dlrm: samples of the synthetic training set"},
    {"data", "flip", KEEL_INI_BOOL, FIELD(flip), "false", 0, 0, NULL, BITS | OF_MODELS(IMAGES),
     "mirror every second training image, drawn by sample and pass"},
    {"data", "shift", KEEL_INI_U32, FIELD(shift), "0", 0, 64, NULL, BITS | OF_MODELS(IMAGES),
     "move training images by up to so many pixels, likewise"},
    {"data", "crop", KEEL_INI_FLOAT, FIELD(crop), "0", 0, 1, NULL, BITS | LATER | OF_MODELS(IMAGES),
     "folders: of an image that is trained on a part is seen, drawn likewise: its area from this share of "
     "the "
     "whole up, its sides from 3:4 to 4:3; 0.08 is usual; 0: the square in its middle"},
    {"data", "mixup", KEEL_INI_FLOAT, FIELD(mixup), "0", 0, 1, NULL, BITS | LATER | OF_MODELS(IMAGES),
     "each image that is trained on, and its label, is mixed with another, by shares that are drawn "
     "likewise, of "
     "a Beta distribution with this parameter twice; 0.2 is usual; 0: none is"},
    {"data", "image_size", KEEL_INI_U32, FIELD(image_size), "224", 8, 1024, NULL,
     BITS | LATER | OF_MODELS(IMAGES),
     "folders: an image is the square in its middle, of so many pixels a side"},
    {"train", "steps", KEEL_INI_U64, FIELD(steps), "300", 0, STEP_MAX, NULL, FREE,
     "optimizer steps of the run; 0: evaluate the newest snapshot, or the first weights, and end"},
    {"train", "microbatches", KEEL_INI_U32, FIELD(microbatches), "1", 1, KEEL_JOB_MICROBATCHES_MAX, NULL,
     BITS, "microbatches per shard and step"},
    {"train", "batch", KEEL_INI_U32, FIELD(batch), "4", 1, 65536, NULL, BITS, "samples per microbatch"},
    {"train", "total_batch", KEEL_INI_U64, FIELD(total_batch), "0", 0, STEP_MAX, NULL, FREE,
     "samples of a step, over all shards, of which train.microbatches follow; 0: shards x microbatches x "
     "batch"},
    {"train", "lr", KEEL_INI_FLOAT, FIELD(learning_rate), "1e-3", 0, 10, NULL, BITS, "highest learning rate"},
    {"train", "decay", KEEL_INI_CHOICE, FIELD(decay), "cosine", 0, 0, "cosine|linear|constant|wsd",
     BITS | LATER,
     "of the learning rate behind the warm-up: half a cosine, or a line, to min_lr; constant: none; wsd: "
     "none "
     "until a line of train.cooldown_steps"},
    {"train", "min_lr", KEEL_INI_FLOAT, FIELD(min_learning_rate), "1e-4", 0, 10, NULL,
     BITS | OF_DECAYS(FALLING), "learning rate at the end of the decay"},
    {"train", "warmup_steps", KEEL_INI_U64, FIELD(warmup_steps), "20", 0, STEP_MAX, NULL, BITS,
     "linear warm-up"},
    {"train", "decay_steps", KEEL_INI_U64, FIELD(decay_steps), "0", 0, STEP_MAX, NULL,
     BITS | OF_DECAYS(FALLING), "the decay ends here; 0: at train.steps"},
    {"train", "restart_steps", KEEL_INI_U64, FIELD(restart_steps), "0", 0, STEP_MAX, NULL,
     BITS | LATER | OF_DECAYS(COSINE), "the cosine begins anew after so many steps (SGDR); 0: never"},
    {"train", "restart_growth", KEEL_INI_U32, FIELD(restart_growth), "1", 1, 16, NULL,
     BITS | LATER | OF_DECAYS(COSINE), "and each next time after so many times as many"},
    {"train", "cooldown_steps", KEEL_INI_U64, FIELD(cooldown_steps), "0", 0, STEP_MAX, NULL,
     BITS | LATER | OF_DECAYS(WSD),
     "wsd: steps of the decay, the last before decay_steps; 0: a tenth of them"},
    {"train", "ema", KEEL_INI_FLOAT, FIELD(ema), "0", 0, 0.9999999, NULL, BITS | LATER,
     "decay of an exponential moving average of the weights, kept beside them: 0.999, say; it is what the "
     "run evaluates, and --ema of keel eval, sample, export and serve takes it; 0: none"},
    {"train", "label_smoothing", KEEL_INI_FLOAT, FIELD(label_smoothing), "0", 0, 0.95, NULL,
     BITS | LATER | OF_MODELS(TEXT | IMAGES),
     "cross-entropy: so much of a label is all classes' alike; validation has the labels as they are"},
    {"train", "freeze", KEEL_INI_TEXT, FIELD(freeze), "", 0, 0, NULL, BITS | LATER,
     "parameters that are not trained: names, or patterns as h.0.*, with commas; keel plan --dump lists the "
     "names"},
    {"train", "lr_scale", KEEL_INI_TEXT, FIELD(lr_scale), "", 0, 0, NULL, BITS | LATER,
     "PATTERN:FACTOR with commas: parameters whose learning rate is so many times the others'; the last that "
     "names "
     "one counts"},
    {"train", "no_decay", KEEL_INI_TEXT, FIELD(no_decay), "", 0, 0, NULL, BITS | LATER,
     "matrices without weight decay, by patterns likewise; biases and norms have none"},
    {"train", "lora_rank", KEEL_INI_U32, FIELD(lora_rank), "0", 0, 1024, NULL, BITS | LATER,
     "adapters of this rank are trained beside products, and all else is frozen (LoRA); 0: none"},
    {"train", "lora_alpha", KEEL_INI_FLOAT, FIELD(lora_alpha), "0", 0, 65536, NULL, BITS | LATER,
     "what an adapter says is multiplied by lora_alpha / lora_rank; 0: by 1"},
    {"train", "lora_targets", KEEL_INI_TEXT, FIELD(lora_targets), "*", 1, 0, NULL, BITS | LATER,
     "patterns, with commas: of which weights; *: of all that are of one product alone"},
    {"train", "lora_dropout", KEEL_INI_FLOAT, FIELD(lora_dropout), "0", 0, 0.95, NULL, BITS | LATER,
     "dropout rate of what an adapter reads"},
    {"train", "storage", KEEL_INI_CHOICE, FIELD(storage), "f32", 0, 0, "f32|bf16|f16", BITS,
     "of activations that wait for the backward pass; all arithmetic is of float32"},
    {"train", "loss_scale", KEEL_INI_FLOAT, FIELD(loss_scale), "0", 0, 16777216, NULL, BITS,
     "storage = f16: a power of two; 0: halved when a gradient overflows, doubled after 2048 good steps"},
    {"train", "gradients", KEEL_INI_TEXT, FIELD(gradients), "exact", 1, 0, NULL,
     BITS | LATER | OF_MODELS(TEXT | DLRM | VIT),
     "summed over shards: exact; int8: with 8 bits a number; topk:FRACTION, 0.0002 to 0.5: only the largest, "
     "so "
     "many of each shard's"},
    {"train", "optimizer", KEEL_INI_CHOICE, FIELD(optimizer), "adamw", 0, 0, "adamw|adam|sgd|lars|lamb", BITS,
     "sgd and lars: with momentum; lars and lamb: for very large batches"},
    {"train", "momentum", KEEL_INI_FLOAT, FIELD(update.momentum), "0.9", 0, 0.9999, NULL,
     BITS | OF_OPTIMIZERS(SGD | LARS), "SGD, LARS"},
    {"train", "nesterov", KEEL_INI_BOOL, FIELD(nesterov), "false", 0, 0, NULL, BITS | OF_OPTIMIZERS(SGD),
     "SGD: look ahead along the momentum"},
    {"train", "trust", KEEL_INI_FLOAT, FIELD(update.trust), "0.001", 1e-9, 1, NULL,
     BITS | OF_OPTIMIZERS(LARS), "LARS: share of a matrix's norm that a step moves at lr 1"},
    {"train", "beta1", KEEL_INI_FLOAT, FIELD(update.beta1), "0.9", 0, 0.9999, NULL,
     BITS | OF_OPTIMIZERS(ADAMS), "Adam, AdamW, LAMB"},
    {"train", "beta2", KEEL_INI_FLOAT, FIELD(update.beta2), "0.99", 0, 0.99999, NULL,
     BITS | OF_OPTIMIZERS(ADAMS), "Adam, AdamW, LAMB"},
    {"train", "eps", KEEL_INI_FLOAT, FIELD(update.epsilon), "1e-8", 1e-20, 1, NULL,
     BITS | OF_OPTIMIZERS(ADAMS), "Adam, AdamW, LAMB"},
    {"train", "weight_decay", KEEL_INI_FLOAT, FIELD(update.weight_decay), "0.1", 0, 10, NULL, BITS,
     "of matrices only"},
    {"train", "clip", KEEL_INI_FLOAT, FIELD(update.max_norm), "1", 0, 1e6, NULL, BITS,
     "gradient norm limit; 0: none"},
    {"train", "eval_every", KEEL_INI_U64, FIELD(eval_every), "50", 0, STEP_MAX, NULL, FREE,
     "validation loss every so many steps; 0: never"},
    {"train", "eval_batches", KEEL_INI_U32, FIELD(eval_batches), "8", 1, 65536, NULL, FREE,
     "microbatches of one validation"},
    {"train", "patience", KEEL_INI_U32, FIELD(patience), "0", 0, 10000, NULL, FREE,
     "end the run when so many validations in a row were no better than the best, whose snapshot is kept; 0: "
     "never"},
    {"train", "min_delta", KEEL_INI_FLOAT, FIELD(min_delta), "0", 0, 1e6, NULL, FREE,
     "with patience: better is what is below the best by more than this"},
    {"train", "check_products", KEEL_INI_BOOL, FIELD(check_products), "false", 0, 0, NULL, FREE,
     "notice when the memory of a board changes the result of a product of linear layers (not of "
     "convolutions, "
     "attention or experts), before it is trained on"},
    {"train", "sample", KEEL_INI_U32, FIELD(sample_tokens), "0", 0, 1 << 20, NULL, OF_MODELS(GPTS | LLAMAS),
     "tokens of text to generate when the run ends"},
    {"train", "spike", KEEL_INI_CHOICE, FIELD(spike), "warn", 0, 0, "warn|stop|back", FREE,
     "a loss that explodes without being infinite: warn; stop: end at the snapshot before it; back: go back "
     "to "
     "that once, since what a fault did does not come again, and stop if it does"},
    {"train", "screen_every", KEEL_INI_U64, FIELD(screen_every), "0", 0, STEP_MAX, NULL, FREE,
     "test each board by a golden operation every so many steps, and by all of them at first; 0: never"},
    {"snapshot", "every", KEEL_INI_U64, FIELD(snapshot_every), "50", 0, STEP_MAX, NULL, FREE,
     "snapshot every so many steps; 0: never"},
    {"snapshot", "first", KEEL_INI_BOOL, FIELD(snapshot_first), "false", 0, 0, NULL, FREE,
     "snapshot of step 0 too: the weights before the first step"},
    {"snapshot", "codec", KEEL_INI_CHOICE, FIELD(snapshot_codec), "planes", 0, 0, "raw|planes|delta", FREE,
     "raw; planes: compressed byte planes; delta: those of the change since the snapshot before"},
    {"snapshot", "keep", KEEL_INI_U32, FIELD(snapshot_keep), "3", 2, 1000, NULL, FREE,
     "newest committed snapshots that stay, and what they need"},
    {"snapshot", "keep_every", KEEL_INI_U64, FIELD(snapshot_keep_every), "0", 0, STEP_MAX, NULL, FREE,
     "and those of a step that is a multiple of it; 0: none"},
    {"snapshot", "keep_within_s", KEEL_INI_DOUBLE, FIELD(snapshot_keep_within_s), "0", 0, 1e9, NULL, FREE,
     "and those younger than so many seconds"},
    {"snapshot", "bandwidth_bytes_s", KEEL_INI_U64, FIELD(snapshot_bandwidth_bytes_s), "0", 0, BYTES_MAX,
     NULL, FREE, "most that each rank writes per second, 65536 at least; 0: no cap"},
    {"snapshot", "arena_bytes", KEEL_INI_U64, FIELD(snapshot_arena_bytes), "0", 0, BYTES_MAX, NULL, FREE,
     "memory of each rank for what is captured and not written yet; 0: its whole state"},
    {"snapshot", "background", KEEL_INI_BOOL, FIELD(snapshot_background), "true", 0, 0, NULL, FREE,
     "encode and write only when nobody else wants the processor and the disk"},
    {"snapshot", "max_age_steps", KEEL_INI_U64, FIELD(snapshot_max_age_steps), "0", 0, STEP_MAX, NULL, FREE,
     "a snapshot in the background is written at normal priority from so many steps on; 0: half of "
     "snapshot.every"},
    {"snapshot", "retry", KEEL_INI_U32, FIELD(snapshot_retry), "3", 0, 100, NULL, FREE,
     "how often a write that failed is tried again, and then the snapshot, at the next steps"},
    {"snapshot", "key_file", KEEL_INI_TEXT, FIELD(snapshot_key_file), "", 0, 0, NULL, FREE,
     "file of the key that seals snapshots, which only its owner may read; empty: not sealed"},
    {"snapshot", "allow_nonfinite", KEEL_INI_BOOL, FIELD(snapshot_allow_nonfinite), "false", 0, 0, NULL, FREE,
     "commit a snapshot although it holds NaN or infinity"},
    {"snapshot", "local", KEEL_INI_TEXT, FIELD(snapshot_local), "", 0, 0, NULL, FREE,
     "directory of each node's own host for what its ranks write, below it one for each node; empty: all "
     "write "
     "into the run's directory, which all must see"},
    {"snapshot", "partner", KEEL_INI_BOOL, FIELD(snapshot_partner), "false", 0, 0, NULL, FREE,
     "with snapshot.local: a node of another host keeps a copy of each shard in its directory"},
    {"snapshot", "erasure", KEEL_INI_TEXT, FIELD(snapshot_erasure), "", 0, 0, NULL, FREE,
     "K+M, with snapshot.local: of K + M nodes any M may be lost with all that they have, for M / K more "
     "bytes"},
    {"snapshot", "store", KEEL_INI_TEXT, FIELD(snapshot_store), "", 0, 0, NULL, FREE,
     "with snapshot.local: a directory that all nodes see, into which some snapshots are copied in the "
     "background"},
    {"snapshot", "store_every", KEEL_INI_U64, FIELD(snapshot_store_every), "0", 0, STEP_MAX, NULL, FREE,
     "those of steps that are a multiple of this go to snapshot.store, and that of the last step; 0: all"},
    {"cluster", "ranks", KEEL_INI_U32, FIELD(ranks), "1", 1, KEEL_MEMBERS_MAX, NULL, FREE,
     "workers; those beyond job.shards carry none"},
    {"cluster", "nodes", KEEL_INI_U32, FIELD(nodes), "0", 0, KEEL_NODES_MAX - 1, NULL, FREE,
     "nodes that the ranks are spread over; 0: one per rank"},
    {"cluster", "spares", KEEL_INI_U32, FIELD(spares), "0", 0, 16, NULL, FREE,
     "warm spare nodes of one worker each"},
    {"cluster", "timeout_s", KEEL_INI_DOUBLE, FIELD(timeout_s), "5", 0.2, 3600, NULL, FREE,
     "silence after which a peer is lost; every other timeout follows from it"},
    {"cluster", "device", KEEL_INI_TEXT, FIELD(device), "auto", 1, 0, NULL, FREE,
     "device or board of all workers, as `keel board list` names them, or one for each rank: "
     "pocl:0,host or 16*pocl:0,host"},
    {"cluster", "network_costs", KEEL_INI_TEXT, FIELD(network_costs), "", 0, 0, NULL, FREE,
     "file that `keel net tune` wrote: how collectives are done; empty: as built in"},
    {"cluster", "seal_payload", KEEL_INI_BOOL, FIELD(seal_payload), "false", 0, 0, NULL, FREE,
     "encrypt bulk data between hosts too; without it they are authenticated alone"},
    {"cluster", "respawn", KEEL_INI_BOOL, FIELD(respawn), "true", 0, 0, NULL, FREE,
     "start nodes that died again, to join as spares or to grow back"},
    {"cluster", "launch", KEEL_INI_CHOICE, FIELD(launch), "local", 0, 0, "local|none|ssh|slurm", FREE,
     "who starts the agents: local: the launcher, all on its host; none: you, by the commands that it "
     "prints; "
     "ssh, slurm: the launcher, on cluster.hosts"},
    {"cluster", "holders", KEEL_INI_U32, FIELD(holders), "0", 0, KEEL_HOLDERS_MAX, NULL, FREE,
     "nodes that hold the view, on different hosts, of which another leads when who leads is gone: 3 or 5; "
     "1: the launcher alone; 0: 3 where launch is not local, there are three hosts, and snapshots go into "
     "the common store"},
    {"cluster", "hosts", KEEL_INI_TEXT, FIELD(hosts), "", 0, 0, NULL, OF_LAUNCHES(AGENTS),
     "hosts of the nodes, neighbours together: a,b,c, or a file (with a / in its name) of one a line; slurm: "
     "empty takes those of the allocation"},
    {"cluster", "bind", KEEL_INI_TEXT, FIELD(bind), "", 0, 0, NULL, OF_LAUNCHES(AGENTS),
     "ADDRESS or ADDRESS:PORT where the launcher listens (IPv6: [ADDRESS]:PORT); empty: cluster.advertise"},
    {"cluster", "advertise", KEEL_INI_TEXT, FIELD(advertise), "", 0, 0, NULL, OF_LAUNCHES(AGENTS),
     "name or address by which agents reach the launcher; empty: cluster.bind, or what this host's name "
     "says"},
    {"cluster", "shell", KEEL_INI_TEXT, FIELD(shell), "", 0, 0, NULL, OF_LAUNCHES(STARTED),
     "what starts a command on a host, which stands for %h: empty: ssh -o BatchMode=yes %h, or srun with "
     "--nodelist=%h"},
    {"cluster", "command", KEEL_INI_TEXT, FIELD(command), "", 0, 0, NULL, OF_LAUNCHES(STARTED),
     "keel as the hosts call it; empty: the path of this one"},
    {"parallel", "data", KEEL_INI_U32, FIELD(parallel.data), "0", 0, KEEL_SHARDS_MAX, NULL, FREE,
     "positions that share job.shards; 0: as many as there are ranks for"},
    {"parallel", "tensor", KEEL_INI_U32, FIELD(parallel.tensor), "0", 0, KEEL_SLICES_MAX, NULL, FREE,
     "ranks that share the job.tensor slices of each position; 0: as few as fit the memory"},
    {"parallel", "zero", KEEL_INI_CHOICE, FIELD(parallel.zero), "auto", 0, 0, "auto|0|1|2|3", FREE,
     "split over the data positions: 0: nothing; 1: the optimizer's state; 2: gradients too; 3: weights too; "
     "auto: as little as fits the memory"},
    {"parallel", "zero_group", KEEL_INI_U32, FIELD(parallel.zero_group), "0", 0, KEEL_SHARDS_MAX, NULL, FREE,
     "data positions, a divisor of them all, over which zero splits, and within which weights go round; "
     "other "
     "groups hold replicas; 0: all"},
    {"parallel", "holders", KEEL_INI_U32, FIELD(parallel.holders), "2", 1, 2, NULL, FREE,
     "ranks that have each piece of what is split: with 1, a lost rank costs the steps since the newest "
     "snapshot"},
    {"parallel", "memory", KEEL_INI_U64, FIELD(parallel.memory_bytes), "0", 0, BYTES_MAX, NULL, FREE,
     "bytes of its device that a rank may use; 0: all that it has"},
    {"parallel", "bucket", KEEL_INI_U64, FIELD(parallel.bucket_bytes), "4194304", 4096, BYTES_MAX, NULL, FREE,
     "bytes of gradients, or a little more, that are summed at once"},
    {"parallel", "ahead", KEEL_INI_U32, FIELD(parallel.ahead), "1", 0, 64, NULL, FREE,
     "with zero = 3: so many buckets of weights are gathered ahead of those that are read; 0: none"},
};

const struct keel_ini_table keel_job_keys = {
    .keys = keys, .key_count = sizeof keys / sizeof keys[0], .what = "job"};
_Static_assert(sizeof keys / sizeof keys[0] + KEEL_PLUGIN_KEYS_MAX <= KEEL_INI_KEYS_MAX, "keys of a plug-in");
