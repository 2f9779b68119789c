"""Writes the models of onnx_test.c: python3 export.py FOLDER, with torch 2.15, onnx and onnxscript. For each NAME.onnx there are
NAME.input and NAME.logits, raw: ids as int64, images as [n, c, h, w] of float32."""
import sys

import torch
from torch import nn


class Block(nn.Module):
    """Causal attention by products and a mask, as exporters write it, and a perceptron with the exact GELU."""

    def __init__(self, width, heads, tokens):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.register_buffer("mask", torch.full((tokens, tokens), float("-inf")).triu(1))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(w, 2))
        scores = (q @ k.transpose(2, 3)) / (w // self.heads) ** 0.5 + self.mask
        x = x + self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, w))
        return x + self.down(nn.functional.gelu(self.up(self.ln_2(x))))


class Text(nn.Module):
    def __init__(self, vocab=32, width=16, heads=2, tokens=8):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Parameter(torch.randn(1, tokens, width) * 0.3)
        self.block, self.ln_f = Block(width, heads, tokens), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids):
        return self.head(self.ln_f(self.block(self.wte(ids) + self.wpe)))


class Images(nn.Module):
    """A residual block with batch norms, a depthwise convolution, pools, and classes from means over pixels."""

    def __init__(self):
        super().__init__()
        self.stem, self.bn_1 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.deep, self.bn_2 = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8)
        self.point, self.fc = nn.Conv2d(8, 8, 1), nn.Linear(8, 5)

    def forward(self, x):
        x = self.pool(self.bn_1(self.stem(x)).relu())
        x = nn.functional.relu6(x + self.point(nn.functional.hardswish(self.bn_2(self.deep(x)))))
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Larger(nn.Module):
    """What makes images larger again: transposed convolutions in groups, the nearest neighbour; norms by groups of channels."""

    def __init__(self):
        super().__init__()
        self.stem, self.gn_1 = nn.Conv2d(1, 6, 3, 2, 1), nn.GroupNorm(3, 6, eps=1e-4)
        self.up_1, self.norm = nn.ConvTranspose2d(6, 4, 3, 2, 1, 1, groups=2), nn.InstanceNorm2d(4, affine=True)
        self.up_2, self.down, self.gn_2 = nn.Upsample(scale_factor=2), nn.Conv2d(4, 6, 2, 2), nn.GroupNorm(2, 6, affine=False)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        x = self.norm(self.up_1(self.gn_1(self.stem(x)).relu()))
        x = self.gn_2(self.down(self.up_2(x).relu()))
        return self.fc(nn.functional.adaptive_avg_pool2d(x.relu(), 1).flatten(1))


def save(folder, name, model, x):
    with torch.no_grad():
        for key, p in model.named_parameters():  # no two alike: exporters share equal initializers
            p.add_(torch.randn_like(p) * 0.1)
        for key, b in model.named_buffers():
            if "running" in key:
                b.add_(torch.rand_like(b))
        logits = model.eval()(x)
    torch.onnx.export(model, (x,), f"{folder}/{name}.onnx", dynamo=False, opset_version=17, do_constant_folding=False,
                      training=torch.onnx.TrainingMode.PRESERVE, input_names=["input"], output_names=["logits"])
    x.numpy().tofile(f"{folder}/{name}.input")
    logits.numpy().tofile(f"{folder}/{name}.logits")


if __name__ == "__main__":
    torch.manual_seed(1)
    save(sys.argv[1], "text", Text(), torch.randint(0, 32, (2, 8)))
    save(sys.argv[1], "images", Images(), torch.randn(2, 1, 10, 10))
    save(sys.argv[1], "larger", Larger(), torch.randn(2, 1, 10, 10))
