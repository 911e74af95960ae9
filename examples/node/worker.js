// A worker for Orbit on @grpc/grpc-js. The numbers in brackets are the rules of docs/worker-protocol.md; the Python
// example keeps the same ones, with more words.
import { randomUUID } from "node:crypto";
import { fileURLToPath } from "node:url";
import { setTimeout as sleep } from "node:timers/promises";
import { createRequire } from "node:module";

// By `require`, which also looks where NODE_PATH points.
const require = createRequire(import.meta.url);
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");

const PROTO = fileURLToPath(new URL("../../proto", import.meta.url));
const definition = loadSync(["orbit/v1/queue.proto", "orbit/v1/task.proto", "orbit/v1/worker.proto"], {
  includeDirs: [PROTO], keepCase: true, enums: String, longs: Number, defaults: true, oneofs: true,
});
export const { orbit: { v1 } } = grpc.loadPackageDefinition(definition);

const SAFE_RETRY = "safe-retry/1";
const ANSWER_TIMEOUT_MS = 5_000;
const PING_EVERY_MS = 5_000;
const SILENCE_MAX_MS = 15_000;
const MESSAGE_BYTES_MAX = 20 * 1024 * 1024;
const { status } = grpc;
const DECIDED = new Set([
  status.OK, status.INVALID_ARGUMENT, status.NOT_FOUND, status.ALREADY_EXISTS, status.FAILED_PRECONDITION,
  status.OUT_OF_RANGE, status.UNIMPLEMENTED, status.DATA_LOSS,
]);
const FINAL_FOR_STREAM = new Set([
  status.UNAUTHENTICATED, status.PERMISSION_DENIED, status.INVALID_ARGUMENT, status.FAILED_PRECONDITION,
]);

