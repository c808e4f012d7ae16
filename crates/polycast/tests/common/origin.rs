//! A web server with one file that counts the requests and the bytes that it gives.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// Header that the file needs where it needs one.
pub(crate) const NEEDED: &str = "x-key: secret";

/// State of the server.
#[derive(Default)]
pub(crate) struct Served {
    /// The file.
    pub bytes: Vec<u8>,
    /// Its state, where the server names one.
    pub etag: Option<String>,
    /// Lines of the requests, each with what it says of range, key and token.
    pub asked: Vec<String>,
    /// Bytes of the file that have been given.
    pub given: u64,
    /// Number of answers that end at half.
    pub halves: usize,
    /// It is given to those alone that send a key.
    pub is_private: bool,
    /// The address that the server sends on to.
    pub elsewhere: Option<String>,
}

/// The server.
pub(crate) struct Origin {
    /// The file's address.
    pub address: String,
    state: Arc<Mutex<Served>>,
}

impl Origin {
    pub(crate) fn start(bytes: Vec<u8>, etag: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/files/model.bin", listener.local_addr().unwrap());
        let state = Served { bytes, etag: etag.map(str::to_string), ..Served::default() };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // A client may go at any time.
                std::thread::spawn(move || serve(&stream, &state));
            }
        });
        Origin { address, state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, Served> {
        self.state.lock().unwrap()
    }

    /// Number of requests whose line begins so.
    pub(crate) fn count(&self, beginning: &str) -> usize {
        self.state().asked.iter().filter(|line| line.starts_with(beginning)).count()
    }
}

fn serve(mut stream: &TcpStream, state: &Mutex<Served>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut header) = (String::new(), String::new());
    reader.read_line(&mut line)?;
    let method = line.split(' ').next().unwrap_or_default().to_string();
    let (mut said, mut from) = (method.clone(), 0usize);
    while reader.read_line(&mut header)? > 2 {
        let text = header.trim().to_ascii_lowercase();
        if text == NEEDED || text == "authorization: bearer secret" {
            said += " key";
        }
        if let Some(range) = text.strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse().unwrap_or(0);
            said += " range";
        }
        header.clear();
    }
    let mut state = state.lock().unwrap();
    state.asked.push(said.clone());
    let mut head = String::new();
    let (status, body) = match &state.elsewhere {
        Some(elsewhere) => {
            head += &format!("Location: {elsewhere}\r\n");
            (302, Vec::new())
        }
        None if state.is_private && !said.contains("key") => (401, Vec::new()),
        None => {
            let etag = state.etag.as_ref().map(|etag| format!("ETag: \"{etag}\"\r\n"));
            head += &etag.unwrap_or_default();
            let len = state.bytes.len();
            if from > 0 {
                head += &format!("Content-Range: bytes {from}-{}/{len}\r\n", len - 1);
            }
            (if from > 0 { 206 } else { 200 }, state.bytes[from.min(len)..].to_vec())
        }
    };
    head = format!(
        "HTTP/1.1 {status} Said\r\n{head}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if method == "HEAD" {
        return Ok(());
    }
    let is_half = state.halves > 0 && !body.is_empty();
    state.halves -= usize::from(is_half);
    let given = if is_half { &body[..body.len() / 2] } else { &body[..] };
    state.given += given.len() as u64;
    drop(state);
    stream.write_all(given)
}
