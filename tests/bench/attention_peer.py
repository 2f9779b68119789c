"""scaled_dot_product_attention of PyTorch, causal, forward and backward: what attention_bench.c runs beside its
own. Arguments: batch, tokens, heads, width, threads, rounds. Prints the medians, in seconds: forward and
backward by the clock, forward and backward of the processor over all threads."""
import statistics
import sys
import time

import torch

batch, tokens, heads, width, threads, rounds = map(int, sys.argv[1:])
torch.set_num_threads(threads)
q, k, v = (torch.randn(batch, heads, tokens, width, requires_grad=True) for _ in range(3))
g = torch.randn(batch, heads, tokens, width)
times = [[], [], [], []]
for number in range(rounds + 1):
    q.grad = k.grad = v.grad = None
    marks = [(time.perf_counter(), time.process_time())]
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    marks.append((time.perf_counter(), time.process_time()))
    out.backward(g)
    marks.append((time.perf_counter(), time.process_time()))
    for i in range(2 * (number > 0)):  # the first run is not counted
        times[i].append(marks[i + 1][0] - marks[i][0])
        times[2 + i].append(marks[i + 1][1] - marks[i][1])
print(*(statistics.median(x) for x in times))
