#!/usr/bin/env bash
# fetch.sh mysql|mariadb DEST
#
# Unpacks a database server and the shared libraries it needs into the folder
# DEST, on a Debian machine. Nothing is installed: the packages come from Debian
# unstable (stable has no MySQL) and need a newer libc than the machine may
# have, so apt works on a state of its own and the tree brings its own libc.
# No root needed. Every package is checked against Debian's signatures by apt.
set -euo pipefail

engine=${1:?mysql or mariadb} dest=$(realpath -m "${2:?target folder}")
[ -e "$dest" ] && exit

no() { echo "no private $engine: $*" >&2; exit 1; }
for tool in apt-get dpkg-deb flock; do
  command -v $tool >/dev/null || no "this machine has no $tool"
done

# The mirror this machine already uses, whatever format its sources are in.
# shellcheck disable=SC2016 # apt fills in the URI
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' | grep -m1 '/debian/\?$') ||
  no "this machine has no Debian package source"
for keyring in /usr/share/keyrings/debian-archive-keyring.{gpg,pgp}; do
  [ -e "$keyring" ] && break
done
[ -e "$keyring" ] || no "the package debian-archive-keyring is missing"

# One fetch at a time; whoever waited finds the work done.
mkdir -p "$(dirname "$dest")"
exec 9>"$dest.lock"
flock 9
[ -e "$dest" ] && exit

umask 022
work=$(mktemp -d "$dest.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$work"/{tree,lists/partial,cache/archives/partial}
touch "$work/status" # empty: apt must believe that nothing is installed
echo "deb [signed-by=$keyring] $mirror sid main" >"$work/sources.list"

apt() {
  apt-get -q -o Dir::State="$work" -o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status" \
    -o Dir::Cache="$work/cache" -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
    -o APT::Sandbox::User=root -o APT::Install-Recommends=false -o APT::Get::AllowUnauthenticated=false \
    -o Acquire::Languages=none -o Acquire::Retries=3 -o Debug::NoLocking=1 \
    -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false "$@"
}

echo "fetching $engine from Debian unstable (once, about 50 MB)" >&2
apt update >"$work/log" 2>&1 || { cat "$work/log" >&2; no "apt-get update failed"; }

# With nothing installed, a pretended installation names every dependency. The
# server itself runs without the scripting languages of the tools beside it.
packages=$(apt -y --print-uris install "$engine-server-core" | sed -n "s/^'[^']*' \([^_]*\)_.*/\1/p" |
  grep -Ev '^(perl.*|libperl.*|libdb5.*|libgdbm.*|libc-gconv.*|openssl-provider.*|gcc-[0-9]+-base|libtirpc-common)$')
# shellcheck disable=SC2086 # a list of package names
(cd "$work/cache" && apt download $packages) >"$work/log" 2>&1 || { cat "$work/log" >&2; no "apt-get download failed"; }

for deb in "$work"/cache/*.deb; do
  dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/tree" --no-same-owner \
    --exclude=./usr/bin --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale
done
mv -T "$work/tree" "$dest"
