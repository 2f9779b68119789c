#!/bin/sh
# Four hosts (network namespaces), a rank on each: LOSSES (48; 200 for a 99th percentile) times a host's agent and worker are killed (SIGKILL): how
# long from the commit before to the next one, and to the notice. Then CUTS (4) times a host is cut off for five timeouts,
# and comes back: how long that takes, by parts. T is the timeout in seconds. One JSON object a line; without namespaces,
# nothing.
# room: runtime
set -u
here=$(dirname "$0")
if [ -z "${HOSTS_INSIDE:-}" ]; then
    user=$([ "$(id -u)" -eq 0 ] || echo -r)
    # shellcheck disable=SC2086
    unshare $user -nm sh -c 'mount -t tmpfs tmpfs /run && ip netns add try && ip link set lo up' 2>/dev/null || exit 0
    # shellcheck disable=SC2086
    HOSTS_INSIDE=1 exec unshare $user -nm sh "$0"
fi
mount -t tmpfs tmpfs /run && ip link set lo up || exit 1
. "$here/../demo/lib.sh"
. "$here/../demo/chaos_hosts.sh"
root=${ROOT:-${BUILD:-build}/hosts-bench} job=$here/../demo/drill.conf timeout=${T:-2}
losses=${LOSSES:-48} cuts=${CUTS:-4} each=16 # losses of a run: a node that is lost five times in a row is given up
rm -rf "$root"
mkdir -p "$root"
TMPDIR=$(mktemp -d) && export TMPDIR || exit 1
trap 'kill_hosts; rm -rf "$TMPDIR"' EXIT
awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) printf "%s", substr("the quick brown fox jumps over a lazy dog\n", int(rand() * 42) + 1, 1) }' >"$root/text"
make_hosts 1 || exit 1

begin() { # begin NAME
    name=$1 out=$root/$1
    "$KEEL" run "$root/hosts-1.conf" --out "$out" --ranks 4 --set "data.path=$root/text" --set cluster.device=host --set train.steps=1000000 \
        --set snapshot.every=1000 --set "cluster.timeout_s=$timeout" --set cluster.launch=none --set cluster.hosts= --set cluster.shell= \
        --drill slow:rank=0,step=1,ms=20,steps=1000000 >"$out.log" 2>&1 &
    launcher=$!
    until place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$out.log") && [ -n "$place" ] || ! kill -0 $launcher; do sleep 0.05; done
    for k in 1 2 3 4; do agent $k; done
    whole 1
}
agent() { # agent K: that of host K, until there is another
    ip netns exec "c1h$1" "$KEEL" agent --join "$place" --key-file "$out/job.key" --node "$1" >>"$out.agent$1.log" 2>&1 &
    eval "agent$1=\$!"
}
lines() { wc -l <"$out/events.jsonl"; }
# whole FROM: until the newest view behind line FROM of the events has all four ranks.
whole() {
    until tail -n "+$1" "$out/events.jsonl" 2>/dev/null | grep '"event":"view"' | tail -n 1 | grep -q '"ranks":\[0,1,2,3\]' || ! kill -0 $launcher; do sleep 0.02; done
}
end() { kill -INT $launcher; wait $launcher; kill_hosts; }
line() { # line FIGURE VALUE GOAL
    printf '{"room":"runtime","figure":"four hosts: %s","value":%s,"unit":"s","peer":null,"peer_value":null,"ratio":null,"goal":%s,"met":%s}\n' \
        "$1" "$2" "$3" "$([ "$3" = null ] && echo null || awk -v v="$2" -v g="$3" 'BEGIN { print v <= g ? "true" : "false" }')"
}
quantile() { sort -g | awk -v q="$1" '{ v[NR] = $1 } END { at = int(NR * q + 0.999999); print NR ? v[at < 1 ? 1 : at] : "null" }'; }
field() { sed -n "s/.*\"event\":\"recovery\".*\"$1\":\\([0-9.e-]*\\).*/\\1/p" "$root"/lost-*/events.jsonl; }

done_losses=0 run=0
while [ $done_losses -lt "$losses" ]; do
    run=$((run + 1))
    begin lost-$run
    for i in $(seq $each); do
        k=$(((i - 1) % 4 + 1)) from=$(($(lines) + 1))
        eval "pid=\$agent$k"
        kill -KILL "$pid"
        wait "$pid" 2>/dev/null
        agent $k
        whole $from
        sleep 0.3
        done_losses=$((done_losses + 1))
    done
    end
done
line "$(field total_s | wc -l) losses of a node, commit to commit, median" "$(field total_s | quantile 0.5)" null
line "the same, 99th percentile" "$(field total_s | quantile 0.99)" 1
line "noticed, 99th percentile" "$(field detect_s | quantile 0.99)" 0.25

[ "$cuts" -gt 0 ] || exit 0
begin cut
# The next event of that name behind line FROM, in seconds since the heal.
since() { tail -n "+$2" "$out/events.jsonl" | grep "\"event\":\"$1\"" | sed -n "${3:-1}p" | sed 's/.*"wall_ns":\([0-9]*\).*/\1/' | awk -v heal="$heal" '{ printf "%.3f\n", ($1 - heal) / 1e9 }'; }
for i in $(seq "$cuts"); do
    k=$(((i - 1) % 4 + 1)) from=$(($(lines) + 1))
    ip link set "v1-$k" down
    sleep "$(awk "BEGIN { print 5 * $timeout }")"
    again=$(($(lines) + 1))
    ip link set "v1-$k" up
    heal=$(date +%s%N)
    whole $from
    since agent-joined $again >>"$root/joined"
    grep -q '"event":"board"' "$out/events.jsonl" && since board $again >>"$root/board"
    tail -n "+$again" "$out/events.jsonl" | grep '"event":"view"' | grep '"ranks":\[0,1,2,3\]' | head -n 1 | sed 's/.*"wall_ns":\([0-9]*\).*/\1/' |
        awk -v heal="$heal" '{ printf "%.3f\n", ($1 - heal) / 1e9 }' >>"$root/back"
    sleep 1
done
end
line "$cuts cuts of five timeouts of $timeout s, back after, median" "$(quantile 0.5 <"$root/back")" "$(awk "BEGIN { print 2 * $timeout }")"
line "the same, longest" "$(quantile 1 <"$root/back")" "$(awk "BEGIN { print 2 * $timeout }")"
line "of it until its agent is let in again, median" "$(quantile 0.5 <"$root/joined")" null
line "until its agent is let in again, longest" "$(quantile 1 <"$root/joined")" null
