# Keel: one non-recursive Makefile. A room's sources are the .c and .cl files in its folders, and a room may
# include only the rooms below it: that is the layer rule, and the -I flags here enforce it.
#
#   make            build libraries and build/keel        make deps      install what is missing (Debian)
#   make demo       the three stories, on real text       make test      all tests
#   make chaos      random kills and pauses, same bits    make test-long  in full what `make test` does in part
#   make drill      faults at every phase, same bits      make bench     figures (ROOM=ckpt for one room)
#   make tiers      lost and damaged snapshots of nodes, same bits (make chaos WORLDS=tiers: under chaos)
#   make asan | ubsan | tsan    tests under a sanitizer   make lint | format
#   make cross      the same bits on ARM, emulated (ARCH=arm64)
#   make sweep      devices of 32 KiB to 2 MiB, 1 to 8 processors (SWEEP="64K:4 1M:2")
#   make fuzz       readers against hostile bytes         make sim       the control plane's simulator (SEED=n)
#   make model      the protocol exhaustively, by Spin    (and traces of the C code against it)
#   make plans      random models and plans, same bits    make mutants   seeded defects, and what finds each (ONLY=word)
#   make install DESTDIR= PREFIX=/usr/local               make deb      a Debian package; deb-root: used in a new root
#   make FABRIC=no CLBLAST=no OPENCL=no ISAL=no HTTP=no   without a library, in any mix (README.md, "Small builds")
#   make keel-board keel-ckpt [STATIC=yes]                programs for boards of 64 MB: install-board, install-ckpt
#   make profiles   sizes and memory of each mix          (limits: tests/setup/profiles.txt)

# What may be left out, each with its library: `make FABRIC=no`, in any mix. STATIC=yes links programs that need nothing
# of the machine, and leaves out what cannot be linked so, or what Debian has no archive of (ISA-L).
STATIC ?= no
whole := $(if $(filter yes,$(STATIC)),no,yes)
FABRIC ?= $(whole)
OPENCL ?= $(whole)
CLBLAST ?= $(OPENCL)
ISAL ?= $(whole)
HTTP ?= $(whole)
TOGGLES := FABRIC OPENCL CLBLAST ISAL HTTP
left_out := $(strip $(foreach t,$(TOGGLES),$(if $(filter no,$($(t))),$(t)=no)))
$(foreach t,$(TOGGLES) STATIC,$(if $(filter-out yes no,$($(t)))$(if $($(t)),,empty),$(error $(t) is yes or no)))
# needs TOGGLE,VALUE,OTHER,VALUE,WHY
needs = $(if $(filter $($(1)),$(2)),$(if $(filter $($(3)),$(4)),,$(error $(1)=$(2) needs $(3)=$(4): $(5))))
$(call needs,CLBLAST,yes,OPENCL,yes,it computes on OpenCL devices)
$(call needs,FABRIC,yes,ISAL,yes,it sums what goes to other hosts)
$(call needs,STATIC,yes,OPENCL,no,drivers are opened with dlopen)
$(call needs,STATIC,yes,FABRIC,no,libfabric is opened with dlopen)
$(call needs,STATIC,yes,HTTP,no,libmicrohttpd is opened with dlopen)
# Each mix is built in a folder of its own, named for what is not as by default: build/no-fabric-no-clblast.
empty :=
mix_of = $(if $(filter $(2),$($(1))),,$(if $(filter no,$($(1))),no-)$(3))
mix := $(call mix_of,STATIC,no,static) $(call mix_of,FABRIC,$(whole),fabric) $(call mix_of,OPENCL,$(whole),opencl) \
  $(call mix_of,CLBLAST,$(OPENCL),clblast) $(call mix_of,ISAL,$(whole),isal) $(call mix_of,HTTP,$(whole),http)
mix := $(subst $(empty) $(empty),-,$(strip $(mix)))
BUILD ?= build$(if $(mix),/$(mix))
Q := $(if $(V),,@)
say = @$(if $(V),:,printf '  %-7s %s\n' $(1) $(2))
SAN ?=
comma := ,
PREFIX ?= /usr/local
# CROSS_COMPILE=aarch64-linux-gnu- SYSROOT=DIR build for another processor: see `cross`.
CROSS_COMPILE ?=
SYSROOT ?=
CC := $(CROSS_COMPILE)gcc $(if $(SYSROOT),--sysroot=$(SYSROOT))
AR := $(CROSS_COMPILE)ar
PKG_CONFIG ?= pkg-config
VERSION := 0.1.0

ROOMS := hal kernels transport ckpt boards runtime

# What each room may include: itself, and what stands here.
hal_MAY :=
kernels_MAY := hal
transport_MAY := hal
ckpt_MAY := hal
boards_MAY := hal kernels transport
runtime_MAY := hal kernels transport ckpt boards

