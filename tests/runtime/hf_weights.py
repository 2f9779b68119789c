# hf_weights.py ROOT KEEL TEXT: random models of Hugging Face's transformers (GPT-2, Llama, Mixtral, BERT) in and out of
# Keel by `keel ckpt`, by their logits on the same tokens. Ends with 1 at the first that differs.
import copy
import json
import os
import subprocess
import sys

import numpy
import torch
import transformers
from safetensors.torch import load_file

root, keel, text = sys.argv[1:4]
torch.manual_seed(2)
TOLERANCE = 1e-5
BLOCK, BATCH, BATCHES = 24, 3, 4
SEED, MASK_VALIDATION = 1337, 2
data = open(text, "rb").read()
kept = data[len(data) - int(len(data) * float(numpy.float32(0.1))):]


def keel_run(*words):
    return subprocess.run([keel, *words], check=True, stdout=subprocess.PIPE).stdout


# ---- what runtime/data/data.c draws, and data_text.c masks ----

WORD = 2**64 - 1


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def draw(key, number, index):
    golden = 0x9E3779B97F4A7C15
    return mix((mix((mix((key + golden) & WORD) + (number + 1) * golden) & WORD) + (index + 1) * golden) & WORD)


def below(drawn, count):
    return ((drawn >> 32) * count) >> 32


def permute(index, count, key):
    half = 1
    while half < 31 and (1 << (2 * half)) < count:
        half += 1
    while True:
        left, right = index >> half, index & ((1 << half) - 1)
        for turn in range(6):
            left, right = right, left ^ (mix(right ^ mix((key + turn) & WORD)) & ((1 << half) - 1))
        index = (left << half) | right
        if index < count:
            return index


