//! Bytes of a server that come to their end although connections break off on the way.

use super::{Answer, Reader, length_of};
use polycast_api::error::plain;
use std::io::{self, Read};
use std::time::Duration;
use ureq::http::{HeaderName, HeaderValue, StatusCode, header};

/// A download may break off so often without bringing another MiB.
const TRIES_MAX: u32 = 3;
/// Bytes with which a try counts as one that has brought something.
const WORTH_LEN: u64 = 1 << 20;
/// The pause before another try.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The words of a server for the state of a file, by which it is seen that it is still the same.
#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    /// A header and its value.
    Said(HeaderName, HeaderValue),
    /// The bytes are compared with a digest at their end.
    Checked,
}

/// Asks for the bytes from one on.
type Ask = Box<dyn FnMut(u64) -> Result<Answer, String> + Send>;

/// A file that is being read.
struct Resumed {
    ask: Ask,
    reader: Reader,
    size: Option<u64>,
    /// Without it nothing shows that the rest is the same file's.
    state: Option<State>,
    at: u64,
    /// The byte with which this try began.
    began: u64,
    tries: u32,
}

/// Begins to read a file; gives its length where that is known. `ask` gives an answer of success that has the
/// bytes from one on, or all. What breaks off goes on from there, where the server says a state, or the bytes
/// have a digest that is `checked` later.
pub(crate) fn open(
    mut ask: impl FnMut(u64) -> Result<Answer, String> + Send + 'static,
    checked: bool,
) -> Result<(Option<u64>, Reader), String> {
    let answer = ask(0)?;
    let size = length_of(&answer);
    // Bytes that were packed for the way cannot be asked for by their places.
    let is_packed = answer.headers().contains_key(header::CONTENT_ENCODING);
    let state = if checked { Some(State::Checked) } else { said_state(&answer) };
    let state = state.filter(|_| !is_packed);
    let reader = Box::new(answer.into_body().into_reader());
    let (ask, at, began, tries) = (Box::new(ask), 0, 0, 0);
    Ok((size, Box::new(Resumed { ask, reader, size, state, at, began, tries })))
}

/// The strong name of a state, or the time of the last change.
fn said_state(answer: &Answer) -> Option<State> {
    let said = |name: HeaderName| Some(State::Said(name.clone(), answer.headers().get(name)?.clone()));
    let etag = said(header::ETAG);
    let is_weak =
        |state: &State| matches!(state, State::Said(_, value) if value.as_bytes().starts_with(b"W/"));
    etag.filter(|state| !is_weak(state)).or_else(|| said(header::LAST_MODIFIED))
}

impl Read for Resumed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let error = match self.reader.read(buffer) {
                Ok(0) if !buffer.is_empty() && self.size.is_some_and(|size| self.at < size) => {
                    if self.state.is_none() {
                        return Ok(0);
                    }
                    io::Error::other("the bytes end")
                }
                Ok(len) => {
                    self.at += len as u64;
                    return Ok(len);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            let Some(state) = self.state.clone() else { return Err(error) };
            self.go_on(&state, plain(&error))?;
        }
    }
}

impl Resumed {
    /// Asks for the rest, until there is an answer with it.
    fn go_on(&mut self, state: &State, mut why: String) -> io::Result<()> {
        loop {
            self.tries = if self.at - self.began >= WORTH_LEN { 1 } else { self.tries + 1 };
            self.began = self.at;
            if self.tries > TRIES_MAX {
                let of = self.size.map(|size| format!(" of {size}")).unwrap_or_default();
                return Err(io::Error::other(format!("after {}{of} bytes {why}", self.at)));
            }
            tracing::info!(bytes = self.at, why, "a download has broken off, and goes on");
            std::thread::sleep(TRY_AGAIN);
            match self.once(state) {
                Ok(reader) => {
                    self.reader = reader;
                    return Ok(());
                }
                Err(again) => why = again,
            }
        }
    }

    fn once(&mut self, state: &State) -> Result<Reader, String> {
        let answer = (self.ask)(self.at)?;
        if let State::Said(name, value) = state
            && answer.headers().get(name) != Some(value)
        {
            return Err("the server has another file by now".into());
        }
        let range = answer.headers().get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
        let is_rest = range.is_some_and(|range| range.starts_with(&format!("bytes {}-", self.at)));
        let is_part = answer.status() == StatusCode::PARTIAL_CONTENT;
        if is_part && !is_rest {
            return Err("the server gives another part than it was asked for".into());
        }
        let mut reader: Reader = Box::new(answer.into_body().into_reader());
        if !is_part {
            // What is here already is read once more, and left out.
            let skipped = io::copy(&mut reader.by_ref().take(self.at), &mut io::sink());
            if skipped.map_err(|error| plain(&error))? < self.at {
                return Err("the bytes end".into());
            }
        }
        Ok(reader)
    }
}
