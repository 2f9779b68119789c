#!/bin/sh
# Byte-level BPE against Hugging Face's tokenizers on 12 MB: English, code and random Unicode. A tokenizer is trained on
# a part of each; every id is compared, and both are timed on one thread, in turn, medians of ROUNDS (3): Keel by a run
# that only prepares, with its start, the library by one call of encode on each text in lines of 64 KiB. KEEL_PYTHON
# names a Python that has tokenizers.
set -u
. "$(dirname "$0")/../demo/lib.sh"
BUILD=${BUILD:-build}
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
root=$BUILD/bench-tokenizer
[ -n "${KEEL_PYTHON:-}" ] && "$KEEL_PYTHON" -c 'import tokenizers' 2>/dev/null || { echo "tokenizer_bench: KEEL_PYTHON names no Python with tokenizers" >&2; exit 3; }
rm -rf "$root"
mkdir -p "$root"
TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 "$KEEL_PYTHON" - "$root" "$KEEL" "${ROUNDS:-3}" <<'END'
import array, glob, json, random, shutil, statistics, subprocess, sys, time
import tokenizers
from tokenizers import ByteLevelBPETokenizer, Tokenizer
root, keel, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
r = random.Random(7)
blocks = [(0x20, 0x7e), (0xa0, 0x24f), (0x370, 0x3ff), (0x400, 0x4ff), (0x5d0, 0x5ea), (0x600, 0x6ff), (0x900, 0x97f),
          (0xe00, 0xe7f), (0x1100, 0x11ff), (0x2000, 0x206f), (0x2070, 0x23ff), (0x3000, 0x30ff), (0x4e00, 0x9fff),
          (0xac00, 0xd7a3), (0xfe00, 0xffef), (0x10000, 0x1f9ff), (0x20000, 0x2a6df), (0xe0000, 0xe01ef)]
ends = [" ", "  ", "\n", "\t ", "\u3000", "'s ", "'LL", "'ve", "...", "   \n\n ", "1234 ", "\u00bd", "\r\n", "", "<|endoftext|>", "<|endof"]
words = ["".join(chr(r.randint(*r.choice(blocks))) for _ in range(r.randint(1, 9))) + r.choice(ends) for _ in range(200000)]
rooms = ("hal", "kernels", "transport", "ckpt", "runtime", "boards", "tests")
files = sorted(f for room in rooms for end in ("c", "h", "cl", "py") for f in glob.glob(f"{room}/**/*.{end}", recursive=True))
code = "".join(open(f, encoding="utf8").read() for f in files)
texts = {"english": open("build/data/english.txt", encoding="latin1").read(), "code": code, "unicode": "".join(words)}
for name, text in texts.items():
    open(f"{root}/{name}.txt", "w", encoding="utf8", newline="").write(text)
    open(f"{root}/{name}.part", "w", encoding="utf8", newline="").write(text[:1000000])
made = ByteLevelBPETokenizer()
made.train([f"{root}/{n}.part" for n in texts], vocab_size=50257, special_tokens=["<|endoftext|>"], show_progress=False)
made.save(root + "/tokenizer.json")
theirs = Tokenizer.from_file(root + "/tokenizer.json")
def tell(figure, value, unit, peer=None, peer_value=None):
    print(json.dumps({"room": "runtime", "figure": figure, "value": value, "unit": unit, "peer": peer, "peer_value": peer_value,
                      "ratio": value / peer_value if peer_value else None, "goal": None, "met": None}))
same = True
for name, text in texts.items():
    size, own, other = len(text.encode()) / 1e6, [], []
    for _ in range(rounds):
        shutil.rmtree(root + "/run", ignore_errors=True)
        begun = time.monotonic()
        subprocess.run([keel, "run", "runtime/jobs/bpe-demo.conf", "--prepare", "--out", root + "/run", "--set", f"data.path={root}/{name}.txt",
                        "--set", f"data.vocab=bpe:{root}/tokenizer.json", "--set", "data.val_path="], check=True, stdout=subprocess.DEVNULL)
        own.append(size / (time.monotonic() - begun))
        begun = time.monotonic()
        wanted = theirs.encode(text, add_special_tokens=False).ids
        other.append(size / (time.monotonic() - begun))
    ids = array.array("H", open(glob.glob(root + "/run/tokens-*.bin")[0], "rb").read())
    same = same and list(ids) == wanted
    tell(f"ids of {size:.1f} MB of {name} that differ from Hugging Face's", sum(a != b for a, b in zip(ids, wanted)) + abs(len(ids) - len(wanted)), "ids")
    tell(f"BPE of {name}, with the start of keel run", statistics.median(own), "MB/s", f"tokenizers {tokenizers.__version__}", statistics.median(other))
sys.exit(0 if same else 1)
END
