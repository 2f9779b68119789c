#!/bin/sh
# Bad input of keel board: each is named with the next move; exit code 3 where it could not run, 1 where it
# failed, 2 for wrong use. And a driver that dies or hangs is a verdict.
set -u
here=$(dirname "$0")
. "$here/../demo/lib.sh"
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
passed=0 failed=0
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
cd "$root" || exit 1 # away from ./boards

try() { timeout 120 "$KEEL" board "$@" >"$root/log" 2>&1; code=$?; }
# expect NAME CODE WORDS...: the last command ended with CODE and said all of WORDS.
expect() {
    name=$1 wanted=$2 missing=
    shift 2
    for words in "$@"; do grep -qF -- "$words" "$root/log" || missing=$words; done
    if [ "$code" -eq "$wanted" ] && [ -z "$missing" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $name: exit $code, wanted $wanted; not said: $missing"
        sed 's/^/    /' "$root/log" | tail -n 12
    fi
}
# board FOLDER: a board.conf from standard input.
board() { mkdir -p "$root/$1" && cat >"$root/$1/board.conf"; }

# ---- drivers ----
mkdir "$root/none" "$root/broken" "$root/both" "$root/pocl"
cp /etc/OpenCL/vendors/pocl.icd "$root/pocl/"
export OCL_ICD_VENDORS="$root/pocl" # whatever else is installed
echo "$root/no/driver.so" >"$root/broken/bad.icd"
cp "$root/broken/bad.icd" "$root/both/"
cp /etc/OpenCL/vendors/pocl.icd "$root/both/"
OCL_ICD_VENDORS=$root/none try check --level 0
expect "no ICD" 3 "could-not-run 0.1" "install the board's driver and its .icd file"
OCL_ICD_VENDORS=$root/broken try check --level 0
expect "a broken ICD" 3 "could-not-run 0.1" "bad.icd: $root/no/driver.so" "reinstall this driver or remove the file"
OCL_ICD_VENDORS=$root/both try check pocl:0 --level 0
expect "a broken ICD beside a good one" 0 "bad.icd" "6 pass, 0 fail, 0 could not run, 0 waived"
try check nosuch:7 --level 0
expect "a board that is not there" 3 "could-not-run 0.2" "\"nosuch:7\": none like it" "there is: "
try check "$root/nowhere/at/all" --level 0.2
expect "a folder that is not there" 3 "could-not-run 0.2" "nowhere/at/all"

# ---- board files ----
board key/a/one <<END
[match]
platform = Portable*
[limits]
memroy_bytes = 5
END
try check "$root/key/a/one" --level 0.2
expect "an unknown key" 3 "board.conf:4: unknown key limits.memroy_bytes; the nearest known key is limits.memory_bytes"
for name in one two; do
    board "two/a/$name" <<END
[match]
platform = Portable*
END
done
KEEL_BOARDS=$root/two try check pocl:0 --level 0.2
expect "two boards that match one device" 3 "two/a/one and $root/two/a/two" "make the [match] of one narrower"
KEEL_BOARDS=$root/two try list
expect "two boards that match, in the list" 0 "no board file: " "make the [match] of one narrower"
board driver/a/one <<END
[match]
platform = Portable*
driver = 99.*
END
try check "$root/driver/a/one" --level 0.2
expect "a driver of the wrong version" 3 "board.conf is for \"99.*\"" "install that driver, or"
board artifact/a/one <<END
[match]
platform = Portable*
[code]
form = artifacts
END
try check "$root/artifact/a/one" --level 0.2,2.1
expect "a missing artifact" 3 "pass          0.2" "could-not-run 2.1" "keel board build"
board limit/a/one <<END
[match]
platform = Portable*
[limits]
memory_bytes = 900000000000000
copy_bytes_s = 900000000000000
[waivers]
copies = the bus is slow until 2099-01-01
0.6 = a bank is out until 2020-01-01
END
try check "$root/limit/a/one" --level 0.6,5.2 --quick
expect "a device without memory enough, and waivers" 1 "fail          0.6" "the board file asks for 900000000000000" \
    "(its waiver ended on 2020-01-01)" "waived        5.2" "waived until 2099-01-01: the bus is slow" \
    "0 pass, 1 fail, 0 could not run, 1 waived"
board waiver/a/one <<END
[match]
platform = Portable*
[waivers]
9.9 = nobody knows until 2099-01-01
END
KEEL_BOARDS=$root/key try list
expect "a board file that cannot be read, in the list" 0 "board.conf:4: unknown key limits.memroy_bytes"
try check "$root/waiver/a/one" --level 0.2
expect "a waiver of no check" 3 "waives 9.9, and there is no such check"

mkdir "$root/artifact/a/one/artifacts" && mkfifo "$root/artifact/a/one/artifacts/manifest.sum"
echo '{}' >"$root/artifact/a/one/artifacts/manifest.json"
try check "$root/artifact/a/one" --level 2.1 --timeout 20
expect "a pipe among the artifacts is not waited for" 1 "fail          2.1" "manifest.sum: is no file"

# ---- a driver that dies, and one that hangs ----
mkdir "$root/dies" "$root/hangs"
for how in dies hangs; do
    printf '#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) static void begin(void) { %s; }\n' \
        "$([ $how = dies ] && echo 'abort()' || echo 'for (;;) pause()')" >"$root/$how.c"
    cc -shared -fPIC -o "$root/$how.so" "$root/$how.c" && echo "$root/$how.so" >"$root/$how/x.icd"
done
OCL_ICD_VENDORS=$root/dies try check --level 0
expect "a driver that dies" 1 "fail          0.1" "died of signal 6" "loading the drivers" "could-not-run 0.2" \
    "0 pass, 1 fail, 5 could not run, 0 waived"
OCL_ICD_VENDORS=$root/hangs try check --level 0 --timeout 2
expect "a driver that hangs" 1 "fail          0.1" "hangs: no answer within 2 s at: loading the drivers"

# ---- a board file that cannot be read is told once, not for each device ----
board empty/a/one </dev/null
KEEL_BOARDS=$root/empty try list
[ "$(grep -c 'passed over: .*empty/a/one' "$root/log")" -eq 1 ] || code=99
expect "an empty board file is told once" 0 "set match.platform or match.name"

# ---- wrong use ----
try build o;                            expect "a selector that may be two devices" 2 "may be any of pocl:0, host"
try check --level 9;                    expect "a level that is none" 2 "\`9\`"
try check --level 0-5,gelden;           expect "a check that is none" 2 "\`gelden\` is no level"
for levels in "" , 0, ,0 0,,1; do
    try check --level "$levels";        expect "levels '$levels'" 2 "keel board: " "is no"
done
try check --seconds 18446744073709551615 --level 6.1; expect "a soak without end" 2 "a year at most"
try tune pocl:0 --seconds 18446744074 --out "$root/tune"; expect "a search without end" 2 "a year at most"
try tune pocl:0 --out "$root/no/tune.conf"; expect "a tuning in no folder is told before the search" 3 "$root/no/tune.conf: "
try check --timeout 18446744074 --level 0.1; expect "a limit without end" 2 "a year at most"
try frob --help;                        expect "help for what is none" 2 "unknown command frob"
try build pocl:0 --sources "$root/src" --out "$root/out"; expect "sources and artifacts at once" 2 "leave one out"
try build pocl:0 --sources "$root/src"; expect "where the sources are is told" 0 "$root/src: the sources"
# Launches of 2 s: what the machine does besides, and kernels that are compiled anew, do not matter to these two.
try check pocl:0 --level 4.1;           expect "a board that is as fast as it is" 0 "pass          4.1"
KEEL_DEVICE_FAULTS='slow:launch=*,ms=2000' try check pocl:0 --level 4.1 --timeout 20
expect "a board that is too slow is given up" 1 "still ran after" "0 pass, 1 fail"
grep -q 'assertion failed' "$root/log" && code=134
expect "what is given up is not torn down" 1 "fail          4.1"
KEEL_DEVICE_FAULTS='slow:launch=*,ms=2000' try check pocl:0 --level 6.1 --seconds 2 --timeout 14
expect "a soak that is given up" 1 "round 1 of golden operations: "
try check --frob;                       expect "an unknown option" 2 "unknown option --frob"
try check a b;                          expect "one word too many" 2 "one word too many: b"
try check --level 0.1 --html "$root/no/x.html"; expect "a page in no folder" 3 "no/x.html"
try check --level 0.1 --junit "$root"; expect "a report that is a folder" 2 "$root: is a directory"
try check --level 0.1 --junit "$root/x" --html "$root/x"; expect "two reports in one file" 2 "name the same file"
try record pocl:0 --level 0.1 --out "$root/no/r.json"; expect "a record in no folder" 3 "$root/no/r.json: "
try record nosuch:7 --level 0.2 --out "$root/not.json"
[ -e "$root/not.json" ] && code=empty
expect "what is not recorded leaves no file" 3 "not recorded"
try frob;                               expect "an unknown command" 2 "unknown command frob"
try init "../x/y" --unmeasured;         expect "a board's name that is a path" 2 "VENDOR/BOARD"
try diff;                               expect "diff of nothing" 2 "wants a board"
echo '{"checks":3}' >"$root/no.json"
try diff "$root/no.json" "$root/no.json"; expect "diff of what is no record" 4 "no.json"
try diff "$root/none.json" "$root/none.json"
expect "diff of a file that is not there" 3 "none.json" "make one with keel board record"

# ---- --json: an object of every failure too ----
# wants_error CODE WORDS...: `keel board WORDS --json` ends with CODE, and its object says why.
wants_error() {
    wanted=$1
    shift
    timeout 120 "$KEEL" board "$@" --json >"$root/object" 2>"$root/log"
    code=$?
    python3 -c 'import json, sys
it = json.load(open(sys.argv[1]))
sys.exit(not (it["error"]["status"] != "OK" and it["error"]["detail"] and it["exit"] == int(sys.argv[2])))' \
        "$root/object" "$wanted" || code="$code without an object"
    [ "$code" = "$wanted" ] || code=99
    expect "board $* --json" "$wanted"
}
for command in tune build record release; do wants_error 3 $command bogus; done
wants_error 3 diff bogus
wants_error 2 init bogus
wants_error 2 frob
wants_error 2 check --level 9
wants_error 2 check --bogus
wants_error 3 check --junit "$root/no/x"
wants_error 1 check --level 0.1 --junit /dev/full
wants_error 1 record pocl:0 --level 0.1 --out /dev/full
OCL_ICD_VENDORS=$root/hangs "$KEEL" board check --level 0 --json >"$root/object" 2>"$root/log" &
sleep 1
kill -TERM "$!"
wait "$!"
code=$?
grep -q '"status":"INTERRUPTED"' "$root/object" || code=99
expect "a check that is interrupted says so in JSON" 5

# ---- a disk that is full leaves no folder ----
said=$(sh -c "ulimit -f 0; exec '$KEEL' board init acme/full --root '$root/full/boards' --device host --unmeasured" 2>&1)
code=$?
echo "$said" >"$root/log"
[ ! -e "$root/full" ] || code=99
expect "a draft that cannot be written leaves no folder" 1 "README.md"
mkdir -p "$root/own/acme/cpu"
said=$(sh -c "ulimit -f 0; exec '$KEEL' board init acme/cpu --root '$root/own' --device host --unmeasured" 2>&1)
code=$?
echo "$said" >"$root/log"
[ -z "$(ls -A "$root/own/acme/cpu")" ] || code=99
expect "nor half of one in a folder that was there" 1 "README.md"
echo "what was measured by hand" >"$root/own/acme/cpu/README.md"
try init acme/cpu --device host --root "$root/own" --unmeasured
[ "$(cat "$root/own/acme/cpu/README.md")" = "what was measured by hand" ] || code=99
expect "a README that is there is left alone" 2 "README.md is there already"

# ---- a folder from nothing: drafted, found, checked, recorded, compared ----
try init acme/cpu --device pocl:0 --root "$root/boards" --unmeasured
expect "a folder is drafted" 0 "drafted $root/boards/acme/cpu"
try init acme/cpu --device pocl:0 --root "$root/boards" --unmeasured
expect "a folder that is there is left alone" 2 "is there already"
KEEL_BOARDS=$root/boards try list;      expect "the draft is its device's" 0 "board file acme/cpu"
try record "$root/boards/acme/cpu" --level 0,5.2 --quick
expect "a record is kept" 0 "recorded in $root/boards/acme/cpu/record.json"
cp "$root/boards/acme/cpu/record.json" "$root/a.json"
sed 's/"name":"names","claim":\([^}]*\)"verdict":"pass"/"name":"names","claim":\1"verdict":"fail"/; s/3.1+debian/3.2/' \
    "$root/a.json" >"$root/b.json"
try diff "$root/a.json" "$root/a.json"; expect "a record is its own equal" 0 "0 changed, 0 for the worse"
try diff "$root/a.json" "$root/b.json"; expect "a verdict that was pass is worse" 1 "worse  0.3" "names was pass, is fail" \
    "other  version"
sed 's/"name":"copy_gbs","unit":"GB\/s","less_is_better":false,"value":[0-9.]*,"limit":null,"samples":\[[^]]*\]/"name":"copy_gbs","unit":"GB\/s","less_is_better":false,"value":0.001,"limit":null,"samples":[0.001,0.002]/' \
    "$root/a.json" >"$root/c.json"
try diff "$root/a.json" "$root/c.json"; expect "a rate that fell is worse" 1 "worse  copy_gbs" "is 0.001 GB/s"
try diff "$root/c.json" "$root/a.json"; expect "a rate that rose is not" 0 "other  copy_gbs" "1 changed, 0 for the worse"
sed 's/"id":"0.3"/"id":"0.9"/' "$root/a.json" >"$root/b.json"
try diff "$root/b.json" "$root/a.json"; expect "a check that is gone is a change" 0 "other  0.9" "1 changed"
try diff "$root/boards/acme/cpu" --quick --tolerance 1000
expect "a board is what its record says" 0 "0 for the worse"
printf x >"$root/facts"
try build "$root/boards/acme/cpu" --target "$root/facts" --out "$root/made"
expect "facts of a device that are none" 2 "--target $root/facts: holds no facts of a device"
"$KEEL-board" check host --level 6.2 --seconds 1 --quick >"$root/log" 2>&1
code=$?
expect "keel-board cannot train" 3 "keel-board has no training" "0 fail, 1 could not run"
"$KEEL-board" check --help | grep -F 'keel board' >"$root/log"
code=$?
expect "keel-board tells its own commands" 1

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
