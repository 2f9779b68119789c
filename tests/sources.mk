# One program per file, tests/ROOM/NAME_test.c; scripts that use the built binary end in _test.sh.
test_SRC := $(sort $(wildcard tests/*/*_test.c))
test_SH := $(sort $(wildcard tests/*/*_test.sh))
bench_SRC := $(sort $(wildcard tests/bench/*_bench.c))
fuzz_SRC := $(sort $(wildcard tests/fuzz/*_fuzz.c))
# Those that take longest, in the order of what they cost: they begin first, so that no processor is idle at the end.
test_FIRST := boards/defects_test.sh transport/over_fabric_test.sh kernels/golden_test boards/training_test.sh \
  transport/net_cmd_test.sh boards/guide_test.sh hal/reproducible_test.sh kernels/clblast_test kernels/attention_test \
  runtime/drills_test.sh boards/board_build_test.sh runtime/installed_test.sh kernels/oclgrind_test.sh \
  boards/stacks_test ckpt/erasure_test hal/device_conformance_test boards/board_tune_test.sh kernels/optimizer_test \
  runtime/engine_test ckpt/disk_test kernels/hostile_test runtime/snapshots_test.sh kernels/gemm_test \
  transport/blame_test transport/faults_test
# What `make test-long` runs in full, and `make test` in part.
test_LONG := boards/stacks_test ckpt/disk_test ckpt/erasure_test kernels/oclgrind_test.sh transport/over_fabric_test.sh \
  transport/net_cmd_test.sh runtime/plans_test runtime/node_costs_test runtime/gather_grid_drills_test.sh runtime/eval_drills_test.sh
