#!/bin/sh
# sh data.sh DIRECTORY [text|images]: make what the jobs train on; the same bytes on every machine.
#   english.txt  the King James Bible from Debian's bible-kjv, one verse a line, without the verse numbers: 4 MB
#   fashion/     Fashion-MNIST from Debian's dataset-fashion-mnist, unpacked: four IDX files
set -u
out=$1
mkdir -p "$out" || exit 1
text() {
    [ -s "$out/english.txt" ] && return 0
    bible=$(command -v bible || echo /usr/games/bible)
    "$bible" -f 'gen1:1-rev22:21' </dev/null | sed 's/^[^ ]* *//' >"$out/english.txt.tmp"
    bytes=$(wc -c <"$out/english.txt.tmp")
    [ "$bytes" -gt 1000000 ] || { echo "data: $bible gave only $bytes bytes of text: install the package bible-kjv (make deps)" >&2; return 1; }
    mv "$out/english.txt.tmp" "$out/english.txt"
}
images() {
    from=/usr/share/datasets/fashion-mnist
    for name in train-images-idx3 train-labels-idx1 t10k-images-idx3 t10k-labels-idx1; do
        [ -s "$out/fashion/$name-ubyte" ] && continue
        [ -r "$from/$name-ubyte.gz" ] || {
            echo "data: $from/$name-ubyte.gz is missing: install the package dataset-fashion-mnist (make deps)" >&2
            return 1
        }
        mkdir -p "$out/fashion"
        gunzip -c "$from/$name-ubyte.gz" >"$out/fashion/$name-ubyte.tmp" || return 1
        mv "$out/fashion/$name-ubyte.tmp" "$out/fashion/$name-ubyte"
    done
}
failed=0
[ "${2:-text}" = images ] || text || failed=1
[ "${2:-images}" = text ] || images || failed=1
exit $failed
