#!/bin/sh
# An installed Keel runs by itself, from any directory: its jobs find their text, its pages are there, and every
# example of every page does what it says. The examples run as they stand there, but for names of other machines;
# a `keel` before them makes those shorter that measure or check for long.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-build}
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
passed=0 failed=0
prefix=$root/usr

check() { # NAME CONDITION...
    what=$1
    shift
    if "$@" >"$root/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $what"
        tail -n 8 "$root/log" | cut -c1-300 | sed 's/^/    /'
    fi
}

check "make install" make --no-print-directory install "BUILD=$build" "PREFIX=$prefix" DESTDIR=
check "a staged one" make --no-print-directory install "BUILD=$build" PREFIX=/opt/keel "DESTDIR=$root/stage"
check "which names no file of the stage" sh -c "! grep -rqF '$root/stage' '$root/stage/opt/keel/share' '$root/stage/opt/keel/lib/pkgconfig'"
check "but those of its place" grep -q '^path = /opt/keel/share/keel/data/english.txt' "$root/stage/opt/keel/share/keel/jobs/demo.conf"
for page in keel-run.1 keel-job.1 keel-plan.1 keel-sim.1 keel-eval.1 keel-export.1 keel-sample.1 keel-serve.1 keel-import-model.1 keel-agent.1 keel-board.1 keel-ckpt.1 keel-net.1 keel-ckpt-format.5 keel-job-file.5; do
    check "$page is installed" [ -s "$prefix/share/man/man${page##*.}/$page" ]
done

# ---- what the options of keel run are, its page says ----
check "the page of job files has every key" [ "$(grep -c '^\.It Cm ' "$prefix/share/man/man5/keel-job-file.5")" -eq "$("$prefix/bin/keel" run --help | grep -c '^  [a-z]*\.[a-z_0-9]* ')" ]
for option in $("$prefix/bin/keel" run --help | sed -n 's/^  --\([a-z-]*\) .*/\1/p'); do
    check "the page of keel run has --$option" grep -q -- "^\.It Fl -$option\( \|\$\)" "$prefix/share/man/man1/keel-run.1"
    check "and its synopsis" grep -q -- "^\.Op Fl -$option\( \|\$\)" "$prefix/share/man/man1/keel-run.1"
done

# ---- from another directory ----
mkdir "$root/work" "$root/work/shared" "$root/shared" "$root/bin"
cd "$root/work" || exit 1
check "the installed demo finds its text" env -i "PATH=$PATH" "KEEL_STATE=${KEEL_STATE:-$root/state}" "$prefix/bin/keel" run \
    "$prefix/share/keel/jobs/demo.conf" --ranks 2 --set train.steps=2 --set train.eval_every=0 --set cluster.device=host
check "and writes where it was started" [ -s runs/demo/report.html ]
printf '[train]\nsteps = 2\neval_every = 0\n[snapshot]\nevery = 0\n[model]\nlayers = 1\n' >plain.conf
check "a job that names no text finds the installed one" "$prefix/bin/keel" run plain.conf --out plain --set cluster.device=host
grep -o "run [^ ]*/jobs/demo.conf" "$prefix/share/keel/boards/README.md" >"$root/jobs"
check "the guide to boards names jobs that are there" sh -c "[ -s '$root/jobs' ] && while read -r run job; do [ -s \"\$job\" ] || exit 1; done <'$root/jobs'"
for page in run board; do
    check "the page of keel $page has KEEL_STATE" grep -q 'Ev KEEL_STATE' "$prefix/share/man/man1/keel-$page.1"
done

# ---- the examples ----
cat >"$root/bin/keel" <<END
#!/bin/sh
case "\$1 \$2" in
"net check")
    set -- "\$@" --op gather
    case " \$* " in *" --hosts "*) set -- "\$@" --shell "$root/shell" ;; esac
    ;;
