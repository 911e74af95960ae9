// The retry scenario: a task fails once in a way that is safe to retry, waits out its backoff, runs again, succeeds.
//
//   npm install && npm start                   # against ORBIT_URL, default http://127.0.0.1:7070
import { randomUUID } from "node:crypto";
import { address, call, credentials, Failure, v1, Worker } from "./worker.js";

const url = process.env.ORBIT_URL ?? "http://127.0.0.1:7070";
const LIMIT_MS = 60_000;
setTimeout(() => { console.error("not done in time"); process.exit(1); }, LIMIT_MS).unref();

/** Refuses before it does anything: that, and only that, makes the failure safe to retry. */
async function normalize({ dispatch, payload }) {
  if (dispatch.attempt_number === 1) throw Failure.retryable("TEMPORARY_REJECTION", "not now");
  return { text: payload.text.trim().toUpperCase() };
}

const run = randomUUID();
const queue_id = `retry-${run.slice(0, 8)}`;
const queues = new v1.QueueService(address(url), credentials);
const tasks = new v1.TaskService(address(url), credentials);
await call(queues, "CreateQueue", { queue_id, request_id: run });
const worker = new Worker(url, "node-example", [queue_id], { "text.normalize v1": normalize });
const work = worker.run();

let { task } = await call(tasks, "SubmitTask", {
  queue_id, idempotency_key: `retry-example/${run}`, handler: "text.normalize", handler_version: "v1",
  payload_version: "v1", payload: '{"text":"  safe retry  "}', task_timeout_ms: LIMIT_MS,
  retry: { max_attempts: 3, initial_delay_ms: 500, max_delay_ms: 2_000, attempt_timeout_ms: 10_000 },
});
const { task_id } = task;
console.error(`submitted task ${task_id} to queue ${queue_id}`);
while (task.state !== "TASK_STATE_SUCCEEDED") {
  ({ task } = await call(tasks, "WaitTask", { task_id, wait_ms: 10_000, view: "TASK_VIEW_FULL" }));
  if (/FAILED|NEEDS_REVIEW/.test(task.state)) throw new Error(`unexpected end: ${JSON.stringify(task)}`);
}
const { attempts } = await call(tasks, "ListAttempts", { task_id });
const state = task.state.replace("TASK_STATE_", "");
console.log(`task=${task_id} state=${state} attempts=${attempts.length} ` +
  `first_retryable=${attempts[0].retryable} result=${task.result}`);

const report = await worker.drain(LIMIT_MS);
await work;
console.log(`worker_drained=${report.drained} started=${report.started} confirmed=${report.confirmed} ` +
  `running=${report.running}`);
queues.close();
tasks.close();
