#!/bin/sh
# unreachable.sh [-v] OBJECT...: functions in these objects that nobody can call. The objects are compiled without
# inlining and with a section for each function, so that the linker's --gc-sections says what it drops. Fails with the
# functions that neither a program nor a function of a public header reaches, and with those of public headers that
# neither a program nor an example calls: what is offered is used, or shown. -v lists what waits for its user.
# CC and LIBS link; MAINS are the objects with the main functions of the programs, of which the first is the one that
# has all.
set -eu
[ "$1" = -v ] && verbose=1 && shift || verbose=
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# dropped FLAG MAIN: "function file" for each function that the linker drops of the program.
dropped() {
    $CC -pthread -Wl,--as-needed,--gc-sections,--print-gc-sections"$1" -o "$work/keel" "$2" @"$work/objects" $LIBS \
        2>"$work/said" || { cat "$work/said"; return 1; }
    sed -nE "s/.*section '\.text\.([A-Za-z0-9_]+)[^']*' in file '[^']*obj\/([^']*)\.o'.*/\1 \2.c/p" "$work/said" |
        sort -u
}

printf '%s\n' "$@" >"$work/objects"
cat ./*/include/keel/*.h | grep -oE '\bkeel_[a-z0-9_]+' | sort -u >"$work/declared"
cat ./*/examples/*.c | grep -oE '\bkeel_[a-z0-9_]+' | sort -u >"$work/shown"
for main in $MAINS; do
    dropped "" "$main" >"$work/of_one"
    [ ! -e "$work/program" ] || { comm -12 "$work/program" "$work/of_one" >"$work/both" && mv "$work/both" "$work/of_one"; }
    mv "$work/of_one" "$work/program"
done
[ -s "$work/program" ] || { echo "reachable: the linker says nothing of what it drops"; exit 1; }
join "$work/program" "$work/declared" | join -v 1 - "$work/shown" >"$work/public"
# Bytes of pieces on the device: tests hold plans to it; no command prints it yet.
waits='^keel_engine_pieces_bytes '
[ -z "$verbose" ] || grep -E "$waits" "$work/public" | sed 's/^/  waits: /'
! grep -vE "$waits" "$work/public" >"$work/unused" ||
    { echo "reachable: no command and no example calls these of public headers:"; sed 's/^/  /' "$work/unused"; exit 1; }
# What the program exports is reached too: the functions of public headers.
dropped ,--export-dynamic "${MAINS%% *}" >"$work/private"
[ ! -s "$work/private" ] || { echo "reachable: these are called by tests alone, or by nothing:"; sed 's/^/  /' "$work/private"; exit 1; }
