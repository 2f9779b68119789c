#!/bin/sh
# deb.sh BUILD VERSION: a package of what `make install` installs, BUILD/keel_VERSION_ARCH.deb, by dpkg-deb alone. The
# programs' libraries are found by dpkg-shlibdeps, those that Keel loads at run time stand below.
set -eu
build=$1 version=$2
here=$(cd "$(dirname "$0")" && pwd)
arch=$(dpkg --print-architecture) triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
root=$build/deb/root
rm -rf "$build/deb"
mkdir -p "$root/DEBIAN" "$build/deb/debian"
make --no-print-directory -s install "BUILD=$build" "DESTDIR=$root" PREFIX=/usr >"$build/deb/log" 2>&1 || { cat "$build/deb/log" >&2; exit 1; }

# Libraries where Debian has them, stripped, as the programs.
mkdir -p "$root/usr/lib/$triplet"
for item in "$root"/usr/lib/*; do
    [ "$item" = "$root/usr/lib/$triplet" ] || mv "$item" "$root/usr/lib/$triplet/"
done
sed -i "s|^libdir=.*|libdir=\${prefix}/lib/$triplet|" "$root/usr/lib/$triplet"/pkgconfig/*.pc
strip --remove-section=.comment --remove-section=.note "$root"/usr/bin/*
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root/usr/lib/$triplet"/*.so.0
strip --strip-debug --enable-deterministic-archives "$root/usr/lib/$triplet"/*.a
chmod 644 "$root/usr/lib/$triplet"/*.so.0

# Documents.
doc=$root/usr/share/doc/keel
mkdir -p "$doc" "$root/usr/share/lintian/overrides"
install -m 644 "$here/deb/copyright" "$doc/copyright"
install -m 644 "$here/deb/lintian-overrides" "$root/usr/share/lintian/overrides/keel"
printf 'keel (%s) unstable; urgency=medium\n\n  * Version %s of Keel.\n\n -- Keel <keel@packages.debian.org>  %s\n' \
    "$version" "${version%-*}" "$(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}")" |
    gzip -9n >"$doc/changelog.Debian.gz"
gzip -9nf "$root"/usr/share/man/man*/*

# What it needs.
printf 'Source: keel\n\nPackage: keel\nArchitecture: any\n' >"$build/deb/debian/control"
needs=$(cd "$build/deb" && dpkg-shlibdeps -O -xkeel root/usr/bin/keel "root/usr/lib/$triplet"/*.so.0 2>log.shlibdeps | sed -n 's/^shlibs:Depends=//p')
[ -n "$needs" ] || { cat "$build/deb/log.shlibdeps" >&2; exit 1; }
cat >"$root/DEBIAN/control" <<END
Package: keel
Version: $version
Architecture: $arch
Maintainer: Keel <keel@packages.debian.org>
Installed-Size: $(du -k -s --apparent-size "$root/usr" | cut -f1)
Depends: $needs
Recommends: libfabric1, pocl-opencl-icd | opencl-icd, libmicrohttpd12, libspng0, libturbojpeg0
Suggests: gcc, make, pkg-config
Section: science
Priority: optional
Description: fault-tolerant training runtime for accelerator boards
 Keel trains models on OpenCL boards, GPUs and processors, on one host or many.
 A run goes on after the loss of some or all of its processes, and its bits do
 not depend on what failed, nor on how the model is cut over boards.
 .
 This package has the program keel with its manual pages, the libraries and
 headers for programs and models of one's own, example jobs and models, and a
 text to train them on.
END
printf 'libkeel 0 keel (>= %s)\nlibkeel-ckpt 0 keel (>= %s)\n' "${version%-*}" "${version%-*}" >"$root/DEBIAN/shlibs"
echo 'activate-noawait ldconfig' >"$root/DEBIAN/triggers"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
find "$root" -type d -exec chmod 755 {} +
dpkg-deb --root-owner-group -Zxz --build "$root" "$build/keel_${version}_$arch.deb" >/dev/null
echo "$build/keel_${version}_$arch.deb"
