#!/bin/sh
# The example programs do what they are examples of: killed at any moment, again and again, they go on and end
# with the same bits as undisturbed; under MPI also with another number of ranks than they were begun with.
set -u
BUILD=${BUILD:-build}
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
passed=0 failed=0
check() { # check NAME CODE
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $1:"; tail -n 20 "$root/log" | sed 's/^/    /'; fi
}
now_ms() { echo $(($(date +%s%N) / 1000000)); }
# A sanitizer makes a step some ten times slower.
steps=1500 every=10 kills=10
[ -n "${SAN:-}" ] && steps=300 kills=4

# Sleep for a part of the time of a whole run, drawn anew each time: at most 1 / DIVISOR of it.
doze() { # doze MS DIVISOR
    awk -v ms="$1" -v most="$2" -v seed="$(od -An -N4 -tu4 /dev/urandom)" \
        'BEGIN { srand(seed); print (0.1 + 0.9 * rand()) / most * ms / 1000 }' >"$root/doze"
    sleep "$(cat "$root/doze")"
}
went_on() { grep -c 'going on from step' "$root/log"; }

# ---- one process
wrong=0
for words in "" "5" "x 5" "5 x" "5 0" "-1 5" "5 -1" "1e1 5" "10x 5" "99999999999999999999 5" "5 5 a b"; do
    # shellcheck disable=SC2086
    timeout 20 "$BUILD/examples/heat" "$root/wrong" $words >"$root/log" 2>&1
    [ $? -eq 2 ] && grep -q usage "$root/log" && [ ! -e "$root/wrong" ] || { wrong=1; echo "heat STORE $words"; }
done
check "heat refuses numbers that are none" $wrong
"$BUILD/examples/heat" "$root/whole" $steps $every "$root/whole.field" >"$root/log" 2>&1
check "heat runs" $?
from=$(now_ms)
"$BUILD/examples/heat" "$root/again" $steps $every "$root/again.field" >"$root/log" 2>&1
whole_ms=$(($(now_ms) - from))
cmp "$root/whole.field" "$root/again.field" >>"$root/log" 2>&1
check "heat computes the same bits each time" $?

: >"$root/log"
killed=0
live() { # live DIVISOR: and be killed
    "$BUILD/examples/heat" "$root/killed" $steps $every "$root/killed.field" >>"$root/log" 2>&1 &
    pid=$!
    doze "$whole_ms" "$1"
    kill -9 $pid 2>/dev/null && killed=$((killed + 1))
    wait $pid 2>/dev/null
}
for _ in $(seq $kills); do live 8; done
for divisor in 4 2 1; do # a busy machine: lives that were over before they had saved anything
    [ "$(went_on)" -ge 2 ] || live $divisor
done
"$BUILD/examples/heat" "$root/killed" $steps $every "$root/killed.field" >>"$root/log" 2>&1 &&
    cmp "$root/whole.field" "$root/killed.field" >>"$root/log" 2>&1
check "heat, killed again and again, ends with the same bits" $?
[ $killed -ge 2 ] && [ "$(went_on)" -ge 2 ]
check "and was killed, and went on" $?
echo "note: heat was killed $killed times and went on from a snapshot $(went_on) times"
[ "$(find "$root/killed/heat" -name manifest.json | wc -l)" -le 3 ]
check "and keeps the newest snapshots alone" $?

# A snapshot that is damaged costs the way to the one before it.
newest=$(find "$root/killed/heat" -name manifest.json | sort -t- -k2 -n | tail -n 1)
printf 'x' | dd of="$(dirname "$newest")/rank-0.keel" bs=1 seek=5000 conv=notrunc 2>/dev/null
"$BUILD/examples/heat" "$root/killed" $steps $every "$root/killed.field" >"$root/log" 2>&1 &&
    cmp "$root/whole.field" "$root/killed.field" >>"$root/log" 2>&1 && grep -q 'trying an older one' "$root/log"
check "heat goes back behind a damaged snapshot, to the same bits" $?

