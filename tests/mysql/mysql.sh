#!/usr/bin/env bash
set -euo pipefail

usage() {
  cat <<'TEXT'
A private database server for the tests, with its data in a folder of its own.

  tests/mysql/mysql.sh [--engine mysql|mariadb] start DIR [SERVER OPTION...]
  tests/mysql/mysql.sh stop DIR [KILL]
  tests/mysql/mysql.sh remove DIR

start   Prints the server's URL: root without a password, on a free port of
        127.0.0.1. A new DIR is initialised. A DIR that was stopped or killed
        goes on with its data and, unless somebody took it meanwhile, its port.
        A DIR whose server runs is left alone.
stop    Stops the server cleanly, or with KILL as a crash would.
remove  Kills the server, if it runs, and deletes DIR.

The server is the first of these that works:
  1. mysqld on the PATH, 8.0.19 or newer,
  2. on Debian, unstable's mysql-server-core, fetched once into target/mysql,
  3. Docker, with the image ORBIT_TEST_MYSQL_IMAGE (default: mysql:8.4).
TEXT
}

root=$(realpath "$(dirname "$0")/../..")
target=${CARGO_TARGET_DIR:-target}
[[ $target == /* ]] || target=$root/$target

say() { echo "mysql.sh: $*" >&2; }

# --- What runs already ---------------------------------------------------------

# The server's process, if it lives. Its number may belong to somebody else by
# now, so the command line must name this folder; a zombie's names nothing.
server_pid() {
  local pid
  pid=$(cat "$dir/pid" 2>/dev/null) &&
    grep -qzxF -- "--datadir=$dir/data" "/proc/$pid/cmdline" 2>/dev/null && echo "$pid"
}

container() { cat "$dir/container" 2>/dev/null; }
container_runs() {
  local name
  name=$(container) && [ "$(docker inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true ]
}

runs() { server_pid >/dev/null || container_runs; }

# --- Ports ---------------------------------------------------------------------

# In the next two, $0 is meant for the inner bash, which a time limit can end.
# shellcheck disable=SC2016
listens() { timeout 2 bash -c ': <"/dev/tcp/127.0.0.1/$0"' "$1" 2>/dev/null; }

# The server speaks first, and the fifth byte is its protocol's version, 10. An
# open port alone proves nothing: Docker opens it before the server is there.
# shellcheck disable=SC2016
greets() {
  local bytes
  bytes=$(timeout 2 bash -c 'head -c 5 <"/dev/tcp/127.0.0.1/$0"' "$1" 2>/dev/null | od -An -tu1)
  [ "${bytes##* }" = 10 ]
}

# The port of last time, so that a client finds a restarted server again; else
# one below the range from which the system takes ports for outgoing connections.
choose_port() {
  port=$(cat "$dir/port" 2>/dev/null) || port=
  while [ -z "$port" ] || listens "$port"; do port=$((20000 + RANDOM % 12000)); done
  echo "$port" >"$dir/port"
}

# --- Where a server comes from -------------------------------------------------
# Each sets `server`, the command that starts one, or fails.

from_path() {
  [ "$engine" = mysql ] || return
  local mysqld version
  # Debian keeps servers where only root looks for programs.
  mysqld=$(PATH=$PATH:/usr/local/sbin:/usr/sbin command -v mysqld) && version=$("$mysqld" --version) || return
  [[ $version != *MariaDB* ]] || { say "$mysqld is MariaDB, looking further"; return 1; }
  version=$(sed -E 's/.* Ver ([0-9.]+).*/\1/' <<<"$version")
  printf '%s\n' 8.0.19 "$version" | sort -CV || { say "$mysqld is too old ($version), looking further"; return 1; }
  server=("$mysqld" --no-defaults)
}

from_debian() {
  local tree=$target/mysql/$engine
  "$root/tests/mysql/fetch.sh" "$engine" "$tree" || return
  share=$tree/usr/share/$engine # its messages, character sets and SQL
  # Run by the tree's own loader, for the tree's libc may be newer than ours.
  server=("$(echo "$tree"/usr/lib*/ld-linux*.so.*)" --library-path "$(echo "$tree"/usr/lib/*-linux-gnu*)"
    "$tree/usr/sbin/mysqld" --no-defaults --basedir="$tree/usr" --plugin-dir="$tree/usr/lib/mysql/plugin"
    --lc-messages-dir="$share" --character-sets-dir="$share/charsets")
}

from_docker() {
  # A client alone is no Docker: `info` asks the engine.
  timeout 20 docker info >/dev/null 2>&1 || { say "no Docker engine answers"; return 1; }
  case $engine in mysql) image=mysql:8.4 ;; mariadb) image=mariadb:lts ;; esac
  image=${ORBIT_TEST_MYSQL_IMAGE:-$image}
}

# --- Starting ------------------------------------------------------------------

# The messages of the last start, which tell why it failed.
complain() {
  say "$1; $dir/error.log ends with:"
  tail -n 20 "$dir/error.log" >&2
  return 1
}

