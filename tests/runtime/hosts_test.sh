#!/bin/sh
# Agents that dial in from other hosts: the same bits as on one, what is refused, and what is lost and comes back.
# Hosts are network namespaces on a bridge, with a mount namespace around them, so that all goes with this script;
# where those are not allowed, addresses of loopback. mostly waits
set -u
here=$(dirname "$0")
if [ -z "${KEEL_HOSTS_INSIDE:-}" ] && command -v ip >/dev/null && command -v unshare >/dev/null; then
    user=$([ "$(id -u)" -eq 0 ] || echo -r)
    # shellcheck disable=SC2086
    unshare $user -nm sh -c 'mount -t tmpfs tmpfs /run && ip netns add try && ip link set lo up' 2>/dev/null &&
        KEEL_HOSTS_INSIDE=1 exec unshare $user -nm sh "$0"
fi
. "$here/script.sh"
export KEEL_LOG=warn TMPDIR="$root"

# ---- hosts ----------------------------------------------------------------------------------------------------------

# Four hosts, h1 to h4, 10.77.0.11 to .14, which this one reaches as 10.77.0.1.
make_hosts() {
    mount -t tmpfs tmpfs /run && ip link set lo up && ip link add br0 type bridge && ip link set br0 up &&
        ip addr add 10.77.0.1/24 dev br0 || return 1
    for k in 1 2 3 4; do
        ip netns add h$k && ip link add v$k type veth peer name eth0 netns h$k && ip link set v$k master br0 up &&
            ip -n h$k addr add 10.77.0.1$k/24 dev eth0 && ip -n h$k link set eth0 up && ip -n h$k link set lo up || return 1
    done
}
# As ssh does it: the words, joined, for a shell of that host.
cat >"$root/enter" <<'END'
host=$1
shift
exec ip netns exec "$host" sh -c "$*"
END

