//! Handlers: what a worker runs, by name and version.

use std::{collections::HashMap, sync::Arc};

use futures_util::future::{BoxFuture, FutureExt as _};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    context::Context,
    failure::{Ending, Failure},
};
use crate::proto::HandlerVersion;

/// A handler with its types hidden: takes the payload's text, gives what to report.
pub(crate) type Handler = Arc<dyn Fn(Context, String) -> BoxFuture<'static, Ending> + Send + Sync>;

/// Wraps a handler of serde types.
pub(crate) fn typed<T, R, F, Fut>(handler: F, result_bytes_max: usize) -> Handler
where
    T: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
    F: Fn(Context, T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, Failure>> + Send + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |context, payload| {
        let handler = Arc::clone(&handler);
        // All of it inside the future: a panic in the call itself must not reach the worker's own thread.
        async move {
            let payload = match serde_json::from_str(as_json(&payload)) {
                Ok(payload) => payload,
                Err(error) => return Ending::payload_invalid(&error),
            };
            match handler(context, payload).await {
                Ok(result) => Ending::of_value(&result, result_bytes_max),
                Err(failure) => Ending::of_failure(failure),
            }
        }
        .boxed()
    })
}

/// Wraps a handler of JSON texts.
pub(crate) fn raw<F, Fut>(handler: F, result_bytes_max: usize) -> Handler
where
    F: Fn(Context, String) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<String, Failure>> + Send + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |context, payload| {
        let handler = Arc::clone(&handler);
        async move {
            let payload = as_json(&payload).to_owned();
            match handler(context, payload).await {
                Ok(result) => Ending::of_result(result, result_bytes_max),
                Err(failure) => Ending::of_failure(failure),
            }
        }
        .boxed()
    })
}

/// An empty payload stands for `null` in the contract.
fn as_json(payload: &str) -> &str {
    if payload.is_empty() { "null" } else { payload }
}

/// The handlers of one worker.
#[derive(Clone, Default)]
pub(crate) struct Handlers(HashMap<(String, String), Handler>);

impl Handlers {
    /// Whether the pair was free.
    pub(crate) fn insert(&mut self, name: String, version: String, handler: Handler) -> bool {
        self.0.insert((name, version), handler).is_none()
    }

    pub(crate) fn get(&self, name: &str, version: &str) -> Option<&Handler> {
        self.0.get(&(name.to_owned(), version.to_owned()))
    }

    /// What the worker declares, in a stable order.
    pub(crate) fn versions(&self) -> Vec<HandlerVersion> {
        let mut versions: Vec<_> = self
            .0
            .keys()
            .map(|(handler, version)| HandlerVersion {
                handler: handler.clone(),
                handler_version: version.clone(),
            })
            .collect();
        versions.sort_by(|a, b| (&a.handler, &a.handler_version).cmp(&(&b.handler, &b.handler_version)));
        versions
    }
}