# A room's sources, relative to it; examples are programs of their own.
sources_in = $(patsubst $(1)/%,%,$(sort $(foreach deep,*/ */*/,$(wildcard $(1)/$(deep)*.$(2)))))
$(foreach room,$(ROOMS),$(eval $(room)_SRC := $(filter-out examples/%,$(call sources_in,$(room),c))))
$(foreach room,$(ROOMS),$(eval $(room)_CL := $(call sources_in,$(room),cl)))
kernels_CL += common/common.cl# what all begin with: no file, see pack_text
# What a toggle leaves out, and the file that stands in its place: in the default build that one is left out.
without_FABRIC := transport/connections/fabric/% transport/connections/rdm/% transport/connections/envelope.c \
  transport/connections/cipher.c
without_OPENCL := hal/drivers/opencl/%
without_CLBLAST := kernels/gemm/clblast.c
without_ISAL := ckpt/format/galois_isal.c
without_HTTP := runtime/serve/serve_http.c runtime/serve/http_library.c
instead_FABRIC := transport/connections/fabric_absent.c
instead_OPENCL := hal/drivers/opencl_absent.c
instead_CLBLAST := kernels/gemm/clblast_absent.c
instead_ISAL := ckpt/format/galois_plain.c
instead_HTTP := runtime/serve/serve_http_absent.c
excluded := $(foreach t,$(TOGGLES),$(if $(filter no,$($(t))),$(without_$(t)),$(instead_$(t))))
$(foreach room,$(ROOMS),$(eval $(room)_ALL := $($(room)_SRC)))
$(foreach room,$(ROOMS),$(eval $(room)_SRC := $(filter-out $(patsubst $(room)/%,%,$(filter $(room)/%,$(excluded))),$($(room)_SRC))))
# libkeel-ckpt takes hal's host folder alone, so it needs no device and no OpenCL, without settings files and faults, and
# of ckpt all but the commands.
hal_HOST_SRC := $(filter-out host/fault.c host/ini.c host/library.c host/program_main.c,$(filter host/%,$(hal_SRC)))
# The layer that plays other boards in tests (tests/emulated/layer.c): a library of its own, of Keel only the reader of
# faults in it.
emulated_SRC := $(wildcard tests/emulated/*.c)
include kernels/sources.mk tests/sources.mk

# Offsets in files and times have 64 bits on 32-bit machines too.
CSTD := -std=c11 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -D_TIME_BITS=64
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla
WERROR := $(if $(CI),-Werror)
OPT ?= -O2 -g
# Canonical arithmetic: the compiler must not contract a*b+c on its own, nor reorder.
NUMERIC := -ffp-contract=off -fno-fast-math
ifneq ($(SAN),)
SANFLAGS := -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
# Drivers are C++: one that throws while it is loaded needs the C++ runtime to be there before the sanitizer looks.
SANFLAGS += $(if $(filter address,$(SAN)),-Wl$(comma)--no-as-needed -lstdc++)
endif
CFLAGS_ALL := $(CSTD) $(WARN) $(WERROR) $(OPT) $(NUMERIC) $(SANFLAGS) -fPIC -fvisibility=hidden -pthread \
	-MMD -MP -ffile-prefix-map=$(CURDIR)=. -DKEEL_RELEASE=\"$(VERSION)\" $(CFLAGS)

# Where a room keeps its private headers.
private_of = $(addprefix -I,$(patsubst %/,%,$(sort $(dir $(addprefix $(1)/,$($(1)_ALL))))))

# External libraries, room by room (pkg-config names or -l flags).
with = $(if $(filter yes,$($(1))),$(2))
hal_LIBS := $(call with,OPENCL,-lOpenCL) -linih -lz -lm
kernels_LIBS := $(call with,CLBLAST,-lclblast) -lm
transport_LIBS := $(call with,FABRIC,-lcrypto -lisal) -lsodium
ckpt_LIBS := -lz -lxxhash -ljansson -lsodium $(call with,ISAL,-lisal)
boards_LIBS := -ljansson -lsodium -lm
runtime_LIBS := -ljansson -lsodium -lxxhash -lm
ALL_LIBS := $(runtime_LIBS) $(boards_LIBS) $(kernels_LIBS) $(transport_LIBS) $(ckpt_LIBS) $(hal_LIBS)
ALL_LIBS := $(shell printf '%s\n' $(ALL_LIBS) | awk '!seen[$$0]++')
# A library names all that it calls, and asks for nothing that it does not.
LDFLAGS_ALL := $(SANFLAGS) -pthread -Wl,--as-needed $(LDFLAGS)
LDFLAGS_SO = $(LDFLAGS_ALL) -shared -Wl,-z,defs -Wl,-soname,$(@F).0

include_of = $(foreach r,$(1) $($(1)_MAY),-I$(r)/include)
objects_of = $(patsubst %.c,$(BUILD)/obj/$(1)/%.o,$($(1)_SRC)) $(patsubst %.cl,$(BUILD)/obj/gen/$(1)/%.cl.o,$($(1)_CL))

# A program is hal's main() and its own main file; neither is in a library.
MAIN_OBJ := $(addprefix $(BUILD)/obj/,hal/host/program_main.o runtime/commands/keel_main.o)
SMALL_MAIN_OBJ := $(addprefix $(BUILD)/obj/,boards/bringup/keel_board_main.o ckpt/commands/keel_ckpt_main.o)
LIB_OBJ := $(filter-out $(MAIN_OBJ) $(SMALL_MAIN_OBJ),$(foreach room,$(ROOMS),$(call objects_of,$(room))))
CKPT_COMMANDS := $(filter $(BUILD)/obj/ckpt/commands/%,$(LIB_OBJ))
CKPT_OBJ := $(patsubst %.c,$(BUILD)/obj/hal/%.o,$(hal_HOST_SRC)) $(filter-out $(CKPT_COMMANDS) $(SMALL_MAIN_OBJ),$(call objects_of,ckpt))

.PHONY: all keel-board keel-ckpt examples deps lint-deps bench-deps demo test test-long run-tests sweep cross drill chaos tiers bench bench-data run-bench asan ubsan tsan fuzz fuzz-programs sim model plans mutants exact8 attention image-ops weights lint format layers sizes names exports reachable reached doors mutant-rows tidy install install-board install-ckpt deb deb-root profiles print-build clean data help
.DEFAULT_GOAL := all
.SECONDARY:

PROGRAMS := keel keel-board keel-ckpt
all: $(addprefix $(BUILD)/,$(PROGRAMS) libkeel-ckpt.a)
ifeq ($(STATIC),no)
all: $(addprefix $(BUILD)/,libkeel.so libkeel-ckpt.so libkeel-emulated.so)
endif
keel-board keel-ckpt: %: $(BUILD)/%

# Objects of one mix, should a folder be used for another: what it was built without, and how it is linked.
$(shell mkdir -p $(BUILD) && echo '$(left_out) STATIC=$(STATIC)' | cmp -s - $(BUILD)/toggles || echo '$(left_out) STATIC=$(STATIC)' > $(BUILD)/toggles)
define room_rules
$(BUILD)/obj/$(1)/%.o: $(1)/%.c Makefile $(BUILD)/toggles
	@mkdir -p $$(@D)
	$$(call say,CC,$$<)
	$$(Q)$(CC) $$(CFLAGS_ALL) $(call include_of,$(1)) $(call private_of,$(1)) -c $$< -o $$@
endef
$(foreach room,$(ROOMS),$(eval $(call room_rules,$(room))))
# Loops written to be vectorised: at -O2 the compiler takes only those that need no rest behind them.
$(addprefix $(BUILD)/obj/ckpt/codec/,deflate_decode.o floats.o split.o): CFLAGS_ALL += $(if $(SAN),,-O3)
$(addprefix $(BUILD)/obj/transport/operations/,combine.o compressed.o): CFLAGS_ALL += $(if $(SAN),-DKEEL_ONE_CLONE,-O3)
# What a bit stream is compared with tells a fuzzer nothing, and telling it was most of its time.
$(addprefix $(BUILD)/obj/ckpt/codec/,deflate_block.o deflate_decode.o deflate_encode.o huffman.o): \
  CFLAGS_ALL += $(if $(findstring fuzzer,$(SAN)),-fno-sanitize-coverage=trace-cmp)

# OpenCL sources become byte arrays, packed by gzip, so that the binary needs no files beside it. Before every .cl stands
# the canonical arithmetic that all share, packed once, and what kernels_CL_NAME names. The board check's own kernels
# are of integers, and stand alone.
cl_before = $(if $(filter kernels/%,$(1)),$(addprefix kernels/,$(kernels_CL_$(notdir $(1)))))
cl_common := $(addprefix kernels/,$(kernels_CL_COMMON))
# pack_text NAME,BEFORE,FILES
define pack_text
@mkdir -p $(@D)
@{ printf '/* generated */\n#include <keel/device.h>\n$(if $(2),extern const struct keel_packed_text $(2);\n)static const unsigned char bytes[] = {\n'; \
   cat $(3) | gzip -9n | od -An -v -tx1 | sed 's/ \(..\)/0x\1,/g'; \
   printf '};\nextern const struct keel_packed_text keel_cl_$(1);\nconst struct keel_packed_text keel_cl_$(1) = {$(if $(2),&$(2),0), bytes, sizeof bytes, %d};\n' $$(cat $(3) | wc -c); \
   } > $@.tmp && mv $@.tmp $@
endef
.SECONDEXPANSION:
$(BUILD)/gen/kernels/common/common.cl.c: $(cl_common) Makefile kernels/sources.mk
	$(call pack_text,common,,$(cl_common))
$(BUILD)/gen/%.cl.c: %.cl $$(call cl_before,$$*) Makefile kernels/sources.mk
	$(call pack_text,$(*F),$(if $(filter kernels/%,$*),keel_cl_common),$(call cl_before,$*) $<)
$(BUILD)/obj/gen/%.cl.o: $(BUILD)/gen/%.cl.c Makefile
	@mkdir -p $(@D)
	$(Q)$(CC) $(CSTD) -O1 -fPIC -fvisibility=hidden -Ihal/include -c $< -o $@

# The list of objects too: a library forgets a file that has gone.
$(shell mkdir -p $(BUILD) && echo '$(LIB_OBJ)' | cmp -s - $(BUILD)/objects || echo '$(LIB_OBJ)' > $(BUILD)/objects)
$(BUILD)/libkeel.a: $(LIB_OBJ) $(BUILD)/objects
	@rm -f $@
	$(call say,AR,$@)
	$(Q)$(AR) rcs $@ $(filter %.o,$^)
$(BUILD)/libkeel-ckpt.a: $(CKPT_OBJ) $(BUILD)/objects
	@rm -f $@
	$(call say,AR,$@)
	$(Q)$(AR) rcs $@ $(filter %.o,$^)
$(BUILD)/libkeel.so: $(LIB_OBJ)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_SO) -o $@ $^ $(ALL_LIBS)
	$(Q)ln -sf $(@F) $@.0
$(BUILD)/libkeel-ckpt.so: $(CKPT_OBJ)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_SO) -o $@ $^ $(ckpt_LIBS)
	$(Q)ln -sf $(@F) $@.0
