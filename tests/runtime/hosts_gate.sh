# hosts_gate.sh - part of hosts_test.sh: the launcher is killed for good, and agents that lead let others in. Sourced.
members() { # members COUNT: until the newest view of those who lead elsewhere has so many ranks
    for _ in $(seq 1200); do
        [ "$(cat "$out"/ckpt/.leader/*/events.jsonl 2>/dev/null | grep '"event":"view"' | tail -n 1 |
            sed 's/.*"ranks":\[\([0-9,]*\)\].*/\1/' | tr ',' '\n' | grep -c .)" -eq "$1" ] && return 0
        sleep 0.05
    done
    echo "FAIL no view of $1 ranks"
    return 1
}
losses() { # views without a rank of the one before, of all who led
    cat "$out/events.jsonl" "$out"/ckpt/.leader/*/events.jsonl 2>/dev/null | grep -c '"event":"view".*"lost_ranks":[1-9]'
}
led_steps() { cat "$out"/ckpt/.leader/*/metrics.jsonl 2>/dev/null | wc -l; }
steps_go_on() { # by those who lead elsewhere
    before=$(led_steps)
    for _ in $(seq 1200); do [ "$(led_steps)" -gt $((before + 10)) ] && return 0; sleep 0.05; done
    return 1
}
# stands_in NUMBER PLACES WORDS...: an agent that is told these places, in the background
stands_in() {
    name=$1 places=$2
    shift 2
    "$KEEL" agent --join "$places" --key-file "$out/job.key" "$@" >"$out.agent$name.log" 2>&1 &
    agent=$!
}

begin gate --ranks 3 --set cluster.launch=none --set cluster.bind=127.0.0.1 --set cluster.holders=3 --set train.steps=100000 \
    --set cluster.timeout_s=2 --set snapshot.every=50 --drill slow:rank=0,step=1,ms=60,steps=100000
place
port=${place##*:} agents=
for k in 1 2 3; do join $k --node $k --address 127.0.0.1$k:"$port"; agents="$agents $agent"; eval "agent$k=$agent"; done
await "$out/metrics.jsonl" '"step":10,'
kill -KILL "$launcher"
finish
"$KEEL" run "$here/../demo/drill.conf" $job --ranks 3 --out "$out" --set cluster.launch=none --set cluster.bind=127.0.0.1 \
    --set cluster.holders=3 --set train.steps=100000 --set cluster.timeout_s=2 --set snapshot.every=50 >"$out.again.log" 2>&1 &
again=$!
await_led events.jsonl '"event":"leader"' 1
# As a job of a script's background, which is started with this signal ignored.
"$KEEL" run "$here/../demo/drill.conf" $job --ranks 3 --out "$out" --set cluster.launch=none --set cluster.bind=127.0.0.1 \
    --set cluster.holders=3 --set train.steps=100000 --set cluster.timeout_s=2 --set snapshot.every=50 >"$out.third.log" 2>&1 &
third=$!
await "$out.third.log" 'an interrupt ends it alone'
kill -INT $third
wait $third
check "one who watches is interrupted, and the run goes on" '[ $? -eq 5 ] && kill -0 $again'
leader=$(leads) others=
for k in 1 2 3; do eval "pid=\$agent$k"; [ "$pid" = "$leader" ] && at=$k || others="$others $k"; done
lost=${others##* } left=${others%" $lost"} left=${left# }
kill -KILL "$(eval echo "\$agent$lost")"
members 2
check "the launcher is gone, a node leads, and one more is lost" [ $? -eq 0 ]
# By a list of places, of which the first is the launcher's, and who leads is in none.
stands_in 4 "$place,127.0.0.1$left:$port" --address 127.0.0.14
fourth=$agent
members 3
check "another agent is pointed to who leads, and let in" [ $? -eq 0 ]
check "which events.jsonl says" await_led events.jsonl "\"event\":\"agent-joined\".*127.0.0.14:.*\"node\":$lost" 1
check "by its number and no other" grep -q "node $lost: its agent came from .*127.0.0.14:" "$out.agent$at.log"
steps_go_on
check "the run goes on with it" [ $? -eq 0 ]
check "one rank was lost, and no worker of the others started again" [ "$(losses)" -eq 1 ]
# Who leads is lost. Who comes is told the launcher's place alone, and finds who leads in the store.
kill -KILL "$leader"
members 2
check "who leads is lost, and another leads" [ "$(leads)" != "$leader" ]
stands_in 5 "$place" --address 127.0.0.15 --store "$out/ckpt"
fifth=$agent
members 3
check "the store says who leads, who lets a third agent in" [ $? -eq 0 ]
check "by its number" [ "$(cat "$out".agent*.log | grep -c "node $at: its agent came from .*127.0.0.15:")" -eq 1 ]
steps_go_on

# What does not belong is refused there as by the launcher, and changes nothing.
led=$(sed 's/.* //' "$out/ckpt/.leader/leader")
check "who asks is told where agents dial in" says 0 "agents dial in at $led" "$KEEL" job status "$out"
check "another key, told to the agent" says 3 "does not know this agent's key" \
    "$KEEL" agent --join "$led" --key-file "$root/other.key" --wait 1
check "another key, where one of two places has nobody: it ends" says 1 'nobody took this agent' \
    "$KEEL" agent --join "127.0.0.1:9,$led" --key-file "$root/other.key" --wait 1
mkfifo -m 600 "$root/pipe.key"
check "a pipe in place of a key is not waited for" says 3 'pipe.key: not a regular file' \
    "$KEEL" agent --join "$led" --key-file "$root/pipe.key" --wait 1
check "a number beyond the run" says 2 'the run has nodes 1 to 3' "$KEEL" agent --join "$led" --key-file "$out/job.key" --node 9
check "nobody at any of several places" says 1 '127.0.0.1:9,127.0.0.1:10: nobody took this agent' \
    "$KEEL" agent --join 127.0.0.1:9,127.0.0.1:10 --key-file "$out/job.key" --wait 1
check "a list with an empty place" says 2 'a place is empty' "$KEEL" agent --join "$led,,127.0.0.1:9" --key-file "$out/job.key"
check "a place of a list without a port" says 2 '127.0.0.1: has no port' \
    "$KEEL" agent --join "$led,127.0.0.1" --key-file "$out/job.key"
steps_go_on
check "and the run goes on" [ $? -eq 0 ]
check "no worker was started again by it" [ "$(losses)" -eq 2 ]
"$KEEL" job stop "$out" >"$root/log" 2>&1
check "the run is stopped" [ $? -eq 0 ]
for pid in $fourth $fifth "$(eval echo "\$agent$left")"; do
    wait "$pid"
    check "agent $pid says that the run was stopped" [ $? -eq 5 ]
done
await "$out.again.log" '\] agents dial in at' # it has taken the lines in, and begins where the run was stopped
kill -INT $again
wait $again
steps=$(wc -l <"$out/metrics.jsonl")
reference "$steps"
check "with the bits of one rank ($steps steps)" same_bits "$root/reference-$steps" "$out"
