# weights.sh - what the tests of weights under other programs' names share: a short job, and what of it is told. Sourced
# behind script.sh; $names is what a model's exported folder ends with.
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
explain() { tail -n 5 "$root/log" "$root/errors"; }

job() { # NAME DATA: what of a job is common, to the begin of its model
    cat <<END
[job]
name = $1
[data]
path = $2
[train]
steps = 4
decay_steps = 4
warmup_steps = 1
batch = 2
eval_every = 0
eval_batches = 3
[snapshot]
every = 2
[cluster]
device = host
timeout_s = 2
[model]
END
}
train() { # JOB DIR ARGUMENTS...
    job=$1 out=$root/$2
    shift 2
    timeout 600 "$KEEL" run "$root/$job.conf" --out "$out" "$@" >"$root/log" 2>"$root/errors"
}
told() { "$KEEL" eval "$root/$1" --json 2>"$root/errors" | grep -o '"loss_bits":"[0-9a-f]*"'; }
header() { head -c 60000 "$root/$1-$names/model.safetensors" | grep -aqF "$2"; }
