#!/bin/sh
# deb_root.sh BUILD PACKAGE: a new Debian root (debootstrap, kept in BUILD/deb-root for the next time), in which the
# package is installed by apt-get, and a user who has nothing else trains a model of his own, kills it, resumes it, evaluates,
# samples and serves it. Root is needed.
set -eu
build=$1 package=$2
root=$build/deb-root
mirror=${MIRROR:-http://deb.debian.org/debian}
begun=$(date +%s)
if [ ! -e "$root/.made" ]; then
    rm -rf "$root"
    debootstrap --variant=minbase bookworm "$root" "$mirror" >"$build/deb-root.log" 2>&1 || { tail -n 5 "$build/deb-root.log" >&2; exit 3; }
    cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
    touch "$root/.made"
    echo "deb-root: a new root after $(($(date +%s) - begun)) s"
fi
cp "$package" "$root/tmp/keel.deb"
mount --bind /proc "$root/proc" && mount --bind /dev "$root/dev"
trap 'umount "$root/proc" "$root/dev"' EXIT
begun=$(date +%s)
chroot "$root" sh -eu -s <<'END'
export DEBIAN_FRONTEND=noninteractive HOME=/root KEEL_STATE=/tmp/keel-state
say() { printf 'deb-root: %5d s: %s\n' "$(($(date +%s) - begun))" "$1"; }
begun=$(date +%s)
apt-get update -qq >/tmp/log 2>&1
apt-get install -y -qq /tmp/keel.deb >/tmp/log 2>&1 || { tail -n 5 /tmp/log; exit 1; }
say "apt-get install ./keel.deb: $(keel --version), $(dpkg-query -W | wc -l) packages"
apt-get install -y -qq --no-install-recommends gcc libc6-dev make pkgconf python3-minimal curl >/tmp/log 2>&1
say "a compiler, for a model of one's own"
rm -rf /tmp/try && mkdir /tmp/try && cd /tmp/try
cp -r /usr/share/keel/examples/mymodel /usr/share/keel/examples/myreader .
make -s -C mymodel && make -s -C myreader
steps() { sed -n 's/.*"step":\([0-9]*\),.*"loss_bits":"\([0-9a-f]*\)".*"digest":"\([0-9a-f]*\)".*/\1 \2 \3/p' "$1/metrics.jsonl"; }
small="--set train.steps=20 --set train.decay_steps=20 --set train.eval_every=0 --set snapshot.every=5 --set train.batch=2"
cd mymodel
keel run mymodel.conf --ranks 1 --out ../one $small >/tmp/log 2>&1
say "a model of one's own, trained by one rank"
keel run mymodel.conf --ranks 3 --out ../three $small --drill kill:rank=1,step=8 --drill kill:all,step=12 >/tmp/log 2>&1 || true
keel run mymodel.conf --ranks 3 --out ../three $small >/tmp/log 2>&1
[ "$(steps ../one)" = "$(steps ../three)" ] && [ "$(steps ../one | wc -l)" = 20 ]
say "by three, of which one was killed, and then all; resumed: the same bits"
cd ../myreader
keel run myreader.conf --ranks 1 --out ../points $small >/tmp/log 2>&1
keel run myreader.conf --ranks 3 --out ../points3 $small --drill kill:rank=2,step=8 >/tmp/log 2>&1
[ "$(steps ../points)" = "$(steps ../points3)" ] && [ "$(steps ../points | wc -l)" = 20 ]
say "and one with a reader of one's own: the same bits"
cd ..
keel eval three | head -2
keel sample three --prompt "In the beginning" --tokens 40 2>/dev/null >sampled && [ "$(wc -c <sampled)" -ge 40 ]
say "evaluated, sampled"
keel serve three --port 18080 2>served & server=$!
until curl -sf localhost:18080/health >/dev/null; do kill -0 $server; sleep 0.2; done
curl -s localhost:18080/v1/completions -d '{"prompt":"In the beginning","max_tokens":40}' >answer
kill -TERM $server
wait $server
python3 -c 'import json; a = json.load(open("answer"))["choices"][0]["text"].encode(); b = open("sampled", "rb").read(); assert a == b, (a, b)'
say "served over HTTP: the text that was sampled"
apt-get purge -y -qq keel >/tmp/log 2>&1
[ ! -e /usr/bin/keel ] && [ ! -e /usr/share/keel ]
say "purged: nothing is left"
END
echo "deb-root: passed after $(($(date +%s) - begun)) s"
