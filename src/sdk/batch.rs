//! Submitting many tasks.

use prost::Message as _;
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::{
    backoff::Backoff,
    call::{RESEND_DELAY_FIRST, RESEND_DELAY_LIMIT},
    client::{Client, tasks},
    error::Error,
    submit::{Submit, Submitted},
};
use crate::proto::{
    BatchSubmitTasksRequest, BatchSubmitTasksResult, SubmitTaskRequest, batch_submit_tasks_result::Outcome,
};

/// The most tasks of one call.
const TASKS_MAX: usize = 1_000;
/// The most bytes of one call, with room to the server's 4 MiB.
const BYTES_MAX: usize = 3 * 1024 * 1024;

type Answer = Result<Submitted, Error>;

impl Client {
    /// Submits many tasks, each under its own key, and answers for each in the same order. Each is accepted or refused
    /// by itself; they may commit in any order.
    ///
    /// Sent in calls of at most 1,000 tasks and 3 MiB. As with one [`Submit`], what was not answered or came back
    /// UNAVAILABLE is sent again until the call timeout, which each call has to itself. Calling this again with the same
    /// values is safe.
    ///
    /// ```no_run
    /// # async fn example(client: &orbit::sdk::Client) -> Result<(), orbit::sdk::Error> {
    /// let invoices: Vec<_> = (1..=5_000)
    ///     .map(|n| client.submit("default", "invoice.send", "v1").idempotency_key(format!("invoice-{n}")).payload(&n))
    ///     .collect();
    /// for (invoice, answer) in invoices.iter().zip(client.submit_batch(&invoices).await) {
    ///     match answer {
    ///         Ok(submitted) => println!("{} is {}", invoice.key(), submitted.task.task_id),
    ///         Err(error) => eprintln!("{} was not accepted: {error}", invoice.key()),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn submit_batch(&self, submits: &[Submit]) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = Vec::new();
        let mut call: Vec<(usize, SubmitTaskRequest)> = Vec::new();
        let mut bytes = 0;
        for (place, submit) in submits.iter().enumerate() {
            answers.push(submit.unwritable().map(Err));
            if answers.last().is_some_and(Option::is_some) {
                continue;
            }
            let request = submit.request().clone();
            let more = request.encoded_len();
            if call.len() == TASKS_MAX || (bytes + more > BYTES_MAX && !call.is_empty()) {
                self.send_call(std::mem::take(&mut call), &mut answers).await;
                bytes = 0;
            }
            bytes += more;
            call.push((place, request));
        }
        self.send_call(call, &mut answers).await;
        let unanswered = || Err(Error::protocol("BatchSubmitTasks was answered without this task"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// Sends tasks until each has its answer, or time is over.
    async fn send_call(&self, mut call: Vec<(usize, SubmitTaskRequest)>, answers: &mut [Option<Answer>]) {
        let deadline = Instant::now() + self.caller().timeout();
        let mut backoff = Backoff::new(RESEND_DELAY_FIRST, RESEND_DELAY_LIMIT);
        while !call.is_empty() {
            let caller = self.caller().with_timeout(deadline.saturating_duration_since(Instant::now()));
            let tasks_now = call.iter().map(|(_, request)| request.clone()).collect();
            let request = BatchSubmitTasksRequest { tasks: tasks_now };
            let sent = caller.call("BatchSubmitTasks", &request, |transport, request| async move {
                tasks(transport).batch_submit_tasks(request).await
            });
            match sent.await {
                Ok(response) => {
                    for ((place, _), result) in call.iter().zip(response.results) {
                        set(answers, *place, answer(result));
                    }
                }
                Err(error) => {
                    for (place, _) in &call {
                        set(answers, *place, Err(error.clone()));
                    }
                    return;
                }
            }
            let again =
                |answer: &Option<Answer>| matches!(answer, Some(Err(e)) if e.code() == Code::Unavailable);
            call.retain(|(place, _)| answers.get(*place).is_some_and(again));
            let delay = backoff.next_delay();
            if Instant::now() + delay >= deadline {
                return;
            }
            if !call.is_empty() {
                sleep(delay).await;
            }
        }
    }
}

fn set(answers: &mut [Option<Answer>], place: usize, answer: Answer) {
    if let Some(slot) = answers.get_mut(place) {
        *slot = Some(answer);
    }
}

fn answer(result: BatchSubmitTasksResult) -> Answer {
    match result.outcome {
        Some(Outcome::Submitted(submitted)) => Submitted::read("BatchSubmitTasks", submitted),
        Some(Outcome::Error(status)) => Err(Error::from_rpc_status(&status)),
        None => Err(Error::protocol("BatchSubmitTasks was answered without an outcome")),
    }
}
