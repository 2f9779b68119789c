#!/bin/sh
# What make install puts down is enough: a program outside the tree, which knows pkg-config alone, saves a
# tensor with libkeel-ckpt and reads it back, linked shared and static, and needs no device and no network.
set -u
BUILD=${BUILD:-build}
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
passed=0 failed=0
prefix=/usr
check() { # check NAME CODE
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $1:"; sed 's/^/    /' "$root/log" | tail -n 20; fi
}
needs() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(lib[a-z0-9-]*\).*/\1/p' | sort | tr '\n' ' '; }

cat >"$root/user.c" <<'EOF'
#include <keel/ckpt.h>
#include <keel/clock.h>
#include <stdio.h>
#include <string.h>

static float weights[3] = {1.0F, -2.5F, 1e-30F};

static enum keel_status read_weights(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    (void)context, (void)index;
    memcpy(out, (const char *)weights + offset, bytes);
    return KEEL_OK;
}

static enum keel_status save_and_read(const char *root)
{
    struct keel_store *store;
    struct keel_save *save;
    struct keel_snapshot *snapshot;
    struct keel_shard_summary shard;
    struct keel_region w = {.name = "w", .dtype = KEEL_CKPT_F32, .dims = 1, .shape = {3}, .extent = {3}};
    float back[3];
    KEEL_TRY(keel_store_open(&(struct keel_store_config){.root = root, .run = "r", .create = true}, &store));
    KEEL_TRY(keel_save_begin(store,
                             &(struct keel_save_config){.step = 7,
                                                        .attempt = 1,
                                                        .rank_count = 1,
                                                        .codec = KEEL_CODEC_PLANES,
                                                        .regions = &w,
                                                        .region_count = 1,
                                                        .read = read_weights},
                             &save));
    KEEL_TRY(keel_save_finish(save, keel_deadline_after_ns(30 * KEEL_NS_PER_S), &shard));
    KEEL_TRY(keel_store_commit(store, &(struct keel_commit){.step = 7, .attempt = 1, .shards = &shard, .shard_count = 1}));
    KEEL_TRY(keel_snapshot_open(store, 7, 0, &snapshot));
    KEEL_TRY(keel_snapshot_read(snapshot, &w, back, sizeof back));
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    return memcmp(back, weights, sizeof back) == 0 ? KEEL_OK : keel_fail(KEEL_CORRUPT, "other weights came back");
}

int main(int argc, char **argv)
{
    enum keel_status status = argc == 2 ? save_and_read(argv[1]) : KEEL_INVALID;
    if (status != KEEL_OK)
        fprintf(stderr, "%s: %s\n", keel_status_name(status), keel_detail());
    return status != KEEL_OK;
}
EOF

MAKEFLAGS='' make --no-print-directory install "BUILD=$BUILD" "SAN=${SAN:-}" "DESTDIR=$root/at" "PREFIX=$prefix" >"$root/log" 2>&1
check "make install" $?
lib=$root/at$prefix/lib
find_keel() { PKG_CONFIG_PATH=$lib/pkgconfig pkg-config --define-variable=prefix="$root/at$prefix" "$@" keel-ckpt; }
compile() { gcc -std=c11 -Wall -Wextra -Werror ${SAN:+"-fsanitize=$SAN"} $(find_keel --cflags) "$root/user.c" -o "$@" >"$root/log" 2>&1; }

compile "$root/shared" $(find_keel --libs)
check "a program links the shared library" $?
LD_LIBRARY_PATH=$lib "$root/shared" "$root/s" >"$root/log" 2>&1
check "and saves and reads" $?
# Debian has ISA-L as a shared library only.
compile "$root/static" -Wl,-Bstatic $(find_keel --static --libs | sed 's/-lisal/-Wl,-Bdynamic -lisal -Wl,-Bstatic/') -Wl,-Bdynamic
check "a program links the static library" $?
"$root/static" "$root/a" >"$root/log" 2>&1
check "and saves and reads" $?

# The example that is installed, as its first lines say to build it.
gcc ${SAN:+"-fsanitize=$SAN"} "$root/at$prefix/share/keel/examples/heat.c" $(find_keel --cflags --libs) -o "$root/heat" >"$root/log" 2>&1
check "the example that is installed builds" $?
LD_LIBRARY_PATH=$lib "$root/heat" "$root/h" 20 10 >"$root/log" 2>&1 &&
    LD_LIBRARY_PATH=$lib "$root/heat" "$root/h" 40 10 >"$root/log" 2>&1 && grep -q 'going on from step 20' "$root/log"
check "and goes on from what it has saved" $?

for both in bin/keel:keel lib/libkeel.so:libkeel lib/libkeel-ckpt.so:libkeel-ckpt; do
    [ -e "$root/at$prefix/${both%:*}" ]
    check "${both%:*} is installed" $?
done
# A sanitizer's library calls for others of its own.
if [ -z "${SAN:-}" ]; then
    needs "$lib/libkeel-ckpt.so" >"$root/log"
    [ "$(cat "$root/log")" = "ld-linux-x86-64 libc libisal libjansson libsodium libxxhash libz " ] ||
        [ "$(cat "$root/log")" = "libc libisal libjansson libsodium libxxhash libz " ]
    check "libkeel-ckpt needs no more than zlib, xxHash, Jansson, libsodium and ISA-L" $?
    needs "$root/static" >"$root/log"
    [ "$(cat "$root/log")" = "libc " ]
    check "a static program that rebuilds no node needs nothing but the C library" $?
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
