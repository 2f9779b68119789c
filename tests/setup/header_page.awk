# header_page.awk: a public header as a manual page of section 3, in mdoc. Run as
#
#     awk -v header=NAME -v date=DATE -f header_page.awk NAME.h
#
# The comment at the head is the description, a comment between declarations a paragraph, one with dashes (---- words
# ----) a heading; declarations stand as they are. So the page says what the header says, and nothing is written twice.
function say(line) { # text, each sentence on a line of its own
    gsub(/\\/, "\\e", line)
    while (match(line, /[.!?][")\047]* +/)) {
        put(substr(line, 1, RSTART + RLENGTH - 1))
        line = substr(line, RSTART + RLENGTH)
    }
    put(line)
}
function put(line) {
    sub(/ +$/, "", line)
    if (line != "") print (line ~ /^[.\047]/ ? "\\&" : "") line
}
function end_code() {
    if (in_code) print ".Ed"
    in_code = blank = 0
}
function end_list() {
    if (in_list) print ".Ed"
    in_list = 0
}
function code(line) {
    if (line ~ /^[ \t]*$/) { blank = in_code; return }
    if (!in_code) print ".Bd -literal"
    else if (blank) print ""
    in_code = 1; blank = 0
    gsub(/\\/, "\\e", line)
    print (line ~ /^[.']/ ? "\\&" : "") line
}
function text(line) { # of a comment, without its stars
    if (line ~ /^[ \t]*$/) { end_list(); fresh = 1; return }
    if (line ~ /^   /) { # a table, or a formula
        if (!in_list) { print ".Bd -literal"; in_list = 1 }
        gsub(/\\/, "\\e", line); print line
        return
    }
    if (in_list) { end_list(); fresh = 1 }
    if (fresh && paragraphs++ > 0) print ".Pp"
    fresh = 0
    sub(/^ +/, "", line)
    say(line)
}
function begin_page(line) {
    sub(/^\/\* [a-z_0-9]+\.h - /, "", line)
    print ".\\\" Made of keel/" header ".h."
    print ".Dd " date
    print ".Dt " toupper("keel-" header) " 3"
    print ".Os"
    print ".Sh NAME"
    print ".Nm keel-" header
    head = line; in_name = 1
}
function end_name(rest) { # the first sentence names the page
    gsub(/\\/, "\\e", head)
    print ".Nd " head
    print ".Sh SYNOPSIS"
    print ".In keel/" header ".h"
    print ".Sh DESCRIPTION"
    in_name = 0; fresh = 1; paragraphs = 0
    if (rest != "") text(rest)
}
# The head's first sentence may go on over lines.
function name_line(line, closes,    at) {
    head = line == "" ? head : head == "" ? line : head " " line
    at = match(head, /[.:]( |$)/)
    if (at > 0) {
        line = substr(head, at + 2)
        head = substr(head, 1, at - 1)
        end_name(line)
    } else if (closes || line == "")
        end_name("")
}
BEGIN { skip = "^#(ifndef|define|endif|include|ifdef|if|else)( |$)" }
NR == 1 {
    line = $0; closes = sub(/ *\*\/$/, "", line)
    begin_page(line); in_comment = !closes
    line = head; head = ""
    name_line(line, closes)
    next
}
in_comment {
    line = $0
    closes = sub(/ *\*\/.*$/, "", line)
    sub(/^ \*/, "", line)
    if (in_name) { sub(/^ /, "", line); name_line(line, closes) }
    else text(line)
    if (closes) { end_list(); in_comment = 0; fresh = 1 }
    next
}
/^\/\* ---- / {
    end_code()
    line = $0; gsub(/^\/\* -+ | -+ *\*\/$/, "", line)
    print ".Ss " toupper(substr(line, 1, 1)) substr(line, 2)
    paragraphs = 0
    next
}
/^\/\*/ {
    end_code()
    fresh = 1
    line = $0; closes = sub(/ *\*\/$/, "", line)
    sub(/^\/\*/, "", line)
    text(line)
    in_comment = !closes
    if (closes) { end_list(); fresh = 1 }
    next
}
/^KEEL_API_(BEGIN|END)/ || ($0 ~ /^#/ && $0 ~ skip && $0 !~ /^#define [A-Z_0-9]+(\(| +[^ ])/ ) { next }
/^#define KEEL_[A-Z_0-9]+_H$/ { next }
{ code($0) }
END {
    end_code()
    print ".Sh SEE ALSO"
    print ".Xr keel 1"
}
