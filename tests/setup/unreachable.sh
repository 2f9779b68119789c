#!/bin/sh
# unreachable.sh [-v] OBJECT...: functions in these objects that nobody can call. The objects are compiled without
# inlining and with a section for each function, so that the linker's --gc-sections says what it drops. Fails with the
# functions that neither the program nor a function of a public header reaches. Functions that a public header
# declares, and that neither the program nor an example calls, are counted; -v lists them. CC and LIBS link.
set -eu
[ "$1" = -v ] && verbose=1 && shift || verbose=
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# dropped FLAG: "function file" for each function that the linker drops.
dropped() {
    $CC -pthread -Wl,--as-needed,--gc-sections,--print-gc-sections"$1" -o "$work/keel" @"$work/objects" $LIBS \
        2>"$work/said" || { cat "$work/said"; return 1; }
    sed -nE "s/.*section '\.text\.([A-Za-z0-9_]+)[^']*' in file '[^']*obj\/([^']*)\.o'.*/\1 \2.c/p" "$work/said" |
        sort -u
}

printf '%s\n' "$@" >"$work/objects"
cat ./*/include/keel/*.h | grep -oE '\bkeel_[a-z0-9_]+' | sort -u >"$work/declared"
cat ./*/examples/*.c | grep -oE '\bkeel_[a-z0-9_]+' | sort -u >"$work/shown"
dropped "" >"$work/program"
[ -s "$work/program" ] || { echo "reachable: the linker says nothing of what it drops"; exit 1; }
join "$work/program" "$work/declared" | join -v 1 - "$work/shown" >"$work/public"
echo "reachable: $(wc -l <"$work/public") functions of public headers are called by no command and no example"
[ -z "$verbose" ] || sed 's/^/  /' "$work/public"
# What the program exports is reached too: the functions of public headers.
dropped ,--export-dynamic >"$work/private"
[ ! -s "$work/private" ] || { echo "reachable: these are called by tests alone, or by nothing:"; sed 's/^/  /' "$work/private"; exit 1; }
