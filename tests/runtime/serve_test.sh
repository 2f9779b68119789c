#!/bin/sh
# keel serve: texts over HTTP are those of keel sample, whatever else is served; slow, broken, oversized and impatient
# clients cost neither descriptors nor memory; a signal ends it when what was taken is done; what cannot be is refused.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
jobs=$here/../../runtime/jobs
explain() { tail -n 5 "$root/log" "$root/errors" 2>/dev/null; }
trap 'kill $server 2>/dev/null; rm -rf "$root"' EXIT
server=

train() { # KIND DIR ARGUMENTS...: they win over what is set here
    kind=$1 out=$root/$2
    shift 2
    for setting in "data.path=$text" model.width=64 model.heads=2 model.layers=2 model.block=64 train.batch=1 train.steps=1 \
        train.decay_steps=4 train.warmup_steps=2 train.eval_every=0 snapshot.every=1 job.shards=1 cluster.timeout_s=4; do
        set -- --set "$setting" "$@"
    done
    timeout 600 "$KEEL" run "$jobs/$kind.conf" --out "$out" --ranks 1 --sample 0 "$@" >"$out.log" 2>&1
}
serve() { # DIR ARGUMENTS...: sets server and port
    : >"$root/errors" # of the server before
    "$KEEL" serve "$@" --port 0 >"$root/log" 2>"$root/errors" &
    server=$!
    until port=$(sed -n 's/.* at http:[^ ]*:\([0-9]*\), .*/\1/p' "$root/errors") && [ -n "$port" ]; do
        kill -0 $server 2>/dev/null || return 1
        sleep 0.1
    done
}
ended() { # CODE: the server ends so
    wait $server
    code=$?
    server=
    [ $code -eq "$1" ]
}
ask() { # JSON [ARGUMENTS...]: the answer's body in $root/answer
    curl -s --max-time 120 "http://127.0.0.1:$port/v1/completions" -d "$@" >"$root/answer"
}
# until_figure NAME NUMBER: the metrics have it; or the server is gone, or it never comes.
until_figure() {
    for _ in $(seq 1200); do
        [ "$(curl -s --max-time 120 "http://127.0.0.1:$port/metrics" | sed -n "s/^keel_serve_$1 //p")" != "$2" ] && kill -0 $server 2>/dev/null || break
        sleep 0.05
    done
}
text_of() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["choices"][0]["text"], end="")' "$1"; }
expect() { # DIR JSON ARGUMENTS...: what keel sample says to that is what is expected
    dir=$1 request=$2
    shift 2
    timeout 300 "$KEEL" sample "$dir" --device host "$@" --json 2>>"$root/errors" |
        python3 -c 'import json, sys; r = json.loads(sys.argv[1]); r["text"] = json.load(sys.stdin)["text"]; print(json.dumps(r))' "$request" >>"$root/expected"
}

# Long texts that take seconds: rows of a large vocabulary.
train demo long --set model.block=2048 --set model.vocab=8192
expect "$root/long" '{"prompt": "the ", "max_tokens": 12}' --prompt "the " --tokens 12
expect "$root/long" '{"prompt": "a lazy dog", "max_tokens": 5, "temperature": 0}' --prompt "a lazy dog" --tokens 5 --temperature 0
expect "$root/long" '{"max_tokens": 9, "seed": 7, "top_k": 20, "top_p": 0.9}' --tokens 9 --seed 7 --top-k 20 --top-p 0.9
expect "$root/long" '{"prompt": "brown fox jumps over", "max_tokens": 20, "seed": 9223372036854775807, "temperature": 1.5}' \
    --prompt "brown fox jumps over" --tokens 20 --seed 9223372036854775807 --temperature 1.5
check "there are texts to compare with" [ "$(wc -l <"$root/expected")" -eq 4 ]

