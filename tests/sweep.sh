#!/bin/sh
# sweep.sh TEST...: these tests on devices that this machine is not: with 32 KiB to 2 MiB of local memory, 1 to 8
# processors, and AVX2 only where the machine has more. What a test asks of a device has to follow from what the
# device says of itself. `make sweep` names the tests of the kernels, of the engine and of the boards.
#
# SWEEP="32K:1 1M:2 64K:4:avx2" tries these, LOCAL:PROCESSORS[:avx2], and not all; ONLY=word narrows the tests, as
# everywhere. Prints "passed/failed" for each device in a table and closes with N passed, N failed. What failed is in
# build/sweep/LOCAL-PROCESSORS.log.
#
# PoCL takes the size of its local memory from what hwloc tells of caches, and hwloc tells what a file says if it is
# given one: so these are real devices of PoCL, and no layer that only claims. Their threads share the real processors.
set -u
here=$(dirname "$0")
build=${BUILD:-build}
logs=$build/sweep
sizes='32K 64K 256K 1M 2M' counts='1 2 4 8'
mkdir -p "$logs" || exit 1
rm -f "$logs"/*.log
results=$logs/results
: >"$results"

wide=$(grep -qw avx512f /proc/cpuinfo && echo yes || echo no)
if [ -z "${SWEEP:-}" ]; then
    SWEEP=$(for size in $sizes; do for count in $counts; do echo "$size:$count"; done; done)
    [ $wide = no ] || SWEEP="$SWEEP $(for cell in $SWEEP; do echo "$cell:avx2"; done)"
    [ $wide = yes ] || echo "note: this machine has no AVX-512: its PoCL computes with what there is alone"
fi

# topology BYTES: a machine of two processors, each with a second cache of so many bytes: PoCL's local memory.
topology() {
    awk -v bytes="$1" '
    function of(mask, id) { # where an object lies, and its number
        return sprintf("cpuset=\"0x%x\" complete_cpuset=\"0x%x\" nodeset=\"0x1\" complete_nodeset=\"0x1\" gp_index=\"%d\"", mask, mask, id)
    }
    function cache(level, size, where) {
        printf("<object type=\"L%dCache\" %s cache_size=\"%d\" depth=\"%d\" cache_linesize=\"64\" cache_associativity=\"16\" cache_type=\"0\">\n", level, where, size, level)
    }
    BEGIN {
        print "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">"
        printf("<object type=\"Machine\" os_index=\"0\" %s allowed_cpuset=\"0x3\" allowed_nodeset=\"0x1\">\n", of(3, 1))
        printf("<object type=\"NUMANode\" os_index=\"0\" %s local_memory=\"8589934592\"/>\n", of(3, 2))
        cache(3, 16 * bytes, of(3, 3))
        for (i = 0; i < 2; i++) {
            cache(2, bytes, of(i + 1, 4 + 3 * i))
            printf("<object type=\"Core\" os_index=\"%d\" %s><object type=\"PU\" os_index=\"%d\" %s/></object></object>\n",
                   i, of(i + 1, 5 + 3 * i), i, of(i + 1, 6 + 3 * i))
        }
        print "</object></object></topology>"
    }'
}

# is_played BYTES PROCESSORS SET: PoCL is what was asked for, or the cell would say nothing.
is_played() {
    "$build/keel" board list --json | tr ',{}' '\n\n\n' >"$logs/list"
    [ "$(sed -n 's/^"local_bytes": *//p' "$logs/list" | head -n 1)" = "$1" ] &&
        [ "$(sed -n 's/^"compute_units": *//p' "$logs/list" | head -n 1)" = "$2" ] &&
        case $3 in avx2) ! grep -q avx512 "$logs/list" ;; esac
}

# play CELL TEST...: runs the tests on such a device; its counts go to $results.
play() {
    cell=$1
    shift
    size=${cell%%:*} rest=${cell#*:}
    count=${rest%%:*} set=native
    case $rest in *:*) set=${rest#*:} ;; esac
    case $size in *K) bytes=$((${size%K} * 1024)) ;; *M) bytes=$((${size%M} * 1048576)) ;; *) bytes= ;; esac
    case $bytes:$count:$set in *[0-9]:[1-9]:native | *[0-9]:[1-9]:avx2) ;; *)
        echo "sweep: $cell is no LOCAL:PROCESSORS[:avx2], as 64K:4" >&2
        exit 2
        ;;
    esac
    log=$logs/$(echo "$cell" | tr : -).log
    topology "$bytes" >"$logs/machine.xml"
    (
        export HWLOC_XMLFILE="$(realpath "$logs/machine.xml")" HWLOC_THISSYSTEM=1 POCL_MAX_PTHREAD_COUNT="$count"
        [ "$set" = native ] || export POCL_KERNELLIB_NAME="$set"
        if is_played "$bytes" "$count" "$set"; then
            sh "$here/run.sh" "$@" >"$log" 2>&1
        else
            { echo "sweep: PoCL does not play $cell:"; cat "$logs/list"; echo "0 passed, 1 failed"; } >"$log"
        fi
    )
    tail -n 1 "$log" | sed -n "s|^\([0-9]*\) passed, \([0-9]*\) failed.*|$set $size $count \1 \2|p" >"$logs/said"
    [ -s "$logs/said" ] || echo "$set $size $count 0 1" >"$logs/said"
    cat "$logs/said" >>"$results"
    echo "$cell: $(tail -n 1 "$log")"
    sed -n '/^FAIL/,/^ok/p' "$log" | grep -v '^ok'
}

for cell in $SWEEP; do
    play "$cell" "$@"
done
awk '
    { cell[$1, $2, $3] = $4 "/" $5; sets[$1]; rows[$1, $2] = 1; sizes[$2] = 1; counts[$3] = 1; p += $4; f += $5 }
    END {
        size_count = split("32K 64K 256K 1M 2M", size, " ")
        for (s in sizes) if (index(" 32K 64K 256K 1M 2M ", " " s " ") == 0) size[++size_count] = s
        for (set in sets) {
            printf("%s: local memory, by processors (passed/failed)\n%6s", set, "")
            for (n = 1; n <= 9; n++) if (n in counts) printf(" %11d", n)
            for (i = 1; i <= size_count; i++) {
                if (!((set, size[i]) in rows)) continue
                printf("\n%6s", size[i])
                for (n = 1; n <= 9; n++)
                    if (n in counts) printf(" %11s", ((set, size[i], n) in cell) ? cell[set, size[i], n] : "-")
            }
            print ""
        }
        printf("%d passed, %d failed\n", p, f)
        exit f > 0 || p == 0
    }' "$results"
