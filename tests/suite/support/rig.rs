//! An engine with a worker's hands, without a network.

use std::time::Duration;

use orbit::{
    domain::{
        ids::{AttemptRef, LOCAL_PRINCIPAL, MessageId, RequestId, SessionId, TaskId},
        json::JsonText,
        policy::{PolicyRequest, RecoverySafety},
        receipt::Receipt,
        rejection::Rejection,
        report::{Finish, Report, Start, TaskError},
        submission::Submission,
    },
    engine::{Dispatch, Engine, EngineOptions, Failure, Request, Seat, SeatEvent, SeatRequest, Session},
    store::reads::TaskRecord,
};
use tokio::{sync::mpsc, time::timeout};
use uuid::Uuid;

use super::{database::TestDatabase, server::BATCH_MAX};

pub(crate) const QUEUE: &str = "default";
pub(crate) const HANDLER: (&str, &str) = ("text.normalize", "v1");
const LIMIT: Duration = Duration::from_secs(10);

/// An engine on a test's database, with the queue `default`.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) database: TestDatabase,
}

pub(crate) fn options() -> EngineOptions {
    let batch_max = std::env::var(BATCH_MAX).map_or(256, |max| max.parse().expect("a number"));
    EngineOptions { sweep_interval: Duration::from_millis(100), batch_max, ..EngineOptions::default() }
}

/// An engine that sweeps only when told to.
pub(crate) fn without_reaper() -> EngineOptions {
    EngineOptions { sweep_interval: Duration::from_hours(1), ..options() }
}

pub(crate) fn request() -> Request {
    Request { principal: LOCAL_PRINCIPAL.into(), request_id: RequestId(Uuid::new_v4()) }
}

impl Rig {
    pub(crate) async fn new(database: TestDatabase, options: EngineOptions) -> Self {
        let engine = Engine::start(database.open().await, options).await.expect("started");
        engine.create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
        Self { engine, database }
    }

    /// Ends the engine and holds the invariants.
    pub(crate) async fn end(self) {
        self.engine.shutdown().await;
        drop(self.engine);
        self.database.check_invariants().await;
        self.database.drop().await;
    }

    pub(crate) async fn submit(&self, change: impl FnOnce(&mut Submission)) -> TaskId {
        let mut submission = submission();
        change(&mut submission);
        self.engine.submit(submission).await.expect("accepted").task_id()
    }

    pub(crate) async fn worker(&self, slots: u32) -> TestWorker {
        TestWorker::sit(&self.engine, slots).await
    }

    pub(crate) async fn task(&self, id: TaskId) -> TaskRecord {
        self.engine.database().task(id, true).await.expect("read").expect("the task")
    }
}

pub(crate) fn submission() -> Submission {
    Submission {
        principal: LOCAL_PRINCIPAL.into(),
        idempotency_key: Uuid::new_v4().to_string(),
        queue_id: QUEUE.to_owned(),
        handler: HANDLER.0.to_owned(),
        handler_version: HANDLER.1.to_owned(),
        payload_version: "v1".to_owned(),
        payload: JsonText::stored("{\"text\":\"  safe retry  \"}".to_owned()),
        policy: policy(|_| {}),
        not_before: None,
        start_before: None,
    }
}

/// Three attempts, short delays.
pub(crate) fn policy(change: impl FnOnce(&mut PolicyRequest)) -> orbit::domain::policy::Policy {
    let mut request = PolicyRequest {
        max_attempts: Some(3),
        initial_delay_ms: Some(50),
        max_delay_ms: Some(200),
        ..PolicyRequest::default()
    };
    change(&mut request);
    request.freeze().expect("a valid policy")
}

pub(crate) fn idempotent(submission: &mut Submission) {
    submission.policy = policy(|p| p.recovery_safety = Some(RecoverySafety::Idempotent));
}

/// A retry is a minute away: nothing is claimed again within a test.
pub(crate) fn slow_retry(submission: &mut Submission) {
    submission.policy.initial_delay_ms = 60_000;
    submission.policy.max_delay_ms = 60_000;
}

