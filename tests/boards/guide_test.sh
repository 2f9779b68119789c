#!/bin/sh
# The guide boards/README.md does what it says: its commands, every block marked sh, are run as they stand, one
# after the other in one shell, in a copy of what they need. A block that fails ends the test, named.
build=$(cd "${BUILD:-build}" && pwd) || exit 1
here=$PWD
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/runs" "$scratch/build" && ln -s "$build"/* "$scratch/build/" && ln -s "$here/runtime" "$scratch/runtime"
awk -v out="$scratch/block" '
    /^```sh$/ { inside = 1; count++; name = sprintf("%s-%02d", out, count); next }
    /^```$/ { if (inside) close(name); inside = 0; next }
    inside { print > name }' boards/README.md
cat >"$scratch/all" <<END
cd "$scratch" || exit 1
passed=0
for block in "$scratch"/block-*; do
    (exit 0)
    . "\$block" >"$scratch/log" 2>&1
    code=\$?
    if [ "\$code" -ne 0 ]; then
        echo "failed, exit code \$code:"
        cat "\$block"
        tail -n 30 "$scratch/log"
        echo "\$passed passed, 1 failed"
        exit 1
    fi
    passed=\$((passed + 1))
done
echo "\$passed passed, 0 failed"
END
unset KEEL_BOARDS EMULATED_FAULTS EMULATED_INFO
sh "$scratch/all"
