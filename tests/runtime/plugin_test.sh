#!/bin/sh
# A model of one's own (runtime/examples/mymodel) is trained, killed and healed, resumed, sampled and planned as those that
# come with Keel; its file belongs to the run; plug-ins that cannot be, or that crash, are told by name.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
template mymodel
cd "$template" || exit 1

train() { # DIR ARGUMENTS...
    out=$root/$1
    shift
    timeout 600 "$KEEL" run mymodel.conf --out "$out" --set "data.path=$text" --set cluster.device=host --set cluster.timeout_s=1 \
        --set model.width=16 --set model.blocks=2 --set model.heads=2 --set model.block=16 --set train.steps=12 \
        --set train.decay_steps=12 --set train.batch=2 --set train.eval_every=6 --set snapshot.every=4 "$@" >"$out.log" 2>&1
    code=$?
}

check "the template is built by its Makefile" make -s "KEEL_CFLAGS=$include"
train one --ranks 1
check "and trained" [ "$code" -eq 0 -a "$(steps "$out" | wc -l)" -eq 12 ]
train three --ranks 3 --drill kill:rank=1,step=6,at=reduce --drill kill:rank=2,step=9
check "three ranks, of which two die, commit the same bits" same_bits "$root/one" "$root/three"
check "and have died" [ "$(lost)" -ge 2 ]
train pieces --ranks 3 --set parallel.zero=1 --drill kill:rank=0,step=7,at=spread
check "so do ranks that own pieces" same_bits "$root/one" "$root/pieces"
train all --ranks 2 --drill kill:all,step=7
train all --ranks 2
check "and a run that was killed whole, and resumed" same_bits "$root/one" "$root/all"
cd "$root" || exit 1
out=$root/all
timeout 600 "$KEEL" run "$root/all/job.conf" --out "$root/all" --set train.steps=14 --sample 20 >"$root/log" 2>&1
check "also from another folder, by the job in the directory" [ $? -eq 0 -a "$(steps "$root/all" | wc -l)" -eq 14 ]
check "its text is sampled" [ -s "$root/all/sample.txt" ]
cd "$template" || exit 1
check "it is planned" sh -c "'$KEEL' plan mymodel.conf --set 'data.path=$text' --ranks 3 --dump >'$root/log'"
check "the directory's job has its keys" grep -q '^blocks = 2$' "$root/one/job.conf"
check "and no others of [model]" [ "$(sed -n '/^\[model\]/,/^\[data\]/p' "$root/one/job.conf" | grep -c ' = ')" -eq 6 ]

# ---- its file belongs to the run ----
train one --ranks 1 --set model.blocks=3 --set train.steps=14
check "a key of its own is one of the identity" grep -q 'holds a run of another job: model.blocks is 2 there and 3 here' "$out.log"
variant other 's/0\.02F/0.03F/'
train one --ranks 1 --set model.kind=./other.so --set train.steps=14
check "so is the file" [ "$code" -eq 4 ]
check "which is said" grep -q 'model.kind is .*mymodel.so there and .*other.so here' "$out.log"