# ---- clients of all kinds ----
check "it listens" serve "$root/long" --device host --slots 3 --queue 4 --max-body 8K --client-timeout 2s --connections 48
check "at loopback alone" sh -c "grep -q 'at http://127.0.0.1:' '$root/errors'"
python3 "$here/serve_client.py" "$port" $server "$root/expected" 100 2 >"$root/log" 2>&1
check "200 requests of good, slow, broken, oversized and impatient clients" [ $? -eq 0 ]
check "nothing is wrong with them" '! grep -q WRONG "$root/log"'
check "there were all kinds" grep -q 'broken=.* good=.* half=.* leaves=.* oversized=.* slow=.* stalls=.* stream=' "$root/log"
sed -n 's/^counts/note: &/p' "$root/log"
ask '{"prompt":"the ","max_tokens":12}'
stop=$(text_of "$root/answer" | tr '\n' ' ' | cut -c 6-7)
ask "{\"prompt\":\"the \",\"max_tokens\":12,\"stop\":[\"no such\",\"$stop\"]}"
check "a text ends before what it is to stop at" '[ "${#stop}" -eq 2 ] && grep -q "\"finish_reason\":\"stop\"" "$root/answer"'
check "health" sh -c "curl -s http://127.0.0.1:$port/health | grep -q '\"status\":\"ok\",\"model\":\"demo\",\"step\":1'"
check "metrics have a type each" sh -c "curl -s http://127.0.0.1:$port/metrics | awk '/^# TYPE/ { t[\$3] = 1 } /^[a-z]/ { n = \$1; sub(/[{].*/, \"\", n); sub(/_(bucket|sum|count)\$/, \"\", n); if (!t[n]) exit 1 }'"
curl -s "http://127.0.0.1:$port/metrics" >"$root/metrics"
check "those who left were given up" grep -q '^keel_serve_given_up_total [1-9]' "$root/metrics"
many= # three that are computed, four that wait, five for whom there is no place
several() { # TOKENS SEED...
    tokens=$1
    shift
    for i; do
        curl -s -i --max-time 120 "http://127.0.0.1:$port/v1/completions" -d "{\"max_tokens\":$tokens,\"seed\":$i}" >"$root/many.$i" &
        many="$many $!"
    done
}
several 1500 1 2 3
until_figure active 3
several 300 4 5 6 7
until_figure queued 4
several 300 8 9 10 11 12
wait $many
check "a full queue is said by 503" grep -q '^HTTP/1.1 503' "$root"/many.*
check "with the seconds to wait" grep -qi '^Retry-After: [1-9]' "$root"/many.*
check "those that were taken get theirs" [ "$(grep -l '"completion_tokens":300' "$root"/many.* | wc -l)" -ge 4 ]
check "and there is no other answer" [ "$(grep -hc '^HTTP/1.1 \(200\|503\)' "$root"/many.* | grep -c 1)" -eq 12 ]

kill -TERM $server
ended 0
serve "$root/long" --device host --slots 1 --queue 2
python3 - "$port" <<'END'
import socket, struct, sys, time
from urllib.request import urlopen
def ask(tokens):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    body = b'{"max_tokens":%d}' % tokens
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    return s
def figures():
    lines = urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read().decode().split("\n")
    return tuple(int(l.split()[1]) for name in ["queued", "active"] for l in lines if l.startswith(f"keel_serve_{name} "))
one = ask(2000)
while figures() != (0, 1):
    time.sleep(0.05)
more = [ask(2), ask(2)]
while figures() != (2, 1):
    time.sleep(0.05)
for s in more:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()
while (now := figures()) != (0, 1): # one after the other, while the text of the first goes on
    assert now in [(2, 1), (1, 1)], now
    time.sleep(0.05)
one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
END
check "who left while he waited leaves his place to others at once" [ $? -eq 0 ]
kill -TERM $server
check "and nothing is left of them" ended 0

