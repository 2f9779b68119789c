#!/bin/sh
# Data of one's own (runtime/examples/myreader): a plug-in's reader is trained on by three ranks of which two die, with
# the bits of one; evaluated; its file and its data belong to the run; readers that cannot be, or that crash, are told by
# name.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
template myreader
cd "$template" || exit 1

train() { # DIR ARGUMENTS...
    out=$root/$1
    shift
    timeout 600 "$KEEL" run myreader.conf --out "$out" --set cluster.device=host --set cluster.timeout_s=1 --set model.hidden=8 \
        --set train.steps=12 --set train.decay_steps=12 --set train.eval_every=6 --set snapshot.every=4 "$@" >"$out.log" 2>&1
    code=$?
}

check "the template is built by its Makefile" make -s "KEEL_CFLAGS=$include"
train one --ranks 1
check "and trained on its own data" [ "$code" -eq 0 -a "$(steps "$out" | wc -l)" -eq 12 ]
check "whose classes are counted right" grep -q '"val_accuracy":0\.[0-9]' "$out/metrics.jsonl"
train three --ranks 3 --drill kill:rank=1,step=6,at=reduce --drill kill:rank=2,step=9
check "three ranks, of which two die, commit the same bits" same_bits "$root/one" "$root/three"
check "and have died" [ "$(lost)" -ge 2 ]
train all --ranks 2 --drill kill:all,step=7
train all --ranks 2
check "and a run that was killed whole, and resumed" same_bits "$root/one" "$root/all"
"$KEEL" eval "$root/one" --per-class --json >"$root/log" 2>&1
check "it is evaluated" grep -q '"accuracy":0\.[0-9]' "$root/log"
head -500 points.csv >few.csv
"$KEEL" eval "$root/one" --data few.csv >"$root/log" 2>&1
check "on other data too" [ $? -eq 0 ]
train mine --ranks 1 --set data.path=few.csv --set train.steps=14
train mine --ranks 1 --set train.steps=14
check "its data belong to the run" [ "$code" -eq 4 ]

# ---- what cannot be ----
refused() { # NAME CODE WORDS ARGUMENTS...
    name=$1 wanted=$2 words=$3
    shift 3
    train bad "$@"
    check "$name is refused" [ "$code" -eq "$wanted" ]
    check "$name, and says so" grep -qF -- "$words" "$out.log"
}
bad() { # NAME CODE WORDS SED-SCRIPT
    variant bad "$4" || { check "$1: is built" false; return; }
    refused "$1" "$2" "$3" --set model.kind=./bad.so
}
refused "a file that is not there" 3 "its reader opens no data: data.path = none.csv: cannot be opened" --set data.path=none.csv
printf '1,2,0\n1,2\n' >cut.csv
refused "a line that is cut" 2 "cut.csv: line 2 is no x,y,class" --set data.path=cut.csv
printf '1,2,0\n3,4,2\n' >class.csv
refused "a class that there is not" 2 "sample 1 of its reader: class 2, of 2 from 0 on" --set data.path=class.csv
printf '1,2,0\n3,inf,1\n' >inf.csv
refused "what is no number" 2 "sample 1 of its reader: element 1 of points is no finite number" --set data.path=inf.csv
: >empty.csv
refused "no samples" 2 "its reader has 0 samples to train on" --set data.path=empty.csv
bad "no reader" 2 "has a reader without KEEL_PLUGIN_OWN, or that without a reader" 's/\.reader = &reader/.reader = NULL/'
bad "a reader that does not fill" 2 "has a reader without KEEL_PLUGIN_OWN, or that without a reader" 's/\.fill = fill, //'
bad "one without inputs" 2 "its reader has 0 inputs" 's/\.input_count = 2/.input_count = 0/'
bad "two inputs of one name" 2 "input 1 (from 0) of its reader has the name of another" 's/"classes", KEEL_I32/"points", KEEL_I32/'
bad "classes that are no numbers" 2 "input 1 (from 0) of its reader is the class of a sample" 's/"classes", KEEL_I32, 0, {0}/"classes", KEEL_F32, 0, {0}/'
bad "a dimension of 0" 2 "input 0 (from 0) of its reader has more than 3 dimensions, one that is 0" 's/"points", KEEL_F32, 1, {2}/"points", KEEL_F32, 1, {0}/'
bad "samples that are not written to their end" 2 "is another when it is made again, or is not written to its end" '/places\[0\])\[1\] = /d'
bad "samples that are drawn anew each time" 2 "is another when it is made again" 's/= point->at\[1\];/= (float)rand();/'
bad "one that says no" 2 "its reader makes no sample 0" 's/^    \*(int32_t \*)places.*/    return keel_fail(KEEL_INVALID, "not today");/'
bad "one that crashes when it opens" 2 "crashes when it reads its data or builds its graph (signal 11, Segmentation fault)" 's/^    (void)settings;/    *(volatile int *)8 = 1;/'
bad "one that crashes when it makes a sample" 2 "crashes when it reads its data or builds its graph (signal 11" 's/^    const struct points \*p = own;$/    const struct points *p = own;\n    *(volatile int *)8 = 1;/'
refused "a key of texts" 2 "data.vocab = byte says nothing to model.kind" --set data.vocab=byte

# ---- one that crashes in workers alone, and one that reads another file there ----
worker='int in_worker(void) { char line[64] = ""; FILE *f = fopen("\/proc\/self\/cmdline", "r"); size_t n = fread(line, 1, sizeof line, f); fclose(f); for (size_t i = 0; i + 7 < n; i++) if (memcmp(line + i, "\\0worker", 8) == 0) return 1; return 0; }'
variant crash "s/#include <stdio.h>/&\n#include <string.h>\n$worker/; s/^    const struct points \*p = own;\$/&\n    if (in_worker()) *(volatile int *)8 = 1;/"
train crash --ranks 2 --set model.kind=./crash.so
check "one that crashes in its worker ends the run" [ "$code" -ne 0 ]
check "and names the plug-in" grep -q "ended by signal 11; its model is the plug-in $template/crash.so" "$out.log"
variant other "s/#include <stdio.h>/&\n#include <string.h>\n$worker/; s/^    FILE \*file = fopen(path/    FILE *file = fopen(in_worker() ? \"few.csv\" : path/"
train other --ranks 2 --set model.kind=./other.so
check "one that reads something else on its rank is found out" [ "$code" -eq 4 ]
tail -n 3 "$out.log" | sed 's/^/note: /' | cut -c1-200

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
