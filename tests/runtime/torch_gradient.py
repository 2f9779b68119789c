"""Loss and gradients of models by PyTorch in float64, from the weights and the batch in a directory that
torch_gradient_test.c wrote; compared with those that lie beside them. Written from the papers; shares nothing with Keel
but the names and layouts of tensors: matrices [in, out], convolutions [height, width, in, out], images [n, h, w, c].

With keep=FILE and case=NAME PyTorch's result is also appended to FILE: a line a tensor with its name, number of
elements, norm, and the elements at sampled places. torch_gradient_test.c reads it where there is no PyTorch."""
import math
import sys

import torch
import torch.nn.functional as F

LIMIT = 1e-4
NONE, TYPICAL = 1e-12, 1e-2  # norms: of a gradient that is none, of the others, as in torch_gradient_test.c
KEPT = 24  # elements of a tensor, at most: as in torch_gradient_test.c
# oneDNN divides by zero in the gradients of some small convolutions (PyTorch 2.15): PyTorch's own do as well here.
torch.backends.mkldnn.enabled = False


def load(directory):
    roles = {}
    with open(directory + "/index") as index, open(directory + "/data", "rb") as data:
        for line in index:
            role, name, dtype, *sizes = line.split()
            sizes = [int(size) for size in sizes]
            raw = bytearray(data.read(4 * math.prod(sizes)))
            tensor = torch.frombuffer(raw, dtype=torch.int32 if dtype == "i32" else torch.float32)
            tensor = tensor if dtype == "i32" else tensor.double()
            roles.setdefault(role, {})[name] = tensor.reshape(sizes).clone()
    return roles


lora_scale = 1.0  # of adapters (Hu et al. 2021): alpha / rank


def linear(w, prefix, x):
    y = x @ w[prefix + ".weight"]
    if prefix + ".lora_A.weight" in w:
        y = y + lora_scale * (x @ w[prefix + ".lora_A.weight"].T) @ w[prefix + ".lora_B.weight"].T
    return y + w[prefix + ".bias"] if prefix + ".bias" in w else y


