//! Many submits in one call.

use prost::Message as _;
use tonic::Status;

use crate::{
    domain::{rejection::Rejection, submission::Submission},
    proto::{self, batch_submit_tasks_result::Outcome},
    rpc::status::{status, to_rpc_status},
};

/// The most tasks of a batch.
const TASKS_MAX: usize = 1_000;
/// From so many bytes of answers on, errors carry only the first of their details, the `ErrorInfo`, so that clients with
/// the usual limit of 4 MiB can read the answer.
const FULL_ERRORS_BYTES: usize = 2 * 1024 * 1024;

pub(super) fn tasks(
    request: proto::BatchSubmitTasksRequest,
) -> Result<Vec<proto::SubmitTaskRequest>, Rejection> {
    let count = request.tasks.len();
    if (1..=TASKS_MAX).contains(&count) {
        return Ok(request.tasks);
    }
    Err(Rejection::field("tasks", format!("must be 1 to {TASKS_MAX} tasks, not {count}: split the batch")))
}

/// Those that can be submitted; and of each task whether it is one of them, or why not.
pub(super) fn split(
    read: impl Iterator<Item = Result<Submission, Rejection>>,
) -> (Vec<Submission>, Vec<Option<Rejection>>) {
    let mut submissions = Vec::new();
    let refused = read.map(|submission| submission.map(|s| submissions.push(s)).err()).collect();
    (submissions, refused)
}

/// The answers of all tasks, in their order.
pub(super) fn join(
    mut submitted: impl Iterator<Item = Result<proto::SubmitTaskResponse, Status>>,
    refused: Vec<Option<Rejection>>,
) -> impl Iterator<Item = Result<proto::SubmitTaskResponse, Status>> {
    refused.into_iter().filter_map(move |refused| match refused {
        Some(rejection) => Some(Err(status(&rejection))),
        None => submitted.next(),
    })
}

pub(super) fn response(
    answers: impl Iterator<Item = Result<proto::SubmitTaskResponse, Status>>,
) -> proto::BatchSubmitTasksResponse {
    let mut bytes = 0;
    let results = answers.map(|answer| {
        let outcome = match answer {
            Ok(submitted) => Outcome::Submitted(submitted),
            Err(status) => {
                let mut error = to_rpc_status(&status);
                if bytes > FULL_ERRORS_BYTES {
                    error.details.truncate(1);
                }
                Outcome::Error(error)
            }
        };
        let result = proto::BatchSubmitTasksResult { outcome: Some(outcome) };
        bytes += result.encoded_len();
        result
    });
    proto::BatchSubmitTasksResponse { results: results.collect() }
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt as _;

    use super::*;
    use crate::domain::rejection::FieldProblem;

    #[test]
    fn a_thousand_of_the_worst_errors_can_be_read_by_a_usual_client() {
        let worst = || {
            let problems = (0..12).map(|_| FieldProblem::new("retry.attempt_timeout_ms", "é".repeat(300)));
            Err(status(&Rejection::Invalid(problems.collect())))
        };
        let response = response((0..TASKS_MAX).map(|_| worst()));
        assert!(response.encoded_len() < 4 * 1024 * 1024, "{} bytes", response.encoded_len());
        for result in response.results {
            let Some(Outcome::Error(error)) = result.outcome else { panic!("not an error") };
            let first = error.details.first().expect("details");
            assert!(first.type_url.ends_with("google.rpc.ErrorInfo"), "{}", first.type_url);
        }
        let one = super::response(std::iter::once(worst()));
        let Some(Some(Outcome::Error(error))) = one.results.into_iter().next().map(|r| r.outcome) else {
            panic!("not an error")
        };
        let whole: Status = worst().expect_err("an error");
        assert_eq!(error.message, whole.message());
        assert_eq!(error.details.len(), 2);
        assert!(whole.get_details_bad_request().is_some());
    }

    #[test]
    fn a_batch_has_one_to_a_thousand_tasks() {
        let batch =
            |n: usize| proto::BatchSubmitTasksRequest { tasks: vec![proto::SubmitTaskRequest::default(); n] };
        assert!(tasks(batch(0)).is_err());
        assert!(tasks(batch(1)).is_ok());
        assert!(tasks(batch(1_000)).is_ok());
        assert!(tasks(batch(1_001)).is_err());
    }
}