# ---- the end ----
serve "$root/long" --device host --slots 3 --queue 4
curl -sN --max-time 120 "http://127.0.0.1:$port/v1/completions" -d '{"max_tokens":1500,"stream":true,"seed":3}' >"$root/stream" &
client=$!
until grep -qs data: "$root/stream"; do kill -0 $client || break; sleep 0.1; done
ask '{"max_tokens":700,"seed":4}' &
second=$!
until_figure active 2
kill -TERM $server
check "a signal ends it" ended 0
wait $client $second
check "when what was taken is done: a stream" grep -q 'DONE' "$root/stream"
check "of all its tokens" grep -q '"completion_tokens":1500' "$root/stream"
check "and a text" grep -q '"completion_tokens":700' "$root/answer"
check "figures are told" grep -q 'keel serve: [0-9]* requests, [0-9]* done, [0-9]* given up, [0-9]* refused; [0-9]* tokens' "$root/errors"
serve "$root/long" --device host
rm "$root/stream" # what the one before left there is no sign of this one
curl -sN --max-time 120 "http://127.0.0.1:$port/v1/completions" -d '{"max_tokens":2000,"stream":true}' >"$root/stream" &
client=$!
until grep -qs data: "$root/stream"; do kill -0 $client || break; sleep 0.1; done
kill -TERM $server
sleep 1.5 # within a second it counts as the first
kill -TERM $server
check "a second signal ends it at once" ended 5
wait $client
KEEL_DEVICE_FAULTS="error:launch=400" serve "$root/long" --device host
ask '{"max_tokens":100}'
check "a device that fails is said" grep -q '"code":500,"message":"the device has failed"' "$root/answer"
check "and ends it" ended 1
check "by its name" grep -q 'keel serve: the device failed: host: .* injected, number 400' "$root/errors"

# ---- other models ----
train moe-demo moe --set model.experts=4 --set model.capacity=0.5 --set train.batch=2
rm "$root/expected"
expect "$root/moe" '{"prompt": "the ", "max_tokens": 6}' --prompt "the " --tokens 6
serve "$root/moe" --device host --slots 2
check "a model that keeps nothing says so" grep -q 'each computed whole for each token' "$root/errors"
ask '{"prompt":"the ","max_tokens":6}'
wanted=$(python3 -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())["text"], end="")' "$root/expected")
check "and is served" [ "$(text_of "$root/answer")" = "$wanted" ]
kill -TERM $server
check "and ends" ended 0
serve "$root/moe" --device pocl # whose threads take signals that they do not block
kill -TERM $server
check "a signal ends it when what was taken is done, whatever threads a driver has" ended 0
check "and says so" grep -q 'keel serve: 0 requests' "$root/errors"

# ---- what cannot be ----
refused() { # NAME CODE WORDS ARGUMENTS...
    name=$1 wanted=$2 words=$3
    shift 3
    timeout 60 "$KEEL" serve "$@" >"$root/log" 2>"$root/errors"
    code=$?
    check "$name" [ "$code" -eq "$wanted" ]
    check "$name, and says so" grep -qF -- "$words" "$root/errors"
    code=
}
serve "$root/moe" --device host
refused "a port that is taken" 1 "127.0.0.1 port $port: cannot be listened at" "$root/moe" --device host --port "$port"
kill -TERM $server
ended 0
refused "no address" 2 "--bind here: an address of this host by its numbers" "$root/moe" --device host --bind here
refused "an address of another host" 1 "take another --bind" "$root/moe" --device host --bind 192.0.2.1 --port 0
refused "no bytes of a request" 2 "--max-body 0: at least 2" "$root/moe" --max-body 0
refused "no port" 2 "--port 65536: at most 65535" "$root/moe" --port 65536
refused "too many slots" 2 "--slots 65: at most 64" "$root/moe" --slots 65
refused "no slots" 2 "--slots needs N" "$root/moe" --slots 0
refused "a run that is not there" 3 "is not there" "$root/none"
train bert-demo bert
refused "a model that predicts no next token" 2 "its model predicts no next token" "$root/bert"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
