#!/bin/sh
# What compilers for GPUs make of the hot kernels at their default tunables, without a GPU: a table, and a test. Clang
# compiles OpenCL C for NVPTX and amdgcn (with libclc for the few functions that the kernels take from it), ptxas makes
# machine code of PTX for sm_80 and sm_90, LLVM's own back end for gfx90a. Kernels for many lanes must not spill.
#
#   regs, spill, local   registers of a work-item, bytes that it spills (stores and loads; on amdgcn vector registers
#                        times 4), local memory of a group, as the compilers tell
#   waves                warps or wavefronts that a unit holds at once, of those that it could, by the formula of the
#                        makers: registers in the units in which they are given, local memory, groups
#   lanes                work-items of a group over lanes of its warps
#   fma                  multiply-adds over all instructions of the block with the most of them, the inner loop
#   roof                 the share of the FP32 peak that a product of 4096 x 3072 x 768 (a step of GPT-2) may have by
#                        this: the least of fma, the bytes that tiles take from memory against the bandwidth (every tile
#                        is read anew, as without a cache), and groups over units in whole rounds. An estimate from data
#                        sheets: nothing was measured
#   sectors              32-byte sectors that a warp's load of a tile touches, for the four ways in which A and B may
#                        lie, over the least; by the addresses of gemm_lanes.h
#
# Rows, columns, elements, attention and products by many work-items are held to this; kernels whose work-items are alone
# are shown, without a demand.
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
skip() { echo "note: $1: GPU code is not looked at"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
clang=
for name in clang-15 clang-16 clang-17 clang-18 clang-19 clang; do
    version=$("$name" -dumpversion 2>/dev/null | cut -d . -f 1)
    if [ "${version:-0}" -ge 15 ]; then clang=$name; break; fi
done
ptxas=$(command -v ptxas || ls /usr/local/cuda/bin/ptxas 2>/dev/null)
libclc=/usr/lib/clc
[ -n "$clang" ] || skip "no clang 15 or later"
[ -r $libclc/nvptx64--nvidiacl.bc ] || skip "no libclc ($libclc/nvptx64--nvidiacl.bc)"
[ -n "$ptxas" ] || skip "no ptxas of the CUDA toolkit"
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0
verdict() { # verdict CLAIM: of the last command
    if [ $? -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $1"; fi
}

KERNELS_FOR_GPU=$scratch "$build/tests/kernels/golden_test" >"$scratch/log" 2>&1
verdict "texts and options are written: $(cat "$scratch/log")"
option() { tr ' ' '\n' <"$scratch/$1.options" | sed -n "s/^-D$2=//p"; }

# compile MODULE TARGET CPU LIBRARY OPTION...: assembler in $scratch/MODULE.CPU
compile() {
    module=$1 target=$2 cpu=$3 library=$4
    shift 4
    # shellcheck disable=SC2046 # options are words
    "$clang" -x cl -cl-std=CL1.2 -target "$target" "-mcpu=$cpu" -nogpulib -Xclang -finclude-default-header \
        -Xclang -mlink-bitcode-file -Xclang "$libclc/$library" -O3 -w "$@" $(cat "$scratch/$module.options") \
        -S -o "$scratch/$module.$cpu" "$scratch/$module.cl" >"$scratch/log" 2>&1
}
# Of PTX: per kernel, multiply-adds and instructions of the block that has the most of the former.
inner_loops() {
    awk '/^[.a-z ]*entry / { sub(/.*entry /, ""); sub(/\(.*/, ""); kernel = $0 }
        function end() { if (f > best[kernel]) { best[kernel] = f; all[kernel] = n } f = n = 0 }
        /^\$L|^}/ { end() }
        /^\t[a-z@]/ && !/^\t\./ { n++; f += /fma\.rn\.f32/ }
        END { for (k in best) print k, best[k], all[k] }' "$1"
}
# rows of a table: CPU KERNEL REGISTERS SPILLED LOCAL
nvidia() { # nvidia MODULE CPU
    "$ptxas" -v "-arch=$2" -o /dev/null "$scratch/$1.sm_80" 2>&1 | awk -v cpu="$2" '
        /Compiling entry function/ { split($0, part, "\047"); kernel = part[2] }
        /bytes spill stores/ { spilled = $5 + $9 }
        /Used [0-9]+ registers/ {
            local = 0
            for (i = 2; i <= NF; i++) if ($i ~ /^smem/) local = $(i - 2)
            for (i = 2; i <= NF; i++) if ($i == "registers,") registers = $(i - 1)
            print cpu, kernel, registers, spilled, local
        }'
}
amd() { # amd MODULE
    awk '/^    \.group_segment_fixed_size:/ { local = $2 }
        /^    \.name:/ { kernel = $2 }
        /^    \.vgpr_count:/ { registers = $2 }
        /^    \.vgpr_spill_count:/ { print "gfx90a", kernel, registers, 4 * $2, local }' "$scratch/$1.gfx90a"
}

# Of the classes the module planes is of exact8x2, in plain C: matrix units have one of their own (exact8_mma.h).
for module in gemm quantised attention decode planes attention_class layernorm embedding cross_entropy digest optimizer elementwise tensor \
    ${KEEL_GPU_MODULES:-row}; do
    compile "$module" nvptx64--nvidiacl sm_80 nvptx64--nvidiacl.bc
    verdict "$module compiles for sm_80: $(head -n 5 "$scratch/log")"
    inner_loops "$scratch/$module.sm_80" >>"$scratch/loops"
    for cpu in sm_80 sm_90; do nvidia "$module" $cpu; done >>"$scratch/rows"
    if [ -r $libclc/amdgcn--amdhsa.bc ] && "$clang" -print-targets 2>/dev/null | grep -q amdgcn; then
        compile "$module" amdgcn--amdhsa gfx90a amdgcn--amdhsa.bc
        verdict "$module compiles for gfx90a: $(head -n 5 "$scratch/log")"
        amd "$module" >>"$scratch/rows"
    else
        echo "note: no amdgcn target or library: gfx90a is left out"
    fi
done

items=$(option gemm KEEL_GEMM_ITEMS)
awk -v items="$items" -v attention="$(option attention KEEL_ATTENTION_ITEMS)" -v rows="$(option gemm KEEL_GEMM_ITEM_ROWS)" -v columns="$(option gemm KEEL_GEMM_ITEM_COLUMNS)" \
    -v depth="$(option gemm KEEL_GEMM_ITEM_DEPTH)" -v loops="$scratch/loops" '
    function up(a, b) { return int((a + b - 1) / b) }
    function least(a, b) { return a < b ? a : b }
    # Data sheets. Units, FP32 TFLOP/s, GB/s; registers of a unit and how a warp gets them; warps, groups, local memory.
    function card(cpu, what) {
        if (cpu == "sm_80") return what == "name" ? "A100" : what == "units" ? 108 : what == "flops" ? 19.5 : what == "bytes" ? 1555 : what == "local" ? 163 * 1024 : 64
        if (cpu == "sm_90") return what == "name" ? "H100" : what == "units" ? 132 : what == "flops" ? 66.9 : what == "bytes" ? 3350 : what == "local" ? 227 * 1024 : 64
        return what == "name" ? "MI250X, one die" : what == "units" ? 110 : what == "flops" ? 23.9 : what == "bytes" ? 1638 : what == "local" ? 64 * 1024 : 32
    }
    function waves(cpu, registers, local, group, width, per_wave, n) {
        width = cpu == "gfx90a" ? 64 : 32
        per_wave = cpu == "gfx90a" ? up(registers, 8) * 8 : up(registers * 32, 256) * 256
        n = cpu == "gfx90a" ? 4 * int(512 / (per_wave > 0 ? per_wave : 8)) : 4 * int(16384 / (per_wave > 0 ? per_wave : 256))
        n = least(n, card(cpu, "warps"))
        group = up(group, width) # waves of a group
        n = int(n / group)
        if (local > 0) n = least(n, int(card(cpu, "local") / (local + (cpu == "gfx90a" ? 0 : 1024))))
        return least(n, 32) * group
    }
    BEGIN { while ((getline line < loops) > 0) { split(line, p, " "); fma[p[1]] = p[3] > 0 ? p[2] / p[3] : 0 } }
    {
        product = $2 == "keel_gemm" || $2 == "keel_gemm_small" || $2 == "keel_gemm_sliced"
        many = $2 !~ /softmax|top_k|cumsum|pack|gemm_check|trust_blocks|update_digest|loss|decode/
        r = $2 == "keel_gemm" ? rows : 4
        c = $2 == "keel_gemm" ? columns : 4
        group = $2 == "keel_gemm" ? items : product ? (items > 64 ? items / 2 : 64) : $2 ~ /attention/ ? attention : 64
        width = $1 == "gfx90a" ? 64 : 32
        if (product) {
            across = group > 64 ? 16 : 8
            high = group / across * r; wide = across * c
            M = 4096; N = 3072; K = 768
            groups = up(M, high) * up(N, wide)
            w = waves($1, $3, $5, group); at_once = int(w / up(group, width)) * card($1, "units")
            flops = card($1, "flops") * 1e12; bytes = card($1, "bytes") * 1e9
            compute = 2 * M * N * K / flops
            memory = (groups * K * (high + wide) * 4 + M * N * 4) / bytes
            even = groups / (up(groups, at_once) * at_once)
            roof = least(least(fma[$2], compute / memory), even)
        }
        printf("%-7s %-26s %5d %6d %6d %3d/%-3d %4d%% %4.2f %s\n", $1, $2, $3, $4, $5, waves($1, $3, $5, group), card($1, "warps"),
               100 * group / (up(group, width) * width), fma[$2], product ? sprintf("%.2f of %s", roof, card($1, "name")) : "")
        bad += many && ($4 > 0 || $3 == 0)
        full += many && group % width > 0
        seen += many
    }
    END { exit bad + full > 0 || seen < 60 }' "$scratch/rows" >"$scratch/table"
ended=$?
printf '%-7s %-26s %5s %6s %6s %7s %5s %4s %s\n' target kernel regs spill local waves lanes fma roof
cat "$scratch/table"
(exit $ended)
verdict "no kernel for many lanes spills or leaves lanes idle"

# Loads of tiles. Lanes lie side by side along k where the operand does (`down`), else along its rows or columns.
awk -v depth="$(option gemm KEEL_GEMM_ITEM_DEPTH)" '
    function sectors(down, aligned,   l, at, n, seen) {
        split("", seen)
        for (l = 0; l < 32; l++) {
            at = (down ? int(l / depth) * 4096 + l % depth : l) * 4 + aligned
            if (!(int(at / 32) in seen)) { seen[int(at / 32)] = 1; n++ }
        }
        return n
    }
    BEGIN {
        printf("loads of a tile by 32 lanes: %d sectors along k, %d across, of 4 at least (%d and %d where rows do not begin at one)\n",
               sectors(1, 0), sectors(0, 0), sectors(1, 4), sectors(0, 4))
        exit sectors(1, 0) > 4 || sectors(0, 0) > 4
    }'
verdict "neighbours read neighbours in memory"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
