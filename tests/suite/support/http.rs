//! A plain HTTP client.

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    client::conn::{http1, http2},
    header::HeaderMap,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::server::Server;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a text"))
    }

    /// The detail of an error that has this type.
    pub(crate) fn detail(&self, name: &str) -> Value {
        let body = self.json();
        let details = body["error"]["details"].as_array().cloned().unwrap_or_default();
        let url = format!("type.googleapis.com/google.rpc.{name}");
        details.into_iter().find(|detail| detail["@type"] == url.as_str()).unwrap_or_default()
    }

    /// Holds that it is an error of that status and reason.
    #[track_caller]
    pub(crate) fn hold_error(&self, status: u16, code: &str, reason: &str) -> Value {
        let body = self.json();
        let error = &body["error"];
        let told = (self.status, error["code"].as_u64(), error["status"].as_str());
        assert_eq!(told, (status, Some(status.into()), Some(code)), "{self:?}");
        let info = self.detail("ErrorInfo");
        assert_eq!((&info["domain"], &info["reason"]), (&"orbit".into(), &reason.into()), "{self:?}");
        error.clone()
    }
}

/// The version of HTTP to speak.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Http {
    One,
    Two,
}

/// Sends one request on a connection of its own.
pub(crate) async fn send(
    server: &Server,
    http: Http,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Answer {
    let uri = match http {
        Http::One => path.to_owned(),
        Http::Two => format!("{}{path}", server.url()),
    };
    let mut request = Request::builder().method(method).uri(uri);
    if matches!(http, Http::One) {
        request = request.header("host", server.address().to_string());
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(body.into())).expect("a request");
    let stream = TokioIo::new(TcpStream::connect(server.address()).await.expect("it listens"));
    let tasks = TaskTracker::new();
    match http {
        Http::One => {
            let (mut sender, connection) = http1::handshake(stream).await.expect("HTTP/1.1");
            tasks.spawn(connection);
            read(sender.send_request(request).await.expect("an answer")).await
        }
        Http::Two => {
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("h2c");
            tasks.spawn(connection);
            read(sender.send_request(request).await.expect("an answer")).await
        }
    }
}

async fn read(response: Response<Incoming>) -> Answer {
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.expect("all of it").to_bytes();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Answer { status: parts.status.as_u16(), headers: parts.headers, text }
}

/// `GET`, by HTTP/1.1.
pub(crate) async fn get(server: &Server, path: &str) -> Answer {
    send(server, Http::One, ("GET", path), &[], "").await
}

/// `POST` of a JSON text, by HTTP/1.1.
pub(crate) async fn post(server: &Server, path: &str, body: impl Into<Bytes>) -> Answer {
    send(server, Http::One, ("POST", path), &[("content-type", "application/json")], body).await
}
