#!/bin/sh
# keel-board(1) says what the command says: every subcommand and option of --help, in synopsis and section.
set -u
here=$(dirname "$0")
keel=${BUILD:-build}/keel
page=$here/../../boards/man/keel-board.1
passed=0 failed=0

# has WHAT PATTERN TEXT
has() {
    if printf '%s\n' "$3" | grep -qE -- "$2"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $1"
    fi
}

commands=$("$keel" board --help | sed -n 's/^  keel board \([a-z]*\) .*/\1/p' | sort -u)
has "--help lists its subcommands" '^check$' "$commands"
for command in $commands; do
    section=$(sed -n "/^\.Ss $command\$/,/^\.S[hs] /p" "$page")
    synopsis=$(sed -n "/^\.Nm keel Cm board $command\$/,/^\.\(Nm\|Sh\)/p" "$page")
    has "the page has a section on $command" "^.Ss $command" "$section"
    for option in $("$keel" board "$command" --help | sed -n 's/^  --\([a-z-]*\) .*/\1/p'); do
        has "the synopsis of $command has --$option" "Fl -$option( |\$)" "$synopsis"
        [ "$option" = json ] || has "the section on $command has --$option" "Fl -$option( |\$)" "$section"
    done
done
has "the page tells of the program keel-board" '^\.Ql keel-board check$' "$(cat "$page")"
helps=$(for command in $commands; do "$keel" board "$command" --help; done)
for option in $(sed -n 's/.*Fl -\([a-z-]*\).*/\1/p' "$page" | sort -u | grep -v '^help$'); do
    has "--$option of the page is an option" "^  --$option( |\$)" "$helps"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