# Loaded into programs of any kind by the OpenCL loader: without a sanitizer, and only its door to be seen.
$(BUILD)/libkeel-emulated.so: $(emulated_SRC) hal/host/fault.c tests/emulated/layer.h hal/include/keel/fault.h
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(CSTD) $(WARN) $(WERROR) $(OPT) -fPIC -fvisibility=hidden -DKEEL_API_H -DKEEL_API_BEGIN= -DKEEL_API_END= -Ihal/include -ffile-prefix-map=$(CURDIR)=. -pthread -shared -Wl,-z,defs,--discard-all -o $@ $(filter %.c,$^)
$(BUILD)/keel: $(MAIN_OBJ) $(BUILD)/libkeel.a
# Plug-ins of models call the builder, and what else public headers have that is here: keel exports it, the whole builder.
builder := $(sort $(shell grep -ohE 'keel_graph_[a-z0-9_]+' runtime/include/keel/graph.h))
$(BUILD)/keel: LDFLAGS_ALL += $(if $(filter yes,$(STATIC)),,-Wl$(comma)--export-dynamic $(addprefix -Wl$(comma)-u$(comma),$(builder)))
$(BUILD)/keel-board: $(firstword $(MAIN_OBJ)) $(firstword $(SMALL_MAIN_OBJ)) $(BUILD)/libkeel.a
$(BUILD)/keel-ckpt: $(firstword $(MAIN_OBJ)) $(lastword $(SMALL_MAIN_OBJ)) $(CKPT_COMMANDS) $(BUILD)/libkeel-ckpt.a
$(BUILD)/keel $(BUILD)/keel-board: program_LIBS = $(ALL_LIBS)
$(BUILD)/keel-ckpt: program_LIBS = $(ckpt_LIBS)
$(addprefix $(BUILD)/,$(PROGRAMS)):
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(if $(filter yes,$(STATIC)),-static) -o $@ $^ $(program_LIBS)
$(firstword $(MAIN_OBJ)): CFLAGS_ALL += -DKEEL_LEFT_OUT='"$(if $(left_out), (built with $(left_out)))"'

# ---- tests -------------------------------------------------------------------------------------------
# tests/ROOM/NAME_test.c is one program; it sees the doors of its room's allowed rooms and the room's own headers.
test_programs := $(patsubst tests/%.c,$(BUILD)/tests/%,$(test_SRC))
test_scripts := $(test_SH)
CHECK_LIBS := -lcheck -lsubunit -lrt
define test_rules
$(BUILD)/tests/$(1)/%: tests/$(1)/%.c $(BUILD)/libkeel.a
	@mkdir -p $$(@D)
	$$(call say,CC,$$<)
	$(Q)$(CC) $(CFLAGS_ALL) $(call include_of,$(1)) $(call private_of,$(1)) -Itests -o $$@ $$< $$(filter %_sim.c,$$^) $(BUILD)/libkeel.a -Wl,--as-needed $(CHECK_LIBS) $(ALL_LIBS)
