#!/bin/sh
# A producer that needs nothing but curl: makes a queue, submits a task to it, waits for its end, and looks at its
# attempts. A worker must serve the queue, such as `examples/python/run --work QUEUE`.
#
#   examples/http/submit.sh QUEUE [TEXT]
set -eu
url=${ORBIT_URL:-http://127.0.0.1:7070}
queue=${1:?the queue} text=${2:-  safe retry  }
# The key makes every line of this script safe to repeat: keep it until the answer is there.
key=${KEY:-$(uuidgen 2>/dev/null || cat /proc/sys/kernel/random/uuid)}

# Sent again while the server is away: curl takes 503 and 429 for that and waits as Retry-After says.
orbit() {
  curl --silent --show-error --retry 20 --retry-connrefused --retry-max-time 60 \
    --header 'Content-Type: application/json' "$@"
}
# The first value of a name in an answer; good for ids, names and numbers.
value() { sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p" | head -n 1; }

orbit --data "{\"queue_id\":\"$queue\",\"request_id\":\"$key\"}" "$url/v1/queues" >/dev/null
answer=$(orbit --header "Idempotency-Key: $key" "$url/v1/tasks" --data '{
  "queue_id": "'"$queue"'", "handler": "text.normalize", "handler_version": "v1", "payload_version": "v1",
  "payload": {"text": "'"$text"'"},
  "retry": {"max_attempts": 3, "initial_delay_ms": 500, "max_delay_ms": 2000, "attempt_timeout_ms": 10000}
}')
id=$(echo "$answer" | value task_id)
[ -n "$id" ] || { echo "not accepted: $answer" >&2; exit 1; }
echo "submitted task $id to queue $queue" >&2

state=
for _ in 1 2 3 4 5 6; do
  task=$(orbit "$url/v1/tasks/$id:wait?wait_ms=10000&view=TASK_VIEW_FULL")
  state=$(echo "$task" | value state)
  case $state in TASK_STATE_SUCCEEDED | TASK_STATE_FAILED | TASK_STATE_CANCELED | TASK_STATE_NEEDS_REVIEW) break ;; esac
done
history=$(orbit "$url/v1/tasks/$id/attempts")
attempts=$(echo "$task" | value attempt_count)
first=$(echo "$history" | sed 's/.*"attempts":\[{[^}]*"retryable":\([a-z]*\).*/\1/')
result=$(echo "$task" | sed -n 's/.*"result":\({.*}\),"last_decision".*/\1/p')
echo "task=$id state=${state#TASK_STATE_} attempts=$attempts first_retryable=$first result=$result"
[ "$state" = TASK_STATE_SUCCEEDED ]
