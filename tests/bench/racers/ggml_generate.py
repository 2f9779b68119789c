"""Text of a GPT-2 124M by GGML, the library of llama.cpp, as the wheel of ctransformers brings it: one text, greedy, with keys
and values kept, as torch_generate.py. ggml_generate.py TYPE PROMPT TOKENS THREADS: TYPE f32, q8_0 or q4_0 (a scale of 16 bits
for each 32 weights; its table of words is in few bits, too). Weights are made up: they say nothing of the speed. Prints "race
seconds-of-a-token seconds-of-the-prompt"; with one thread seconds of the processor."""
import array
import os
import struct
import sys
import tempfile
import time

from ctransformers import AutoModelForCausalLM

BATCH = 64  # tokens of a prompt at once: it has no room for 256
VOCAB, BLOCK, WIDTH, HEADS, LAYERS = 50257, 1024, 768, 12, 12
# Number of the type of tensors, and of a file that is of it; bytes of a block of 32.
TYPES = {"f32": (0, 0, 128), "q4_0": (2, 2, 18), "q8_0": (8, 7, 34)}
SCALE = struct.pack("<e", 0.002)


def matrix(kind, count):
    number, _, block = TYPES[kind]
    if kind == "f32":
        return number, array.array("f", [0.01, -0.01]).tobytes() * (count // 2)
    return number, (SCALE + os.urandom(block - 2)) * (count // 32)


def write(out, kind):
    out.write(struct.pack("<7i", 0x67676D6C, VOCAB, BLOCK, WIDTH, HEADS, LAYERS, TYPES[kind][1] + 2000 * (kind != "f32")))
    out.write(struct.pack("<i", VOCAB))
    for token in range(VOCAB):
        text = b"%d" % token
        out.write(struct.pack("<I", len(text)) + text)

    def tensor(name, *shape, of="f32"):
        count = 1
        for size in shape:
            count *= size
        number, data = matrix(of, count)
        out.write(struct.pack(f"<{3 + len(shape)}i", len(shape), len(name), number, *shape) + name.encode() + data)

    tensor("model/ln_f/g", WIDTH)
    tensor("model/ln_f/b", WIDTH)
    tensor("model/wte", WIDTH, VOCAB, of=kind)
    tensor("model/wpe", WIDTH, BLOCK)
    for layer in range(LAYERS):
        for norm in ("ln_1/g", "ln_1/b", "ln_2/g", "ln_2/b"):
            tensor(f"model/h{layer}/{norm}", WIDTH)
        for name, inputs, outputs in (("attn/c_attn", 1, 3), ("attn/c_proj", 1, 1), ("mlp/c_fc", 1, 4), ("mlp/c_proj", 4, 1)):
            tensor(f"model/h{layer}/{name}/w", inputs * WIDTH, outputs * WIDTH, of=kind)
            tensor(f"model/h{layer}/{name}/b", outputs * WIDTH)


def main():
    kind, (prompt, tokens, threads) = sys.argv[1], (int(a) for a in sys.argv[2:5])
    clock = time.process_time if threads == 1 else time.perf_counter
    with tempfile.NamedTemporaryFile() as out:
        write(out, kind)
        out.flush()
        model = AutoModelForCausalLM.from_pretrained(out.name, model_type="gpt2", local_files_only=True,
                                                     context_length=BLOCK)
    ids = [i % 1000 + 1 for i in range(prompt)]
    model.eval(ids, batch_size=BATCH, threads=threads)  # warm
    model.reset()
    begun = clock()
    model.eval(ids, batch_size=BATCH, threads=threads)
    first = clock()
    for _ in range(tokens - 1):
        model.eval([model.sample(top_k=1, temperature=0.01)], threads=threads)
    ended = clock()
    print(f"race {(ended - first) / (tokens - 1):f} {first - begun:f}")


if __name__ == "__main__":
    main()
