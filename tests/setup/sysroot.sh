#!/bin/sh
# sysroot.sh ARCH FOLDER: the libraries that Keel is built with, for another processor, unpacked into FOLDER from
# Debian's packages. Lists, downloads and the package database are private: the machine itself is left as it is.
# Which packages: those that `make deps` installs here for building and that hold headers (tests/setup/packages).
set -eu
arch=$1 root=$2
here=$(dirname "$0")
packages=$(awk '$1 == "build" && $2 ~ /-dev$/ && $2 !~ /openmpi|iproute/ { print $2 } $2 == "check" { print $2 }' "$here/packages")
wanted=$(printf '%s\n' $packages | sort | cksum)
[ "$(cat "$root/.packages" 2>/dev/null)" != "$wanted" ] || exit 0
rm -rf "$root"
state=$root/apt
mkdir -p "$state/lists/partial" "$state/archives/partial"
: >"$state/status"
apt_get() {
    apt-get -o Dir::State="$(realpath "$state")" -o Dir::State::status="$(realpath "$state")/status" \
        -o Dir::Cache="$(realpath "$state")" -o APT::Architecture="$arch" -o APT::Architectures="$arch" \
        -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" "$@" >>"$state/log" 2>&1
}
echo "fetching $arch libraries into $root"
apt_get update || true # an archive that is just being changed: what it has of old may do
apt_get install -y --download-only --no-install-recommends $packages || {
    tail -n 20 "$state/log" >&2
    echo "sysroot: Debian's packages for $arch could not be fetched" >&2
    exit 3
}
for package in "$state"/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
rm -rf "$state"
printf '%s\n' "$wanted" >"$root/.packages"