def norm(w, prefix, x):
    return F.layer_norm(x, x.shape[-1:], w[prefix + ".weight"], w.get(prefix + ".bias"), 1e-5)


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(qkv, heads, causal):
    b, t, three = qkv.shape
    q, k, v = (part.reshape(b, t, heads, -1).transpose(1, 2) for part in qkv.split(three // 3, -1))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, three // 3)


def experts(w, prefix, x, options):
    """Each token to its likeliest expert, which takes the first of its own up to the capacity (Fedus et al. 2022)."""
    rows = x.flatten(0, 1)
    probabilities = (rows @ w[prefix + "router.weight"]).softmax(-1)
    weight, choice = probabilities.max(-1)
    count = probabilities.shape[1]
    capacity = math.ceil(options["capacity"] * rows.shape[0] / count)
    out = torch.zeros_like(rows)
    for e in range(count):
        mine = (choice == e).nonzero().flatten()[:capacity]
        y = gelu(rows[mine] @ w[prefix + "c_fc.weight"][e] + w[prefix + "c_fc.bias"][e])
        y = y @ w[prefix + "c_proj.weight"][e] + w[prefix + "c_proj.bias"][e]
        out = out.index_add(0, mine, weight[mine, None] * y)
    share = torch.bincount(choice, minlength=count) / rows.shape[0]
    return out.reshape(x.shape), options["balance"] * count * (share * probabilities.mean(0)).sum()


def gpt(w, inputs, options):
    ids, targets = inputs["ids"].long(), inputs["targets"].long()
    x = w["wte.weight"][ids] + w["wpe.weight"]
    heads, balance, block = int(options["heads"]), 0, 0
    while f"h.{block}.ln_1.weight" in w:
        h = f"h.{block}."
        y = attention(linear(w, h + "attn.c_attn", norm(w, h + "ln_1", x)), heads, True)
        x = x + linear(w, h + "attn.c_proj", y)
        y = norm(w, h + "ln_2", x)
        if h + "moe.router.weight" in w:
            y, added = experts(w, h + "moe.", y, options)
            balance = balance + added
        else:
            y = linear(w, h + "mlp.c_proj", gelu(linear(w, h + "mlp.c_fc", y)))
        x = x + y
        block += 1
    logits = norm(w, "ln_f", x) @ w.get("lm_head.weight", w["wte.weight"]).t()
    smoothing = options["smoothing"]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=smoothing) + balance, {}


def mixtral(w, inputs, options):
    ids, targets, heads, top = inputs["ids"].long(), inputs["targets"].long(), int(options["heads"]), int(options["top"])
    x, balance, layer = w["model.embed_tokens.weight"][ids], 0, 0
    b, t, width = x.shape
    each = width // heads
    angles = torch.arange(t)[:, None] * 10000.0 ** (-torch.arange(0, each, 2).double() / each)
    cos, sin = (torch.cat([f(angles), f(angles)], -1) for f in (torch.cos, torch.sin))

    def norm(name, x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w[name + ".weight"]

    def heads_of(name, x, turned):
        x = (x @ w[name].T).reshape(b, t, -1, each).transpose(1, 2)
        x = x * cos + torch.cat([-x[..., each // 2:], x[..., :each // 2]], -1) * sin if turned else x
        return x.repeat_interleave(heads // x.shape[1], 1)

    while f"model.layers.{layer}.input_layernorm.weight" in w:
        p = f"model.layers.{layer}."
        y = norm(p + "input_layernorm", x)
        q, k, v = (heads_of(f"{p}self_attn.{n}_proj.weight", y, n != "v") for n in "qkv")
        scores = (q @ k.transpose(-1, -2) / math.sqrt(each)).masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, width) @ w[p + "self_attn.o_proj.weight"].T
        rows, p = norm(p + "post_attention_layernorm", x).flatten(0, 1), p + "block_sparse_moe."
        probabilities = (rows @ w[p + "gate.weight"].T).softmax(-1)
        weight, choice = probabilities.topk(top, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(rows)
        for e in range(probabilities.shape[1]):
            mine, place = (choice == e).nonzero(as_tuple=True)
            w1, w2, w3 = (w[f"{p}experts.w{n}.weight"][e] for n in (1, 2, 3))
            y = (F.silu(rows[mine] @ w1.T) * (rows[mine] @ w3.T)) @ w2.T
            out = out.index_add(0, mine, weight[mine, place, None] * y)
        x = x + out.reshape(x.shape)
        share = torch.bincount(choice.flatten(), minlength=probabilities.shape[1]) / choice.numel()
        balance = balance + options["balance"] * probabilities.shape[1] * (share * probabilities.mean(0)).sum()
        layer += 1
    logits = norm("model.norm", x) @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + balance, {}


def bert(w, inputs, options):
    ids, positions, targets = (inputs[k].long() for k in ("ids", "positions", "targets"))
    e = "bert.embeddings."

    def norm(prefix, x):
        return F.layer_norm(x, x.shape[-1:], w[prefix + ".weight"], w[prefix + ".bias"], 1e-12)

    x = w[e + "word_embeddings.weight"][ids] + w[e + "token_type_embeddings.weight"][0]
    x = norm(e + "LayerNorm", x + w[e + "position_embeddings.weight"])
    layer = 0
    while f"bert.encoder.layer.{layer}.output.dense.weight" in w:
        p = f"bert.encoder.layer.{layer}."
        qkv = torch.cat([linear(w, p + "attention.self." + part, x) for part in ("query", "key", "value")], -1)
        y = attention(qkv, int(options["heads"]), False)
        x = norm(p + "attention.output.LayerNorm", x + linear(w, p + "attention.output.dense", y))
        y = linear(w, p + "output.dense", F.gelu(linear(w, p + "intermediate.dense", x)))
        x = norm(p + "output.LayerNorm", x + y)
        layer += 1
    x = x.flatten(0, 1)[positions.flatten()]
    x = norm("cls.predictions.transform.LayerNorm", F.gelu(linear(w, "cls.predictions.transform.dense", x)))
    logits = x @ w[e + "word_embeddings.weight"].t() + w["cls.predictions.bias"]
    return F.cross_entropy(logits, targets.flatten()), {}


def resnet(w, inputs, _):
    seen = {}

    def conv(prefix, x, stride):
        kernel = w[prefix + ".weight"]
        kernel = kernel.permute(3, 2, 0, 1).contiguous()
        return F.conv2d(x, kernel, stride=stride, padding=kernel.shape[2] // 2)

    def batch_norm(prefix, x):
        mean = x.mean((0, 2, 3))
        variance = x.var((0, 2, 3), unbiased=False)
        count = x.numel() / x.shape[1]
        seen[prefix + ".running_mean"] = mean.detach()
        seen[prefix + ".running_var"] = (variance * (count / (count - 1))).detach()
        y = (x - mean[:, None, None]) / torch.sqrt(variance[:, None, None] + 1e-5)
        return y * w[prefix + ".weight"][:, None, None] + w[prefix + ".bias"][:, None, None]

    x = inputs["images"].permute(0, 3, 1, 2).contiguous()
    large = w["conv1.weight"].shape[0] == 7
    x = F.relu(batch_norm("bn1", conv("conv1", x, 2 if large else 1)))
    if large:
        x = F.max_pool2d(x, 3, 2, 1)
    stage = 1
    while f"layer{stage}.0.conv1.weight" in w:
        number = 0
        while f"layer{stage}.{number}.conv1.weight" in w:
            p = f"layer{stage}.{number}."
            stride = 2 if stage > 1 and number == 0 else 1
            deep = p + "conv3.weight" in w  # a bottleneck, whose convolution of 3x3 has the stride
            y = F.relu(batch_norm(p + "bn1", conv(p + "conv1", x, 1 if deep else stride)))
            y = batch_norm(p + "bn2", conv(p + "conv2", y, stride if deep else 1))
            if deep:
                y = batch_norm(p + "bn3", conv(p + "conv3", F.relu(y), 1))
            if p + "downsample.0.weight" in w:
                x = batch_norm(p + "downsample.1", conv(p + "downsample.0", x, stride))
            x = F.relu(x + y)
            number += 1
        stage += 1
    logits, labels = linear(w, "fc", x.mean((2, 3))), inputs["labels"].long()
    if "mix" in inputs:  # soft labels: what "mix" is less of the one of its own
        labels = F.one_hot(labels, logits.shape[1]).double() - inputs["mix"]
        if labels.min() < 0 or (labels.sum(1) - 1).abs().max() > 1e-6 or labels.max(1)[0].min() > 0.9:
            sys.exit("these are no soft labels")
    return F.cross_entropy(logits, labels), seen


def alexnet(w, inputs, _):
    x = inputs["images"].permute(0, 3, 1, 2).contiguous()
    for number, stride, pad, pooled in ((0, 4, 2, True), (3, 1, 2, True), (6, 1, 1, False), (8, 1, 1, False), (10, 1, 1, True)):
        kernel = w[f"features.{number}.weight"].permute(3, 2, 0, 1).contiguous()
        x = F.relu(F.conv2d(x, kernel, w[f"features.{number}.bias"], stride=stride, padding=pad))
        x = F.max_pool2d(x, 3, 2) if pooled else x
    x = F.adaptive_avg_pool2d(x, 6).flatten(1)
    for number in (1, 4, 6):
        x = linear(w, f"classifier.{number}", x if number == 1 else F.relu(x))
    return F.cross_entropy(x, inputs["labels"].long()), {}


def dlrm(w, inputs, _):
    def perceptron(prefix, x):
        number = 0
        while f"{prefix}.{number}.weight" in w:
            x = linear(w, f"{prefix}.{number}", x if number == 0 else F.relu(x))
            number += 1
        return x

    dense = F.relu(perceptron("bot_l", inputs["dense"]))
    batch, width = dense.shape
    ids = inputs["ids"].long()
    there = (ids >= 0).float()
    bags = (w["emb_l.weight"][ids.clamp(min=0)] * there[..., None]).sum(1).reshape(batch, -1, width)
    vectors = torch.cat([dense[:, None], bags], 1)
    products = vectors @ vectors.transpose(1, 2)
    i, j = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1)
    logits = perceptron("top_l", torch.cat([dense, products[:, i, j]], 1))
    return F.binary_cross_entropy_with_logits(logits, inputs["labels"]), {}


MODELS = {"gpt": gpt, "moe": gpt, "bert": bert, "mixtral": mixtral, "resnet": resnet, "alexnet": alexnet, "dlrm": dlrm}


def keep(path, case, tensors):
    with open(path, "a") as out:
        if out.tell() == 0:
            print(f"# Loss and gradients by PyTorch {torch.__version__}: torch_gradient.py. To be made anew:\n"
                  "# rm tests/golden/torch_gradients.txt; KEEL_TORCH_KEEP=tests/golden/torch_gradients.txt "
                  "KEEL_PYTHON=... build/tests/runtime/torch_gradient_test", file=out)
        print("case", case, file=out)
        for name, tensor in tensors.items():
            values = tensor.flatten().double()
            count = len(values)
            places = range(count) if count <= KEPT else ((k * 2654435761 % 2**32 * count) >> 32 for k in range(KEPT))
            print(name, count, f"{float(values.norm()):.9g}", *(f"{float(values[at]):.9g}" for at in places), file=out)


def main():
    model, directory = sys.argv[1:3]
    words = dict(option.split("=") for option in sys.argv[3:])
    path, case = words.pop("keep", None), words.pop("case", None)
    options = {key: float(value) for key, value in words.items()}
    global lora_scale
    lora_scale = options["lora"]
    torch.manual_seed(0)
    roles = load(directory)
    weights = {name: tensor.requires_grad_() for name, tensor in roles["weight"].items()}
    loss, seen = MODELS[model](weights, roles["input"], options)
    loss.backward()
    expected = {"loss": loss.detach().reshape(1), **seen}
    expected.update((name, tensor.grad) for name, tensor in weights.items())
    worst, bad = (0.0, ""), 0
    found = {**roles["loss"], **roles["gradient"]}
    if path:
        keep(path, case, {name: expected[name] for name in found})
    for name, got in found.items():
        norm = float(expected[name].double().norm())
        if norm < NONE:  # a bias of all keys moves no softmax: but for rounding there is no gradient
            norm = TYPICAL
        error = float((got - expected[name]).double().norm()) / norm
        worst = max(worst, (error, name))
        if not error <= LIMIT:
            bad += 1
            print(f"{model}: {name}: differs by {error:.3g} of its norm, {LIMIT:g} is allowed")
    print(f"note: {model} against PyTorch {torch.__version__}: {len(roles['gradient'])} tensors, "
          f"largest difference {worst[0]:.2g} of its norm ({worst[1]}), loss {float(loss.detach()):.6f}")
    return 1 if bad else 0


sys.exit(main())
