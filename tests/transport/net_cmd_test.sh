#!/bin/sh
# keel net as a person uses it: check with 1 to 9 ranks and over both carriers, between "nodes" that meet by a key,
# started by a shell or by hand; bench in its three formats; exit codes and words for what is wrong.
set -u
keel=${BUILD:-build}/keel
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
KEEL_NET_DIR=$root/recordings
export KEEL_NET_DIR
passed=0 failed=0

# check NAME COMMAND...
check() {
    what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $what"; fi
}
# exits CODE COMMAND...: its output is in $root/out and $root/err
exits() {
    wanted=$1
    shift
    "$@" >"$root/out" 2>"$root/err"
    code=$?
    [ "$code" -eq "$wanted" ] || { echo "  exit code $code, not $wanted: $*"; sed 's/^/  /' "$root/err" | head -n 5; return 1; }
}
says() { grep -qF -- "$1" "$root/out" || { echo "  nowhere: $1"; head -n 5 "$root/out"; return 1; }; }
errs() { grep -qF -- "$1" "$root/err" || { echo "  not among the errors: $1"; head -n 5 "$root/err"; return 1; }; }
is_json() { python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$root/out"; }

# is_error CODE: an object says why the command ended so
is_error() {
    python3 -c 'import json, sys
it = json.load(open(sys.argv[1]))
sys.exit(not (it["error"]["status"] != "OK" and it["error"]["detail"] and it["exit"] == int(sys.argv[2])))' "$root/out" "$1"
}

# ---- check: right with every number of ranks
for ranks in 1 2 3 4 5 6 7 8 9; do
    for op in all-reduce all-to-all-v broadcast; do
        [ "$ranks" -gt 5 ] && [ "$op" = broadcast ] && continue
        check "check $op, $ranks ranks" exits 0 "$keel" net check --ranks "$ranks" --op "$op" --timeout 60
        check "and it says so" says "right: $ranks ranks"
    done
done
check "all operations, 3 ranks" exits 0 "$keel" net check --ranks 3 --json
check "its JSON is JSON" is_json
for op in all-reduce reduce-scatter reduce all-gather all-gather-v all-to-all all-to-all-v broadcast gather scatter barrier send; do
    check "$op was checked" says "{\"operation\":\"$op\""
done
check "nothing was wrong" says '"verdict":"right","ranks":3'
check "over tcp" exits 0 "$keel" net check --ranks 3 --carrier tcp --op reduce-scatter
check "over unconnected endpoints" exits 0 "$keel" net check --ranks 3 --provider "tcp;ofi_rxm" --op all-gather
if [ -n "${KEEL_TEST_LONG:-}" ]; then
    check "more ranks than one may have connections" exits 0 "$keel" net check --ranks 258 --op barrier --timeout 120
    check "by what needs fewer" says "right: 258 ranks"
fi
check "no recording is left" test -z "$(ls "$KEEL_NET_DIR" 2>/dev/null)"

# ---- several nodes: one key, one address
(umask 077; od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n' >"$root/key")
port=$((20000 + $$ % 12000)) # below those that the kernel gives away
for rank in 1 2; do
    "$keel" net check --join "127.0.0.1:$port" --rank $rank --world 3 --key "$root/key" --op barrier \
        >"$root/rank$rank" 2>&1 &
    eval "pid$rank=\$!"
done
check "three nodes meet by hand" exits 0 "$keel" net check --join "127.0.0.1:$port" --rank 0 --world 3 \
    --key "$root/key" --op barrier
check "and check" says "right: 3 ranks"
check "rank 1 is content" wait "$pid1"
check "rank 2 is content" wait "$pid2"
printf 'left 2\n# none here\nright\n' >"$root/hosts"
printf '#!/bin/sh\necho "$1" >>"%s/started"\nexec sh -c "$2"\n' "$root" >"$root/shell"
chmod +x "$root/shell"
check "hosts of a file are started" exits 0 "$keel" net check --hosts "$root/hosts" --join 127.0.0.1:0 \
    --key "$root/key" --shell "$root/shell" --op gather
check "all of them" says "right: 3 ranks"
check "where the file says" test "$(sort "$root/started" | tr '\n' ' ')" = "left left right "

# ---- who is kept out, who does not come
(umask 077; od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n' >"$root/other")
# Nobody comes, so time runs out; more of it is given when the stranger, or rank 0 itself, was too slow to be heard.
for patience in 2 8 32 128; do
    "$keel" net check --join "127.0.0.1:$((port + 1))" --rank 1 --world 2 --key "$root/other" --timeout $patience \
        >"$root/stranger" 2>&1 &
    stranger=$!
    exits 1 "$keel" net check --join "127.0.0.1:$((port + 1))" --rank 0 --world 2 --key "$root/key" --timeout $patience
    ended=$?
    wait "$stranger"
    ! grep -q "has another key" "$root/stranger" || ! errs "1 of 2 ranks came" || break
done
check "one with another key is waited for in vain" test $ended -eq 0
check "and the missing rank is named" errs "1 of 2 ranks came; rank 1 did not"
check "the stranger is told" grep -q "has another key" "$root/stranger"
check "nobody at the address" exits 1 "$keel" net check --join 127.0.0.1:1 --rank 1 --world 2 --key "$root/key" --timeout 1
check "says so" errs "nobody answers"
chmod 644 "$root/other"
check "a key that others can read" exits 3 "$keel" net check --join 127.0.0.1:0 --rank 0 --world 2 --key "$root/other"
check "says what to do" errs "chmod 600"
check "no key" exits 2 "$keel" net check --join 127.0.0.1:0 --rank 0 --world 2
check "a shell without hosts" exits 2 "$keel" net check --ranks 2 --shell "$root/shell"
check "is not passed over" errs "give --hosts, or leave it out"
check "a shell that starts nothing" exits 5 "$keel" net check --hosts "$root/hosts" --join 127.0.0.1:0 \
    --key "$root/key" --shell false --timeout 5
check "names a rank and its host" errs "its process on left ended"

# ---- bench
check "bench" exits 0 "$keel" net bench --ranks 2 --max 4K --factor 16 --iterations 20 --html "$root/page.html"
check "has a line for each size" test "$(grep -c '^all-reduce ' "$root/out")" -eq 3
check "its page has two plots" test "$(grep -c '<svg' "$root/page.html")" -eq 2
check "and needs nothing from elsewhere" test "$(grep -cE 'https?:|src=|<script|<link' "$root/page.html")" -eq 0
check "bench as CSV" exits 0 "$keel" net bench --ranks 3 --op all-gather,barrier,send,broadcast --type f32,f64 --min 1K \
    --max 1K --iterations 10 --csv
check "a header and a line for each" test "$(wc -l <"$root/out")" -eq 9
check "every line has all fields" test "$(awk -F, '{ print NF }' "$root/out" | sort -u)" = 15
check "bench as JSON" exits 0 "$keel" net bench --ranks 4 --order exact,native --algorithm direct,ring,tree --min 64K \
    --max 64K --iterations 5 --carrier tcp --json
check "is JSON" is_json
# Exact by direct and tree, native by all three. All of these send 2(n-1) times the size.
check "bytes on the wire are those of the formula" python3 -c '
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
sys.exit(not (len(rows) == 5 and all(row["sent_bytes"] == 2 * 3 * 65536 for row in rows)))' "$root/out"
check "an algorithm that cannot do it" exits 0 "$keel" net bench --ranks 2 --max 8 --algorithm ring,flat --iterations 5 --warmup 0
check "is passed over, also without warming up" says "ring      cannot do that"
check "and the next is measured" test "$(grep -c '^all-reduce .* flat ' "$root/out")" -eq 1

# ---- tune
check "tune" exits 0 "$keel" net tune --ranks 3 --op all-reduce,broadcast --max 64K --factor 64 --rounds 3 --out "$root/costs"
check "has a line for each size and order" test "$(grep -c '^all-reduce \|^broadcast ' "$root/out")" -eq 9
check "sums up" says "AUTO is within 15% of the fastest in"
check "its file is taken" exits 0 "$keel" net bench --ranks 3 --costs "$root/costs" --min 64K --max 64K --iterations 5
check "tune as JSON" exits 0 "$keel" net tune --ranks 2 --carrier tcp --op all-gather,barrier --min 4K --max 4K --rounds 3 --json
check "is JSON too" is_json
check "tune by small sizes" exits 0 "$keel" net tune --ranks 3 --op all-gather,barrier --min 1 --max 40 --factor 2 --rounds 1
check "has one line for those that are the same" test "$(awk '{ print $1 "=" $3 }' "$root/out" | grep = | grep -v operation |
    grep -v AUTO | tr '\n' ' ')" = "all-gather=12 all-gather=24 barrier=0 "
# 9 ms a message and nothing for its bytes: everybody sends everything to all, 3 x 2 x 64 KiB. The other way: no more than must be.
for key in within between; do
    printf '%s.alpha_ns = 9000000\n%s.gap_ns = 1\n%s.picos_per_byte = 0\n' $key $key $key
done >"$root/slow"
printf "combine.picos_per_byte = 0\nhost.processors = 0\n" >>"$root/slow"
sed 's/alpha_ns = .*/alpha_ns = 1/; s/byte = .*/byte = 1000/' "$root/slow" >"$root/narrow"
for costs in slow:393216 narrow:262144; do
    check "bench by the file ${costs%:*}" exits 0 "$keel" net bench --ranks 3 --costs "$root/${costs%:*}" --min 64K --max 64K \
        --iterations 5 --csv
    check "sends what it makes for" test "$(tail -n 1 "$root/out" | cut -d, -f15)" = "${costs#*:}"
done
sed 's/^within.gap_ns.*/within.gap_ns = fast/' "$root/slow" >"$root/broken"
check "a broken file of costs" exits 2 "$keel" net bench --ranks 2 --costs "$root/broken"
check "is named, with line and key" errs "broken:2: within.gap_ns = fast: a whole number"
check "a file of costs that is not there" exits 3 "$keel" net check --costs "$root/none"
"$keel" net bench --join "127.0.0.1:$((port + 2))" --rank 1 --world 2 --key "$root/key" --costs "$root/narrow" --min 64 --max 64 \
    --timeout 20 >"$root/rank1" 2>&1 &
other=$!
check "two nodes with different files" exits 4 "$keel" net bench --join "127.0.0.1:$((port + 2))" --rank 0 --world 2 \
    --key "$root/key" --costs "$root/slow" --min 64 --max 64 --timeout 20
check "are told so" errs "rank 1 has network costs (keel net tune) with hash"
wait "$other"

# ---- wrong use
check "no command" exits 2 "$keel" net
check "an unknown command" exits 2 "$keel" net fly
check "an unknown option" exits 2 "$keel" net check --fly
check "an unknown operation" exits 2 "$keel" net check --op fly
check "a provider that cannot be used" exits 3 "$keel" net check --ranks 2 --provider shm --op barrier
check "says what it lacks" errs '"shm" has no safety'
check "an unknown provider" exits 2 "$keel" net check --provider carrier-pigeon
check "an unknown carrier" exits 2 "$keel" net check --carrier fly
check "no ranks" exits 2 "$keel" net check --ranks 0x
check "ranks, but none" exits 2 "$keel" net check --ranks 0
check "a rank without a meeting" exits 2 "$keel" net check --rank 1 --world 2 --op barrier
check "ranks of this machine at a meeting" exits 2 "$keel" net check --ranks 2 --join 127.0.0.1:0 --rank 0 --world 1 \
    --key "$root/key" --op barrier
check "a time that no clock has" exits 2 "$keel" net check --timeout 18446744075 --op barrier
check "a port that there cannot be" exits 2 "$keel" net check --join 127.0.0.1:99999 --rank 0 --world 1 \
    --key "$root/key" --op barrier
printf 'left 1 right 1\n' >"$root/odd"
check "two hosts in a line" exits 2 "$keel" net check --hosts "$root/odd" --join 127.0.0.1:0 --key "$root/key" --op barrier
printf 'left\0\nright 2\n' >"$root/odd"
check "a file of hosts that is damaged" exits 2 "$keel" net check --hosts "$root/odd" --join 127.0.0.1:0 --key "$root/key" --op barrier
check "is told where" errs "odd: byte 4 is NUL"
for shell in "$root/shell 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16" " "; do
    check "a shell of too many words, or none" exits 2 "$keel" net check --hosts "$root/hosts" --join 127.0.0.1:0 --key "$root/key" \
        --shell "$shell" --op barrier
    check "is told" errs "--shell: "
done
check "too many ranks" exits 2 "$keel" net check --ranks 100000
check "a rank that is not below the world" exits 2 "$keel" net check --join 127.0.0.1:0 --rank 2 --world 2 --key "$root/key"
check "sizes that make no sense" exits 2 "$keel" net bench --min 2K --max 1K
check "names without letters" exits 2 "$keel" net bench --op , --max 8
check "two formats" exits 2 "$keel" net bench --csv --json --max 8
check "more warming up than work" exits 2 "$keel" net bench --warmup 1000000000 --max 8
check "more lines than are kept" exits 2 "$keel" net bench --order exact,native --type f32,f64,f16,bf16,i8,i32,i64,u8 \
    --algorithm auto,flat,direct,ring,tree,halving,bruck,pairwise,two-level,doubling \
    --op all-reduce,reduce,reduce-scatter,all-gather,all-to-all,broadcast,gather,scatter --min 1 --max 64M
check "more than there is memory for" exits 2 "$keel" net bench --ranks 8 --min 1G --max 1024G
check "says how much there is" errs "are left"
check "few descriptors are enough" exits 0 sh -c "ulimit -n 64; exec '$keel' net check --ranks 2 --op barrier"
check "files that may be no longer" exits 1 sh -c "ulimit -f 100; exec '$keel' net bench --ranks 2 --min 1M --max 1M"
check "says so" errs "File too large"
check "a page that cannot be" exits 3 "$keel" net bench --max 8 --html "$root/none/page.html"
check "is found before measuring" test ! -s "$root/out"
check "nor figures" exits 3 "$keel" net tune --max 8 --out "$root/none/costs"
check "nor figures for more than there is" exits 2 "$keel" net tune --ranks 8 --min 1G --max 1024G
mkfifo "$root/fifo"
cat "$root/fifo" >"$root/piped" &
check "a page into a pipe" exits 0 "$keel" net bench --ranks 2 --max 8 --iterations 5 --html "$root/fifo"
wait "$!"
check "goes through it" grep -q "</html>" "$root/piped"
check "and leaves it a pipe" test -p "$root/fifo"
long_row() { "$keel" net bench --ranks 2 --min 32M --max 32M --iterations $((300 * $1)) --timeout "$1" 2>&1; }
for patience in 1 3 6; do # more, and a longer row, where the ranks take longer than that to come
    said=$(long_row $patience)
    ended=$?
    case $said in *"ranks came"*) ;; *) break ;; esac
