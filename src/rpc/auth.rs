//! Who a caller is.

use std::sync::Arc;

use tonic::Request;

use crate::domain::ids::LOCAL_PRINCIPAL;

/// The principal of a request. As long as no credentials exist everybody is the same one; this is the only place that
/// says so.
pub(crate) fn principal<T>(_request: &Request<T>) -> Arc<str> {
    LOCAL_PRINCIPAL.into()
}
