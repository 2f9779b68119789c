#!/bin/sh
# Install the Debian packages of one group (build, lint) that are missing; silent when none is.
set -eu
group=$1
list=$(dirname "$0")/packages
missing=
for package in $(awk -v g="$group" '$1 == g { print $2 }' "$list"); do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing:$missing"
as_root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "deps: not root and no sudo; as root run: apt-get install -y --no-install-recommends$missing" >&2
        exit 3
    }
    as_root=sudo
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { $as_root apt-get install -y --no-install-recommends $missing >"$log" 2>&1; }
# An index that is missing or old is the usual cause of a first failure: fetch it and try again.
install || { $as_root apt-get update >"$log" 2>&1 && install; } || {
    tail -n 20 "$log" >&2
    echo "deps: apt-get could not install:$missing" >&2
    exit 3
}