def windows():
    """The tokens of each validation sample."""
    total, there = BATCH * BATCHES, len(kept) - BLOCK
    return [list(kept[n * there // total:][:BLOCK]) for n in range(total)]


def masked(number, tokens):
    """A sample as BERT is given it, and which of its tokens are asked for, in their order."""
    tokens, key, at = list(tokens), draw(SEED, MASK_VALIDATION, number), []
    for i in range((BLOCK * 15 + 50) // 100):
        place, drawn = permute(i, BLOCK, key), draw(key, 0, i)
        kind = below(drawn, 10)
        tokens[place] = 256 if kind < 8 else below((drawn << 32) & WORD, 256) if kind == 8 else tokens[place]
        at.append(place)
    return tokens, at


# ---- in and out ----

CASES = {
    "gpt2": ("GPT2LMHeadModel", dict(n_embd=32, n_layer=2, n_head=4, n_positions=BLOCK, vocab_size=256),
             "kind = gpt\nlayers = 2\nheads = 4\nwidth = 32\n"),
    "llama": ("LlamaForCausalLM", dict(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
                                       num_key_value_heads=2, vocab_size=256, rms_norm_eps=1e-5),
              "kind = llama\nlayers = 2\nheads = 4\nkv_heads = 2\nwidth = 32\nhidden = 40\ntied = false\n"),
    "mixtral": ("MixtralForCausalLM", dict(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
                                           num_key_value_heads=2, vocab_size=256, num_local_experts=5, num_experts_per_tok=2,
                                           rope_theta=10000.0),
                "kind = mixtral\nlayers = 2\nheads = 4\nkv_heads = 2\nwidth = 32\nhidden = 40\ntied = false\nexperts = 5\n"),
    "bert": ("BertForMaskedLM", dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                     vocab_size=257, max_position_embeddings=BLOCK),
             "kind = bert\nlayers = 2\nheads = 4\nwidth = 32\nhidden = 48\nvocab = 257\n"),
}
NAMES = {"gpt2": "gpt2", "llama": "keel", "mixtral": "mixtral", "bert": "bert"}


def write_job(name, model):
    path = os.path.join(root, name + ".conf")
    with open(path, "w") as out:
        out.write(f"[job]\nname = {name}\n[data]\npath = {text}\nvocab = byte\n[train]\nsteps = 1\nbatch = {BATCH}\n"
                  f"eval_every = 0\neval_batches = {BATCHES}\nwarmup_steps = 0\n[snapshot]\nevery = 1\n[cluster]\n"
                  f"device = host\n[model]\nblock = {BLOCK}\n{model}")
    return path


def logits_of(run):
    keel_run("eval", run, "--logits", run + ".npy")
    return numpy.load(run + ".npy")


def run_model(name, model):
    """In float64, so that what differs is float32's, once."""
    model, samples = copy.deepcopy(model).double().eval(), windows()
    model.config._experts_implementation = "eager"  # torch's grouped product knows no float64
    masks = [masked(n, tokens) for n, tokens in enumerate(samples)]
    ids = torch.tensor([tokens for tokens, _ in masks] if name == "bert" else samples)
    with torch.no_grad():
        logits = model(ids).logits
    if name == "bert":
        logits = torch.stack([row[at] for row, (_, at) in zip(logits, masks)])
    return logits.reshape(-1, logits.shape[-1]).numpy()


def far(what, ours, theirs, missing):
    difference = float(numpy.abs(ours - theirs).max() / numpy.abs(theirs).max())
    print(f"{what}: {difference:.1e}, {missing} missing keys")
    if not difference < TOLERANCE or missing:
        sys.exit(f"{what}: logits are others, or keys")


def come_in(name, job, run, folder):
    keel_run("run", job, "--out", run, "--prepare")
    keel_run("ckpt", "import", folder, run, "--names", NAMES[name], "--for-training")


def save(model, folder):
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.2 + (p.dim() == 1))
    model.save_pretrained(folder)


for name, (kind, config, keys) in CASES.items():
    job, run = write_job(name, keys), os.path.join(root, name)
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**config, attn_implementation="eager"))
    save(model, run + "-theirs")
    come_in(name, job, run, run + "-theirs")
    ours, wanted = logits_of(run), run_model(name, model)
    far(name + " in", ours, wanted, 0)
    keel_run("ckpt", "export", run, run + "-out/", "--names", NAMES[name], *(["--only", "weights"] if name == "llama" else []))
    with open(run + "-out/config.json", "wb") as out:
        out.write(keel_run("plan", run + "/job.conf", "--config-json"))
    fresh, info = model_class.from_pretrained(run + "-out", output_loading_info=True, attn_implementation="eager")
    others = [k for part in ("missing_keys", "unexpected_keys", "mismatched_keys") for k in info[part]]
    far(name + " out", ours, run_model(name, fresh), len(others))
    there, back = (load_file(folder + "/model.safetensors") for folder in (run + "-theirs", run + "-out"))
    if name != "gpt2" and (there.keys() != back.keys() or any(not torch.equal(there[k], back[k]) for k in there)):
        sys.exit(f"{name}: other tensors came back: {there.keys() ^ back.keys()}")

# ---- BERT's other classes: the second task is left out, a head that is not there begins as drawn ----

config = transformers.BertConfig(**CASES["bert"][1], attn_implementation="eager")
job, both = write_job("bert-both", CASES["bert"][2]), transformers.BertForPreTraining(config)
save(both, root + "/bert-both-theirs")
come_in("bert", job, root + "/bert-both", root + "/bert-both-theirs")
alone = transformers.BertForMaskedLM.from_pretrained(root + "/bert-both-theirs", attn_implementation="eager")
far("BertForPreTraining in", logits_of(root + "/bert-both"), run_model("bert", alone), 0)
save(transformers.BertModel(config), root + "/bert-body-theirs")
come_in("bert", write_job("bert-body", CASES["bert"][2]), root + "/bert-body", root + "/bert-body-theirs")
keel_run("run", root + "/bert-body.conf", "--out", root + "/bert-body")
print("BertModel in: trained with a head of its own")