done
check "a row that takes longer than the patience" test $ended -eq 0
long_tune() { "$keel" net tune --ranks 2 --op all-reduce --max 4M --factor 2 --rounds 31 --timeout "$1" 2>&1; }
for patience in 1 3 6; do # as above
    said=$(long_tune $patience)
    ended=$?
    case $said in *"ranks came"*) ;; *) break ;; esac
done
check "measuring that takes longer than the patience" test $ended -eq 0
check "rounds that are none" exits 2 "$keel" net tune --rounds 0
check "an operation that tune has not" exits 2 "$keel" net tune --op send
check "an unknown type" exits 2 "$keel" net bench --type f31
mkdir -p "$root/empty"
check "nobody to look at" exits 3 "$keel" net who --dir "$root/empty"
check "no such directory" exits 3 "$keel" net who --dir "$root/none"
check "no recording" exits 4 "$keel" net who "$root/page.html"
check "a directory that is no recording" exits 2 "$keel" net who "$root/empty"
check "a page that is a directory" exits 2 "$keel" net bench --max 8 --html "$root/empty"
check "figures that are a directory" exits 2 "$keel" net tune --max 8 --out "$root/empty"
check "a file for which there is no room" exits 1 sh -c "ulimit -f 1; exec '$keel' net tune --ranks 2 --max 8 --rounds 1 --out '$root/full'"
check "is found before measuring" errs "$root/full"
check "and is not left" test ! -e "$root/full"