endef
$(foreach room,$(ROOMS),$(eval $(call test_rules,$(room))))
# A NAME_sim.c beside NAME_test.c belongs to that program.
$(foreach sim,$(wildcard tests/*/*_sim.c),$(eval $(BUILD)/$(sim:_sim.c=_test): $(sim)))
$(BUILD)/tests/ckpt/fault_test $(BUILD)/tests/ckpt/safetensors_disk_test $(BUILD)/tests/ckpt/tier_crash_test: tests/ckpt/disk_sim.c $(wildcard tests/*.h tests/ckpt/*.h)
$(BUILD)/tests/runtime/node_pause_test: tests/runtime/node_sim.c
$(BUILD)/tests/runtime/node_plans_test: tests/runtime/node_sim.c
$(BUILD)/tests/runtime/node_end_test: tests/runtime/node_sim.c
$(BUILD)/tests/runtime/node_leader_test: tests/runtime/node_sim.c
$(BUILD)/tests/runtime/node_quiet_test: tests/runtime/node_sim.c
$(BUILD)/tests/runtime/node_holders_test: tests/runtime/node_sim.c
node_SRC := $(addprefix runtime/control/,bitset.c membership.c node_wire.c register.c view.c view_delta.c wire_bytes.c) $(wildcard runtime/node/node*.c)
$(BUILD)/tests/runtime/node_costs_test: tests/runtime/node_sim.c
# The control plane with views in many small parts.
$(BUILD)/tests/runtime/node_parts_test: tests/runtime/node_parts_test.c tests/runtime/node_test.c tests/runtime/node_sim.c $(node_SRC) $(BUILD)/libkeel.a
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) -DKEEL_LIMIT_MEMBERS=64 -DKEEL_LIMIT_PART=56 -DKEEL_LIMIT_VIEW=60 -DKEEL_LIMIT_FAN_OUT=2 -DKEEL_LIMIT_HAND_ON=16384 $(call include_of,runtime) $(call private_of,runtime) -Itests -o $@ $(filter-out %/node_test.c,$(filter %.c,$^)) $(BUILD)/libkeel.a -Wl,--as-needed $(CHECK_LIBS) $(ALL_LIBS)
$(BUILD)/tests/runtime/node_large_test: tests/runtime/node_sim.c
# Of more sources in one call the compiler tells what the last includes.
$(filter $(BUILD)/tests/runtime/node_%,$(test_programs)): $(wildcard tests/*.h tests/runtime/node_*.h)

# The examples are built as a stranger would: public headers and the library, nothing else.
examples_SRC := $(wildcard $(ROOMS:=/examples/*.c))
MPI_CFLAGS = $(subst -I,-isystem ,$(shell $(PKG_CONFIG) --cflags ompi-c))
examples: $(addprefix $(BUILD)/examples/,$(basename $(notdir $(examples_SRC))))
define example_rules
$(BUILD)/examples/%: $(1)/examples/%.c $(BUILD)/libkeel.a
	@mkdir -p $$(@D)
	$$(call say,CC,$$<)
	$(Q)$(CC) $(CFLAGS_ALL) $(call include_of,$(1)) -o $$@ $$< $(BUILD)/libkeel.a -Wl,--as-needed $(ALL_LIBS)
endef
$(foreach room,transport runtime,$(eval $(call example_rules,$(room))))
$(BUILD)/examples/%: ckpt/examples/%.c $(BUILD)/libkeel-ckpt.a
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) $(EXAMPLE_CFLAGS) -Ickpt/include -Ihal/include -o $@ $< $(BUILD)/libkeel-ckpt.a -Wl,--as-needed $(ckpt_LIBS) $(EXAMPLE_LIBS)
$(BUILD)/examples/heat_mpi: EXAMPLE_CFLAGS = $(MPI_CFLAGS)
$(BUILD)/examples/heat_mpi: EXAMPLE_LIBS = $(shell $(PKG_CONFIG) --libs ompi-c)

# ROOM=hal narrows to one room, ONLY=name to one program.
tests_of = $(filter $(foreach t,$(1),tests/$(t) $(BUILD)/tests/$(t)),$(test_scripts) $(test_programs))
first_tests := $(foreach t,$(test_FIRST),$(call tests_of,$(t)))
chosen_tests := $(call tests_of,$(or $(ROOM),%)$(if $(ROOM),/%))
chosen_tests := $(if $(ONLY),$(foreach t,$(chosen_tests),$(if $(findstring $(ONLY),$t),$t)),$(chosen_tests))
# How tests/mutants/mutants.sh and tests/model/model.sh compile a source of any room, and link.
mutants model run-tests: export CC_ALL = $(CC) $(CFLAGS_ALL) $(call include_of,runtime) $(foreach room,$(ROOMS),$(call private_of,$(room))) -Itests
mutants model run-tests: export LIBS_ALL = $(LDFLAGS_ALL) $(CHECK_LIBS) $(ALL_LIBS)
run-tests: all data examples $(filter $(chosen_tests),$(test_programs))
	@BUILD=$(BUILD) SAN=$(SAN) sh tests/run.sh $(filter $(chosen_tests),$(first_tests) $(filter-out $(first_tests),$(test_scripts) $(test_programs)))

test: deps
	@$(MAKE) --no-print-directory -j$$(nproc) run-tests

# What tests look at in part for the sake of time, in full.
test-long: deps
	@$(MAKE) --no-print-directory -j$$(nproc) all data $(filter $(BUILD)/%,$(call tests_of,$(test_LONG))) \
	  $(BUILD)/tests/kernels/golden_test $(filter $(BUILD)/tests/transport/%,$(test_programs))
	@BUILD=$(BUILD) KEEL_TEST_LONG=1 sh tests/run.sh $(call tests_of,$(test_LONG))

# Kernels, engine and boards on devices with 32 KiB to 2 MiB of local memory and 1 to 8 processors: tests/sweep.sh.
# Oclgrind has devices of its own.
sweep_tests := $(filter-out tests/kernels/oclgrind_test.sh,$(call tests_of,kernels/% boards/% runtime/engine_% \
  runtime/gradient_% runtime/op_gradient_% runtime/table_gradient_% runtime/gemm_checksum_%))
sweep_tests := $(filter $(chosen_tests),$(sweep_tests))
sweep: deps
	@$(MAKE) --no-print-directory -j$$(nproc) all data $(filter $(BUILD)/%,$(sweep_tests))
	@BUILD=$(BUILD) sh tests/sweep.sh $(sweep_tests)

asan: deps
	@$(MAKE) --no-print-directory -j$$(nproc) BUILD=build/asan SAN=address OPT="-O1 -g" run-tests
ubsan: deps
	@$(MAKE) --no-print-directory -j$$(nproc) BUILD=build/ubsan SAN=undefined OPT="-O1 -g" run-tests
tsan: deps
	@$(MAKE) --no-print-directory -j$$(nproc) BUILD=build/tsan SAN=thread OPT="-O1 -g" run-tests

# The same bits on ARM, 64 and 32 bits wide, under user-mode emulation; ARCH=arm64 for one of them. The libraries come
# from Debian's packages into a folder of their own.
cross_TRIPLET_arm64 := aarch64-linux-gnu
cross_TRIPLET_armhf := arm-linux-gnueabihf
cross_EMULATOR_arm64 := qemu-aarch64-static
cross_EMULATOR_armhf := qemu-arm-static
cross: deps
	@sh tests/setup/deps.sh cross
	@$(MAKE) --no-print-directory -j$$(nproc) $(BUILD)/keel data
	@sh tests/cross/musl.sh $(addprefix hal/,$(hal_HOST_SRC))
	@for arch in $(or $(ARCH),arm64 armhf); do $(MAKE) --no-print-directory cross-$$arch || exit 1; done
cross-%:
	@sh tests/setup/sysroot.sh $* $(BUILD)/cross/$*/sysroot
	@$(MAKE) --no-print-directory -j$$(nproc) BUILD=$(BUILD)/cross/$* CROSS_COMPILE=$(cross_TRIPLET_$*)- \
	  SYSROOT=$(BUILD)/cross/$*/sysroot $(addprefix $(BUILD)/cross/$*/,keel tests/kernels/golden_test tests/kernels/hostile_test)
	@NATIVE=$(BUILD) sh tests/cross/cross.sh $* $(BUILD)/cross/$* $(cross_EMULATOR_$*) $(cross_TRIPLET_$*)

# SEED=n replays one random run of the control plane with its trace; without it, four times SIM_RUNS seeds.
sim: deps
	@$(MAKE) -s --no-print-directory -j$$(nproc) $(BUILD)/tests/runtime/node_test
	@CK_FORK=no $(if $(SEED),SIM_SEED=$(SEED),SIM_RUNS=$(or $(SIM_RUNS),2500)) $(BUILD)/tests/runtime/node_test

# The control plane's protocol, exhaustively: Promela models by Spin, and traces of the C code replayed by them.
model: deps
	@sh tests/setup/deps.sh model
	@$(MAKE) -s --no-print-directory -j$$(nproc) $(BUILD)/model/node_trace
	@BUILD=$(BUILD) CC="$(CC)" sh tests/model/model.sh
model: export TRACE_WRAPS = $(model_WRAPS)
model_WRAPS := $(patsubst %,-Wl$(comma)--wrap=keel_register_%,init load begin write answer hear)
$(BUILD)/model/node_trace: tests/model/node_trace.c tests/runtime/node_sim.c $(BUILD)/libkeel.a
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) $(call include_of,runtime) $(call private_of,runtime) -Itests/runtime -Itests -o $@ $(filter %.c,$^) $(BUILD)/libkeel.a $(model_WRAPS) -Wl,--as-needed $(ALL_LIBS)

# Without processes for tests: of one that takes over 35 minutes Check cannot write the time down (31 bits of microseconds).
# So many random models and plans (CASES, 10000) against one device, however long it takes.
plans: deps
	@$(MAKE) -s --no-print-directory -j$$(nproc) $(BUILD)/tests/runtime/plans_test
	@CK_FORK=no KEEL_PLANS_CASES=$(or $(CASES),10000) KEEL_PLANS_SECONDS=0 KEEL_PLANS_FIRST=1000 \
	  $(BUILD)/tests/runtime/plans_test

# So many random products of the exact classes and of bf16 (CASES, 10000) on the host and on PoCL in three ways; and of weights in
# few bits (CASES, 2000).
exact8: deps
	@$(MAKE) -s --no-print-directory -j$$(nproc) $(BUILD)/tests/kernels/exact8_test $(BUILD)/tests/kernels/quantised_test
	@CK_FORK=no KEEL_QUANTISED_TRIALS=$(or $(CASES),2000) $(BUILD)/tests/kernels/quantised_test
	@CK_FORK=no KEEL_EXACT8_TRIALS=$(or $(CASES),10000) $(BUILD)/tests/kernels/exact8_test

# So many random descriptors of attention of each kind (CASES, 2000): windows, ALiBi, segments, keys of their own; in each class.
attention: deps
	@$(MAKE) -s --no-print-directory -j$$(nproc) $(BUILD)/tests/kernels/attention_mask_test $(BUILD)/tests/kernels/attention_class_test
	@CK_FORK=no KEEL_ATTENTION_TRIALS=$(or $(CASES),2000) $(BUILD)/tests/kernels/attention_mask_test
	@CK_FORK=no KEEL_ATTENTION_TRIALS=$(or $(CASES),2000) $(BUILD)/tests/kernels/attention_class_test

# So many random transposed convolutions, group norms and upsamplings (CASES, 2000 of each).
image-ops: deps
	@$(MAKE) -s --no-print-directory -j$$(nproc) $(BUILD)/tests/runtime/image_ops_test
	@CK_FORK=no KEEL_IMAGE_OPS_TRIALS=$(or $(CASES),2000) $(BUILD)/tests/runtime/image_ops_test

# Random models of Hugging Face and torchvision in and out, by their logits: a line of each model (PYTHON: one that has
# transformers and torchvision; DEPTHS: which residual networks, else all).
weights: deps
	@$(MAKE) -s --no-print-directory -j$$(nproc) all
	@"$(or $(PYTHON),$(KEEL_PYTHON),python3)" -c 'import torchvision, transformers' || \
	  { echo "make weights: PYTHON=... that has torchvision and transformers is wanted"; exit 3; }
	@set -e; for kind in hf image; do folder=$$(mktemp -d); \
	  head -c 60000 build/data/english.txt >$$folder/text; \
	  DEPTHS="$(or $(DEPTHS),18 34 50 101 152)" "$(or $(PYTHON),$(KEEL_PYTHON),python3)" tests/runtime/$${kind}_weights.py \
	    $$folder $(CURDIR)/$(BUILD)/keel $$folder/text || { rm -rf $$folder; exit 1; }; \
	  rm -rf $$folder; done

# Defects that are put in on purpose, one at a time, and what finds each (ONLY=word: those of a name, family or file).
mutants: deps
	@$(MAKE) -s --no-print-directory -j$$(nproc) all
	@BUILD=$(BUILD) sh tests/mutants/mutants.sh $(ONLY)

# Each tests/fuzz/NAME_fuzz.c against hostile bytes for FUZZ_SECONDS; crash inputs are kept in build/fuzz.
# Everything is built again by clang, without CLBlast; neither OpenCL nor libfabric is linked.
fuzz_SEES = $(foreach room,ckpt transport boards runtime,$(call private_of,$(room))) -Itests/fuzz
FUZZ_LIBS := -linih -ljansson -lcrypto -lsodium -lz -lxxhash -lisal -lm
fuzz_programs := $(patsubst tests/%.c,$(BUILD)/%,$(fuzz_SRC))
fuzz-programs: $(fuzz_programs)
$(BUILD)/fuzz/%: tests/fuzz/%.c $(BUILD)/libkeel.a
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) -fsanitize=fuzzer $(call include_of,runtime) $(fuzz_SEES) -o $@ $< \
	  $(BUILD)/libkeel.a $(FUZZ_LIBS)
