"""Convolutions of PyTorch, forward and both gradients, float32 on the CPU: what conv_bench.c runs beside its own.
Arguments: threads, batch, then for each layer size,channels,outs,kernel,stride,pad. A line for each layer: the
seconds of forward, gradient to data, gradient to weights, each in the faster of its two layouts; with one thread
they are the processor's."""
import sys
import time

import torch

SHORT_S = 0.02
threads, batch = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
clock = time.process_time if threads == 1 else time.perf_counter


def seconds_of(call):
    call()
    runs, since = 0, clock()
    while clock() - since < SHORT_S:
        call()
        runs += 1
    return (clock() - since) / runs


for layer in sys.argv[3:]:
    size, channels, outs, kernel, stride, pad = map(int, layer.split(","))
    best = [float("inf")] * 3
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(batch, channels, size, size).to(memory_format=layout)
        w = torch.randn(outs, channels, kernel, kernel).to(memory_format=layout)
        dy = torch.randn_like(torch.nn.functional.conv2d(x, w, None, stride, pad))

        def gradient(data, weights):
            torch.ops.aten.convolution_backward(
                dy, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, [data, weights, False])

        calls = (lambda: torch.nn.functional.conv2d(x, w, None, stride, pad),
                 lambda: gradient(True, False), lambda: gradient(False, True))
        best = [min(b, seconds_of(call)) for b, call in zip(best, calls)]
    print(*best)