# ---- what cannot be ----
refused() { # NAME CODE WORDS ARGUMENTS...
    name=$1 wanted=$2 words=$3
    shift 3
    train bad "$@"
    check "$name is refused" [ "$code" -eq "$wanted" ]
    check "$name, and says so" grep -qF -- "$words" "$out.log"
}
refused "a file that is not there" 3 "model.kind = ./none.so: no such file" --set model.kind=./none.so
refused "a folder" 2 "no regular file" --set model.kind=./
echo hello >text.so
refused "no shared object" 2 "model.kind = ./text.so: cannot be loaded" --set model.kind=./text.so
refused "a key that it has not" 2 "unknown key model.head; the nearest known key is model.heads" --set model.head=3
refused "a key of Keel's own models" 2 "unknown key model.experts; the nearest known key is model." --set model.experts=4
refused "a value out of range" 2 "model.heads = 65: out of range; 1 to 64 is allowed" --set model.heads=65
refused "what it refuses itself" 2 "model.width = 16 is no multiple of 2 model.heads = 10" --set model.heads=5
bad() { # NAME CODE WORDS SED-SCRIPT
    variant bad "$4" || { check "$1: is built" false; return; }
    refused "$1" "$2" "$3" --set model.kind=bad.so
}
bad "another version" 4 "bad.so: is a plug-in of version 1, this Keel takes version 2; build it again" 's/\.version = KEEL_MODEL_PLUGIN_VERSION/.version = 1/'
bad "one without its entry" 2 "model.kind = bad.so: has no keel_model_plugin" 's/struct keel_model_plugin keel_model_plugin = /struct keel_model_plugin my_plugin = /'
bad "a function that there is not" 2 "undefined symbol: keel_graph_norm" 's/keel_graph_rms_norm/keel_graph_norm/'
bad "a name of [model]" 2 "its key block is one that [model] has" 's/"model", "blocks"/"model", "block"/'
bad "a key of another section" 2 'its key 0 (from 0), "blocks", is of another section than model' 's/"model", "blocks"/"train", "blocks"/'
bad "two keys of one name" 2 'has two keys "heads"' 's/"model", "width"/"model", "heads"/'
bad "a default out of range" 2 "the default of its key width is no value of it" 's/KEY(width), "128"/KEY(width), "1"/'
bad "a key beyond its settings" 2 'lies beyond settings_bytes' 's/sizeof(struct settings)/4/'
bad "a graph without a loss" 2 "its graph has no loss" '/keel_graph_cross_entropy/d'
bad "an output of other classes" 2 "its data want 32 rows of " 's/task->classes, w)/task->classes + 1, w)/'
bad "shapes that do not fit" 2 "linear" 's/"down", hidden, w)/"down", w, w)/'
bad "one that crashes in each process" 2 "crashes when it builds its graph (signal 11, Segmentation fault)" 's/    if (w % (2/    *(volatile int *)8 = 1;\n    if (w % (2/'

# ---- one that does not come to its graph: what runs when it is loaded does so in a child first ----
loaded() { # NAME WORDS STATEMENT
    { cat mymodel.c; echo "__attribute__((constructor)) static void first(void) { $3 }"; } >bad.c
    ${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -fPIC -shared $include -include stdlib.h -include unistd.h -o bad.so bad.c
    refused "$1" 2 "$2" --set model.kind=bad.so
    "$KEEL" plan mymodel.conf --set "data.path=$text" --set model.kind=bad.so >"$out.log" 2>&1
    code=$?
    check "$1: a plan too" [ "$code" -eq 2 ]
    check "$1: a plan says so" grep -qF -- "$2" "$out.log"
}
loaded "one that crashes when it is loaded" "model.kind = bad.so: crashes when it is loaded (signal 11, Segmentation fault)" '*(volatile int *)8 = 1;'
loaded "one that aborts then" "model.kind = bad.so: crashes when it is loaded (signal 6, Aborted)" 'abort();'
loaded "one that ends the process" "model.kind = bad.so: ends the process when it is loaded (exit code 0)" '_exit(0);'
loaded "or ends it in order" "model.kind = bad.so: ends the process when it is loaded (exit code 5)" 'exit(5);'
"$KEEL" eval "$root/one" --set "model.kind=$template/bad.so" >"$out.log" 2>&1
code=$?
check "an evaluation is not ended by it" [ "$code" -eq 2 ]

# ---- one that crashes in workers alone ----
variant crash 's|    if (w % (2|    char line[64] = "";\n    FILE *f = fopen("/proc/self/cmdline", "r");\n    size_t n = fread(line, 1, sizeof line, f);\n    fclose(f);\n    for (size_t i = 0; i + 7 < n; i++)\n        if (memcmp(line + i, "\\0worker", 8) == 0)\n            *(volatile int *)8 = 1;\n&|; s|#include <stdio.h>|&\n#include <string.h>|'
train crash --ranks 2 --set model.kind=./crash.so
check "one that crashes in its worker ends the run" [ "$code" -ne 0 ]
check "which says how workers ended" grep -qi 'signal 11\|segmentation' "$out.log" "$out/events.jsonl"
check "and names the plug-in" grep -q "ended by signal 11; its model is the plug-in $template/crash.so" "$out.log"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
