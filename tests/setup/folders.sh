#!/bin/sh
# folders.sh BUILD ROOM...: what the linker sees of a room's folders. A folder may call those below it and none may
# call back, over any way round: fails with the arrows of each cycle, and one symbol for each. FOLDERS_DRAW=1 prints
# all arrows instead, "from to count".
set -eu
build=$1
shift
bad=0
for room in "$@"; do
    # Objects of sources that are there: of one that moved an old object may lie beside the new one.
    (find "$room" -name '*.c' | sort | sed "s|^$room/|./|; s|c\$|o|" |
        (cd "$build/obj/$room" && while read -r object; do [ ! -e "$object" ] || echo "$object"; done | xargs nm -A -g)) | awk -v room="$room" -v draw="${FOLDERS_DRAW:-}" '
        {
            split($1, at, ":")
            file = substr(at[1], 3)
            folder = file ~ /\// ? substr(file, 1, length(file) - length(name(file)) - 1) : "."
            seen[folder] = 1
            if ($2 == "U") { used[++uses] = $3; by[uses] = folder }
            else if ($2 ~ /^[A-Z]$/) home[$3] = folder
            else if ($3 ~ /^[A-Z]$/) home[$4] = folder
        }
        function name(path, parts, n) { n = split(path, parts, "/"); return parts[n] }
        END {
            for (i = 1; i <= uses; i++) {
                to = home[used[i]]
                if (to == "" || to == by[i]) continue
                count[by[i] " " to]++
                example[by[i] " " to] = used[i]
            }
            if (draw) {
                for (arrow in count) { split(arrow, ends, " "); print room "/" ends[1], room "/" ends[2], count[arrow] }
                exit 0
            }
            # A folder that calls no other that is left is on no cycle.
            do {
                gone = 0
                for (folder in seen) {
                    calls = 0
                    for (arrow in count) { split(arrow, ends, " "); if (ends[1] == folder && ends[2] in seen) calls++ }
                    if (!calls) { delete seen[folder]; gone = 1 }
                }
            } while (gone)
            # Nor is one that is called by none that is left.
            do {
                gone = 0
                for (folder in seen) {
                    calls = 0
                    for (arrow in count) { split(arrow, ends, " "); if (ends[2] == folder && ends[1] in seen) calls++ }
                    if (!calls) { delete seen[folder]; gone = 1 }
                }
            } while (gone)
            for (arrow in count) {
                split(arrow, ends, " ")
                if (ends[1] in seen && ends[2] in seen) {
                    print "layers: a cycle of folders: " room "/" ends[1] " calls " room "/" ends[2] " (" example[arrow] ")"
                    bad = 1
                }
            }
            exit bad
        }' || bad=1
done
exit $bad
