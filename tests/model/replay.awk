# replay.awk - a trace of node_trace.c as numbers for holders.pml: WHAT NODE BALLOT X BEFORE HOLDERS. Ballots become their ranks. What the model
# leaves out is compared here: contents of views by their digests, and steps. A trace that breaks a rule has one line on
# the standard error, and exit code 1.
#     awk -f replay.awk TRACE TRACE >numbers
function refuse(why) { print "replay: line " FNR ": " $0 ": " why >"/dev/stderr"; bad = 1; exit 1 }
function ballot(text, at) { split(text, at, "."); return sprintf("%012d.%020s", at[1], at[2]) }
NR == FNR { # ballots first
    if ($1 ~ /^(begin|promise|read|write|accept|commit|load)$/) seen[ballot($3)] = 1
    if ($1 == "load") seen[ballot($4)] = 1
    if ($1 == "read") seen[ballot($6)] = 1
    next
}
FNR == 1 {
    for (b in seen) if (b != ballot("0.0")) list[++count] = b
    for (i = 2; i <= count; i++) # few: insertion
        for (j = i; j > 1 && list[j - 1] > list[j]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
    for (i = 1; i <= count; i++) rank[list[i]] = i
    rank[ballot("0.0")] = 0
}
function say(what, node, b, x) { print what, node, b, x, 0, 0 }
function same(epoch, digest) { # a view of one number has one content
    if (epoch in content && content[epoch] != digest) refuse("another view of epoch " epoch)
    content[epoch] = digest
}
$1 == "begin" { say(1, $2, rank[ballot($3)], $4) }
$1 == "promise" { say(2, $2, rank[ballot($3)], 0) }
$1 == "read" { print 3, $2, rank[ballot($3)], $4, rank[ballot($6)], $5 }
$1 == "write" { b = rank[ballot($3)]; wrote[b] = $5; epoch[b] = $4 }
$1 == "holders" { b = rank[ballot($3)]; print 4, $2, b, epoch[b], $4, $5 }
$1 == "accept" {
    b = rank[ballot($3)]
    if (wrote[b] != $5) refuse("not what that ballot wrote")
    say(5, $2, b, $4)
}
$1 == "commit" { b = rank[ballot($3)]; same($4, wrote[b]); say(6, $2, b, 0) }
$1 == "view" {
    if ($3 <= newest[$2]) refuse("views of a node ascend")
    newest[$2] = $3
    same($3, $4)
    say(7, $2, 0, $3)
}
$1 == "start" { newest[$2] = 0; say(8, $2, 0, 0) }
$1 == "load" { say(9, $2, rank[ballot($3)], rank[ballot($4)]) }
# Steps, as steps.pml has them: what a leader delivers, somebody did; in order; given up only when nobody alive has it.
$1 == "record" { did[$3] = 1; has[$2, $3] = 1 }
$1 == "lead" { next_step[$2] = $3 }
$1 == "dead" { newest[$2] = 0; for (pair in has) { split(pair, at, SUBSEP); if (at[1] == $2) delete has[pair] } }
$1 == "deliver" {
    if ($3 != next_step[$2]) refuse("step " next_step[$2] " is the next one of this leader")
    if (!($3 in did)) refuse("nobody did this step")
    next_step[$2] = $3 + 1
    delivered[$3] = 1
}
$1 == "skip" {
    if ($3 != next_step[$2]) refuse("step " next_step[$2] " is the next one of this leader")
    for (pair in has) { split(pair, at, SUBSEP); if (at[2] == $3 && !($3 in delivered)) refuse("node " at[1] " has its record") }
    next_step[$2] = $3 + 1
}
END { if (!bad) print 0 }
