# hosts_cuts.sh - part of hosts_test.sh, where network namespaces are allowed: a run over four of them, whose hosts
# are killed, cut off, and replaced. Sourced.
now() { date +%s.%N; }
# took CLAIM SINCE: says how many timeouts went by. A figure, no test: the machine may be busy.
took() { awk -v claim="$1" -v since="$2" -v now="$(now)" -v timeout=2 'BEGIN { printf "note: %s: %.1f timeouts\n", claim, (now - since) / timeout }'; }
cut() { ip link set "v${1#h}" down; }
heal() { ip link set "v${1#h}" up; }
in_view() { await "$out.log" "$1" "$2"; }
views() { grep -c 'view [0-9]*:' "$out.log"; }
committed() { wc -l <"$out/metrics.jsonl"; }
goes_on() { # steps are committed from now on
    before=$(committed)
    for _ in $(seq 600); do [ "$(committed)" -gt $((before + 2)) ] && return 0; sleep 0.1; done
    return 1
}
agent_of() { # the process that is agent NUMBER: started by its launcher on that host
    ip netns pids "h$1" | while read -r pid; do
        { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -q '^[^ ]*keel agent --join' && echo "$pid"
    done | head -n 1
}
# The last line of a view with so many ranks, behind line FROM of the log.
await_ranks() { # await_ranks RANKS FROM
    for _ in $(seq 1200); do
        tail -n +"$2" "$out.log" | grep 'view [0-9]*:' | tail -n 1 | grep -q ": $1 ranks" && return 0
        sleep 0.05
    done
    echo "FAIL no view of $1 ranks"
    return 1
}
lines() { echo $(($(wc -l <"$out.log") + 1)); }

begin hosts --set cluster.launch=ssh --set "cluster.shell=sh $root/enter %h" --set cluster.hosts=h1,h2,h3,h4 \
    --set cluster.timeout_s=2 --set train.steps=100000 --drill slow:rank=0,step=1,ms=60,steps=100000
await_ranks 4 1
check "agents on four hosts, started as ssh starts them, make a view" [ $? -eq 0 ]
check "it is said which network they use" grep -q 'agents dial in at 10.77.0.1:[0-9]* (br0, MTU 1500)' "$out.log"
check "each came from its own host" [ "$(grep -c 'its agent came from .*10\.77\.0\.1[1-4]:' "$out.log")" -eq 4 ]

since=$(now) from=$(lines)
kill -KILL "$(agent_of 2)"
await_ranks 3 "$from" && took "an agent is killed, the others go on after" "$since"
await_ranks 4 "$from"
check "a killed agent is started again, and joins" [ $? -eq 0 ]
took "its node is back after" "$since"

from=$(lines)
cut h3
sleep 10 # five timeouts
await_ranks 3 "$from"
check "a host that is cut off is left out" [ $? -eq 0 ]
since=$(now)
heal h3
await_ranks 4 "$from"
check "and is back when its network is" [ $? -eq 0 ]
took "a host is back from a cut of five timeouts after" "$since"

from=$(lines)
cut h4
sleep 1 # half a timeout: nobody is lost by it, or everybody who is comes back
heal h4
goes_on
check "a cut shorter than a timeout costs nothing but time" [ $? -eq 0 ]
await_ranks 4 1

from=$(lines)
cut h4
await_ranks 3 "$from"
since=$(now)
place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$out.log" | head -n 1)
ip netns add h5 && ip link add v5 type veth peer name eth0 netns h5 && ip link set v5 master br0 up &&
    ip -n h5 addr add 10.77.0.15/24 dev eth0 && ip -n h5 link set eth0 up && ip -n h5 link set lo up
ip netns exec h5 "$KEEL" agent --join "$place" --key-file - <"$out/job.key" >"$out.agent5.log" 2>&1 &
new=$!
await_ranks 4 "$from"
check "a new host that dials in replaces the one that is gone" grep -q 'node 4: its agent came from .*10.77.0.15' "$out.log"
took "a host is replaced after" "$since"
heal h4
goes_on
check "and the old one, back, harms nothing" [ $? -eq 0 ]
kill -INT "$launcher"
finish
check "the run is ended in order" [ $code -eq 5 ]
wait $new
check "and the new host's agent with it" [ $? -eq 5 ]
steps=$(committed)
reference "$steps"
check "through all of it the bits are those of one rank ($steps steps)" same_bits "$root/reference-$steps" "$out"

# The launcher's host, h4, is cut off for five timeouts: a node leads, and the launcher follows it when it is back.
# shellcheck disable=SC2086
on="ip netns exec h4"
begin apart --ranks 3 --set cluster.launch=ssh --set "cluster.shell=sh $root/enter %h" --set cluster.hosts=h1,h2,h3 \
    --set cluster.bind=10.77.0.14 --set cluster.holders=3 --set train.steps=200 $holders
on=
await_ranks 3 1
await "$out/metrics.jsonl" '"step":10,'
since=$(now)
cut h4
check "the launcher's host is cut off, and a node leads" await_led events.jsonl '"event":"leader"' 1
took "a node leads after" "$since"
check "snapshots go on" await_led events.jsonl '"event":"snapshot"' 3
sleep 5 # five timeouts, with what went by
heal h4
check "and the launcher follows, once it is back" await "$out.log" 'node [1-3] leads the run'
finish
check "it ends with the run" [ $code -eq 0 ]
check "and has all lines then" [ "$(committed)" -eq 200 ]
check "no rank was lost by it" [ "$(lost)" -eq 0 ]
reference 200
check "with the bits of one rank" same_bits "$root/reference-200" "$out"

# A bridge whose port takes no long frames, as a switch does: what is longer is dropped, and nobody says so.
for k in 1 2 3 4; do ip -n h$k link set eth0 mtu 9000; done
begin long --set cluster.launch=ssh --set "cluster.shell=sh $root/enter %h" --set cluster.hosts=h1,h2,h3,h4 \
    --set cluster.respawn=no
await "$out.log" 'datagrams of [0-9]* bytes do not pass between 10.77.0.1[1-4] (eth0, MTU 9000)'
check "an MTU that the way does not have is found and named" [ $? -eq 0 ]
finish
check "and ends the run" [ $code -eq 3 ]
for k in 1 2 3 4; do ip -n h$k link set eth0 mtu 1500; done

# By ssh itself, where there is a server: as `cluster.launch = ssh` does by default, but for the key.
# Of a root that is one in its own user namespace alone, sshd takes no session.
if PATH=$PATH:/usr/sbin command -v sshd >/dev/null && command -v ssh >/dev/null &&
    [ "$(awk '{ print $3; exit }' /proc/self/uid_map)" -gt 65536 ]; then
    mkdir -p -m 755 /run/sshd "$root/ssh"
    ssh-keygen -q -t ed25519 -N '' -f "$root/ssh/own" && ssh-keygen -q -t ed25519 -N '' -f "$root/ssh/host"
    cp "$root/ssh/own.pub" "$root/ssh/authorized"
    servers=
    for k in 1 2 3 4; do
        ip netns exec h$k /usr/sbin/sshd -D -e -f /dev/null -h "$root/ssh/host" -o UsePAM=no -o StrictModes=no -o PidFile=none \
            -o PermitRootLogin=yes -o "AuthorizedKeysFile=$root/ssh/authorized" 2>"$root/ssh/log$k" &
        servers="$servers $!"
    done
    for k in 1 2 3 4; do await "$root/ssh/log$k" 'Server listening on 0.0.0.0'; done
    begin ssh --set cluster.launch=ssh --set cluster.hosts=10.77.0.11,10.77.0.12,10.77.0.13,10.77.0.14 --set \
        "cluster.shell=ssh -F none -i $root/ssh/own -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR %h"
    finish
    check "by ssh itself, the key through its standard input" [ $code -eq 0 ]
    check "the same bits by ssh" same_bits "$root/reference-12" "$out"
    # shellcheck disable=SC2086
    kill $servers
else
    skipped=$((skipped + 2))
    echo "note: no server of ssh here (Debian: openssh-server), or not root of this machine: agents were started as ssh starts them"
fi
