"""Steps of a GPT in PyTorch cut over processes, float32 on the CPU over gloo, random weights that follow from one
seed: what a step of Keel does under the same plan, with fused attention, fused AdamW and clipping.

    python -m torch.distributed.run --nproc-per-node N torch_plans.py ddp|tp|fsdp BATCH TOKENS LAYERS HEADS WIDTH \
        VOCAB STEPS

BATCH is of all processes together. ddp: replicas. tp: columns and rows of Megatron-LM (arXiv 1909.08053) by DTensor,
each process all the tokens. fsdp: fully_shard (FSDP2), a group a block. The first process prints
"race seconds-of-a-step peak-KiB processor-seconds" (the median after two steps that warm up; memory of the largest
process; the mean of a step over all processes) and, to stderr, the loss of each step as a float and as its bits."""
import os
import resource
import statistics
import struct
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.head = width // heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n = self.first(x)
        q, k, v = (p(n).unflatten(-1, (-1, self.head)).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, tokens, layers, heads, width, vocab):
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.words(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.logits(self.norm(x)).flatten(0, 1), targets.flatten())


def cut(model, plan, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    if plan == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if plan == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in model.blocks:
        column, row = ColwiseParallel(), RowwiseParallel()
        parallelize_module(block, mesh, {"q": column, "k": column, "v": column, "up": column, "out": row, "down": row})
    return model


def clip(groups, limit):
    """clip_grad_norm_, but DTensors and plain tensors apart, since one call takes no mixture."""
    norms = [nn.utils.get_total_norm([p.grad for p in group]) for group in groups]
    norm = torch.stack([n.full_tensor() if hasattr(n, "full_tensor") else n for n in norms]).norm()
    for group in groups:
        for p in group:
            p.grad.mul_(torch.clamp(limit / (norm + 1e-6), max=1.0))


def main():
    plan = sys.argv[1]
    batch, tokens, layers, heads, width, vocab, steps = (int(a) for a in sys.argv[2:9])
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    torch.manual_seed(1)
    model = cut(Model(tokens, layers, heads, width, vocab), plan, ranks)
    split, plain = (
        [p for p in model.parameters() if hasattr(p, "full_tensor") == whether] for whether in (True, False)
    )
    groups = [group for group in (split, plain) if group]
    adams = [torch.optim.AdamW(group, lr=1e-3, weight_decay=0.1, fused=True) for group in groups]
    torch.manual_seed(2)
    seconds, processor = [], []
    for step in range(steps + 2):
        text = torch.randint(vocab, (batch, tokens + 1))
        if plan != "tp":
            text = text.chunk(ranks)[rank]
        dist.barrier()
        since, spent = time.perf_counter(), time.process_time()
        for adam in adams:
            adam.zero_grad(set_to_none=True)
        loss = model(text[:, :-1].contiguous(), text[:, 1:].contiguous())
        loss.backward()
        clip(groups, 1.0)
        for adam in adams:
            adam.step()
        mean = loss.detach().clone()
        if plan != "tp":
            dist.all_reduce(mean)
            mean /= ranks
        seconds.append(time.perf_counter() - since)
        processor.append(time.process_time() - spent)
        if rank == 0:
            print(f"loss {step + 1} {mean.item():.9g} {struct.pack('>f', mean.item()).hex()}", file=sys.stderr)
    peak = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    spent = torch.tensor(statistics.mean(processor[2:]))
    dist.all_reduce(spent)
    if rank == 0:
        print(f"race {statistics.median(seconds[2:]):.6f} {peak.item()} {spent.item():.6f}")
    dist.destroy_process_group()


main()