# ---- a wrong value is told, with what is allowed
wrong() {
    check "$1 $2 $3" exits 2 "$keel" net "$1" --ranks 2 "$2" "$3"
    check "is told with what $2 takes: $4" errs "$2 $3: "
    check "$2 takes $4" errs "$4"
}
wrong bench --type f31 "f32,f64,f16"
wrong bench --factor 1 "2 or more"
wrong bench --min 0 "from 1"
wrong bench --max 999999G "up to 1024G"
wrong bench --iterations 99999 "at most 2000"
wrong bench --warmup 99999 "at most 2000"
wrong bench --order odd "exact,native"
wrong bench --algorithm best "two-level"
wrong bench --reduction product "average"
wrong bench --op fly "reduce-scatter"
wrong tune --op send "reduce-scatter"
wrong tune --rounds 0 "1 to 31"
wrong check --op fly "all-gather-v"

# ---- --json: an object of every failure too
wants_error() {
    wanted=$1
    shift
    check "net $* --json" exits "$wanted" "$keel" net "$@" --json
    check "net $* says why in JSON" is_error "$wanted"
}
wants_error 2 check --ranks 0
wants_error 2 check --fly
wants_error 2 fly
wants_error 2 bench --csv
wants_error 3 check --join 127.0.0.1:0 --rank 0 --world 1 --key "$root/none"
wants_error 3 who "$root/none"
wants_error 4 who "$root/page.html"
wants_error 3 tune --out "$root/none/costs"
wants_error 2 tune --rounds 0
wants_error 5 check --hosts "$root/hosts" --join 127.0.0.1:0 --key "$root/key" --shell false --timeout 5
wants_error 5 tune --hosts "$root/hosts" --join 127.0.0.1:0 --key "$root/key" --shell true --timeout 1
wants_error 1 bench --ranks 2 --max 8 --iterations 5 --html /dev/full
check "with the figures" says '"operation":"all-reduce"'
check "a name that is not ASCII" exits 3 "$keel" net who "$root/grüße" --json
check "is told as it is" says 'gr\u00fc\u00dfe'
"$keel" net bench --ranks 2 --min 1M --max 1M --iterations 2000 --warmup 2000 --json >"$root/out" 2>"$root/err" &
for look in $(seq 600); do # until it catches the signal
    sleep 0.1
    caught=$(sed -n 's/^SigCgt:\t//p' "/proc/$!/status" 2>/dev/null)
    [ "$((0x${caught:-0} >> 14 & 1))" = 1 ] && break
