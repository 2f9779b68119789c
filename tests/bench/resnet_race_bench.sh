#!/bin/sh
# ResNet-18, 4 images of 224 x 224, 1000 classes, float32, forward, backward and SGD with momentum, on all
# processors: Keel against PyTorch in both layouts, plain and compiled. What it obeys says racers/race.sh.
# room: runtime
set -u
. "$(dirname "$0")/racers/race.sh"

peers=
if has_torch; then
    peers="plain last"
    [ "${RACE_COMPILE:-1}" = 0 ] || peers="$peers compiled compiled-last"
fi
for _ in $(seq "$rounds"); do
    run keel 18 step resnet-18
    for peer in $peers; do
        run "torch-$peer" 18 "$PYTHON" "$racers/torch_resnet.py" 4 7 "$threads" "$peer"
    done
done
for peer in ${peers:-none}; do
    report "resnet-18 4x224x224" 18 4 images/s "$([ "$peer" = none ] || echo torch-)$peer" 1
done
all_raced
