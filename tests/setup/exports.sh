#!/bin/sh
# exports.sh LIBRARY HEADER...: every name that the shared library exports stands in one of these public headers.
set -eu
library=$1
shift
declared=$(mktemp)
trap 'rm -f "$declared"' EXIT
cat "$@" | grep -oE '\bkeel_[a-z0-9_]+' | sort -u >"$declared"
names=$(nm -D --defined-only "$library" | awk '{ print $NF }' | sort -u)
[ -n "$names" ] || { echo "exports: $library exports nothing"; exit 1; }
hidden=$(printf '%s\n' "$names" | comm -23 - "$declared")
[ -z "$hidden" ] || { echo "exports: $library exports what no public header declares:"; echo "$hidden"; exit 1; }
