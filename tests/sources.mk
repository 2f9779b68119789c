# One program per file, tests/ROOM/NAME_test.c; scripts that use the built binary end in _test.sh.
test_SRC := $(sort $(wildcard tests/*/*_test.c))
test_SH := $(sort $(wildcard tests/*/*_test.sh))
bench_SRC := $(sort $(wildcard tests/bench/*_bench.c))
fuzz_SRC := $(sort $(wildcard tests/fuzz/*_fuzz.c))
# Those that take longest, in the order of what they cost: they begin first, so that no processor is idle at the end.
test_FIRST := boards/defects_test.sh transport/over_fabric_test.sh kernels/oclgrind_test.sh runtime/drills_test.sh \
  boards/guide_test.sh kernels/attention_test kernels/clblast_test kernels/optimizer_test hal/device_conformance_test \
  runtime/engine_test ckpt/disk_test boards/stacks_test transport/net_cmd_test.sh transport/faults_test \
  transport/blame_test ckpt/fault_test kernels/golden_test runtime/installed_test.sh kernels/hostile_test
# What `make test-long` runs in full, and `make test` in part.
test_LONG := ckpt/disk_test ckpt/erasure_test kernels/oclgrind_test.sh transport/over_fabric_test.sh