job="--set job.seed=1 --set train.decay_steps=1000 --set data.path=$text"
on= # what starts the launcher on its host
begin() { # begin DIR WORDS...: a run that waits for agents, in the background
    out=$root/$1
    shift
    rm -f "$out.log" # of the life before, in which place would find the old one
    # shellcheck disable=SC2086
    $on "$KEEL" run "$here/../demo/drill.conf" $job --ranks 4 --out "$out" "$@" >"$out.log" 2>&1 &
    launcher=$!
}
await() { # await FILE PATTERN [COUNT]: until so many lines of a file have it; not for ever
    for _ in $(seq 3000); do
        found=$(grep -c -e "$2" "$1" 2>/dev/null)
        [ "${found:-0}" -ge "${3:-1}" ] && return 0
        sleep 0.1
    done
    echo "FAIL no $2 in $1"
    return 1
}
place() { await "$out.log" 'agents dial in at' && place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$out.log"); }
join() { # join NUMBER WORDS...: an agent in the background, into $agent
    name=$1
    shift
    "$KEEL" agent --join "$place" --key-file "$out/job.key" "$@" >"$out.agent$name.log" 2>&1 &
    agent=$!
}
finish() { wait "$launcher"; code=$?; }
agents_end() { # each with this code
    for pid in $agents; do wait "$pid"; [ $? -eq "$1" ] || return 1; done
}
reference() { # reference STEPS: one rank of one host
    # shellcheck disable=SC2086
    [ -d "$root/reference-$1" ] || "$KEEL" run "$here/../demo/drill.conf" $job --set "train.steps=$1" \
        --out "$root/reference-$1" >"$root/log" 2>&1
}
events() { grep -c "\"event\": *\"$1\"" "$out/events.jsonl"; }

# ---- loopback ---------------------------------------------------------------------------------------------------------

ip link set lo up 2>/dev/null
reference 12
begin four --set cluster.launch=none --set cluster.bind=127.0.0.1 --set train.sample=16 --set cluster.timeout_s=10 # all come in time
place
agents=
for k in 1 2 3 4; do join $k --address 127.0.0.$k; agents="$agents $agent"; done
finish
check "four agents dial in, and the run is done" [ $code -eq 0 ]
check "with the bits of one rank on one host" same_bits "$root/reference-12" "$out"
check "and the agents end with it" agents_end 0
check "nobody is told to be missing" [ "$(events ranks-missing)" -eq 0 ]
check "what they had of their own is gone" [ "$(find "$root" -maxdepth 1 -name 'keel-agent-*' | wc -l)" -eq 0 ]
check "the text comes by the store" [ -s "$out/sample.txt" ]
check "it is told who came, and from where" grep -q '"event":"agent-joined".*"from":"127.0.0.3:' "$out/events.jsonl"

# No directory is common: each host keeps its own, and one of them loses it between two lives.
for steps in 8 12; do
    begin own --set cluster.launch=none --set cluster.bind=127.0.0.1 --set "train.steps=$steps" --set "snapshot.local=$root/own-nodes" \
        --set snapshot.partner=yes --set cluster.timeout_s=10
    place
    agents=
    for k in 1 2 3 4; do join $k --address 127.0.0.$k; agents="$agents $agent"; done
    finish
    check "four hosts with directories of their own: $steps steps" [ $code -eq 0 ]
    agents_end 0
    [ $steps -ne 8 ] || rm -r "$root/own-nodes/node-2"
done
check "they leave nothing in the run's" [ ! -e "$out/ckpt" ]
check "the run goes on behind the first life, from a partner's copy" grep -q \
    '"event":"resumed".*"step":8,.*with 1 shards from copies on other nodes' "$out/events.jsonl"
check "with the bits of one rank on one host" same_bits "$root/reference-12" "$out"

if grep -q '^00000000000000000000000000000001' /proc/net/if_inet6 2>/dev/null; then
    KEEL_SHARED_MEMORY=0; export KEEL_SHARED_MEMORY
    begin six --set cluster.launch=none --set 'cluster.bind=[::1]'
    place
    agents=
    for k in 1 2 3 4; do join $k; agents="$agents $agent"; done
    finish
    check "the same by IPv6, control and fabric" [ $code -eq 0 ]
    check "the same bits by IPv6" same_bits "$root/reference-12" "$out"
    agents_end 0
    unset KEEL_SHARED_MEMORY
fi

# ---- refusals ---------------------------------------------------------------------------------------------------------

run() { "$KEEL" run "$here/../demo/drill.conf" --ranks 2 --out "$root/refused" "$@"; }
agent() { "$KEEL" agent --join 127.0.0.1:9 --wait 1 "$@"; }
check "ssh without hosts" says 2 'cluster.launch = ssh: which hosts' run --set cluster.launch=ssh
check "hosts where all is local" says 2 'cluster.hosts = a,b says nothing to cluster.launch = local: leave it out; it is for cluster.launch = none, ssh, slurm' run --set cluster.hosts=a,b
check "a host that is an option" says 2 'is no host' run --set cluster.launch=ssh --set cluster.hosts=-oProxyCommand=x,b
printf 'a\n\0b\n' >"$root/no-text"
check "a file of hosts that is no text" says 2 'no-text: is no text' run --set cluster.launch=ssh --set "cluster.hosts=$root/no-text"
check "a name that is loopback" says 2 'loopback' run --set cluster.launch=none --set cluster.advertise=localhost
check "loopback, with a host elsewhere" says 2 'cluster.hosts has others' \
    run --set cluster.launch=ssh --set cluster.hosts=192.0.2.7 --set cluster.bind=127.0.0.1
check "an address that is every one" says 2 'is every address' \
    run --set cluster.launch=none --set cluster.bind=0.0.0.0 --set cluster.advertise=0.0.0.0
check "an address of another host" says 1 'cannot' run --set cluster.launch=none --set cluster.bind=192.0.2.7
check "slurm without Slurm" says 3 'no allocation of Slurm' run --set cluster.launch=slurm
check "holders on one host" says 2 'is not used by cluster.launch = local' run --set cluster.holders=3
check "an even number of them" says 2 'a majority decides' run --set cluster.holders=2
check "more of them than nodes" says 2 'the launcher and 2 nodes are 3' run --set cluster.launch=none --set cluster.holders=5
check "holders without a common store" says 2 'in the common store' run --set cluster.launch=none --set cluster.holders=3 --set snapshot.every=0
check "holders, and directories of nodes alone" says 2 'give snapshot.store = DIR' \
    run --set cluster.launch=none --set cluster.holders=3 --set "snapshot.local=$root/alone"
check "a command that starts nothing" says 5 'ended (exit code 1) before' \
    run --set cluster.launch=ssh --set cluster.hosts=127.0.0.1 --set cluster.bind=127.0.0.1 --set cluster.shell=false
check "a text without a store" says 2 'train.sample = 8' \
    run --set cluster.launch=none --set cluster.bind=127.0.0.1 --set train.sample=8 --set snapshot.every=0
check "a drill that no other host can do" says 2 'cannot kill the launcher' \
    run --set cluster.launch=none --set cluster.bind=127.0.0.1 --drill kill:all,step=3
check "no key file" says 2 '--join needs --key-file' agent
check "a key file that is none" says 3 'cannot be opened' agent --key-file "$root/none"
cp "$out/job.key" "$root/open.key"
chmod 644 "$root/open.key"
check "a key file that others can read" says 3 'open to others (mode 644); chmod 600 it' agent --key-file "$root/open.key"
echo 12 >"$root/short.key"
chmod 600 "$root/short.key"
check "a key file that holds none" says 4 'a key has 65' agent --key-file "$root/short.key"
check "a key that ends early on the standard input" says 4 'standard input' agent --key-file - </dev/null
check "nobody there" says 1 'nobody took this agent' agent --key-file "$out/job.key"
check "a name that nobody knows" says 3 '--join no.such.host.invalid:9: no place has a host that is known here, for 1 s' \
    "$KEEL" agent --join no.such.host.invalid:9 --key-file "$out/job.key" --wait 1
check "a name that is loopback here, and nobody there" says 1 'on this host that name is 127.0.0.1, loopback' \
    "$KEEL" agent --join localhost:9 --key-file "$out/job.key" --wait 1
check "of nine places each is named" says 1 '127.0.0.1:6: Connection refused; 127.0.0.1:5: Connection refused; ' "$KEEL" agent --wait 1 \
    --key-file "$out/job.key" --join 127.0.0.1:9,127.0.0.1:8,127.0.0.1:7,127.0.0.1:6,127.0.0.1:5,127.0.0.1:4,127.0.0.1:3,127.0.0.1:2,127.0.0.1:1
check "an address of two families" says 2 'two families' agent --key-file "$out/job.key" --address ::1
check "an address that is not here" says 2 'is no address of this host' agent --key-file "$out/job.key" --address 192.0.2.9
check "an address that is none" says 2 'is no name that this host knows; give one of this host' agent --key-file "$out/job.key" --address no.such.host.invalid
check "an address that others do not reach" says 2 '--address 127.0.0.1: is loopback' \
    "$KEEL" agent --join 192.0.2.7:9 --wait 1 --key-file "$out/job.key" --address 127.0.0.1
check "two ways to be an agent" says 2 'no JOB' "$KEEL" agent job.conf --join 127.0.0.1:9 --key-file "$out/job.key"

begin busy --set cluster.launch=none --set cluster.bind=127.0.0.1
place
port=${place##*:}
awk 'BEGIN { for (i = 0; i < 64; i++) printf "%x", i % 16; print "" }' >"$root/other.key"
chmod 600 "$root/other.key"
check "another key, told to the agent" says 3 "does not know this agent's key" \
    "$KEEL" agent --join "$place" --key-file "$root/other.key"
check "and by the launcher" await "$out.log" 'does not prove the job key'
check "a number beyond the run" says 2 'the run has nodes 1 to 4' "$KEEL" agent --join "$place" --key-file "$out/job.key" --node 9
join 2 --node 2
agents=$agent
await "$out.log" 'node 2: its agent came'
check "a number that is taken" says 1 'node 2, which is here already' "$KEEL" agent --join "$place" --key-file "$out/job.key" --node 2
check "a directory that is in use" says 1 'another agent is at work there' sh -c "
    '$KEEL' agent --join '$place' --key-file '$out/job.key' --node 3 --dir '$root/own' & first=\$!
    until [ -e '$root/own/agent.lock' ]; do sleep 0.1; done
    until grep -q 'node 3: its agent came' '$out.log'; do sleep 0.1; done
    '$KEEL' agent --join '$place' --key-file '$out/job.key' --dir '$root/own'; code=\$?
    kill \$first; wait \$first; exit \$code"
check "an agent that goes while others are awaited is missed again" await "$out.log" 'node 3: its agent on .* is gone'
head -c 300 /dev/urandom >"$root/garbage"
if command -v python3 >/dev/null; then # strangers: garbage, half an opening that stays, a launcher's opening turned round
    python3 - "$port" "$root/garbage" <<'END'
import socket, sys
garbage = open(sys.argv[2], "rb").read()
held = []
for kind in range(90):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    opening = s.recv(72, socket.MSG_WAITALL)
    s.sendall([garbage, opening, opening[:20], opening[:7] + b"A" + opening[8:] + b"\xff" * 8,
               opening[:7] + b"A9.9.9" + opening[13:]][kind % 5])
    held.append(s)
END
    # One opening of another release, one that stays half, and then a launcher of another release.
    python3 - "$port" <<'END' &
import socket, sys
def call(): return socket.create_connection(("127.0.0.1", int(sys.argv[1])))
slow, old = call(), call()
opening = old.recv(72, socket.MSG_WAITALL)
slow.sendall(opening[:20])
old.sendall(opening[:7] + b"A" + b"9.9.9".ljust(32, b"\0") + opening[40:])
slow.recv(72, socket.MSG_WAITALL)
slow.recv(1)
END
    slow=$!
    check "an agent of another release, both named" await "$out.log" 'agent is of release 9.9.9, the launcher of release'
    check "one that says half of what it should" await "$out.log" 'did not say in time who it is (9[0-9] so far)'
    check "and each of them is counted" [ $? -eq 0 ]
    wait $slow
    python3 - "$root/old.port" <<'END' &
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
open(sys.argv[1], "w").write("%d\n" % listener.getsockname()[1])
s = listener.accept()[0]
s.sendall(b"KEELJO2L" + b"9.9.9".ljust(32, b"\0") + bytes(32))
s.recv(1000)
END
    await "$root/old.port" .
    check "a launcher of another release, both named" says 4 'the launcher is of release 9.9.9, this agent of release' \
        "$KEEL" agent --join "127.0.0.1:$(cat "$root/old.port")" --key-file "$out/job.key"
fi
check "the key is in no argument" sh -c "! tr '\\0' ' ' </proc/$launcher/cmdline /proc/$agent/cmdline | grep -q \"\$(head -c 64 '$out/job.key')\"" 2>/dev/null
for k in 1 3 4; do join $k; agents="$agents $agent"; done
finish
check "and nothing was lost by them" [ $code -eq 0 ]
check "the same bits" same_bits "$root/reference-12" "$out"
agents_end 0

begin stopped --set cluster.launch=none --set cluster.bind=127.0.0.1
place
join 1
await "$out.log" 'node 1: its agent came'
kill -INT "$launcher"
finish
check "stopped before all had come: can be run again" [ $code -eq 5 ]
wait "$agent"
check "and who had come is told so, and ends" [ $? -eq 5 ]
check "by name" grep -q 'the run is over' "$out.agent1.log"

# The others have six timeouts to be ready: more of them where that was too little.
mkdir -p "$root/elsewhere"
for timeout in 1 4 16; do
    rm -rf "$root/store"
    begin store --set cluster.launch=none --set cluster.bind=127.0.0.1 --set cluster.respawn=no --set cluster.timeout_s=$timeout
    place
    agents=
    for k in 2 3 4; do join $k --node $k; agents="$agents $agent"; done
    join 1 --node 1 --store "$root/elsewhere"
    wait "$agent"
    refused=$?
    await "$out.log" 'node 1: .*elsewhere on this host'
    told=$?
    finish
    grep -q 'ready in time' "$out.log" && ! grep -q 'no datagram' "$out.log" || break
    agents_end 0
done
check "a store that is not the launcher's ends its agent" [ $refused -eq 3 ]
check "which says where it looked" grep -q 'elsewhere on this host is not where the launcher commits' "$out.agent1.log"
check "and so does the launcher" [ $told -eq 0 ]
check "and the others train" [ $code -eq 0 ]
check "which is told as they begin, with who is missing and why" \
    '[ "$(grep -A2 "the run begins with 3 of 4 ranks; missing:" "$out.log" | grep -c "  node 1: .*elsewhere on this host is not where\|  who comes later joins.*keel job stop $out")" -eq 2 ]'
check "and in events.jsonl" grep -q '"event":"ranks-missing",.*"ranks":3,"wanted":4,.*"nodes":\[{"node":1,"why":"[^{}]*elsewhere[^{}]*"}\]' "$out/events.jsonl"
check "with the same bits" same_bits "$root/reference-12" "$out"
agents_end 0

# ---- hosts fail as a whole --------------------------------------------------------------------------------------------

# Four nodes on two hosts: what a rank owns has its copy on the other host, so both nodes of one may go at once.
cat >"$root/local" <<'END'
shift
exec sh -c "$*"
END
begin domains --set cluster.launch=ssh --set "cluster.shell=sh $root/local %h" --set cluster.hosts=127.0.0.1,127.0.0.2 \
    --set cluster.bind=127.0.0.1 --set parallel.zero=1 --set parallel.holders=2 --set train.steps=40 --set snapshot.every=0 \
    --drill slow:rank=3,step=1,ms=100,steps=1000
place
await "$out/metrics.jsonl" '"step":5,'
# shellcheck disable=SC2046
kill -KILL $(agents_of 1 2)
finish
check "both nodes of a host are killed at once, and the run is done" [ $code -eq 0 ]
reference 40
check "with the same bits" same_bits "$root/reference-40" "$out"
check "two ranks were lost" [ "$(lost)" -ge 2 ]
check "and no state with them: copies are on the other host" [ "$(events state-lost)" -eq 0 ]

# Both nodes that train are lost, each with the only copy of its shard, and a spare on a third host is left: it waits for them.
# Which snapshot is the first that they have is up to the disk: of a step that comes while one is written there is none.
begin lone --ranks 2 --spares 1 --set cluster.launch=ssh --set "cluster.shell=sh $root/local %h" --set cluster.hosts=127.0.0.1,127.0.0.2,127.0.0.3 \
    --set cluster.bind=127.0.0.1 --set "snapshot.local=$root/lone-nodes" --set snapshot.every=4 --set train.steps=40 \
    --drill slow:rank=0,step=1,ms=300,steps=1000
place
await "$out/events.jsonl" '"event":"snapshot",.*"step":[1-9]'
# shellcheck disable=SC2046
kill -KILL $(agents_of 1 2)
finish
check "all who have a snapshot are lost, and the run is done" [ $code -eq 0 ]
check "with the same bits" same_bits "$root/reference-40" "$out"
check "from their snapshot, once they are back" grep -q '"event":"resumed".*"step":[1-9]' "$out/events.jsonl"

. "$here/hosts_leads.sh"
. "$here/hosts_gate.sh"
. "$here/hosts_hangs.sh"

# ---- network namespaces -----------------------------------------------------------------------------------------------

skipped=0
if [ -n "${KEEL_HOSTS_INSIDE:-}" ] && make_hosts; then
    . "$here/hosts_cuts.sh"
    . "$here/hosts_lost.sh"
else
    skipped=12
    echo "note: network namespaces are not allowed here, or ip is not installed: hosts were addresses of loopback"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