done
kill -TERM "$!"
wait "$!"
check "an interrupted command ends with 5" test $? -eq 5
check "and says so in JSON" is_error 5
check "a disk that is full" exits 1 sh -c "'$keel' net --help >/dev/full"

# ---- the page keel-net(1) and --help say the same
man=$(dirname "$0")/../../transport/man/keel-net.1
commands=$("$keel" net --help | sed -n 's/^  keel net \([a-z]*\) .*[a-z].*/\1/p' | sort -u)
check "--help lists its subcommands" test "$(echo $commands)" = "bench check tune who"
: >"$root/all"
sed -n '/^\.Ss Ranks$/,/^\.S[hs] /p' "$man" >"$root/common"
for command in $commands; do
    "$keel" net "$command" --help >"$root/help"
    sed -n "/^\.Ss $command\$/,/^\.S[hs] /p" "$man" >"$root/section"
    sed -n 's/^  --\([a-z-]*\) .*/\1/p' "$root/help" | sort >"$root/options"
    sed -n "/^\.Nm keel Cm net $command\$/,/^\.\(Nm\|Sh\)/p" "$man" >"$root/synopsis"
    while read -r option; do
        grep -qE "Fl -$option( |\$)" "$root/common" ||
            check "the synopsis of $command has --$option" grep -qE "Fl -$option( |\$)" "$root/synopsis"
    done <"$root/options"
    check "keel-net(1) describes $command" test -s "$root/section"
    [ "$command" = who ] || cat "$root/common" >>"$root/section"
    cat "$root/options" >>"$root/all"
    while read -r option; do
        [ "$option" = json ] || check "the section on $command has --$option" grep -qE "Fl -$option( |\$)" "$root/section"
    done <"$root/options"
    check "$command --help gives an example" grep -q "^  keel net $command" "$root/help"
done
echo help >>"$root/all"
for option in $(grep -o 'Fl -[a-z-]*' "$man" | sed 's/Fl -//' | sort -u); do
    check "--$option of the page exists" grep -qx -- "$option" "$root/all"
done
if command -v mandoc >/dev/null; then
    check "mandoc finds nothing wrong" mandoc -T lint -W warning "$man"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
