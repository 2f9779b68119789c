# image_weights.py ROOT KEEL TEXT: random models of torchvision and Hugging Face in and out of Keel, by their logits on
# the same images; and Keel's .onnx files under onnxruntime, where it is installed. Ends with 1 at the first that differs.
import copy
import os
import struct
import subprocess
import sys

import numpy
import torch
import torchvision
from safetensors.torch import load_file, save_file
from transformers import ViTConfig, ViTForImageClassification

root, keel, text = sys.argv[1:4]
torch.manual_seed(1)
DEPTHS = [int(d) for d in os.environ.get("DEPTHS", "18 50").split()]
TOLERANCE = 1e-5


def keel_run(*words):
    return subprocess.run([keel, *words], check=True, stdout=subprocess.PIPE).stdout


def write_idx(path, array):
    with open(path, "wb") as out:
        out.write(bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape))
        out.write(array.tobytes())


def pictures(count, height, width):  # smooth, as photographs are: noise has float32's errors grow in deep networks
    return torch.nn.functional.interpolate(torch.rand(count, 3, 5, 5), size=(height, width), mode="bilinear")


def make_images(name, height, width, count=4, classes=10):
    folder = os.path.join(root, name)
    os.makedirs(folder)
    pixels = (pictures(count, height, width) * 255).permute(0, 2, 3, 1).contiguous().to(torch.uint8).numpy()
    labels = numpy.arange(count).astype(numpy.uint8) % classes
    for part in ("train", "t10k"):
        write_idx(os.path.join(folder, part + "-images-idx3-ubyte"), pixels)
        write_idx(os.path.join(folder, part + "-labels-idx1-ubyte"), labels)
    return folder, torch.from_numpy(pixels.astype(numpy.float32) / 255).permute(0, 3, 1, 2).contiguous()


def write_job(name, data, model):
    path = os.path.join(root, name + ".conf")
    with open(path, "w") as out:
        out.write(f"[job]\nname = {name}\n[data]\npath = {data}\n[train]\nsteps = 1\nbatch = 2\neval_every = 0\n")
        out.write(f"eval_batches = 2\nwarmup_steps = 0\n[snapshot]\nevery = 1\n[cluster]\ndevice = host\n[model]\n{model}")
    return path


def distance(ours, theirs):
    return float(numpy.abs(ours - theirs).max() / numpy.abs(theirs).max())


def far(what, ours, theirs):
    difference = distance(ours, theirs)
    print(f"{what}: {difference:.1e}")
    if not difference < TOLERANCE:
        sys.exit(f"{what}: logits are others")


def logits_of(run):
    keel_run("eval", run, "--all", "--logits", run + ".npy")
    return numpy.load(run + ".npy")


def run_model(model, images):  # in float64, so that what differs is float32's, once
    with torch.no_grad():
        out = copy.deepcopy(model).double().eval()(images.double())
    return (out if torch.is_tensor(out) else out.logits).numpy()


def come_in(job, run, weights):
    keel_run("run", job, "--out", run, "--prepare")
    keel_run("ckpt", "import", weights, run, "--names", "torch", "--for-training")


def try_onnx(what, run, images, wanted):
    try:
        import onnx
        import onnxruntime
    except ImportError:
        print(f"{what}: onnx and onnxruntime are not installed")
        return
    keel_run("export", run, run + ".onnx", "--format", "onnx", "--no-eval")
    onnx.checker.check_model(run + ".onnx", full_check=True)
    session = onnxruntime.InferenceSession(run + ".onnx", providers=["CPUExecutionProvider"])
    far(what + ", onnxruntime", session.run(None, {session.get_inputs()[0].name: images})[0], wanted)


def gradients(name, data, model_keys, model, images):
    """A step of plain SGD at rate 1 takes the gradient off the weights: Keel's beside torch's, tensor by tensor."""
    job, run = write_job(name, data, model_keys), os.path.join(root, name)
    with open(job) as old:
        text = old.read()
    with open(job, "w") as out:
        out.write(text.replace("batch = 2", f"batch = {len(images)}\noptimizer = sgd\nmomentum = 0\nlr = 1\ndecay = constant\n"
                               "clip = 0\nweight_decay = 0").replace("[data]", "shards = 1\n[data]"))
    model.save_pretrained(run + "-before")
    come_in(job, run, run + "-before/model.safetensors")
    keel_run("run", job, "--out", run)
    keel_run("ckpt", "export", run, run + "-after/", "--names", "torch")
    exact = copy.deepcopy(model).double().train()
    torch.nn.functional.cross_entropy(exact(images.double()).logits, torch.arange(len(images))).backward()
    with torch.no_grad():
        for p in exact.parameters():
            p.copy_(p.grad)
    exact.save_pretrained(run + "-gradient")
    before, after, wanted = (load_file(f"{run}-{of}/model.safetensors") for of in ("before", "after", "gradient"))
    if after.keys() != wanted.keys():
        sys.exit(f"{name}: other tensors")
    worst = 0.0
    for key in wanted:
        norm, weight = wanted[key].double().norm().item(), before[key].double()
        found = (weight - after[key].double() - wanted[key].double()).norm().item()
        lost = weight.norm().item() * 2**-24  # what float32 drops of a weight less its gradient
        worst = max(worst, (found - lost) / max(norm, 1e-6))  # keys' biases have none, but for rounding
    print(f"{name}: gradients {worst:.1e} of a tensor's norm")
    if not worst < 1e-4:
        sys.exit(f"{name}: gradients are others")


