//! What all writes with a `request_id` share: the same request gets its stored answer again.

use crate::{
    domain::{digest::Digest, rejection::Rejection},
    engine::Request,
    store::{Needs, StoredAnswer, StoredRequest, WorkingSet},
};

pub(super) fn needs(request: &Request, needs: &mut Needs) {
    needs.requests.insert((request.principal.clone(), request.request_id));
}

/// The stored answer, if the request came before; a conflict if it came with other content.
pub(super) fn replayed(
    request: &Request,
    digest: Digest,
    ws: &WorkingSet,
) -> Result<Option<StoredAnswer>, Rejection> {
    match ws.request(&request.principal, request.request_id) {
        Some(stored) if stored.digest == digest => Ok(Some(stored.answer.clone())),
        Some(_) => {
            let value = request.request_id.to_string();
            Err(Rejection::IdempotencyConflict { field: "request_id", value })
        }
        None => Ok(None),
    }
}

pub(super) fn store(request: &Request, digest: Digest, answer: StoredAnswer, ws: &mut WorkingSet) {
    ws.store_request(&request.principal, request.request_id, StoredRequest { digest, answer });
}
