"""The retry scenario: a task fails once in a way that is safe to retry, waits out its backoff, runs again, succeeds.

    python3 retry.py                 # against ORBIT_URL, default http://127.0.0.1:7070
    python3 retry.py --work QUEUE    # only the worker, for that queue, until Ctrl-C
"""

import asyncio
import logging
import os
import signal
import sys
import uuid

from orbit_worker import Failure, Worker, call, channel, queue_grpc, queue_pb, task_grpc, task_pb

URL = os.environ.get("ORBIT_URL", "http://127.0.0.1:7070")
LIMIT = 60


async def normalize(attempt):
    """Refuses before it does anything: that, and only that, makes the failure safe to retry."""
    if attempt.dispatch.attempt_number == 1:
        raise Failure.retryable("TEMPORARY_REJECTION", "not now")
    return {"text": attempt.payload["text"].strip().upper()}


async def sleep(attempt):
    """Works for a while, as long as it may: its lease is renewed meanwhile."""
    until = asyncio.get_running_loop().time() + attempt.payload["seconds"]
    while asyncio.get_running_loop().time() < until:
        if attempt.stop.is_set():
            raise Failure.canceled() if attempt.cancel_requested else TimeoutError("stopped in the middle")
        await asyncio.sleep(0.05)
    return {"slept": attempt.payload["seconds"], "may_act": attempt.may_act()}


def worker(queue):
    return Worker(URL, "python-example", [queue], {("text.normalize", "v1"): normalize, ("demo.sleep", "v1"): sleep})


async def retry():
    run = str(uuid.uuid4())
    queue = f"retry-{run[:8]}"
    running = worker(queue)
    async with channel(URL) as connection:
        queues, tasks = queue_grpc.QueueServiceStub(connection), task_grpc.TaskServiceStub(connection)
        await call(queues.CreateQueue, queue_pb.CreateQueueRequest(queue_id=queue, request_id=run))
        work = asyncio.ensure_future(running.run())
        request = task_pb.SubmitTaskRequest(
            queue_id=queue,
            idempotency_key=f"retry-example/{run}",
            handler="text.normalize",
            handler_version="v1",
            payload_version="v1",
            payload='{"text":"  safe retry  "}',
            retry=task_pb.RetryPolicy(
                max_attempts=3, initial_delay_ms=500, max_delay_ms=2000, attempt_timeout_ms=10_000
            ),
            task_timeout_ms=LIMIT * 1000,
        )
        task = (await call(tasks.SubmitTask, request)).task
        print(f"submitted task {task.task_id} to queue {queue}", file=sys.stderr, flush=True)
        wait = task_pb.WaitTaskRequest(task_id=task.task_id, wait_ms=10_000, view=task_pb.TASK_VIEW_FULL)
        while task.state != task_pb.TASK_STATE_SUCCEEDED:
            task = (await call(tasks.WaitTask, wait)).task
            if task.state in (task_pb.TASK_STATE_FAILED, task_pb.TASK_STATE_NEEDS_REVIEW):
                raise SystemExit(f"unexpected end: {task}")
        attempts = (await call(tasks.ListAttempts, task_pb.ListAttemptsRequest(task_id=task.task_id))).attempts
    state = task_pb.TaskState.Name(task.state).removeprefix("TASK_STATE_")
    first = str(attempts[0].retryable).lower()
    print(f"task={task.task_id} state={state} attempts={len(attempts)} first_retryable={first} result={task.result}")
    report = await running.drain(LIMIT)
    await work
    print_report(report)


def print_report(report):
    drained = str(report["drained"]).lower()
    print(
        f"worker_drained={drained} started={report['started']} confirmed={report['confirmed']} "
        f"running={report['running']}"
    )


async def only_work(queue):
    running = worker(queue)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.draining.set)
    await running.run()
    print_report(await running.drain(LIMIT))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    if sys.argv[1:2] == ["--work"]:
        asyncio.run(only_work(sys.argv[2]))
    else:
        asyncio.run(asyncio.wait_for(retry(), LIMIT))
