#!/usr/bin/env bash
set -euo pipefail

# breaking.sh [REVISION]
#
# Holds that the contract was only extended since the newest release: the newest
# tag v* that this commit contains, or REVISION. Says so when there is none.
# ORBIT_TEST_BUF names buf.

cd "$(dirname "$0")/.."
buf=${ORBIT_TEST_BUF:-buf}

check() { # REVISION
  local old
  old=$(mktemp -d)
  # shellcheck disable=SC2064 # now
  trap "rm -rf '$old'" EXIT
  git archive "$1" proto | tar -x -C "$old"
  "$buf" breaking proto --against "$old/proto"
}

git rev-parse --git-dir >/dev/null 2>&1 || { echo "    no git repository: not compared with any release"; exit; }
if [ $# -gt 0 ]; then
  check "$1"
elif tag=$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null); then
  check "$tag"
  echo "    compared with $tag"
else
  echo "    no release yet: nothing to compare with"
fi
