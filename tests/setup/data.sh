#!/bin/sh
# Make the default training text: the King James Bible from Debian's bible-kjv, one verse a line, without
# the verse numbers. About 4 MB of English; the same bytes on every machine.
set -eu
out=$1
[ -s "$out" ] && exit 0
mkdir -p "$(dirname "$out")"
bible=$(command -v bible || echo /usr/games/bible)
"$bible" -f 'gen1:1-rev22:21' </dev/null | sed 's/^[^ ]* *//' >"$out.tmp"
bytes=$(wc -c <"$out.tmp")
[ "$bytes" -gt 1000000 ] || { echo "data: $bible gave only $bytes bytes of text" >&2; exit 1; }
mv "$out.tmp" "$out"
