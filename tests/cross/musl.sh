#!/bin/sh
# musl.sh SOURCES...: the host part of hal with another C library: it compiles without a warning, and the reason of a
# failed call is told in words (musl's strerror_r returns a number where glibc's returns the text).
set -eu
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cat >"$root/main.c" <<'C'
#include <errno.h>
#include <keel/status.h>
#include <stdio.h>
int main(void)
{
    (void)keel_fail_errno(ENOENT, "%s: cannot be opened", "x");
    puts(keel_detail());
    return 0;
}
C
musl-gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -Ihal/include -o "$root/main" "$root/main.c" "$@" || {
    echo "FAIL  musl: does not compile"
    echo "0 passed, 1 failed"
    exit 1
}
said=$("$root/main")
[ "$said" = "x: cannot be opened: No such file or directory" ] || {
    echo "FAIL  musl: said \"$said\""
    echo "1 passed, 1 failed"
    exit 1
}
echo "2 passed, 0 failed"
