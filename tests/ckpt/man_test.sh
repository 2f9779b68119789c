#!/bin/sh
# The manual pages say what the command and the specification say: every subcommand and option of --help is in
# keel-ckpt(1) and the other way round, and the tables of keel-ckpt-format(5) have the fields of the
# specification's at their offsets. Where mandoc is installed it finds nothing wrong with them.
set -u
here=$(dirname "$0")
keel=${BUILD:-build}/keel
man=$here/../../ckpt/man
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
passed=0 failed=0

# check NAME COMMAND...
check() {
    what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $what"; fi
}

commands=$("$keel" ckpt --help | sed -n 's/^  keel ckpt \([a-z]*\) .*[A-Z].*/\1/p' | sort -u)
check "--help lists its subcommands" test "$(echo "$commands" | wc -w)" -ge 8
: >"$root/all"
sed -n '/^All commands know/,/^\.Ss /p' "$man/keel-ckpt.1" >"$root/common"
for command in $commands; do
    "$keel" ckpt "$command" --help >"$root/help"
    # the subcommand's section of the page, and its line of the synopsis
    sed -n "/^\.Ss $command\$/,/^\.S[hs] /p" "$man/keel-ckpt.1" >"$root/section"
    sed -n "/^\.Nm keel Cm ckpt $command\$/,/^\.\(Nm\|Sh\)/p" "$man/keel-ckpt.1" | sed '1!{/^\.\(Nm\|Sh\)/d}' >"$root/synopsis"
    check "keel-ckpt(1) describes $command" test -s "$root/section"
    sed -n 's/^  --\([a-z-]*\) .*/\1/p' "$root/help" | sort >"$root/options"
    cat "$root/options" >>"$root/all"
    while read -r option; do
        case $option in
        json | key | accept-plain) check "the section on all commands has --$option" grep -qE "Fl -$option( |\$)" "$root/common" ;;
        *)
            check "the synopsis of $command has --$option" grep -qE "Fl -$option( |\$)" "$root/synopsis"
            check "the section on $command has --$option" grep -qE "Fl -$option( |\$)" "$root/section"
            ;;
        esac
    done <"$root/options"
    check "$command --help gives an example" grep -q "^  keel ckpt $command " "$root/help"
done
echo help >>"$root/all"
for command in run export; do # which the page mentions
    "$keel" $command --help | grep -oE -- '--[a-z-]+' | sed 's/--//' >>"$root/all"
done
for option in $(grep -o 'Fl -[a-z-]*' "$man/keel-ckpt.1" | sed 's/Fl -//' | sort -u); do
    check "--$option of the page exists" grep -qx -- "$option" "$root/all"
done

# rows "offset bytes" of the tables of the shard file, in their order
sed -n 's/^| \([0-9]*\) | \([0-9x ]*\) | .*/\1 \2/p' "$here/../../ckpt/README.md" | head -n 51 >"$root/specified"
sed -n 's/^\.It \([0-9]*\) Ta \([0-9x ]*\) Ta .*/\1 \2/p' "$man/keel-ckpt-format.5" >"$root/page"
check "keel-ckpt-format(5) has the specification's fields" cmp -s "$root/specified" "$root/page"
check "and there are some" test "$(wc -l <"$root/page")" -ge 51

"$keel-ckpt" --help | tail -n +2 >"$root/help"
"$keel-ckpt" gc --help >>"$root/help"
"$keel-ckpt" ls >>"$root/help" 2>&1
check "keel-ckpt tells its own commands" grep -q '^  keel-ckpt gc out' "$root/help"
check "and how to get help" grep -q '^keel-ckpt: missing: PATH; try keel-ckpt --help$' "$root/help"
check "and nowhere another program's" sh -c "! grep 'keel ckpt' '$root/help'"

check "keel-ckpt(1) tells of the program" grep -q '^\.Ql keel-ckpt ls$' "$man/keel-ckpt.1"
if command -v mandoc >/dev/null; then
    check "mandoc finds nothing wrong" mandoc -T lint -W warning "$man/keel-ckpt.1" "$man/keel-ckpt-format.5"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