# ---- MPI. All of it on this machine, over shared memory and the loopback interface, leaving nothing behind;
# ranks that wait give their processor away. Its own threads and memory are no business of the sanitizers.
mkdir "$root/mpi"
export TMPDIR="$root/mpi" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_plm=isolated OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader OMPI_MCA_oob_tcp_if_include=lo
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl_vader_backing_directory="$root/mpi"
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_orte_tmpdir_base="$root/mpi"
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
heat_mpi() { # heat_mpi RANKS STORE
    exec mpirun --oversubscribe --bind-to none -n "$1" "$BUILD/examples/heat_mpi" "$2" $steps $every
}
newest_step() { # that is committed; 0: none
    find "$root/lost" -name manifest.json 2>/dev/null | sed 's/.*step-\([0-9]*\)\..*/\1/' | sort -n | tail -n 1 | grep . || echo 0
}
# ---- a partner's memory
"$BUILD/examples/partner" >"$root/log" 2>&1
[ $? -eq 2 ] && grep -q usage "$root/log"
check "partner says how it is used" $?
before=$("$BUILD/keel-ckpt" show "$root/again/heat" --json)
"$BUILD/examples/partner" "$root/again" heat >"$root/log" 2>&1 && grep -q '^lost [1-9]' "$root/log" &&
    grep -q "^restored .* from memory" "$root/log"
check "partner restores what was removed" $?
"$BUILD/keel-ckpt" verify "$root/again/heat" >>"$root/log" 2>&1 && [ "$("$BUILD/keel-ckpt" show "$root/again/heat" --json)" = "$before" ]
check "and it is the snapshot that it was, and sound" $?

children() { # of the process that is given
    awk -v parent="$1" '$4 == parent { print $1 }' /proc/[0-9]*/stat 2>/dev/null
}
(exec mpirun --oversubscribe --bind-to none -n 2 "$BUILD/examples/heat_mpi" "$root/wrong" 5x 5) >"$root/log" 2>&1
[ $? -eq 2 ] && grep -q usage "$root/log" && [ ! -e "$root/wrong" ]
check "heat_mpi refuses numbers that are none" $?
from=$(now_ms)
(heat_mpi 4 "$root/ranks") >"$root/log" 2>&1
check "heat_mpi runs with 4 ranks" $?
whole_ms=$(($(now_ms) - from))
# One process reads what four have saved; with no step left to do it writes the field.
"$BUILD/examples/heat" "$root/ranks" $steps $every "$root/ranks.field" >>"$root/log" 2>&1 &&
    grep -q "going on from step $steps" "$root/log" && cmp "$root/whole.field" "$root/ranks.field" >>"$root/log" 2>&1
check "and computes the bits of one process" $?

: >"$root/log"
killed=0 at=0
for ranks in 4 3 4 3 2 4; do
    saved=$(newest_step)
    (heat_mpi $ranks "$root/lost") >>"$root/log" 2>&1 &
    pid=$!
    # each has saved something before it goes, however busy the machine is, and leaves something for the next
    tries=0
    while [ "$(newest_step)" -le "$saved" ] && kill -0 $pid 2>/dev/null && [ $tries -lt 600 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    doze "$whole_ms" 20
    at=$((at + 1))
    victims=$(children $pid)
    # in turn: one rank, which ends the others; and all at once, with their mpirun
    if [ $((at % 2)) -eq 1 ]; then victims=$(echo "$victims" | head -n $((1 + at / 2)) | tail -n 1); else victims="$pid $victims"; fi
    [ -n "$victims" ] && kill -9 $victims 2>/dev/null && killed=$((killed + 1))
    wait $pid 2>/dev/null
done
(heat_mpi 3 "$root/lost") >>"$root/log" 2>&1 &&
    "$BUILD/examples/heat" "$root/lost" $steps $every "$root/lost.field" >>"$root/log" 2>&1 &&
    cmp "$root/whole.field" "$root/lost.field" >>"$root/log" 2>&1
check "heat_mpi, killed again and again and gone on with other numbers of ranks, ends with the same bits" $?
[ $killed -ge 2 ] && grep -q 'saved by 4 ranks, with 3' "$root/log"
check "and was killed, and 3 ranks went on from what 4 had saved" $?
echo "note: heat_mpi was killed $killed times and went on from a snapshot $(went_on) times"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
