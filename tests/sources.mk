# One program per file, tests/ROOM/NAME_test.c; scripts that use the built binary end in _test.sh.
test_SRC := $(sort $(wildcard tests/*/*_test.c))
test_SH := $(sort $(wildcard tests/*/*_test.sh))
bench_SRC := $(sort $(wildcard tests/bench/*_bench.c))
fuzz_SRC := $(sort $(wildcard tests/fuzz/*_fuzz.c))
