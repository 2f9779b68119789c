#!/bin/sh
# tidy.sh STAMP FILE FLAG...: clang-tidy on one file, and the stamp's dependencies. What was found clean once, on this
# machine, by the same clang-tidy with the same rules, is not looked at again: each checkout would begin anew, and
# the path analyser takes seconds a file. What counts is the text of the file and of our headers, comments too (they
# hold NOLINT), and what the compiler sees of the system's. CC preprocesses.
set -eu
stamp=$1 file=$2
shift 2
known=${XDG_CACHE_HOME:-$HOME/.cache}/keel/tidy
key=$({
    clang-tidy --version
    cat .clang-tidy tests/.clang-tidy
    echo "$file $*"
    $CC "$@" -E -MMD -MP -MT "$stamp" -MF "$stamp.d" "$file"
    cat "$file" $(sed -n 's/^\([^ :]*\):$/\1/p' "$stamp.d")
} | sha256sum | cut -c1-64)
if ! [ -e "$known/$key" ]; then
    clang-tidy --quiet "$file" -- "$@" 2>/dev/null
    mkdir -p "$known"
fi
touch "$known/$key" "$stamp"
