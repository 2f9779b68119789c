"""Steps of a GPT-2 124M in PyTorch, float32, random weights: what a step of Keel does, with
fused attention, fused AdamW and clipping. Prints "race seconds-of-a-step peak-KiB", the median of STEPS
after warming up: torch_gpt2.py BATCH TOKENS STEPS THREADS plain|compiled [DEVICE]; with one
thread the time is the processor's. DEVICE cuda: float32 products there, no TF32."""
import resource
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, VOCAB = 12, 12, 768, 50257


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(tokens, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.words(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)  # tied
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def main():
    batch, tokens, steps, threads = (int(a) for a in sys.argv[1:5])
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    device = sys.argv[6] if len(sys.argv) > 6 else "cpu"
    clock = time.process_time if threads == 1 and device == "cpu" else time.perf_counter
    model = Model(tokens).to(device)
    loss_of = torch.compile(model) if sys.argv[5] == "compiled" else model
    try:
        adam = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    except (RuntimeError, TypeError):  # an older one has no fused kernel for CPUs
        adam = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, foreach=True)
    text = torch.randint(VOCAB, (batch, tokens + 1), device=device)
    seconds = []
    for step in range(steps + 2):
        since = clock()
        adam.zero_grad(set_to_none=True)
        loss = loss_of(text[:, :-1].contiguous(), text[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        loss.item()
        seconds.append(clock() - since)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"torch {torch.__version__} loss {loss.item():.3f}", file=sys.stderr)
    print(f"race {statistics.median(seconds[2:]):.6f} {peak}")


if __name__ == "__main__":
    main()
