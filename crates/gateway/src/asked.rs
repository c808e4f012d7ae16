//! Files that clients ask for.

use axum::http::Request;

/// A file that a client may have.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// `org/model file`.
    pub shown: String,
    /// Name that a copy gets.
    pub name: String,
    /// The key by which agents know it.
    pub key: String,
    pub size: u64,
    /// The question by which its bytes are got from its origin.
    pub request: Request<Vec<u8>>,
}
