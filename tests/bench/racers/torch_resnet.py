"""Steps of a ResNet-18 in PyTorch, float32 on the CPU, random images of 224 x 224: what a step of Keel does, with
fused SGD. Prints "race seconds-of-a-step peak-KiB", the median of STEPS after warming up:
torch_resnet.py BATCH STEPS THREADS plain|last|compiled|compiled-last; last is the layout channels_last; with one
thread the time is the processor's."""
import resource
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


def conv(channels, outs, size, stride):
    return nn.Conv2d(channels, outs, size, stride, size // 2, bias=False)


class Block(nn.Module):
    def __init__(self, channels, outs, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(channels, outs, 3, stride), nn.BatchNorm2d(outs)
        self.conv2, self.bn2 = conv(outs, outs, 3, 1), nn.BatchNorm2d(outs)
        self.across = None
        if channels != outs or stride != 1:
            self.across = nn.Sequential(conv(channels, outs, 1, stride), nn.BatchNorm2d(outs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return F.relu(y + (x if self.across is None else self.across(x)), inplace=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.fc = conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.Linear(512, 1000)
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        self.blocks = nn.Sequential(*(Block(a, b, 1 if a == b else 2) for a, b in zip(widths, widths[1:])))

    def forward(self, images, labels):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(images)), inplace=True), 3, 2, 1)
        return F.cross_entropy(self.fc(self.blocks(x).mean((2, 3))), labels)


def main():
    batch, steps, threads = (int(a) for a in sys.argv[1:4])
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    layout = torch.channels_last if sys.argv[4].endswith("last") else torch.contiguous_format
    model = Model().to(memory_format=layout)
    images = torch.rand(batch, 3, 224, 224).to(memory_format=layout) * 2 - 1
    labels = torch.randint(1000, (batch,))
    loss_of = torch.compile(model) if sys.argv[4].startswith("compiled") else model
    options = {"lr": 1e-4, "momentum": 0.9, "weight_decay": 1e-4}
    try:
        sgd = torch.optim.SGD(model.parameters(), fused=True, **options)
    except (RuntimeError, TypeError):  # an older one has no fused kernel for CPUs
        sgd = torch.optim.SGD(model.parameters(), foreach=True, **options)
    seconds = []
    for step in range(steps + 2):
        since = clock()
        sgd.zero_grad(set_to_none=True)
        loss = loss_of(images, labels)
        loss.backward()
        sgd.step()
        loss.item()
        seconds.append(clock() - since)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"torch {torch.__version__} loss {loss.item():.3f}", file=sys.stderr)
    print(f"race {statistics.median(seconds[2:]):.6f} {peak}")


main()