# A network of 152 misses the tolerance on some draws (1.7e-5): its sums are one chain each, whose error in a convolution
# grows as the root of what it adds up; emulated in blocks of 16 the same network has 7e-6, and PyTorch's float32 1.2e-5.
def resnets():
    data, images = make_images("pictures", 64, 64)
    for depth in DEPTHS:
        name = f"resnet{depth}"
        make = getattr(torchvision.models, name)
        keys = f"kind = resnet\ndepth = {depth}\nwidth = 64\nstem = large\nvocab = 1000\n"
        job = write_job(name, data, keys)
        model, run = make(weights=None), os.path.join(root, name)
        with torch.no_grad():
            for _ in range(20):  # statistics of norms as images have them
                model.train()(pictures(16, 64, 64))
        save_file(model.state_dict(), run + ".safetensors")
        come_in(job, run, run + ".safetensors")
        ours = logits_of(run)
        wanted = run_model(model, images)
        with torch.no_grad():
            print(f"{name}: torch's own float32: {distance(model.eval()(images).numpy(), wanted):.1e}")
        far(name + " in", ours, wanted)
        keel_run("ckpt", "export", run, run + "-out/", "--names", "torch")
        back = load_file(run + "-out/model.safetensors")
        fresh = make(weights=None)
        fresh.load_state_dict(back, strict=True)
        theirs = {k: v for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}
        if back.keys() != theirs.keys() or any(not torch.equal(back[k], theirs[k]) for k in theirs):
            sys.exit(name + ": other tensors came back")
        far(name + " out", ours, run_model(fresh, images))
        try_onnx(name, run, images.numpy(), wanted)


def alexnet_of(width, classes):
    """torchvision's, whose width is 64; or with the sizes of another."""
    model = torchvision.models.alexnet(weights=None, num_classes=classes, dropout=0.0)
    if width != 64:
        for part in (model.features, model.classifier):
            for i, layer in enumerate(part):
                def of(n, first=3):
                    return n if n in (first, classes) else n * width // 64
                if isinstance(layer, torch.nn.Conv2d):
                    part[i] = torch.nn.Conv2d(of(layer.in_channels), of(layer.out_channels), layer.kernel_size, layer.stride, layer.padding)
                if isinstance(layer, torch.nn.Linear):
                    part[i] = torch.nn.Linear(of(layer.in_features), of(layer.out_features))
    return model


def save_torch(model, folder):
    os.makedirs(folder, exist_ok=True)
    save_file(model.state_dict(), folder + "/model.safetensors")


def alexnet():
    """Of images whose last fields are 6 x 6, and of others, whose mean is over fields that overlap."""
    for name, width, height, across in (("alexnet", 64, 224, 224), ("alexnet-narrow", 8, 96, 170)):
        data, images = make_images(name + "-pictures", height, across)
        keys = f"kind = alexnet\nwidth = {width}\nvocab = 10\n"
        job, model, run = write_job(name, data, keys), alexnet_of(width, 10), os.path.join(root, name)
        save_torch(model, run + "-theirs")
        come_in(job, run, run + "-theirs/model.safetensors")
        ours = logits_of(run)
        wanted = run_model(model, images)
        far(name + " in", ours, wanted)
        keel_run("ckpt", "export", run, run + "-out/", "--names", "torch")
        fresh, back = alexnet_of(width, 10), load_file(run + "-out/model.safetensors")
        fresh.load_state_dict(back, strict=True)
        if any(not torch.equal(back[k], v) for k, v in model.state_dict().items()):
            sys.exit(name + ": other tensors came back")
        far(name + " out", ours, run_model(fresh, images))
    try_onnx(name, run, images.numpy(), wanted)


def vit():
    data, images = make_images("rectangles", 32, 48)
    job = write_job("hf-vit", data, "kind = vit\nlayers = 3\nheads = 4\nwidth = 48\nhidden = 80\npatch = 8\nvocab = 10\n")
    config = ViTConfig(hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80, patch_size=8,
                       image_size=[32, 48], num_channels=3, num_labels=10)
    model, run = ViTForImageClassification(config), os.path.join(root, "hf-vit")
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.2 + (p.dim() == 1))
    model.save_pretrained(run + "-theirs")
    come_in(job, run, run + "-theirs/model.safetensors")
    ours = logits_of(run)
    far("vit in", ours, run_model(model, images))
    keel_run("ckpt", "export", run, run + "-out/", "--names", "torch")
    with open(run + "-out/config.json", "wb") as out:
        out.write(keel_run("plan", run + "/job.conf", "--config-json"))
    fresh, info = ViTForImageClassification.from_pretrained(run + "-out", output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        sys.exit(f"vit: keys: {info}")
    far("vit out", ours, run_model(fresh, images))
    try_onnx("vit", run, images.numpy(), run_model(model, images))
    gradients("vit-step", data, "kind = vit\nlayers = 3\nheads = 4\nwidth = 48\nhidden = 80\npatch = 8\nvocab = 10\n", model, images)


resnets()
alexnet()
vit()
