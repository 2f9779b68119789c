#!/bin/sh
# Make what the jobs train on, in the directory that is given; the same bytes on every machine.
#   english.txt  the King James Bible from Debian's bible-kjv, one verse a line, without the verse numbers: 4 MB
#   fashion/     Fashion-MNIST from Debian's dataset-fashion-mnist, unpacked: four IDX files
set -eu
out=$1
mkdir -p "$out"
text() {
    [ -s "$out/english.txt" ] && return 0
    bible=$(command -v bible || echo /usr/games/bible)
    "$bible" -f 'gen1:1-rev22:21' </dev/null | sed 's/^[^ ]* *//' >"$out/english.txt.tmp"
    bytes=$(wc -c <"$out/english.txt.tmp")
    [ "$bytes" -gt 1000000 ] || { echo "data: $bible gave only $bytes bytes of text" >&2; return 1; }
    mv "$out/english.txt.tmp" "$out/english.txt"
}
images() {
    [ -d "$out/fashion" ] && return 0
    rm -rf "$out/fashion.tmp" && mkdir "$out/fashion.tmp"
    for name in train-images-idx3 train-labels-idx1 t10k-images-idx3 t10k-labels-idx1; do
        gunzip -c "/usr/share/datasets/fashion-mnist/$name-ubyte.gz" >"$out/fashion.tmp/$name-ubyte"
    done
    mv "$out/fashion.tmp" "$out/fashion"
}
text
images
