//! Answers that are none of what was asked for: a status that clients of the hub know, and one sentence.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use polycast_types::{Printable, without_secrets};

/// Header with the reason why a client gets nothing, for programs.
pub(crate) const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
/// Header with the same in a sentence.
pub(crate) const ERROR_MESSAGE: HeaderName = HeaderName::from_static("x-error-message");

/// A reason why a client gets nothing.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub status: StatusCode,
    /// More headers, such as those of the hub.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// One sentence.
    pub message: String,
}

impl Trouble {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Trouble { status, headers: Vec::new(), message: message.into() }
    }

    /// The hub cannot be reached, or what it says cannot be used.
    pub(crate) fn upstream(message: impl AsRef<str>) -> Self {
        // What a library says may name an address once more.
        Trouble::new(StatusCode::BAD_GATEWAY, without_secrets(message.as_ref()))
    }

    /// Another try may succeed after so many seconds.
    pub(crate) fn again_after(mut self, seconds: u32) -> Self {
        self.headers.push((header::RETRY_AFTER, seconds.into()));
        self
    }

    /// Says it in the log: a file that is not there is asked for all the time, and is no more than that.
    pub(crate) fn log(&self, asked: &str) {
        let (asked, why) = (Printable(asked), Printable(&self.message));
        match self.status {
            StatusCode::NOT_FOUND => tracing::debug!(status = 404, "{asked}: {why}"),
            status => tracing::warn!(status = status.as_u16(), "{asked}: {why}"),
        }
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let Trouble { status, headers, message } = self;
        let body = serde_json::json!({ "error": message }).to_string();
        let mut response = (status, Body::from(body)).into_response();
        let own = response.headers_mut();
        own.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Ok(message) = HeaderValue::from_str(&message.replace(|c: char| !(' '..='~').contains(&c), "?"))
        {
            own.insert(ERROR_MESSAGE, message);
        }
        // The hub's own sentence comes in place of ours.
        headers.into_iter().for_each(|(name, value)| {
            own.insert(name, value);
        });
        response
    }
}