initialise() {
  [ ! -e "$dir/source" ] || return 0 # made by an earlier start
  rm -rf "$dir/data"
  mkdir "$dir/data"
  if [ "$engine" = mysql ]; then
    local option for_ever=() # how data is laid out is decided now
    for option; do [[ $option != --lower-case-table-names=* ]] || for_ever+=("$option"); done
    "${server[@]}" "${for_ever[@]}" --initialize-insecure
  else
    {
      # The bootstrap mode takes one statement a line.
      printf '%s;\n' 'CREATE DATABASE mysql' 'USE mysql' 'SET @auth_root_socket = NULL'
      cat "$share"/mariadb_{system_tables,performance_tables,system_tables_data}.sql
    } | "${server[@]}" --bootstrap --log-warnings=0 --net-buffer-length=16K
  fi >>"$dir/error.log" 2>&1 || complain "$engine cannot be initialised"
}

# await ALIVE READY: waits until READY, at most two minutes (a crash recovery may
# take a while), and fails as soon as it is not ALIVE.
await() {
  local deadline=$((SECONDS + 120))
  until "$2" && greets "$port"; do
    "$1" && [ $SECONDS -lt $deadline ] || return
    sleep 0.05
  done
}
child_lives() { kill -0 "$child" 2>/dev/null; }
# It writes this once the port is its own; before, a stranger might be greeting there.
child_is_ready() { [ -e "$dir/ready" ]; }

launch() {
  server+=(--datadir="$dir/data" --log-error="$dir/error.log")
  [ "$(id -u)" != 0 ] || server+=(--user=root)
  initialise "$@" || return
  # Where it may open few files, a server silently allows fewer connections.
  ulimit -Sn 10000 2>/dev/null || ulimit -Sn "$(ulimit -Hn)"
  for _ in 1 2 3; do # somebody else may take the port before the server does
    choose_port
    : >"$dir/error.log"
    rm -f "$dir/ready"
    # A session of its own keeps the terminal's Ctrl-C away from the server.
    setsid "${server[@]}" "$@" --bind-address=127.0.0.1 --port="$port" --socket= --pid-file="$dir/ready" \
      >>"$dir/error.log" 2>&1 </dev/null &
    child=$!
    echo $child >"$dir/pid"
    await child_lives child_is_ready && return
    grep -qi 'bind on TCP/IP port' "$dir/error.log" || break
  done
  complain "$engine does not start"
}

launch_container() {
  if container >/dev/null; then
    port=$(cat "$dir/port")
    docker start "$(container)" >/dev/null || return
  else
    choose_port
    echo "orbit-test-$port-$$" >"$dir/container"
    docker run -d --name "$(container)" -p "127.0.0.1:$port:3306" -e MYSQL_ALLOW_EMPTY_PASSWORD=yes \
      "$image" "$@" >/dev/null || return
  fi
  await container_runs true || { docker logs --tail 20 "$(container)" >&2; say "the container does not start"; return 1; }
}

start() {
  if runs; then
    echo "mysql://root@127.0.0.1:$(cat "$dir/port")"
    return
  fi
  # As in production, nothing acknowledged is lost in a crash, and the binlog is
  # written. Many tests may connect at once. Memory and disk are kept small.
  local source options=(--innodb-flush-log-at-trx-commit=1 --sync-binlog=1
    --max-connections=1000 --table-open-cache=2000 --innodb-buffer-pool-size=256M)
  case $engine in
    mysql) options+=(--mysqlx=OFF --secure-file-priv=NULL --loose-innodb-redo-log-capacity=256M) ;;
    mariadb) options+=(--log-bin=binlog --server-id=1 --innodb-log-file-size=256M) ;;
  esac
  options+=("$@")
  mkdir -p "$dir"
  chmod 700 "$dir"
  # Data is read again only by the server that wrote it.
  for source in $(cat "$dir/source" 2>/dev/null || echo path debian docker); do
    "from_$source" || continue
    case $source in
      docker) launch_container "${options[@]}" ;;
      *) launch "${options[@]}" ;;
    esac || continue
    echo "$source" >"$dir/source"
    echo "mysql://root@127.0.0.1:$port"
    return
  done
  say "no $engine can be started here. Install MySQL 8.0.19 or newer (mysqld on the PATH) or start"
  say "Docker, or set ORBIT_TEST_MYSQL_URL to a server whose user may create databases."
  return 1
}

# --- Stopping ------------------------------------------------------------------

stop() {
  local signal=${1:-TERM} pid deadline=$((SECONDS + 60))
  if pid=$(server_pid); then
    kill "-$signal" "$pid"
  elif container_runs; then
    docker kill --signal "$signal" "$(container)" >/dev/null
  else
    return 0
  fi
  # A killed process lets go of its port and files only a moment after it is gone.
  while runs || listens "$(cat "$dir/port")"; do
    [ $SECONDS -lt $deadline ] || { say "the server in $dir does not stop"; return 1; }
    sleep 0.05
  done
}

remove() {
  stop KILL
  ! container >/dev/null || docker rm -v "$(container)" >/dev/null || true # it may never have been made
  rm -rf "$dir"
}

engine=mysql
if [ "${1:-}" = --engine ]; then
  engine=${2:-}
  shift 2
fi
case $engine:${1:-}:${2:+dir} in
  mysql:start:dir | mariadb:start:dir | *:stop:dir | *:remove:dir) ;;
  *:-h:* | *:--help:*) usage; exit ;;
  *) usage >&2; exit 2 ;;
esac
verb=$1 dir=$(realpath -m "$2")
shift 2
"$verb" "$@"
