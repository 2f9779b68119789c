"""Text of a GPT-2 124M in PyTorch, float32, random weights, greedy, with keys and values kept: what keel sample and keel serve
do. torch_generate.py TEXTS PROMPT TOKENS THREADS: TEXTS at once, each of TOKENS tokens behind PROMPT. Prints "race
seconds-of-a-step seconds-of-the-prompts", a step being one token of each text; with one
thread seconds of the processor."""
import sys
import time

import torch
from torch.nn import functional as F

from torch_gpt2 import HEADS, LAYERS, WIDTH, Model


def attend(block, x, kept, begin):
    b, t, w = x.shape
    q, k, v = block.qkv(block.first(x)).view(b, t, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4)
    kept[0][:, :, begin:begin + t] = k
    kept[1][:, :, begin:begin + t] = v
    y = F.scaled_dot_product_attention(q, kept[0][:, :, :begin + t], kept[1][:, :, :begin + t], is_causal=t > 1)
    return x + block.out(y.transpose(1, 2).reshape(b, t, w))


def forward(model, ids, kept, begin):
    """The next token of each text."""
    x = model.words(ids) + model.places.weight[begin:begin + ids.shape[1]]
    for block, own in zip(model.blocks, kept):
        x = attend(block, x, own, begin)
        x = x + block.down(F.gelu(block.up(block.second(x)), approximate="tanh"))
    return F.linear(model.norm(x[:, -1:]), model.words.weight).argmax(-1)


def main():
    texts, prompt, tokens, threads = (int(a) for a in sys.argv[1:5])
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    model = Model(1024).eval()
    with torch.inference_mode():
        kept = [torch.zeros(2, texts, HEADS, 1024, WIDTH // HEADS) for _ in range(LAYERS)]
        ids = torch.randint(0, 1000, (texts, prompt))
        forward(model, ids, kept, 0)  # warm
        begun = clock()
        ids = forward(model, ids, kept, 0)
        first = clock()
        for at in range(prompt, prompt + tokens - 1):
            ids = forward(model, ids, kept, at)
        ended = clock()
    print(f"race {(ended - first) / (tokens - 1):f} {first - begun:f}")


if __name__ == "__main__":
    main()
