#!/bin/sh
# The manual pages of keel run, keel agent and keel job have a table of exit codes, from 0 to 5, and each is what the
# command returns in a case that the table names.
set -u
here=$(dirname "$0")
. "$here/script.sh"
export KEEL_LOG=error TMPDIR="$root"
man=$here/../../runtime/man
explain() { tail -n 3 "$root/log"; }
# row PAGE CODE: what its table says of a code
row() { sed -n '/^\.Sh EXIT STATUS/,/^\.Sh EXAMPLES/p' "$man/$1.1" | sed -n "/^\.It Sy $2\$/,/^\.\(It\|El\)/p" | sed '1d;$d' | tr '\n' ' '; }
# returns CODE WORDS COMMAND...: it ends with that code, of which the page of the command says WORDS
returns() {
    wanted=$1 words=$2
    shift 2
    timeout 300 "$KEEL" "$@" >"$root/log" 2>&1
    code=$?
    [ $code -eq "$wanted" ] && row "keel-$1" "$wanted" | grep -qF -e "$words"
}
for page in keel-run keel-agent keel-job; do
    codes=$(sed -n '/^\.Sh EXIT STATUS/,/^\.Sh EXAMPLES/s/^\.It Sy //p' "$man/$page.1" | tr '\n' ' ')
    check "$page(1) has a row for each code" [ "$codes" = "0 1 2 3 4 5 " ]
done

job=$here/../demo/drill.conf out=$root/run
set -- "$job" --set "data.path=$text" --set cluster.device=host --set job.seed=1 --out "$out"
check "keel run: done" returns 0 "Done: all steps" run "$@"
check "done before" returns 0 "now or before" run "$@"
check "an option that there is not" returns 2 "Wrong use: an option" run "$@" --frob
check "a value that cannot be" returns 2 "a value that cannot be" run "$@" --ranks 32769
check "data that are not there" returns 3 "something named is not there" run "$@" --set "data.path=$root/nowhere"
check "a device that is not there" returns 3 "no device" run "$@" --out "$root/board" --set cluster.device=fpga:7
check "a directory of another job" returns 4 "the directory is of another job" run "$@" --set train.lr=0.5

check "keel job: how it ended" returns 0 "it is said" job status "$out"
check "attached to one that is done" returns 0 "it is said" job attach "$out"
check "an option that there is not" returns 2 "Wrong use: an option" job status "$out" --frob
check "no run" returns 3 "no run began there" job status "$root/none"
cp -r "$out" "$root/damaged"
echo '{"event":"end","status":"CORRUPT","detail":"no snapshot is whole"}' >>"$root/damaged/events.jsonl"
check "attached to one that found its data damaged" returns 4 "the run that is attached to ended so" job attach "$root/damaged"
check "a file in place of a directory" returns 2 "a file in place of a directory" job status "$out/events.jsonl"

# One that goes on, and one more in its place; then it is stopped.
"$KEEL" run "$@" --out "$root/long" --set train.steps=100000 --drill slow:rank=0,step=1,ms=50,steps=100000 >"$root/long.log" 2>&1 &
long=$!
until grep -qs '"step":3,' "$root/long/metrics.jsonl"; do sleep 0.05; done
check "keel run: another run goes on in the directory" returns 1 "another run goes on in the directory" run "$@" --out "$root/long" --set train.steps=100000
check "keel job: a node that the run does not have" returns 2 "a node that the run does not have" job drain "$root/long" 9
check "a node that stays, since it is needed" returns 1 "or stays since it is needed" job drain "$root/long" 1 --wait 1s
"$KEEL" job attach "$root/long" >"$root/attached" 2>&1 &
attached=$!
until grep -q 'running' "$root/attached"; do sleep 0.05; done
check "a stop" returns 0 "has come about" job stop "$root/long"
wait $attached
code=$?
check "and who was attached" '[ $code -eq 5 ] && row keel-job 5 | grep -q "the run that is attached to was"'
wait $long
code=$?
check "keel run: a stop" '[ $code -eq 5 ] && row keel-run 5 | grep -q "a signal, a stop"'

key=$out/job.key
cp "$key" "$root/open.key"
chmod 644 "$root/open.key"
echo 12 >"$root/short.key"
chmod 600 "$root/short.key"
check "keel agent: nobody there" returns 1 "nobody took this agent in time" agent --join 127.0.0.1:9 --wait 1 --key-file "$key"
check "a value that cannot be" returns 2 "a value that cannot be" agent --join 127.0.0.1:0 --key-file "$key"
check "a key that others can read" returns 3 "open to others" agent --join 127.0.0.1:9 --key-file "$root/open.key"
check "a host that nobody knows" returns 3 "no host of that name" agent --join no.such.host.invalid:9 --wait 1 --key-file "$key"
check "a key file that holds none" returns 4 "a key file that holds none" agent --join 127.0.0.1:9 --key-file "$root/short.key"
"$KEEL" agent --join 127.0.0.1:9 --key-file "$key" --dir "$root/node" >"$root/log" 2>&1 &
agent=$!
until [ -e "$root/node/agent.lock" ]; do sleep 0.05; done
kill -TERM $agent
wait $agent
code=$?
check "a signal" '[ $code -eq 5 ] && row keel-agent 5 | grep -q "by a signal"'
"$KEEL" run "$@" --out "$root/hosts" --set cluster.launch=none --set cluster.bind=127.0.0.1 >"$root/hosts.log" 2>&1 &
run=$!
until grep -q 'agents dial in at' "$root/hosts.log"; do sleep 0.05; done
place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$root/hosts.log")
check "a run that is done" returns 0 "The run is done" agent --join "$place" --key-file "$root/hosts/job.key"
wait $run
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
