"""Orbit for Python: the contract, and an asyncio worker that keeps every rule of docs/worker-protocol.md.

It is written to be read: whoever writes a worker for another language may follow it part by part. The numbers in
brackets, such as [R3], are the rules of that page.
"""

import asyncio
import json
import logging
import pathlib
import random
import sys
import time
import uuid

import grpc

# The contract is read from its proto files as they are; nothing generated is kept.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "proto"))
task_pb, task_grpc = grpc.protos_and_services("orbit/v1/task.proto")
queue_pb, queue_grpc = grpc.protos_and_services("orbit/v1/queue.proto")
worker_pb, worker_grpc = grpc.protos_and_services("orbit/v1/worker.proto")

SAFE_RETRY = "safe-retry/1"
ANSWER_TIMEOUT = 5.0  # seconds until a message without an answer is sent again
PING_EVERY = 5.0
SILENCE_MAX = 15.0  # a stream that says nothing for so long, not even a pong, is dead
MESSAGE_BYTES_MAX = 20 * 1024 * 1024
OK = grpc.StatusCode.OK.value[0]
FINAL_FOR_STREAM = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
}
# Codes under which a message was decided, and would be decided the same again. All others: send the same again.
DECIDED = {
    code.value[0]
    for code in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.DATA_LOSS,
    )
}
NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]

log = logging.getLogger("orbit")


def channel(url):
    """A connection; `url` is as in ORBIT_URL."""
    options = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.initial_reconnect_backoff_ms", 100)]
    return grpc.aio.insecure_channel(url.removeprefix("http://"), options=options)


async def call(method, request, patience=60.0):
    """A unary call, sent again while the server is away. Every write of Orbit may be: that is what its keys are for."""
    delay, until = 0.05, time.monotonic() + patience
    while True:
        try:
            return await method(request, timeout=patience)
        except grpc.aio.AioRpcError as error:
            again = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
            if not again or time.monotonic() > until:
                raise
        await asyncio.sleep(delay * random.uniform(0.5, 1))
        delay = min(delay * 2, 2)


class Failure(Exception):
    """How a handler says that nothing happened. Any other exception leaves the effect in doubt [R6]."""

    def __init__(self, outcome, code, message="", retryable=False):
        super().__init__(f"{code}: {message}")
        self.outcome, self.code, self.message, self.is_retryable = outcome, code, message, retryable

    @classmethod
    def retryable(cls, code, message=""):
        """Nothing happened, or doing it again is harmless."""
        return cls(task_pb.OUTCOME_FAILED, code, message, True)

    @classmethod
    def permanent(cls, code, message=""):
        """Nothing happened, and trying again is of no use."""
        return cls(task_pb.OUTCOME_FAILED, code, message)

    @classmethod
    def canceled(cls, code="CANCELED", message=""):
        """Stopped because a cancel was asked for; nothing more will happen."""
        return cls(task_pb.OUTCOME_CANCELED, code, message)


class Attempt:
    """One attempt, and what a handler may know of it."""

    def __init__(self, dispatch):
        self.dispatch = dispatch
        self.ref = worker_pb.AttemptRef(
            task_id=dispatch.task_id, attempt_id=dispatch.attempt_id, epoch=dispatch.epoch
        )
        self.payload = json.loads(dispatch.payload)
        self.started = False
        self.reporting = False
        self.lost = False
        self.stop = asyncio.Event()  # set when a cancel was asked for, the lease is lost, or the time is over
        self.cancel_requested = False
        self.asked_at = None  # when the oldest question about the lease that has no answer was sent
        self.confirmed_until = 0.0

    def may_act(self):
        """Whether the right to act is certain, by this process's own clock."""
        return not self.lost and time.monotonic() < self.confirmed_until

    def ask(self):
        if self.asked_at is None:
            self.asked_at = time.monotonic()

    def learn(self, lease):
        """Counts the lease from when the question was sent, less a margin [R3]."""
        if not lease.valid:
            self.lost = True  # for good: an ended lease is never renewed
            self.stop.set()
        elif self.asked_at is not None:
            term = lease.remaining_ms / 1000
            self.confirmed_until = max(self.confirmed_until, self.asked_at + term - min(term / 10, 1))
            self.asked_at = None
        if lease.cancel_requested:
            self.cancel_requested = True
            self.stop.set()


