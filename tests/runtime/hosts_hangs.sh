# hosts_hangs.sh - part of hosts_test.sh: who leads stands still and does not end, as under a debugger: the launcher, and
# then the agent that leads in its place. Sourced behind hosts_gate.sh.
begin hangs --set cluster.launch=none --set cluster.bind=127.0.0.1 --set cluster.holders=3 --set train.steps=300 --set cluster.timeout_s=2 \
    --set snapshot.every=20 --drill slow:rank=0,step=1,ms=60,steps=1000
place
agents=
for k in 1 2 3 4; do join $k --node $k --address 127.0.0.$k; agents="$agents $agent"; done
await "$out/metrics.jsonl" '"step":10,'
kill -STOP "$launcher"
check "the launcher stands still, and a node leads" await_led events.jsonl '"event":"leader"' 1
check "no rank was lost by it" [ "$(losses)" -eq 0 ]
still=$(leads)
kill -STOP "$still"
others() { grep -h '"event":"leader"' "$out"/ckpt/.leader/*/events.jsonl | sed 's/.*"process":\([0-9]*\).*/\1/' | grep -vcx "$still"; }
await_other() { for _ in $(seq 1200); do [ "$(others)" -ge 1 ] && return 0; sleep 0.05; done; return 1; }
check "who leads in its place stands still too, and another leads" await_other
members 3
check "without the node that stands still" [ $? -eq 0 ]
for pid in $agents; do
    [ "$pid" = "$still" ] && continue
    wait "$pid"
    check "agent $pid ends well" [ $? -eq 0 ]
done
check "the run is done without both" [ "$(cat "$out"/ckpt/.leader/*/events.jsonl | grep -c '"event":"end",.*"status":"OK"')" -ge 1 ]
kill -CONT "$launcher" "$still"
finish
check "the launcher goes on, and ends as the run did" [ $code -eq 0 ]
wait "$still"
check "the agent that stood still ends too, by itself" [ $? -le 5 ]
reference 300
check "with the bits of one rank" same_bits "$root/reference-300" "$out"
