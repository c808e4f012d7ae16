//! A ModelScope with one model that counts what it is asked and the bytes that it gives.

use super::hub::hex;
use ring::digest::{SHA256, digest};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// Header of those who may see the model, where it is not for all.
pub(crate) const TOKEN: &str = "Authorization: Bearer ms_right";

#[derive(Default)]
pub(crate) struct State {
    /// Lines of the requests: method and path.
    pub asked: Vec<String>,
    /// Bytes of files that have been given.
    pub bytes: u64,
    /// One bit is another.
    pub flipped: bool,
    /// The model is not for all.
    pub is_private: bool,
}

/// The model `org/m` with the file `weights/model.bin`.
pub(crate) struct FakeScope {
    pub address: String,
    state: Arc<Mutex<State>>,
}

impl FakeScope {
    pub(crate) fn start(file: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (state, file) = (Arc::new(Mutex::new(State::default())), Arc::new(file));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, file) = (Arc::clone(&shared), Arc::clone(&file));
                // A client may go at any time.
                std::thread::spawn(move || serve(&stream, port, &file, &state));
            }
        });
        FakeScope { address: format!("http://127.0.0.1:{port}"), state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

fn serve(mut stream: &TcpStream, port: u16, file: &[u8], state: &Mutex<State>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut header) = (String::new(), String::new());
    reader.read_line(&mut line)?;
    let (mut is_known, mut is_token) = (false, false);
    while reader.read_line(&mut header)? > 2 {
        is_known |= header.trim().eq_ignore_ascii_case(TOKEN);
        is_token |= header.to_ascii_lowercase().starts_with("authorization:");
        header.clear();
    }
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut state = state.lock().unwrap();
    state.asked.push(format!("{method} {path}"));
    let mut head = String::new();
    let model = path.strip_prefix("/api/v1/models/org/m/repo");
    let (status, body) = match model {
        _ if path == "/cdn/model" && is_token => (403, Vec::new()),
        _ if path == "/cdn/model" => {
            let mut body = file.to_vec();
            body[7] ^= u8::from(state.flipped);
            state.bytes += body.len() as u64;
            (200, body)
        }
        Some(_) if state.is_private && !is_known => (404, b"{\"Code\":404,\"Message\":\"none\"}".to_vec()),
        Some(rest) if rest.starts_with("/files?") => {
            let sha256 = hex(digest(&SHA256, file).as_ref());
            let entry =
                format!("\"Path\":\"weights/model.bin\",\"Size\":{},\"Sha256\":\"{sha256}\"", file.len());
            let plain = "{\"Path\":\"weights/plain.txt\",\"Size\":5}";
            (200, format!("{{\"Code\":200,\"Data\":{{\"Files\":[{{{entry}}},{plain}]}}}}").into_bytes())
        }
        Some(rest) if rest.starts_with('?') => {
            head = format!("Location: http://localhost:{port}/cdn/model\r\n");
            (302, Vec::new())
        }
        _ => (200, b"{\"Code\":200}".to_vec()),
    };
    drop(state);
    head += &format!("Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all(format!("HTTP/1.1 {status} Said\r\n{head}").as_bytes())?;
    stream.write_all(&body)
}