pub(crate) fn error(code: &str) -> TaskError {
    TaskError { code: code.into(), message: "".into(), details: None }
}

pub(crate) fn failed(retryable: bool) -> Report {
    Report::Failed { retryable, error: error("TEMPORARY_REJECTION") }
}

pub(crate) fn succeeded() -> Report {
    Report::Succeeded { result: JsonText::stored("{\"text\":\"SAFE RETRY\"}".to_owned()) }
}

pub(crate) fn unknown() -> Report {
    Report::Unknown { error: None }
}

pub(crate) fn message_id() -> MessageId {
    MessageId(Uuid::new_v4())
}

/// A worker session that sends each message by hand.
pub(crate) struct TestWorker {
    pub(crate) engine: Engine,
    pub(crate) session: Session,
    pub(crate) seat: Seat,
    pub(crate) events: mpsc::Receiver<SeatEvent>,
}

impl TestWorker {
    pub(crate) async fn sit(engine: &Engine, slots: u32) -> Self {
        let session = Session {
            principal: LOCAL_PRINCIPAL.into(),
            session_id: SessionId(Uuid::new_v4()),
            worker_name: "test-worker".into(),
        };
        let (seat, events) = engine
            .take_seat(SeatRequest {
                session: session.clone(),
                queue_ids: vec![QUEUE.to_owned()],
                handlers: vec![(HANDLER.0.to_owned(), HANDLER.1.to_owned())],
                max_in_flight: slots,
                held: Vec::new(),
            })
            .await
            .expect("a seat");
        Self { engine: engine.clone(), session, seat, events }
    }

    /// The next attempt.
    pub(crate) async fn next(&mut self) -> Dispatch {
        match timeout(LIMIT, self.events.recv()).await.expect("a dispatch in time") {
            Some(SeatEvent::Dispatch(dispatch)) => *dispatch,
            other => panic!("no dispatch: {other:?}"),
        }
    }

    /// Holds that nothing arrives for a while.
    pub(crate) async fn nothing_for(&mut self, while_: Duration) {
        if let Ok(Some(dispatch)) = timeout(while_, self.events.recv()).await {
            panic!("an unexpected dispatch: {dispatch:?}");
        }
    }

    pub(crate) async fn start_as(
        &self,
        attempt: AttemptRef,
        message_id: MessageId,
    ) -> Result<(Receipt, bool), Rejection> {
        let message = Start { message_id, attempt };
        let reply = self.engine.start_attempt(message, &self.session).await.expect("an answer");
        if let (Ok(_), Some(lease)) = (&reply.result, reply.lease) {
            self.seat.started(attempt.attempt_id, lease);
        }
        reply.result
    }

    pub(crate) async fn start(&self, attempt: AttemptRef) {
        self.start_as(attempt, message_id()).await.expect("started");
    }

    pub(crate) async fn finish_as(
        &self,
        attempt: AttemptRef,
        message_id: MessageId,
        report: Report,
    ) -> Result<(Receipt, bool), Rejection> {
        let message = Finish { message_id, attempt, report };
        self.engine.finish_attempt(message, &self.session).await.expect("an answer").result
    }

    pub(crate) async fn finish(&self, attempt: AttemptRef, report: Report) -> Receipt {
        self.finish_as(attempt, message_id(), report).await.expect("taken").0
    }

    /// Takes the next attempt, starts it, reports.
    pub(crate) async fn run(&mut self, report: Report) -> (AttemptRef, Receipt) {
        let attempt = self.next().await.attempt;
        self.start(attempt).await;
        (attempt, self.finish(attempt, report).await)
    }
}

/// The refusal inside a failure.
pub(crate) fn rejection<T: std::fmt::Debug>(result: Result<T, Failure>) -> Rejection {
    match result {
        Err(Failure::Rejected(rejection)) => rejection,
        other => panic!("not refused: {other:?}"),
    }
}
