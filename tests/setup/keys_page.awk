# keys_page.awk: the keys of a job file as a manual page of section 5, in mdoc, made of what `keel run --help` prints. Run as
#
#     keel run --help | awk -v date=DATE -f keys_page.awk
#
function text(words) {
    gsub(/\\/, "\\e", words)
    gsub(/\. +/, ".\n", words)
    return (words ~ /^[.\047]/ ? "\\&" : "") words
}
BEGIN {
    print ".Dd " date "\n.Dt KEEL-JOB-FILE 5\n.Os\n.Sh NAME\n.Nm keel-job-file\n.Nd keys of a job file\n.Sh DESCRIPTION"
    print "A job file is INI: a key and its value in a line, below the name of its section."
    print ".Xr keel-run 1\nsays how keys go together.\nEach is told with its default, and its range or choices behind that."
}
/^keys of a job file/ { keys = 1; next }
keys {
    split($1, part, ".")
    if (part[1] != section) {
        if (section != "") print ".El"
        section = part[1]
        print ".Ss [" section "]\n.Bl -tag -width Ds"
    }
    print ".It Cm " $1
    sub(/^ *[^ ]+ +/, "")
    print text($0)
}
END { print ".El\n.Sh SEE ALSO\n.Xr keel-run 1" }