fuzz: deps
	@sh tests/setup/deps.sh fuzz
	@$(MAKE) --no-print-directory -j$$(nproc) BUILD=build/fuzz CLBLAST=no CC=clang SAN=fuzzer-no-link,address,undefined \
	  OPT="-O1 -g" fuzz-programs
	@BUILD=build/fuzz sh tests/fuzz/fuzz.sh

-include $(LIB_OBJ:.o=.d) $(wildcard $(BUILD)/examples/*.d) $(fuzz_programs:=.d) $(test_programs:=.d) $(MAIN_OBJ:.o=.d) $(SMALL_MAIN_OBJ:.o=.d)

# ---- set-up, data, demo, drills, benches ---------------------------------------------------------------
deps:
	@sh tests/setup/deps.sh build
lint-deps:
	@sh tests/setup/deps.sh lint
bench-deps:
	@sh tests/setup/deps.sh bench
data: deps
	@sh tests/setup/data.sh build/data
demo: deps
	@$(MAKE) --no-print-directory -j$$(nproc) all data
	@BUILD=$(BUILD) sh tests/demo/demo.sh
drill: deps
	@$(MAKE) --no-print-directory -j$$(nproc) all data
	@BUILD=$(BUILD) sh tests/demo/drill.sh
# Random schedules of faults on real processes: RUNS of them (300) from SEED (1) on, JOBS (1) at a time, in WORLDS (all).
chaos: deps
	@$(MAKE) -s --no-print-directory -j$$(nproc) $(BUILD)/keel
	@BUILD=$(BUILD) RUNS=$(or $(RUNS),300) SEED=$(or $(SEED),1) JOBS=$(or $(JOBS),1) sh tests/demo/chaos.sh
# Snapshots in directories of nodes: tier x damage x moment, 240 cases on real processes.
tiers: deps
	@$(MAKE) -s --no-print-directory -j$$(nproc) $(BUILD)/keel
	@KEEL=$(BUILD)/keel TIERS_FULL=1 sh tests/runtime/tiers_test.sh
bench: deps bench-deps
	@$(MAKE) --no-print-directory -j$$(nproc) all data bench-programs
	@$(MAKE) --no-print-directory bench-data
	@BUILD=$(BUILD) ROOM=$(ROOM) sh tests/bench/bench.sh
# Trained state for the benches: see tests/bench/bench_data.h.
bench-data: all data
	@BUILD=$(BUILD) sh tests/bench/bench_data.sh build/bench-data
bench_programs := $(patsubst tests/%.c,$(BUILD)/%,$(bench_SRC))
# Other libraries' racers (tests/bench/race.h), each built by its own compiler where it is installed.
race_programs := $(if $(wildcard /usr/bin/mpicc.openmpi),$(BUILD)/bench/race_openmpi) \
  $(if $(wildcard /usr/bin/mpicc.mpich),$(BUILD)/bench/race_mpich) \
  $(if $(wildcard /usr/include/gloo/allreduce.h),$(BUILD)/bench/race_gloo)
bench-programs: $(bench_programs) $(race_programs)
$(BUILD)/bench/race_openmpi $(BUILD)/bench/race_mpich: $(BUILD)/bench/race_%: tests/bench/racers/mpi_racer.c tests/bench/race.h
	@mkdir -p $(@D)
	$(call say,MPICC,$<)
	$(Q)mpicc.$* -O2 -o $@ $<
$(BUILD)/bench/race_gloo: tests/bench/racers/gloo_racer.cc tests/bench/race.h
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) -O2 -o $@ $< -lgloo -pthread
$(BUILD)/bench/%: tests/bench/%.c $(BUILD)/libkeel.a
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) $(call include_of,runtime) -Itests -o $@ $< $(BUILD)/libkeel.a -Wl,--as-needed $(BENCH_LIBS) $(ALL_LIBS)
# These benches use private headers of their room.
$(BUILD)/bench/ckpt_codec_bench $(BUILD)/bench/ckpt_erasure_bench $(BUILD)/bench/ckpt_load_bench \
  $(BUILD)/bench/ckpt_seal_bench: CFLAGS_ALL += $(call private_of,ckpt)
$(BUILD)/bench/node_costs_bench $(BUILD)/bench/view_change_bench: CFLAGS_ALL += $(call private_of,runtime)
$(BUILD)/bench/combine_bench $(BUILD)/bench/schedule_bench $(BUILD)/bench/transport_recorder_bench \
  $(BUILD)/bench/transport_seal_bench: CFLAGS_ALL += $(call private_of,transport)
# The control plane; and again, with a call at each basic block.
$(BUILD)/bench/node_event_bench: $(BUILD)/bench/node_event_blocks
$(BUILD)/bench/node_event_blocks $(BUILD)/tests/runtime/node_event_test: NODE_EVENT_FLAGS := -DKEEL_COUNT_BLOCKS -fsanitize-coverage=trace-pc
$(BUILD)/bench/node_event_bench $(BUILD)/bench/node_event_blocks: tests/bench/node_event_bench.c
$(BUILD)/tests/runtime/node_event_test: tests/runtime/node_event_test.c
$(BUILD)/bench/node_event_bench $(BUILD)/bench/node_event_blocks $(BUILD)/tests/runtime/node_event_test: tests/node_event.h tests/block_counter.h $(node_SRC) $(BUILD)/libkeel.a
	@mkdir -p $(@D)
	$(call say,CC,$(filter tests/%.c,$^))
	$(Q)$(CC) $(CFLAGS_ALL) $(NODE_EVENT_FLAGS) $(call include_of,runtime) $(call private_of,runtime) -Itests -o $@ $(filter %.c,$^) $(BUILD)/libkeel.a -Wl,--as-needed $(CHECK_LIBS) $(ALL_LIBS)
# What is pure of plans, likewise.
$(BUILD)/tests/runtime/axes_test: tests/runtime/axes_test.c runtime/plan/axes.c
$(BUILD)/tests/runtime/votes_test: tests/runtime/votes_test.c runtime/plan/votes.c
$(BUILD)/tests/runtime/axes_test $(BUILD)/tests/runtime/votes_test: tests/block_count.h tests/block_counter.h $(BUILD)/libkeel.a
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -DKEEL_COUNT_BLOCKS -fsanitize-coverage=trace-pc $(call include_of,runtime) $(call private_of,runtime) -Itests -o $@ $(filter %.c,$^) $(BUILD)/libkeel.a -Wl,--as-needed $(CHECK_LIBS) $(ALL_LIBS)
$(BUILD)/bench/ckpt_codec_bench: BENCH_LIBS := $(if $(wildcard /usr/include/zstd.h),-lzstd)

# Every profile is built, tried and measured: about three minutes on two processors.
profiles: deps
	@sh tests/setup/profiles.sh
print-build:
	@echo $(BUILD)

# ---- style ---------------------------------------------------------------------------------------------
c_files = $(shell git ls-files '*.c' '*.h')
tidy_stamps := $(foreach room,$(ROOMS),$(patsubst %.c,$(BUILD)/lint/$(room)/%.tidy,$($(room)_ALL)))
tidy_stamps += $(patsubst %.c,$(BUILD)/lint/%.tidy,$(test_SRC) $(bench_SRC) $(fuzz_SRC) $(emulated_SRC) $(wildcard tests/*/*_sim.c tests/model/*.c))
tidy_stamps += $(patsubst %.c,$(BUILD)/lint/%.tidy,$(examples_SRC))
$(BUILD)/lint/ckpt/examples/heat_mpi.tidy: LINT_CFLAGS = $(MPI_CFLAGS)
door_stamps := $(foreach room,$(ROOMS),$(patsubst %,$(BUILD)/lint/%.door,$(wildcard $(room)/include/keel/*.h)))
man_pages := $(wildcard $(ROOMS:=/man/*.[1-8]))
# A page of section 3 for each public header, made of its comments.
public_headers := $(wildcard $(ROOMS:=/include/keel/*.h))
header_pages := $(patsubst %.h,$(BUILD)/man/keel-%.3,$(notdir $(public_headers)))
PAGES_DATE := November 27, 2026
define header_page_rule
$(BUILD)/man/keel-$(basename $(notdir $(1))).3: $(1) tests/setup/header_page.awk
	@mkdir -p $$(@D)
	$$(call say,MAN,$$<)
	$$(Q)awk -v header=$(basename $(notdir $(1))) -v date="$(PAGES_DATE)" -f tests/setup/header_page.awk $$< >$$@
endef
$(foreach header,$(public_headers),$(eval $(call header_page_rule,$(header))))
# A page of the keys of a job file, made of what --help says of them.
keys_page := $(BUILD)/man/keel-job-file.5
$(keys_page): $(BUILD)/keel tests/setup/keys_page.awk
	@mkdir -p $(@D)
	$(call say,MAN,$@)
	$(Q)$(BUILD)/keel run --help >$@.help && awk -v date="$(PAGES_DATE)" -f tests/setup/keys_page.awk $@.help >$@
lint: lint-deps $(header_pages) $(keys_page)
	@clang-format --dry-run --Werror $(c_files)
	@mandoc -T lint -W warning $(man_pages) $(header_pages) $(keys_page)
	@$(MAKE) --no-print-directory -k -j$$(nproc) layers sizes names exports reachable doors mutant-rows tidy
	@echo "lint: clean"
format:
	@clang-format -i $(c_files)
# The layer rule again, on the text: no room reaches another by a relative path.
layers: $(LIB_OBJ)
	@! git grep -nE '#include "(\.\./|[a-z]+/)' -- $(ROOMS) || { echo "layers: include doors as <keel/x.h>"; exit 1; }
	@sh tests/setup/folders.sh $(BUILD) $(ROOMS)
# What the checkpoint room stores passes the table of keel/disk.h, or a test could not make it fail.
	@! git grep -nE '(^|[^A-Za-z0-9_>.])(f?open|openat|creat|close|p?read|p?write|p?readv|p?writev|fsync|fdatasync|rename|renameat|unlink|unlinkat|remove|rmdir|mkdir|mkdirat|[fl]?stat|fstatat|access|faccessat|fcntl|ftruncate|truncate|fallocate|mmap|opendir|readdir)\(' -- ':(glob)ckpt/**/*.c' ':!ckpt/examples' || \
	  { echo "layers: ckpt reaches the disk through keel/disk.h alone"; exit 1; }
# Functions of kernels that take local memory are CANON_INLINE (kernels/common/canon_vector.h says why).
	@! grep -Pzo '\n *static [^;{]*\([^;{]*(__local|SPACE)[^;{]*\{' kernels/*/*.cl kernels/*/*.h | \
	  tr '\0' '\n' | grep . || { echo "layers: these take local memory: CANON_INLINE instead of static"; exit 1; }
# Sizes that a caller describes: uint32_t * sizeof(x) has 32 bits on a machine of 32 bits.
	@! git grep -nE '[^,] \* sizeof|sizeof\([^()]*\) \*' -- ':(glob)kernels/*/*.c' ':!kernels/*/*_host.c' ':!kernels/golden' ':!kernels/gemm/clblast.c' | \
	  grep -v 'sizeof \*args' || { echo "layers: sizes in kernels by KEEL_BYTES(a, b, sizeof(x)), which neither wraps nor narrows"; exit 1; }
# Each seeded defect still names lines of the code.
mutant-rows:
	@sh tests/mutants/mutants.sh --rows
# No file that people read grows beyond 1000 lines.
sizes:
	@git ls-files '*.c' '*.h' '*.cl' '*.sh' '*.mk' '*.md' Makefile | xargs wc -l | \
	  awk '$$1 > 1000 && $$2 != "total" { print "sizes: " $$2 ": " $$1 " lines, 1000 at most: split it"; bad = 1 } END { exit bad }'
# The formatter leaves comments as they are, since it would take a table for sentences: their width is looked at here.
	@git ls-files '*.c' '*.h' | xargs awk '/^ *(\/\*| \*)/ && length > 110 { print "sizes: " FILENAME ":" FNR ": a comment of " length " columns, 110 at most"; bad = 1 } END { exit bad }'
# A name means one thing: include guards, and tags of structs in headers, a room's own included. The ruler that names
# a section is one line (110 columns at most, or the formatter breaks it).
names:
	@same=$$(git grep -hoE '^#ifndef [A-Z0-9_]+_H$$' -- '*.h' | sort | uniq -d); \
	  [ -z "$$same" ] || { echo "names: include guards that two headers have: $$same"; exit 1; }
	@same=$$(git grep -hoE '^(struct|union) keel_[a-z0-9_]+ \{' -- $(ROOMS) | sort | uniq -d); \
	  [ -z "$$same" ] || { echo "names: tags that are defined twice:"; echo "$$same"; exit 1; }
	@! git grep -nE '^ */\* -{2,}.*[^/]$$|^ \* -{3,}|^.{110}.*-{3,} \*/$$' -- '*.c' '*.h' '*.cl' '*.cc' || \
	  { echo "names: the ruler of a section is one line, 110 columns at most: /* ---- name ---- */"; exit 1; }
# Each operation of the kernels is drawn with sizes that no memory has.
	@for op in $$(git grep -hoE '^enum keel_status keel_op_[a-z0-9_]+' -- kernels/include | sed 's/.*keel_op_//'); do \
	  grep -qF "OP($$op," tests/kernels/hostile_test.c || { echo "names: keel_op_$$op has no row in tests/kernels/hostile_test.c"; exit 1; }; done
# The shared libraries export what public headers declare, and nothing else; libkeel-ckpt no command.
exports: $(BUILD)/libkeel.so $(BUILD)/libkeel-ckpt.so
	@sh tests/setup/exports.sh $(BUILD)/libkeel.so $(foreach room,$(ROOMS),$(wildcard $(room)/include/keel/*.h))
	@sh tests/setup/exports.sh $(BUILD)/libkeel-ckpt.so $(filter-out %/ckpt_cmd.h,$(wildcard hal/include/keel/*.h ckpt/include/keel/*.h))
# What no command and no public header reaches goes, and what public headers offer that no command or example uses.
reachable:
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/reach OPT="-O0 -fno-inline -ffunction-sections -fdata-sections" reached
reached: $(MAIN_OBJ) $(LIB_OBJ) $(SMALL_MAIN_OBJ)
	@CC="$(CC)" MAINS="$(lastword $(MAIN_OBJ)) $(SMALL_MAIN_OBJ)" LIBS="$(ALL_LIBS)" sh tests/setup/unreachable.sh $(if $(V),-v) $(firstword $(MAIN_OBJ)) $(LIB_OBJ)
# Every door opens alone: a public header compiles with nothing before it and its room's -I flags only, as C and C++.
doors: $(door_stamps)
# A file is checked again when it, what it includes, or the rules have changed, in this checkout or in another.
tidy: $(tidy_stamps)
define lint_rules
$(BUILD)/lint/$(1)/%.tidy: $(1)/%.c .clang-tidy tests/setup/tidy.sh Makefile
	@mkdir -p $$(@D)
	$$(call say,TIDY,$$<)
	$$(Q)CC="$(CC)" sh tests/setup/tidy.sh $$@ $$< $(CSTD) -DKEEL_RELEASE=\"$(VERSION)\" -DKEEL_LEFT_OUT=\"\" $(call include_of,$(1)) $(call private_of,$(1)) $$(LINT_CFLAGS)
$(BUILD)/lint/$(1)/include/keel/%.door: $(1)/include/keel/% Makefile
	@mkdir -p $$(@D)
	$$(Q)echo 'extern int keel_lint;' | $(CC) $(CSTD) $(WARN) -Werror $(call include_of,$(1)) -include $$< -fsyntax-only -MMD -MP -MT $$@ -MF $$@.d -xc -
	$$(Q)$(CXX) -std=c++17 -Wall -Wextra -Werror $(call include_of,$(1)) -include $$< -fsyntax-only -xc++ /dev/null && touch $$@
endef
$(foreach room,$(ROOMS),$(eval $(call lint_rules,$(room))))
define test_lint_rules
$(BUILD)/lint/tests/$(1)/%.tidy: tests/$(1)/%.c .clang-tidy tests/.clang-tidy tests/setup/tidy.sh Makefile
	@mkdir -p $$(@D)
	$$(call say,TIDY,$$<)
	$$(Q)CC="$(CC)" sh tests/setup/tidy.sh $$@ $$< $(CSTD) -DKEEL_RELEASE=\"$(VERSION)\" $(call include_of,$(2)) $(call private_of,$(2)) -Itests $(3)
endef
$(foreach room,$(ROOMS),$(eval $(call test_lint_rules,$(room),$(room))))
$(eval $(call test_lint_rules,bench,runtime,$(call private_of,transport) $(call private_of,ckpt)))
$(eval $(call test_lint_rules,fuzz,runtime,$(fuzz_SEES)))
$(eval $(call test_lint_rules,emulated,hal))
$(eval $(call test_lint_rules,model,runtime,-Itests/runtime))
-include $(tidy_stamps:=.d) $(door_stamps:=.d)

# Boards' folders as they are in the tree; what was measured or made on a machine stays there.
board_files = $(wildcard boards/README.md boards/template/* $(addprefix boards/*/*/,board.conf clblast.conf README.md))
# write_pc NAME,DESCRIPTION,LIBRARIES: those are for a static link. They are no Requires.private, of which pkg-config wants the
# headers too, that nobody needs who uses ours.
define write_pc
printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' 'Name: $(1)' 'Description: $(2)' 'Version: $(VERSION)' 'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -l$(1)' 'Libs.private: $(3) -pthread' > $(DESTDIR)$(PREFIX)/lib/pkgconfig/$(1).pc
endef
# install_pages PAGES
define install_pages
for page in $(1); do \
  section=$(DESTDIR)$(PREFIX)/share/man/man$${page##*.}; \
  install -d "$$section" && sed 's|PREFIX/|$(PREFIX)/|g' "$$page" > "$$section/$${page##*/}" && chmod 644 "$$section/$${page##*/}" || exit 1; \
done
endef
# A small program alone, with its pages; keel-board with the boards' folders.
install-board: $(BUILD)/keel-board
	install -D -m 755 $< $(DESTDIR)$(PREFIX)/bin/keel-board
	$(call install_pages,$(wildcard boards/man/*))
	$(install_boards)
install-ckpt: $(BUILD)/keel-ckpt
	install -D -m 755 $< $(DESTDIR)$(PREFIX)/bin/keel-ckpt
	$(call install_pages,$(wildcard ckpt/man/*))
define install_boards
for file in $(board_files); do install -D -m 644 "$$file" "$(DESTDIR)$(PREFIX)/share/keel/$$file" || exit 1; done
sed 's|runtime/jobs/|$(PREFIX)/share/keel/jobs/|' boards/README.md > $(DESTDIR)$(PREFIX)/share/keel/boards/README.md
endef
install: all $(header_pages) $(keys_page)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include/keel $(DESTDIR)$(PREFIX)/share/keel/jobs $(DESTDIR)$(PREFIX)/share/keel/examples
	install -m 755 $(BUILD)/keel $(DESTDIR)$(PREFIX)/bin/
	install -m 644 $(BUILD)/libkeel.a $(BUILD)/libkeel-ckpt.a $(DESTDIR)$(PREFIX)/lib/
ifeq ($(STATIC),no)
	install -m 755 $(BUILD)/libkeel.so $(DESTDIR)$(PREFIX)/lib/libkeel.so.0
	install -m 755 $(BUILD)/libkeel-ckpt.so $(DESTDIR)$(PREFIX)/lib/libkeel-ckpt.so.0
	ln -sf libkeel.so.0 $(DESTDIR)$(PREFIX)/lib/libkeel.so
	ln -sf libkeel-ckpt.so.0 $(DESTDIR)$(PREFIX)/lib/libkeel-ckpt.so
endif
	install -m 644 $(foreach room,$(ROOMS),$(wildcard $(room)/include/keel/*.h)) $(DESTDIR)$(PREFIX)/include/keel/
	$(call install_pages,$(man_pages) $(header_pages) $(keys_page))
	for job in runtime/jobs/*.conf; do \
	  sed 's|build/data/|$(PREFIX)/share/keel/data/|' "$$job" > "$(DESTDIR)$(PREFIX)/share/keel/jobs/$${job##*/}" && \
	  chmod 644 "$(DESTDIR)$(PREFIX)/share/keel/jobs/$${job##*/}" || exit 1; \
	done
	install -m 755 tests/setup/data.sh $(DESTDIR)$(PREFIX)/share/keel/
	@sh tests/setup/data.sh $(DESTDIR)$(PREFIX)/share/keel/data text || \
	  echo "install: the jobs' text is not made: install bible-kjv, then sh $(PREFIX)/share/keel/data.sh $(PREFIX)/share/keel/data" >&2
	$(install_boards)
	install -m 644 $(examples_SRC) $(DESTDIR)$(PREFIX)/share/keel/examples/
	for example in mymodel myreader; do \
	  install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/keel/examples/$$example runtime/examples/$$example/* || exit 1; \
	done
	sed -i 's|build/data/|$(PREFIX)/share/keel/data/|' $(DESTDIR)$(PREFIX)/share/keel/examples/mymodel/mymodel.conf
	$(call write_pc,keel,fault-tolerant training runtime,$(ALL_LIBS))
	$(call write_pc,keel-ckpt,snapshots of training state: saving and reading (no commands),$(ckpt_LIBS))

# A Debian package of all that, and its checks: lintian; `make deb-root` installs and uses it in a new root.
DEB_VERSION := $(VERSION)-1
deb: all
	@sh tests/setup/deps.sh deb
	@sh tests/setup/deb.sh $(BUILD) $(DEB_VERSION)
	@lintian --fail-on error,warning $(BUILD)/keel_$(DEB_VERSION)_$$(dpkg --print-architecture).deb && echo "deb: lintian has nothing to say"
deb-root: deb
	@sh tests/setup/deb_root.sh $(BUILD) $(BUILD)/keel_$(DEB_VERSION)_$$(dpkg --print-architecture).deb

clean:
	rm -rf $(BUILD)
help:
	@sed -n '4,18s/^# //p' Makefile
