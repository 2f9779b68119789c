#!/usr/bin/env python3
"""few_bits.py PLAIN FEW BITS GROUP across|down [OUT]: whether the integers and scales in FEW are those of the weights in
PLAIN, two safetensors files of keel export, by the definition (runtime/inference/quantise.h). GROUP 0: all inputs of an
output; across: outputs lie side by side in PLAIN. OUT is PLAIN with what few bits stand for. Prints how many matrices."""
import json
import struct
import sys

FORMATS = {"F32": "f", "I8": "b", "I32": "i", "I64": "q"}


def read(path):
    data = open(path, "rb").read()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in t["data_offsets"])
        form = FORMATS[t["dtype"]]
        tensors[name] = (t, list(struct.unpack(f"<{(end - begin) // struct.calcsize(form)}{form}", data[begin:end])))
    return data, 8 + size, tensors


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def integers(few, name, copies, outputs, inputs):
    """Of each copy and output, its inputs."""
    if bits == 8:
        t, q = few[name]
        assert t["dtype"] == "I8" and t["shape"][-2:] == [outputs, inputs], t
        return [q[i * inputs:(i + 1) * inputs] for i in range(copies * outputs)]
    t, words = few[name + "_packed"]
    width = (inputs + 7) // 8
    assert t["shape"][-2:] == [outputs, width] and few[name + "_shape"][1][-2:] == [outputs, inputs], t
    return [[(words[row * width + i // 8] >> 4 * (i % 8) & 15) - 8 for i in range(inputs)] for row in range(copies * outputs)]


plain_path, few_path, bits, group, way = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
data, base, plain = read(plain_path)
few = read(few_path)[2]
most, found, out = (127 if bits == 8 else 7), 0, bytearray(data)
for name, (t, w) in plain.items():
    if name + "_scale" not in few:
        assert few[name][1] == w, f"{name} has changed"
        continue
    shape = t["shape"]
    if way == "down":
        copies, outputs, inputs = 1, shape[0], shape[1]
    else:
        outputs, copies = shape[-1], shape[0] if len(shape) == 3 else 1
        inputs = len(w) // outputs // copies
    scales = few[name + "_scale"][1]
    size = group or inputs
    groups = (inputs + size - 1) // size
    assert len(scales) == copies * outputs * groups, name
    for row, q in enumerate(integers(few, name, copies, outputs, inputs)):
        copy, output = divmod(row, outputs)
        at = [row * inputs + i if way == "down" else (copy * inputs + i) * outputs + output for i in range(inputs)]
        for g in range(groups):
            mine = range(g * size, min((g + 1) * size, inputs))
            scale = scales[row * groups + g]
            assert scale == f32(max(abs(w[at[i]]) for i in mine) / most), f"{name}: scale {row}, {g}"
            for i in mine:
                assert q[i] == (round(f32(w[at[i]] / scale)) if scale else 0), f"{name}: element {row}, {i}"
                struct.pack_into("<f", out, base + t["data_offsets"][0] + 4 * at[i], q[i] * scale)
    found += 1
if len(sys.argv) > 6:
    open(sys.argv[6], "wb").write(out)
print(found)
