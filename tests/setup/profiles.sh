#!/bin/sh
# profiles.sh: build each profile of profiles.txt, run its smoke test, and print a table: bytes of the stripped program,
# libraries that it maps, memory at its peak. What is above its limit fails (sizes are facts of the compiler: less is
# never wrong). Then what was left out must say so. `make profiles` runs this.
set -u
list=$(dirname "$0")/profiles.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
${CC:-gcc} -O1 -o "$work/peak" "$(dirname "$0")/peak.c" || exit 1
claim() { # claim TEXT COMMAND...
    text=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL  $text"; fi
}
at_most() { [ "$1" -le "$2" ]; }
one() { # one TOGGLES PROGRAM BYTES LIBRARIES PEAK COMMAND...
    toggles=$(echo "$1" | tr , ' ')
    [ "$toggles" = - ] && toggles=
    program=$2 bytes_max=$3 libraries_max=$4 peak_max=$5
    shift 5
    build=$(make -s --no-print-directory $toggles CI=true print-build)
    make -s --no-print-directory CI=true $toggles "$build/$program" >"$work/log" 2>&1 ||
        { cat "$work/log"; claim "$program $toggles is built without a warning" false; return; }
    ${STRIP:-strip} -o "$work/$program" "$build/$program"
    bytes=$(wc -c <"$work/$program")
    libraries=$(ldd "$work/$program" 2>/dev/null | grep -c '=> /')
    peak=$("$work/peak" "$work/said" "$work/$program" "$@")
    code=$?
    printf '%-10s %-34s %9d %4d %8d  %s\n' "$program" "${toggles:-whole}" "$bytes" "$libraries" "$peak" "$*"
    claim "$program $toggles: $*: exit code $code: $(tail -n 2 "$work/said")" [ "$code" = 0 ]
    claim "$program $toggles: $bytes bytes, at most $bytes_max" at_most "$bytes" "$bytes_max"
    claim "$program $toggles: $libraries libraries, at most $libraries_max" at_most "$libraries" "$libraries_max"
    claim "$program $toggles: $peak KB at its peak, at most $peak_max" at_most "$peak" "$peak_max"
}
# says CODE WORDS COMMAND...
says() {
    code=$1 words=$2
    shift 2
    "$@" >"$work/said" 2>&1
    got=$?
    claim "$*: exit code $got: $(cat "$work/said")" [ "$got" = "$code" ]
    [ -z "$words" ] || claim "$*: says nothing of $words: $(cat "$work/said")" grep -q "$words" "$work/said"
}
build_of() { make -s --no-print-directory "$@" print-build; }

# A snapshot of the format's golden files, for what reads one.
snapshot=tests/golden/ckpt/planes
printf '%-10s %-34s %9s %4s %8s  %s\n' program 'built with' bytes libs 'peak KB' command
while read -r line; do
    case $line in '' | '#'*) continue ;; esac
    one $(echo "$line" | sed "s|SNAPSHOT|$snapshot|g") </dev/null
done <"$list"

all=$(build_of FABRIC=no OPENCL=no ISAL=no)
says 3 'FABRIC=no' "$all/keel" net check --carrier tcp
says 3 'OPENCL=no' "$all/keel" board check pocl --level 0 --quick
says 0 'FABRIC=no OPENCL=no CLBLAST=no ISAL=no' "$all/keel" --version
static=$(build_of STATIC=yes)
# 64 MB of address space: a static program has little that is not memory.
says 0 ' 0 fail, 0 could not run' sh -c "ulimit -v 65536; exec $static/keel-board check host --level 0-2,4 --quick"
says 0 'sound' sh -c "ulimit -v 65536; exec $static/keel-ckpt verify $snapshot"
says 0 '' sh -c "ulimit -v 65536; exec $static/keel-ckpt export $snapshot $work/out.safetensors"
# The Buildroot recipe, as far as it can be tried without Buildroot: its commands, with this machine's compiler.
cat >"$work/buildroot.mk" <<'MK'
BR2_EXTERNAL_KEEL_PATH := $(CURDIR)/boards/buildroot
BR2_PACKAGE_KEEL_RUNTIME := y
TARGET_CONFIGURE_OPTS := CC=gcc AR=ar
INSTALL := install
define sep


endef
.DEFAULT_GOAL := recipe
include boards/buildroot/external.mk
recipe:
	$(KEEL_BUILD_CMDS)
	$(KEEL_INSTALL_TARGET_CMDS)
MK
says 0 '' make -s --no-print-directory -f "$work/buildroot.mk" "@D=$PWD" "TARGET_DIR=$work/target" MAKE="make -s"
says 0 'keel-ckpt' "$work/target/usr/bin/keel-ckpt" --version
for wrong in 'FABRIC=maybe' 'CLBLAST=yes OPENCL=no' 'ISAL=no' 'STATIC=yes OPENCL=yes'; do
    says 2 'yes or no\|needs' make -s --no-print-directory $wrong print-build
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
