#!/bin/sh
# The same sources make the same bytes wherever they lie: built again in another folder, with a longer name, the
# binary and the shared libraries are what this build has.
set -u
BUILD=${BUILD:-build}
[ -z "${SAN:-}" ] || { echo "note: sanitizers keep the folder's name"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
other=$root/a-folder-with-another-name
mkdir "$other"
tar --exclude=./build --exclude=./runs --exclude=./.git -cf - . | tar -xf - -C "$other" || exit 1
# Not from a cache of compiled files: those would be the first build's own.
if ! CCACHE_DISABLE=1 make -C "$other" -j"$(nproc)" BUILD=build >"$root/log" 2>&1; then
    tail -n 20 "$root/log"
    echo "0 passed, 1 failed"
    exit 1
fi
passed=0 failed=0
for file in keel libkeel.so libkeel-ckpt.so libkeel-ckpt.a libkeel-emulated.so; do
    if cmp "$BUILD/$file" "$other/build/$file"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $file differs"
    fi
done
# Where it lies: a program linked with it finds it under its soname there.
cat >"$root/user.c" <<'C'
#include <keel/ckpt.h>
#include <stdio.h>
int main(void)
{
    return printf("%u\n", keel_ckpt_dtype_bytes(KEEL_CKPT_F32)) < 0;
}
C
for library in keel keel-ckpt; do
    if cc -Ihal/include -Ickpt/include -o "$root/user" "$root/user.c" -L"$BUILD" -l$library -Wl,-rpath,"$(realpath "$BUILD")" &&
        [ "$("$root/user")" = 4 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL a program does not find lib$library.so in $BUILD"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
