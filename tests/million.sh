#!/usr/bin/env bash
set -euo pipefail

usage() {
  cat <<'TEXT'
Measures on a million tasks, on SQLite and on a MySQL: medians of lists (page 1
and page 1,000, with each kind of filter), look-ups and cancels over gRPC, and
what retention costs those who submit meanwhile. Fails when a median is 10 ms or
more, or when a late page costs more than an early one.

  tests/million.sh [--check]

--check  Also runs what `orbit check` runs, after the filling and at the end.

ORBIT_MILLION_TASKS   how many tasks, if not a million
ORBIT_TEST_MYSQL_URL  the MySQL, mysql://user:password@host:port; without it one
                      is started for this run (tests/mysql/mysql.sh)

Needs about 5 GB of disk and ten minutes on an idle machine, after an optimized
build. What it fills the databases with is in tests/million/load.rs.
TEXT
}

cd "$(dirname "$0")/.."
case ${1:-} in
  -h | --help) usage; exit ;;
  --check) export ORBIT_MILLION_CHECK=1 ;;
  '') ;;
  *) usage >&2; exit 2 ;;
esac

data=''
trap '[ -z "$data" ] || tests/mysql/mysql.sh remove "$data"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ -z "${ORBIT_TEST_MYSQL_URL:-}" ]; then
  folder=${CARGO_TARGET_DIR:-target}/mysql
  mkdir -p "$folder"
  data=$(mktemp -d "$folder/million.XXXXXX")
  ORBIT_TEST_MYSQL_URL=$(tests/mysql/mysql.sh start "$data")
  export ORBIT_TEST_MYSQL_URL
fi
cargo bench --locked --bench million
