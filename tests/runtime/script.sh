# script.sh - what script tests of this room share: a folder $root that goes at the end, with the state of the host in
# it and a text to train on, and claims that are counted. Sourced; expects here, the folder of this file.
. "$here/../demo/lib.sh"
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
export KEEL_STATE="$root/state"
passed=0 failed=0
text=$root/text
awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) printf "%s", substr("the quick brown fox jumps over a lazy dog\n", int(rand() * 42) + 1, 1) }' >"$text"

# check CLAIM COMMAND..., or a condition in one word, whose $? is that of the command before; when it does not hold,
# explain says what there is to see.
check() {
    was=$? claim=$1
    shift
    if if [ $# -eq 1 ]; then (exit $was); eval "$1"; else "$@"; fi; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $claim${code:+: exit $code}"
        explain 2>/dev/null | cut -c1-300 | sed 's/^/    /'
    fi
}
explain() { tail -n 5 "$root/log" "${out:-}.log"; }

# Plug-ins: where the headers are, and what is made of the templates that come with Keel.
rooms=$here/../..
include="-I$rooms/hal/include -I$rooms/kernels/include -I$rooms/transport/include -I$rooms/ckpt/include -I$rooms/runtime/include"
template() { # NAME: a copy of runtime/examples/NAME in $root
    template=$root/$1
    cp -r "$rooms/runtime/examples/$1" "$template"
}
variant() { # NAME SED-SCRIPT: the source of the template where we are, changed, as NAME.so
    source=${template##*/}.c
    sed "$2" "$source" >"$1.c" && ! cmp -s "$source" "$1.c" && ${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -fPIC -shared $include -o "$1.so" "$1.c"
}

# drill DIR ARGUMENTS...: the small job
drill() {
    out=$root/$1
    shift
    "$KEEL" run "$here/../demo/drill.conf" --set job.seed=1 --out "$out" "$@" >"$out.log" 2>&1
}

# A command ends with this code, and says these words; what it says lies in $root/said.
says() { # says CODE WORDS COMMAND...: ends with that code, and says that
    wanted=$1 words=$2
    shift 2
    "$@" >"$root/said" 2>&1
    code=$?
    [ $code -eq "$wanted" ] && grep -qF -e "$words" "$root/said" || { sed 's/^/    /' "$root/said"; return 1; }
}

# long: is all of it wanted (make test-long), and not a part for the sake of time?
long() { [ -n "${KEEL_TEST_LONG:-}" ]; }

# As drill, and all its drills came: again while one did not since the snapshot in which a rank is to die was passed over,
# as where the disk still writes the one before.
strike() {
    for try in 1 2 3 4 5; do
        rm -rf "${root:?}/$1"
        drill "$@" || return 1
        missing=$(($(echo "$*" | grep -o -e ' --drill ' | wc -l) - $(cat "$out/drills.jsonl" 2>/dev/null | wc -l)))
        [ $missing -ne 0 ] && grep -q '"event":"snapshot-skipped"' "$out/events.jsonl" || break
    done
    [ $missing -eq 0 ]
}

# How many ranks the last drill lost: one that dies of another's loss is replaced, and leaves the same bits.
lost() { grep -o '"event":"view".*"lost_ranks":[0-9]*' "$out/events.jsonl" | awk -F: '{ sum += $NF } END { print sum + 0 }'; }

# As drill, until ranks have died so close to each other that what both had is lost: a slow one may come after the
# view without the first.
lose() {
    for try in 1 2 3 4 5; do
        rm -rf "$root/$1"
        drill "$@" || return 1
        grep -q '"event": *"state-lost"' "$out/events.jsonl" && return 0
    done
    return 0
}

# survived CLAIM REFERENCE: the last drill lost one rank, and nothing else. Its folder goes.
survived() {
    ended=$?
    check "$1" [ "$ended" -eq 0 ]
    check "$1: the same bits" same_bits "$2" "$out"
    check "$1: and no other ($(lost))" [ "$(lost)" -eq 1 ]
    grep -q state-lost "$out/events.jsonl"
    check "$1: nothing is lost" [ $? -ne 0 ]
    rm -rf "$out"
}

# agents_of NODE...: the agents of these nodes of the run whose agents dial in at $place; in few processes, as a run does not wait.
agents_of() {
    for at in $(grep -lzxF -e "$place" /proc/[0-9]*/cmdline 2>/dev/null); do
        words=$({ tr '\0' ' ' <"$at"; } 2>/dev/null) at=${at#/proc/}
        case ${words%% *} in *keel) ;; *) continue ;; esac # not what started it
        for node; do
            case $words in *"keel agent --join $place "*"--node $node "*) echo "${at%/cmdline}" ;; esac
        done
    done
}
