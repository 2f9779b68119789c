#!/bin/sh
# Weights of a llama go out and come in under the names of Hugging Face's LlamaForCausalLM. Where KEEL_PYTHON names a Python
# that has transformers, its models and Keel's have each other's loss and write each other's text, both ways.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
explain() { tail -n 5 "$root/log" "$root/errors"; }

job() { # NAME: what of a job is common
    cat <<END
[job]
name = $1
[data]
path = $text
vocab = byte
[train]
steps = 6
decay_steps = 6
warmup_steps = 2
batch = 2
lr = 2e-2
eval_every = 0
eval_batches = 3
[snapshot]
every = 6
[cluster]
device = host
[model]
kind = llama
layers = 2
heads = 4
block = 24
END
}
{ job grouped; printf 'kv_heads = 2\nwidth = 32\ntied = false\nhidden = 40\nrope_base = 5000\nrope_factor = 8\nrope_context = 16\n'; } >"$root/grouped.conf"
{ job tied; printf 'width = 24\nrope_factor = 2\n'; } >"$root/tied.conf"

for name in grouped tied; do
    "$KEEL" run "$root/$name.conf" --out "$root/$name" >"$root/log" 2>"$root/errors"
    check "$name: is trained" [ $? -eq 0 ]
    "$KEEL" ckpt export "$root/$name" "$root/$name-hf/" --only weights >"$root/log" 2>"$root/errors"
    "$KEEL" plan "$root/$name/job.conf" --config-json >"$root/$name-hf/config.json" 2>"$root/errors"
    check "$name: has a config.json" [ $? -eq 0 ]
    "$KEEL" eval "$root/$name" --json >"$root/$name.json" 2>"$root/errors"
    "$KEEL" sample "$root/$name" --prompt 'the quick ' --tokens 14 --temperature 0 --json >"$root/$name.text" 2>"$root/errors"
    "$KEEL" run "$root/$name.conf" --out "$root/$name-in" --prepare >"$root/log" 2>"$root/errors"
    "$KEEL" ckpt import "$root/$name-hf/model.safetensors" "$root/$name-in" --for-training >"$root/log" 2>"$root/errors"
    check "$name: comes in again" [ $? -eq 0 ]
    "$KEEL" eval "$root/$name-in" --json 2>"$root/errors" | grep -o '"loss_bits":"[0-9a-f]*"' >"$root/log"
    check "$name: with the same loss" grep -qFf "$root/log" "$root/$name.json"
done
check "the configuration says what the job does" grep -q '"hidden_size":32,"intermediate_size":40,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2' "$root/grouped-hf/config.json"
check "and how positions are scaled" grep -q '"rope_scaling":{"rope_type":"llama3","factor":8.000000,"low_freq_factor":1.000000,"high_freq_factor":4.000000,"original_max_position_embeddings":16}' "$root/grouped-hf/config.json"
check "all of them alike" grep -q '"rope_scaling":{"rope_type":"linear","factor":2.000000}' "$root/tied-hf/config.json"
check "and what is a default" grep -q '"intermediate_size":64,.*"num_key_value_heads":4,.*"tie_word_embeddings":true' "$root/tied-hf/config.json"
"$KEEL" plan "$root/tied/job.conf" --config-json --set model.kind=moe --set model.rope_factor=1 >"$root/log" 2>"$root/errors"
check "another model has none" grep -q 'of llama, mixtral, bert, vit, and gpt with model.bias, there is a config.json' "$root/errors"
"$KEEL" eval "$root/tied-in" --set model.tied=false --data "$text" >"$root/log" 2>"$root/errors"
check "a head of its own is missed by name" grep -q 'no tensor lm_head.weight' "$root/errors"

cat >"$root/compare.py" <<'END'
import json, subprocess, sys, torch
from transformers import GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
root, keel, text = sys.argv[1:4]
torch.manual_seed(1)
data = open(text, "rb").read()
kept = data[len(data) - int(len(data) * float(torch.tensor(0.1))):]
def loss(model, block, batch=2, batches=3):
    windows, total = len(kept) - block, batch * batches
    ids = torch.tensor([list(kept[n * windows // total:][:block + 1]) for n in range(total)])
    with torch.no_grad():
        logits = model(ids[:, :-1]).logits.double()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1)).item()
def greedy(model, prompt, count):
    ids = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            ids.append(model(torch.tensor([ids])).logits[0, -1].argmax().item())
    return ids[len(prompt):]
def near(what, a, b):
    print(what, a, b, abs(a - b) / abs(b))
    if abs(a - b) > 1e-6 * abs(b): sys.exit(what + ": the loss is another")
for name in ("grouped", "tied"):
    model, info = LlamaForCausalLM.from_pretrained(root + "/" + name + "-hf", output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]: sys.exit("keys: %s" % info)
    near(name + " out", json.load(open(root + "/" + name + ".json"))["loss"], loss(model, 24))
    if json.load(open(root + "/" + name + ".text"))["tokens"] != greedy(model, b"the quick ", 14): sys.exit(name + ": another text")
    try:
        import onnx, onnxruntime
    except ImportError:
        continue
    file = root + "/" + name + ".onnx"
    subprocess.run([keel, "export", root + "/" + name, file, "--format", "onnx", "--no-eval"], check=True, stdout=subprocess.DEVNULL)
    onnx.checker.check_model(file, full_check=True)
    ids = torch.tensor([list(kept[n * 31:][:24]) for n in range(3)])
    with torch.no_grad():
        wanted = model(ids).logits.double().numpy()
    found = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"ids": ids.numpy()})[0]
    difference = abs(found - wanted).max() / abs(wanted).max()
    print(name, "out as ONNX, under onnxruntime:", difference)
    if not difference < 1e-5: sys.exit(name + ": onnxruntime has other logits")
for name in ("grouped", "tied"):
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(root + "/" + name + "-hf"))
    with torch.no_grad():
        for p in model.parameters(): p.copy_(torch.randn_like(p) * 0.2 + (p.dim() == 1))
    model.save_pretrained(root + "/theirs-" + name)
    ours = root + "/ours-" + name
    for words in (["run", root + "/" + name + ".conf", "--out", ours, "--prepare"],
                  ["ckpt", "import", root + "/theirs-" + name + "/model.safetensors", ours, "--for-training"]):
        subprocess.run([keel] + words, check=True, stdout=subprocess.DEVNULL)
    said = json.loads(subprocess.run([keel, "eval", ours, "--json"], check=True, stdout=subprocess.PIPE).stdout)
    near(name + " in", said["loss"], loss(model, 24))
    said = json.loads(subprocess.run([keel, "sample", ours, "--prompt", "the quick ", "--tokens", "14", "--temperature", "0", "--json"],
                                     check=True, stdout=subprocess.PIPE).stdout)
    if said["tokens"] != greedy(model, b"the quick ", 14): sys.exit(name + " in: another text")
END
if [ -n "${KEEL_PYTHON:-}" ] && "$KEEL_PYTHON" -c 'import transformers, torch' 2>/dev/null; then
    "$KEEL_PYTHON" "$root/compare.py" "$root" "$KEEL" "$text" >"$root/log" 2>"$root/errors"
    check "Hugging Face's models have the same loss and text, both ways" [ $? -eq 0 ]
    grep -E 'out|in ' "$root/log" | sed 's/^/note: /'
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