export const address = (url) => url.replace(/^http:\/\//, "");
export const credentials = grpc.credentials.createInsecure();

/** A unary call, sent again while the server is away: every write of Orbit may be. */
export async function call(client, method, request, patienceMs = 60_000) {
  const until = Date.now() + patienceMs;
  for (let delay = 50; ; delay = Math.min(delay * 2, 2_000)) {
    try {
      return await new Promise((resolve, reject) => {
        client[method](request, { deadline: until }, (error, answer) => (error ? reject(error) : resolve(answer)));
      });
    } catch (error) {
      const again = error.code === status.UNAVAILABLE || error.code === status.RESOURCE_EXHAUSTED;
      if (!again || Date.now() > until) throw error;
    }
    await sleep(delay * (0.5 + Math.random() / 2));
  }
}

/** How a handler says that nothing happened. Any other error leaves the effect in doubt [R6]. */
export class Failure extends Error {
  constructor(outcome, code, message = "", retryable = false) {
    super(message);
    Object.assign(this, { outcome, code, retryable });
  }
  static retryable = (code, message) => new Failure("OUTCOME_FAILED", code, message, true);
  static permanent = (code, message) => new Failure("OUTCOME_FAILED", code, message);
  static canceled = (code, message) => new Failure("OUTCOME_CANCELED", code, message);
}

const failed = ({ outcome, code, message, retryable }) =>
  ({ outcome, retryable: retryable ?? false, error: { code, message: (message ?? "").slice(0, 1_000) } });

export class Worker {
  counts = { started: 0, confirmed: 0 };
  attempts = new Map(); // by attempt id, until their report is confirmed
  unanswered = new Map(); // message id -> { request, resolve }
  stream = null;
  draining = false;

  /** `handlers` maps "handler version" to `async (attempt) => result`. */
  constructor(url, name, queues, handlers, slots = 8) {
    Object.assign(this, { url, name, queues, handlers, slots, renewEveryMs: 1_000 });
  }

  get drained() { return this.draining && this.attempts.size === 0; }

  /** Works until it is drained, over as many streams as it takes. */
  async run() {
    for (let delay = 50; !this.drained; ) {
      const opened = Date.now();
      const { error, awayMs } = await this.oneStream();
      if (error && FINAL_FOR_STREAM.has(error.code)) throw error;
      if (error) console.error(`no stream: ${error.message}`);
      for (const attempt of this.attempts.values()) attempt.askedAt = null;
      if (Date.now() - opened > 5_000) delay = 50;
      let wait = Math.max(delay * (0.5 + Math.random() / 2), awayMs);
      if (this.attempts.size) wait = Math.min(wait, this.renewEveryMs); // leases that are held come first
      if (!this.drained) await sleep(wait);
      delay = Math.min(delay * 2, 2_000);
    }
  }

  oneStream() {
    return new Promise((resolve) => {
      const client = new v1.WorkerService(address(this.url), credentials, {
        "grpc.max_receive_message_length": MESSAGE_BYTES_MAX, "grpc.use_local_subchannel_pool": 1,
      });
      const stream = client.Worker();
      const timers = [];
      let heard = Date.now(), awayMs = 0, sequence = 0, over = false;
      const end = (error) => {
        if (over) return;
        over = true;
        timers.forEach(clearInterval);
        this.stream = null;
        stream.cancel();
        client.close();
        resolve({ error, awayMs });
      };
      timers.push(setTimeout(() => { if (!this.stream) end(new Error("no welcome came")); }, 10_000));
      stream.on("error", end);
      stream.on("end", () => end(null));
      stream.on("data", (response) => {
        heard = Date.now();
        if (response.message === "welcome") {
          const { welcome } = response;
          if (!welcome.features.includes(SAFE_RETRY)) { // fail closed [R1]
            return end(Object.assign(new Error(`no ${SAFE_RETRY}`), { code: status.FAILED_PRECONDITION }));
          }
          this.stream = stream;
          this.renewEveryMs = Math.max(welcome.renew_every_ms, 20);
          this.onLeases(welcome.held);
          for (const { request } of this.unanswered.values()) this.send(request); // same message ids [R4]
          if (this.draining) this.send({ drain: {} });
          this.renew();
          timers.push(setInterval(() => this.renew(), this.renewEveryMs)); // [R3]
          timers.push(setInterval(() => {
            if (Date.now() - heard > SILENCE_MAX_MS) return end(new Error("the server does not answer pings"));
            this.send({ ping: { sequence: ++sequence } });
          }, PING_EVERY_MS));
          timers.push(setInterval(() => { if (this.drained) stream.end(); }, 20));
        } else if (response.message === "go_away") {
          awayMs = response.go_away.reconnect_after_ms;
          timers.push(setTimeout(() => end(null), awayMs)); // what is held goes on here while the stream lasts
        } else {
          this.onResponse(response);
        }
      });
      const held = [...this.attempts.values()].filter((a) => a.started && !a.lost);
      held.forEach((a) => a.ask());
      stream.write({ hello: {
        worker_name: this.name,
        queue_ids: this.queues,
        handlers: Object.keys(this.handlers).map((key) => {
          const [handler, handler_version] = key.split(" ");
          return { handler, handler_version };
        }),
        max_in_flight: Math.max(held.length, this.draining ? 1 : this.slots),
        features: [SAFE_RETRY],
        held: held.map((a) => a.ref), // [R5]
      } });
    });
  }

  send(request) { this.stream?.write(request); }

  renew() {
    const running = [...this.attempts.values()].filter((a) => a.started && !a.lost);
    running.forEach((a) => a.ask());
    for (let i = 0; i < running.length; i += 1_000) {
      this.send({ renew: { leases: running.slice(i, i + 1_000).map((a) => a.ref) } });
    }
  }

  onLeases(leases) {
    for (const { attempt, lease } of leases) this.attempts.get(attempt.attempt_id)?.learn(lease);
  }

  onResponse(response) {
    if (response.message === "dispatch") {
      const { dispatch } = response;
      const handler = this.handlers[`${dispatch.handler} ${dispatch.handler_version}`];
      if (!handler || this.attempts.has(dispatch.attempt_id)) return;
      const attempt = new Attempt(dispatch);
      this.attempts.set(dispatch.attempt_id, attempt);
      this.attend(attempt, handler)
        .catch((error) => console.error("a bug in the worker", error))
        .finally(() => this.attempts.delete(dispatch.attempt_id));
    } else if (response.message === "command_result") {
      this.unanswered.get(response.command_result.message_id)?.resolve(response.command_result);
    } else if (response.message === "renewed") {
      this.onLeases(response.renewed.leases);
    } else if (response.message === "cancel") {
      this.attempts.get(response.cancel.attempt_id)?.stop.abort();
    }
  }

  /** The life of an attempt: ask for its start, run it, report it until that is confirmed. */
  async attend(attempt, handler) {
    attempt.ask();
    const answer = await this.command({ start: { message_id: randomUUID(), ...attempt.ref } });
    if (answer.status.code !== status.OK) {
      console.error(`task ${attempt.ref.task_id}: not started: ${answer.status.message}`);
      return; // and the handler must not run [R1]
    }
    attempt.started = true;
    this.counts.started += 1;
    attempt.learn(answer.lease);
    let finish = await this.runHandler(attempt, handler);
    for (let repeated = false, downgraded = false; ; ) {
      const { status: decided, receipt, lease } =
        await this.command({ finish: { message_id: randomUUID(), ...attempt.ref, ...finish } });
      if (decided.code === status.OK) {
        if (receipt.disposition === "DISPOSITION_EVIDENCE" && lease?.valid && !repeated) {
          repeated = true; // it came before its start was known: once more, under a new id [R7]
          continue;
        }
        this.counts.confirmed += 1;
        return;
      }
      console.error(`task ${attempt.ref.task_id}: report refused: ${decided.message}`);
      if (decided.code === status.NOT_FOUND || downgraded) return;
      downgraded = true; // this report will never be taken: what happened is in doubt
      finish = failed(new Failure("OUTCOME_UNKNOWN", "REPORT_REFUSED", decided.message));
    }
  }

  async runHandler(attempt, handler) {
    if (attempt.lost) return failed(Failure.retryable("NEVER_RAN", "the lease had ended before"));
    if (attempt.cancelRequested) return failed(Failure.canceled("CANCELED", "before the handler was called"));
    const { attempt_timeout_ms, deadline_ms } = attempt.dispatch;
    const timer = setTimeout(() => attempt.stop.abort(), Math.min(attempt_timeout_ms, deadline_ms, 2 ** 31 - 1));
    try {
      return { outcome: "OUTCOME_SUCCEEDED", result: JSON.stringify(await handler(attempt)) ?? "null" };
    } catch (error) { // whatever is no Failure: nobody knows what happened before it [R6]
      return failed(error instanceof Failure ? error : new Failure("OUTCOME_UNKNOWN", "HANDLER_ERROR", String(error)));
    } finally {
      clearTimeout(timer);
    }
  }

  /** Sends one message, always the same, on this stream and the next ones, until it is decided [R4]. */
  async command(request) {
    const id = (request.start ?? request.finish).message_id;
    for (let delay = 100; ; ) {
      const answer = await new Promise((resolve) => {
        const timer = setTimeout(resolve, ANSWER_TIMEOUT_MS);
        this.unanswered.set(id, { request, resolve: (answer) => { clearTimeout(timer); resolve(answer); } });
        this.send(request);
      });
      this.unanswered.delete(id);
      if (!answer) continue;
      if (DECIDED.has(answer.status.code)) return answer;
      await sleep(delay * (0.5 + Math.random() / 2));
      delay = Math.min(delay * 2, 5_000);
    }
  }

  /** Takes no more work, finishes what there is, and tells how it went. */
  async drain(limitMs) {
    this.draining = true;
    this.send({ drain: {} });
    for (const until = Date.now() + limitMs; this.attempts.size && Date.now() < until; ) await sleep(10);
    return { drained: this.drained, ...this.counts, running: this.attempts.size };
  }
}

class Attempt {
  started = false;
  lost = false;
  cancelRequested = false;
  stop = new AbortController(); // a cancel was asked for, the lease is lost, or the time is over
  askedAt = null;
  confirmedUntil = 0;

  constructor(dispatch) {
    const { task_id, attempt_id, epoch, payload } = dispatch;
    Object.assign(this, { dispatch, ref: { task_id, attempt_id, epoch }, payload: JSON.parse(payload) });
  }

  /** Whether the right to act is certain, by this process's own clock. */
  get mayAct() { return !this.lost && performance.now() < this.confirmedUntil; }

  ask() { this.askedAt ??= performance.now(); }

  /** Counts the lease from when the question was sent, less a margin [R3]. */
  learn(lease) {
    if (!lease.valid) {
      this.lost = true; // for good
      this.stop.abort();
    } else if (this.askedAt !== null) {
      const term = lease.remaining_ms;
      this.confirmedUntil = Math.max(this.confirmedUntil, this.askedAt + term - Math.min(term / 10, 1_000));
      this.askedAt = null;
    }
    if (lease.cancel_requested) {
      this.cancelRequested = true;
      this.stop.abort();
    }
  }
}
