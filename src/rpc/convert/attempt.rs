//! Writes the history of a task.

use crate::{
    domain::{
        attempt::{AttemptEnd, EndedAttempt, Lease},
        ids::Epoch,
        json::JsonText,
        report::{Report, TaskError},
        time::Moment,
    },
    proto,
    store::reads::{AttemptRecord, EvidenceRecord},
};

use super::{decision, names::outcome, task_error, timestamp};

/// Writes an attempt, with its evidence.
pub(crate) fn attempt(record: AttemptRecord) -> proto::Attempt {
    match record {
        AttemptRecord::Live { epoch, lease, started_at, evidence } => {
            let state =
                if started_at.is_some() { proto::AttemptState::Running } else { proto::AttemptState::Leased };
            proto::Attempt {
                state: state.into(),
                evidence: evidence.into_iter().map(evidence_of).collect(),
                ..held(epoch, &lease, started_at)
            }
        }
        AttemptRecord::Ended { attempt, evidence } => {
            proto::Attempt { evidence: evidence.into_iter().map(evidence_of).collect(), ..ended(&attempt) }
        }
    }
}

fn held(epoch: Epoch, lease: &Lease, started_at: Option<Moment>) -> proto::Attempt {
    proto::Attempt {
        attempt_id: lease.attempt_id.to_string(),
        number: epoch,
        epoch,
        worker_name: lease.holder.worker_name.as_ref().to_owned(),
        node_id: lease.holder.node_id.as_ref().to_owned(),
        session_id: lease.holder.session_id.to_string(),
        leased_at: Some(timestamp(lease.leased_at)),
        lease_until: Some(timestamp(lease.lease_until)),
        started_at: started_at.map(timestamp),
        ..Default::default()
    }
}

fn ended(attempt: &EndedAttempt) -> proto::Attempt {
    let EndedAttempt { epoch, lease, started_at, ended_at, end, decision: decided, cause: _, delay_ms } =
        attempt;
    let (state, retryable, result, error) = match end {
        AttemptEnd::Succeeded { result } => (proto::AttemptState::Succeeded, false, Some(result), None),
        AttemptEnd::Failed { retryable, error } => {
            (proto::AttemptState::Failed, *retryable, None, Some(error))
        }
        AttemptEnd::Unknown { error } => (proto::AttemptState::Unknown, false, None, error.as_ref()),
        AttemptEnd::Unstarted => (proto::AttemptState::Unstarted, false, None, None),
        AttemptEnd::Canceled { error } => (proto::AttemptState::Canceled, false, None, error.as_ref()),
    };
    proto::Attempt {
        state: state.into(),
        retryable,
        ended_at: Some(timestamp(*ended_at)),
        result: text(result),
        error: error.map(task_error),
        decision: decision(Some(*decided)).into(),
        delay_ms: delay_ms.unwrap_or(0),
        ..held(*epoch, lease, *started_at)
    }
}

fn evidence_of(row: EvidenceRecord) -> proto::Evidence {
    let (retryable, result, error): (bool, Option<&JsonText>, Option<&TaskError>) = match &row.message.report
    {
        Report::Succeeded { result } => (false, Some(result), None),
        Report::Failed { retryable, error } => (*retryable, None, Some(error)),
        Report::Unknown { error } | Report::Canceled { error } => (false, None, error.as_ref()),
    };
    proto::Evidence {
        message_id: row.message.message_id.to_string(),
        outcome: outcome(row.message.report.outcome()).into(),
        retryable,
        result: text(result),
        error: error.map(task_error),
        received_at: Some(timestamp(row.received_at)),
        session_id: row.session_id.to_string(),
        node_id: row.node_id,
    }
}

fn text(json: Option<&JsonText>) -> String {
    json.map_or_else(String::new, |j| j.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        decide::{Cause, Decision},
        fixtures::{NOW, attempt_id, attempt_ref, error, holder, message_id},
        report::Finish,
    };

    fn lease() -> Lease {
        Lease {
            attempt_id: attempt_id(1),
            holder: holder(),
            leased_at: NOW,
            lease_until: NOW.plus_ms(5),
            cap_at: NOW.plus_ms(9),
        }
    }

    fn ended_with(end: AttemptEnd) -> proto::Attempt {
        attempt(AttemptRecord::Ended {
            attempt: EndedAttempt {
                epoch: 1,
                lease: lease(),
                started_at: Some(NOW),
                ended_at: NOW.plus_ms(3),
                end,
                decision: Decision::RetryableFailure,
                cause: Cause::Reported,
                delay_ms: Some(700),
            },
            evidence: vec![],
        })
    }

    #[test]
    fn a_live_attempt_is_leased_until_its_start_was_granted() {
        let live = |started_at| {
            attempt(AttemptRecord::Live { epoch: 3, lease: lease(), started_at, evidence: vec![] })
        };
        assert_eq!(live(None).state(), proto::AttemptState::Leased);
        assert_eq!(live(Some(NOW)).state(), proto::AttemptState::Running);
        let leased = live(None);
        assert_eq!((leased.number, leased.epoch, leased.ended_at), (3, 3, None));
        assert_eq!(leased.decision(), proto::Decision::Unspecified);
    }

    #[test]
    fn each_end_shows_what_was_reported() {
        let failed = ended_with(AttemptEnd::Failed { retryable: true, error: error("X") });
        let expected = proto::Attempt {
            attempt_id: attempt_id(1).to_string(),
            number: 1,
            epoch: 1,
            state: proto::AttemptState::Failed.into(),
            retryable: true,
            worker_name: "worker-1".into(),
            node_id: "node-1".into(),
            leased_at: Some(timestamp(NOW)),
            lease_until: Some(timestamp(NOW.plus_ms(5))),
            started_at: Some(timestamp(NOW)),
            ended_at: Some(timestamp(NOW.plus_ms(3))),
            result: String::new(),
            error: Some(task_error(&error("X"))),
            decision: proto::Decision::RetryableFailure.into(),
            delay_ms: 700,
            evidence: vec![],
            session_id: holder().session_id.to_string(),
        };
        assert_eq!(failed, expected);
        let states = [
            (
                AttemptEnd::Succeeded { result: JsonText::stored("[1]".into()) },
                proto::AttemptState::Succeeded,
                "[1]",
                false,
            ),
            (AttemptEnd::Unknown { error: Some(error("X")) }, proto::AttemptState::Unknown, "", true),
            (AttemptEnd::Unstarted, proto::AttemptState::Unstarted, "", false),
            (AttemptEnd::Canceled { error: None }, proto::AttemptState::Canceled, "", false),
        ];
        for (end, state, result, has_error) in states {
            let written = ended_with(end);
            assert_eq!(written.state(), state);
            assert_eq!((written.result.as_str(), written.error.is_some()), (result, has_error));
            assert!(!written.retryable);
        }
    }

    #[test]
    fn evidence_shows_what_it_claims() {
        let row = |report| EvidenceRecord {
            message: Finish { message_id: message_id(7), attempt: attempt_ref(1), report },
            received_at: NOW,
            session_id: holder().session_id,
            node_id: "node-1".into(),
        };
        let failed = evidence_of(row(Report::Failed { retryable: true, error: error("X") }));
        assert_eq!(failed.outcome(), proto::Outcome::Failed);
        assert!(failed.retryable);
        assert_eq!(failed.error.map(|e| e.code), Some("X".to_owned()));
        let succeeded = evidence_of(row(Report::Succeeded { result: JsonText::null() }));
        assert_eq!(succeeded.result, "null");
        assert_eq!(succeeded.message_id, message_id(7).to_string());
    }
}