"net bench") set -- "\$@" --max 1M --iterations 1 --warmup 0 --op all-reduce ;;
"net tune") set -- "\$@" --op all-reduce --max 64K ;;
"board init") set -- "\$@" --unmeasured ;;
"board check" | "board record") set -- "\$@" --level 0 --quick ;;
"run $prefix"*) set -- "\$@" --set train.steps=3 --set train.eval_every=0 --set cluster.device=host ;;
"run mymodel"*) set -- "\$@" --set train.steps=4 --set train.eval_every=0 --set train.batch=1 --set cluster.device=host ;;
"run "*) set -- "\$@" --set cluster.device=host ;;
esac
exec "$prefix/bin/keel" "\$@"
END
printf '#!/bin/sh\nexec sh -c "$2"\n' >"$root/shell"
chmod +x "$root/bin/keel" "$root/shell"
PATH=$root/bin:$PATH
awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) printf "%s", substr("the quick brown fox jumps over a lazy dog\n", int(rand() * 42) + 1, 1) }' >book.txt
{
    sed 's/^steps = .*/steps = 80/' "$here/../demo/drill.conf"
    printf '[data]\npath = book.txt\n'
} >my.conf
cp "$here/../golden/bpe/tokenizer.json" .
cp "$here/../golden/onnx/text.onnx" model.onnx
export "PKG_CONFIG_PATH=$prefix/lib/pkgconfig" # where the template's Makefile finds the headers
mkdir data
pageless=$(for header in "$prefix"/include/keel/*.h; do
    name=$(basename "$header" .h)
    grep -q "^\.In keel/$name\.h" "$prefix/share/man/man3/keel-$name.3" 2>/dev/null || echo "$name"
done)
check "each public header has a page of section 3: ${pageless:-all}" [ -z "$pageless" ]
for set in train val; do # numbers of 16 bits, as nanoGPT writes them
    LC_ALL=C awk 'BEGIN { srand(2); for (i = 0; i < 4000; i++) printf "%c%c", 65 + rand() * 9, 65 }' >data/$set.bin
done
cp my.conf job.conf
cp my.conf gpt2.conf
printf 'left 2\nright\n' >nodes.txt
# The pages name snapshots, and of a step that comes while one is still written there is none: then its steps are slower.
for ms in 1 10 40 160; do
    rm -rf out
    keel run my.conf --ranks 2 --out out --set job.name=demo --set train.steps=200 --set snapshot.every=20 --set snapshot.keep=20 \
        --drill slow:rank=0,step=1,ms=$ms,steps=200 >/dev/null 2>&1
    [ ! -e out/ckpt/demo/step-100.1 ] || [ ! -e out/ckpt/demo/step-120.1 ] || break
done
cp -r out "$root/shared/out"
keel ckpt export out gpt2/ --names gpt2 >/dev/null 2>&1
# What keel net who reads, whatever else runs here: a rank that is killed leaves it.
export "KEEL_NET_DIR=$root/recordings"
keel run my.conf --ranks 2 --set train.steps=4 --drill kill:rank=1,step=2 --out killed >/dev/null 2>&1
for page in "$prefix"/share/man/man1/*.1; do
    name=$(basename "$page" .1)
    awk '/^\.Sh/ { in_examples = /EXAMPLES/ } /^\.Ed/ { literal = 0 }
        in_examples && literal { if (sub(/ *\\e$/, "")) printf "%s", $0; else print }
        /^\.Bd -literal/ { literal = 1 }' "$page" |
        sed -e 's/acme:0/pocl:0/' -e 's/10\.0\.0\.1:/127.0.0.1:/' -e "s|/shared/|$root/shared/|" -e "s|PREFIX/|$prefix/|" >"$root/examples"
    while read -r line <&3; do
        case $line in
        *launch=none*) # waits for the agents of the next line, as many as its ranks
            sh -c "$line --out hosts" >launcher.log 2>&1 3<&- & launcher=$!
            continue ;;
        *"agent --join h1:"*) continue ;; # three hosts: hosts_gate.sh has them
        *"agent --join"*)
            until [ -s hosts/job.key ] || ! kill -0 $launcher; do sleep 0.1; done
            for node in 1 2 3 4; do $line --node $node --key-file hosts/job.key >"agent$node.log" 2>&1 3<&- & done
            wait $launcher
            check "$name: $line" test $? -eq 0
            continue ;;
        *launch=ssh*) continue ;; # four hosts: hosts_test.sh has them
        *"ckpt diff"*) line="$line; [ \$? -eq 1 ]" ;; # they differ, and say so
        esac
        check "$name: $line" timeout -k 5 300 sh -c "$line" 3<&-
    done 3<"$root/examples"
done

# ---- a model of one's own ----
fields() { sed -n 's/.*"step":\([0-9]*\),.*"loss_bits":"\([0-9a-f]*\)".*"digest":"\([0-9a-f]*\)".*/\1 \2 \3/p' "$1/metrics.jsonl"; }
check "its headers come from the installation alone" sh -c "make -C mymodel -n -B | grep -q -- '-I$prefix/include'"
check "it is trained without the kill too" keel run mymodel/mymodel.conf --set model.kind=mymodel/mymodel.so --ranks 1 --out unharmed
check "with the same bits" sh -c "[ -n \"\$1\" ] && [ \"\$1\" = \"\$2\" ]" - "$(fields mine)" "$(fields unharmed)"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