class Worker:
    """Runs handlers for the tasks of some queues: `handlers` maps (handler, version) to `async f(attempt)`."""

    def __init__(self, url, name, queues, handlers, slots=8):
        self.url, self.name, self.queues, self.handlers, self.slots = url, name, queues, handlers, slots
        self.attempts = {}  # by attempt id, until their report is confirmed
        self.unanswered = {}  # message id -> (request, future of its answer)
        self.jobs = set()
        self.outbox = None  # of the open stream
        self.draining = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.renew_every = 1.0
        self.counts = {"started": 0, "confirmed": 0}

    # --- The stream ---------------------------------------------------------------------------------------------

    async def run(self):
        """Works until it is drained, over as many streams as it takes. Raises what the server refuses for good."""
        delay = 0.05
        while not (self.draining.is_set() and self.idle.is_set()):
            opened, away = time.monotonic(), 0.0
            try:
                away = await self.one_stream()
            except grpc.aio.AioRpcError as error:
                if error.code() in FINAL_FOR_STREAM:
                    raise
                log.warning("no stream: %s %s", error.code().name, error.details())
            self.outbox = None
            for attempt in self.attempts.values():
                attempt.asked_at = None  # nobody will answer
            if time.monotonic() - opened > 5:
                delay = 0.05
            wait = max(delay * random.uniform(0.5, 1), away)
            if self.attempts:
                wait = min(wait, self.renew_every)  # leases that are held outrank the wish to be left alone
            if not (self.draining.is_set() and self.idle.is_set()):
                await asyncio.sleep(wait)
            delay = min(delay * 2, 2)

    async def one_stream(self):
        """One stream from hello to its end. Returns for how long the server wants to be left alone."""
        outbox = asyncio.Queue()
        outbox.put_nowait(worker_pb.WorkerRequest(hello=self.hello()))

        async def requests():
            while (request := await outbox.get()) is not None:
                yield request

        async with channel(self.url) as connection:
            stream = worker_grpc.WorkerServiceStub(connection).Worker(requests())
            first = await asyncio.wait_for(stream.read(), 10)
            if first is grpc.aio.EOF or first.WhichOneof("message") != "welcome":
                return 0.0
            welcome = first.welcome
            if SAFE_RETRY not in welcome.features:
                raise RuntimeError(f"the server does not know {SAFE_RETRY}")  # fail closed [R1]
            log.info("stream %s on node %s", welcome.session_id, welcome.node_id)
            self.renew_every = max(welcome.renew_every_ms / 1000, 0.02)
            self.outbox = outbox
            self.on_leases(welcome.held)
            for request, _ in list(self.unanswered.values()):
                self.send(request)  # under the same message id [R4]
            if self.draining.is_set():
                self.send(worker_pb.WorkerRequest(drain=worker_pb.Drain()))
            self.heard = time.monotonic()
            self.away = 0.0
            helpers = [asyncio.ensure_future(f) for f in (self.renew(), self.ping(stream), self.close_when_idle(stream))]
            try:
                while (response := await stream.read()) is not grpc.aio.EOF:
                    self.heard = time.monotonic()
                    self.on_response(response, stream)
            except asyncio.CancelledError:
                if not stream.cancelled() or asyncio.current_task().cancelling():
                    raise  # not our own cancel of the stream, but somebody's of the worker
            finally:
                for helper in helpers:
                    helper.cancel()
                stream.cancel()
            return self.away

    def hello(self):
        held = [a.ref for a in self.attempts.values() if a.started and not a.lost]
        for attempt in self.attempts.values():
            if attempt.started:
                attempt.ask()
        slots = max(len(held), 1 if self.draining.is_set() else self.slots)
        return worker_pb.Hello(
            worker_name=self.name,
            queue_ids=self.queues,
            handlers=[worker_pb.HandlerVersion(handler=h, handler_version=v) for h, v in self.handlers],
            max_in_flight=slots,
            features=[SAFE_RETRY],
            held=held,  # [R5]
        )

    def send(self, request):
        if self.outbox is not None:
            self.outbox.put_nowait(request)

    def on_response(self, response, stream):
        kind = response.WhichOneof("message")
        if kind == "dispatch":
            self.on_dispatch(response.dispatch)
        elif kind == "command_result":
            waiting = self.unanswered.get(response.command_result.message_id)
            if waiting and not waiting[1].done():
                waiting[1].set_result(response.command_result)
        elif kind == "renewed":
            self.on_leases(response.renewed.leases)
        elif kind == "cancel":
            if attempt := self.attempts.get(response.cancel.attempt_id):
                attempt.cancel_requested = True
                attempt.stop.set()
        elif kind == "go_away":
            # What is held goes on here while the stream lasts, then on a new one.
            self.away = response.go_away.reconnect_after_ms / 1000
            asyncio.get_running_loop().call_later(self.away, stream.cancel)

    def on_leases(self, leases):
        for renewed in leases:
            if attempt := self.attempts.get(renewed.attempt.attempt_id):
                attempt.learn(renewed.lease)

    async def renew(self):
        """At once, as a new stream has renewed nothing, and then as often as the server says [R3]."""
        while True:
            running = [a for a in self.attempts.values() if a.started and not a.lost]
            for attempt in running:
                attempt.ask()
            for i in range(0, len(running), 1000):
                leases = [a.ref for a in running[i : i + 1000]]
                self.send(worker_pb.WorkerRequest(renew=worker_pb.Renew(leases=leases)))
            await asyncio.sleep(self.renew_every)

    async def ping(self, stream):
        sequence = 0
        while time.monotonic() - self.heard < SILENCE_MAX:
            sequence += 1
            self.send(worker_pb.WorkerRequest(ping=worker_pb.Ping(sequence=sequence)))
            await asyncio.sleep(PING_EVERY)
        log.warning("the server does not answer pings")
        stream.cancel()

    async def close_when_idle(self, stream):
        await self.draining.wait()
        self.send(worker_pb.WorkerRequest(drain=worker_pb.Drain()))
        await self.idle.wait()
        self.outbox.put_nowait(None)
        await asyncio.sleep(0.5)  # the server ends the stream by itself
        stream.cancel()

    # --- One attempt --------------------------------------------------------------------------------------------

    def on_dispatch(self, dispatch):
        known = (dispatch.handler, dispatch.handler_version) in self.handlers
        if not known or dispatch.attempt_id in self.attempts:
            return
        attempt = Attempt(dispatch)
        self.attempts[dispatch.attempt_id] = attempt
        self.idle.clear()
        job = asyncio.ensure_future(self.attend(attempt))
        self.jobs.add(job)

        def ended(job):
            self.jobs.discard(job)
            del self.attempts[dispatch.attempt_id]
            if not self.attempts:
                self.idle.set()
            if not job.cancelled() and job.exception():
                log.error("a bug in the worker", exc_info=job.exception())

        job.add_done_callback(ended)

    async def attend(self, attempt):
        """The life of an attempt: ask for its start, run it, report it until that is confirmed."""
        first_sent = time.monotonic()
        attempt.ask()
        start = worker_pb.Start(message_id=str(uuid.uuid4()), **fields(attempt.ref))
        answer = await self.command(worker_pb.WorkerRequest(start=start))
        if answer.status.code != OK:
            log.info("task %s: not started: %s", attempt.ref.task_id, answer.status.message)
            return  # and the handler must not run [R1]
        attempt.started = True
        self.counts["started"] += 1
        attempt.learn(answer.lease)
        report = await self.run_handler(attempt, first_sent)
        attempt.reporting = True
        await self.report(attempt, report)

    async def run_handler(self, attempt, first_sent):
        dispatch = attempt.dispatch
        if attempt.lost:
            return failed(Failure.retryable("NEVER_RAN", "the lease had ended before the handler was called"))
        if attempt.cancel_requested:
            return failed(Failure.canceled(message="before the handler was called"))
        limit = min(dispatch.attempt_timeout_ms, dispatch.deadline_ms) / 1000
        timer = asyncio.get_running_loop().call_at(
            asyncio.get_running_loop().time() + limit - (time.monotonic() - first_sent), attempt.stop.set
        )
        try:
            result = await self.handlers[dispatch.handler, dispatch.handler_version](attempt)
            text = json.dumps(result, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            return worker_pb.Finish(outcome=task_pb.OUTCOME_SUCCEEDED, result=text)
        except Failure as failure:
            return failed(failure)
        except Exception as error:  # nobody knows what happened before it [R6]
            log.exception("task %s", dispatch.task_id)
            return failed(Failure(task_pb.OUTCOME_UNKNOWN, "HANDLER_ERROR", f"{type(error).__name__}: {error}"))
        finally:
            timer.cancel()

    async def report(self, attempt, finish):
        """Sends a report until its receipt has come."""
        repeated = downgraded = False
        while True:
            finish.MergeFrom(worker_pb.Finish(message_id=str(uuid.uuid4()), **fields(attempt.ref)))
            answer = await self.command(worker_pb.WorkerRequest(finish=finish))
            if answer.status.code == OK:
                evidence = answer.receipt.disposition == worker_pb.DISPOSITION_EVIDENCE
                if evidence and answer.lease.valid and not repeated:
                    repeated = True  # it came before its start was known: once more, under a new id [R7]
                    continue
                self.counts["confirmed"] += 1
                return
            log.warning("task %s: report refused: %s", attempt.ref.task_id, answer.status.message)
            if answer.status.code == NOT_FOUND or downgraded:
                return
            # The answer is final: this report will never be taken. What happened is then in doubt.
            downgraded = True
            finish = failed(Failure(task_pb.OUTCOME_UNKNOWN, "REPORT_REFUSED", answer.status.message))

    async def command(self, request):
        """Sends one message, always the same, on this stream and the next ones, until it is decided [R4]."""
        message_id = getattr(request, request.WhichOneof("message")).message_id
        delay = 0.1
        while True:
            answered = asyncio.get_running_loop().create_future()
            self.unanswered[message_id] = (request, answered)
            self.send(request)
            try:
                answer = await asyncio.wait_for(answered, ANSWER_TIMEOUT)
            except TimeoutError:
                continue
            finally:
                del self.unanswered[message_id]
            if answer.status.code == OK or answer.status.code in DECIDED:
                return answer
            await asyncio.sleep(delay * random.uniform(0.5, 1))
            delay = min(delay * 2, 5)

    # --- The end ------------------------------------------------------------------------------------------------

    async def drain(self, limit):
        """Takes no more work, finishes what there is, and tells how it went."""
        self.draining.set()
        try:
            await asyncio.wait_for(self.idle.wait(), limit)
        except TimeoutError:
            log.warning("the drain's time is over")
        return {"drained": self.idle.is_set(), **self.counts, "running": len(self.attempts)}


def fields(ref):
    return {"task_id": ref.task_id, "attempt_id": ref.attempt_id, "epoch": ref.epoch}


def failed(failure):
    error = task_pb.TaskError(code=failure.code[:128], message=failure.message[:1000])
    return worker_pb.Finish(outcome=failure.outcome, retryable=failure.is_retryable, error=error)
