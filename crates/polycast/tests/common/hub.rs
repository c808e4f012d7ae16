//! A hub with files in it that counts what it is asked and the bytes that it gives, and a client of one.

use polycast_testing::HANG;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The commits that the hub has.
pub(crate) const FIRST: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
pub(crate) const SECOND: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
/// Files of this length and more are kept elsewhere, under their SHA-256.
const LARGE: usize = 100_000;
/// Pieces that a slow hub sends in a second.
const SLOWLY_A_SECOND: usize = 20;
/// The token of those who may see the private repository.
pub(crate) const TOKEN: &str = "Bearer hf_right";

/// Manner in which the hub gives bytes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) enum Manner {
    #[default]
    Right,
    /// One bit is another.
    Flipped,
    /// So many bytes a second, and one bit is another where that is true.
    Slowly(usize, bool),
    /// Half of it, and then nothing.
    Held,
    /// Half of it, and then the connection ends; what is left where that is asked for.
    Broken,
    /// Less than was said.
    Short,
    /// This status, without a byte.
    Says(u16),
}

#[derive(Default)]
pub(crate) struct State {
    /// Lines of the requests: method, path, and whether there was a token.
    pub asked: Vec<String>,
    /// Bytes of files that have been given.
    pub bytes: u64,
    pub manner: Manner,
    /// No client may see the private repository any more.
    closed: bool,
    files: BTreeMap<(String, String), Arc<Vec<u8>>>,
    held: Vec<TcpStream>,
}

/// A hub with the repositories `org/m`, which all may see, and `org/private`.
pub(crate) struct FakeHub {
    /// Its address.
    pub address: String,
    state: Arc<Mutex<State>>,
}

impl FakeHub {
    /// A hub with these files in a commit each.
    pub(crate) fn start(files: &[(&str, &str, Vec<u8>)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let name = |(commit, path, bytes): &(&str, &str, Vec<u8>)| {
            ((commit.to_string(), path.to_string()), Arc::new(bytes.clone()))
        };
        let state = State { files: files.iter().map(name).collect(), ..State::default() };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // A client may go at any time.
                std::thread::spawn(move || serve(&stream, port, &state));
            }
        });
        FakeHub { address: format!("http://127.0.0.1:{port}/base"), state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Requests for bytes of files, and bytes that were given.
    pub(crate) fn given(&self) -> (usize, u64) {
        let state = self.state();
        (state.asked.iter().filter(|line| line.starts_with("GET") && is_file(line)).count(), state.bytes)
    }

    /// Number of requests that have this in their line.
    pub(crate) fn count(&self, part: &str) -> usize {
        self.state().asked.iter().filter(|line| line.contains(part)).count()
    }

    /// Lets no client see the private repository from now on.
    pub(crate) fn close(&self) {
        self.state().closed = true;
    }

    /// Gives bytes like this from now on.
    pub(crate) fn set(&self, manner: Manner) {
        self.state().manner = manner;
    }
}

/// Large files are asked for twice: the second address has the bytes.
fn is_file(line: &str) -> bool {
    line.contains("/cdn/") || line.contains("/resolve/") && !line.contains(".large")
}

fn serve(stream: &TcpStream, port: u16, state: &Mutex<State>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let (mut token, mut from) = (None, 0);
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        let (name, value) = header.trim().split_once(": ").unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "authorization" => token = Some(value.to_string()),
            "range" => from = value["bytes=".len()..].trim_end_matches('-').parse().unwrap(),
            _ => {}
        }
        header.clear();
    }
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let with = if token.is_some() { " token" } else { "" };
    state.lock().unwrap().asked.push(format!("{method} {path}{with}"));
    let path = path.strip_prefix("/base").unwrap_or(path);
    let answer = answer_of(path, token.as_deref(), port, state);
    send(stream, method, from, answer, state)
}

/// Status, headers and, where it is a file's, bytes.
struct Reply {
    status: u16,
    headers: Vec<String>,
    body: Arc<Vec<u8>>,
    is_file: bool,
}

fn reply(status: u16, headers: &[&str], body: &str) -> Reply {
    let headers = headers.iter().map(ToString::to_string).collect();
    Reply { status, headers, body: Arc::new(body.as_bytes().to_vec()), is_file: false }
}

fn answer_of(path: &str, token: Option<&str>, port: u16, state: &Mutex<State>) -> Reply {
    let file =
        |commit: &str, path: &str| state.lock().unwrap().files.get(&(commit.into(), path.into())).cloned();
    let closed = state.lock().unwrap().closed;
    if path.contains("org/private") && (closed || token != Some(TOKEN)) {
        return reply(401, &["X-Error-Code: RepoNotFound", "X-Error-Message: Repository not found"], "");
    }
    if let Some(rest) = path.strip_prefix("/cdn/") {
        // A store of others takes no token of the hub's.
        let (place, query) = rest.split_once('?').unwrap_or_default();
        let (commit, name) = place.split_once('/').unwrap_or_default();
        let allowed = query == "signature=secret" && token.is_none();
        return match file(commit, name).filter(|_| allowed) {
            Some(body) => Reply { status: 200, headers: Vec::new(), body, is_file: true },
            None => reply(403, &[], ""),
        };
    }
    if path.contains("/resolve/") {
        return resolved(path, port, file);
    }
    let next = format!("Link: <http://127.0.0.1:{port}/base/api/next?cursor=1>; rel=\"next\"");
    let json = "Content-Type: application/json";
    match path {
        "/api/models/org/m/revision/main" => reply(200, &[json], &format!("{{\"sha\":\"{FIRST}\"}}")),
        path if path.starts_with("/api/models/org/m/tree/") => reply(
            200,
            &[json, &next],
            "[{\"path\":\"a\",\"xetHash\":\"00\",\"lfs\":{\"xetHash\":\"1\",\"size\":7}}]",
        ),
        path if ["xet", "private", "plain"]
            .iter()
            .any(|name| path.starts_with(&format!("/api/models/org/{name}/tree/"))) =>
        {
            reply(200, &[json], &tree(path, &state.lock().unwrap()))
        }
        path if path.starts_with("/api/models/org/pull/revision/") => {
            reply(200, &[json], &format!("{{\"sha\":\"{FIRST}\"}}"))
        }
        path if path.starts_with("/api/models/org/pull/tree/") => {
            let second = path.contains("cursor=1");
            let next = format!("Link: <http://127.0.0.1:{port}/base{path}&cursor=1>; rel=\"next\"");
            let state = state.lock().unwrap();
            let names = state.files.keys().filter(|(commit, _)| commit == FIRST).map(|(_, name)| name);
            let page: Vec<String> = names
                .skip(if second { 1 } else { 0 })
                .take(if second { usize::MAX } else { 1 })
                .map(|name| format!("{{\"type\":\"file\",\"path\":\"{name}\"}}"))
                .collect();
            let headers = if second { vec![json] } else { vec![json, next.as_str()] };
            reply(200, &headers, &format!("[{}]", page.join(",")))
        }
        "/api/whoami-v2" => reply(200, &[json], &format!("{{\"token\":{}}}", token.is_some())),
        "/api/busy" => reply(429, &["Retry-After: 17", "X-Error-Message: slow down"], ""),
        _ => reply(404, &["X-Error-Code: RepoNotFound"], ""),
    }
}

/// A file, or the way to it.
fn resolved(path: &str, port: u16, file: impl Fn(&str, &str) -> Option<Arc<Vec<u8>>>) -> Reply {
    let (_, rest) = path.split_once("/resolve/").unwrap_or_default();
    let (revision, name) = rest.split_once('/').unwrap_or_default();
    let commit = if revision == "main" { FIRST } else { revision };
    let of = format!("X-Repo-Commit: {commit}");
    match file(commit, name) {
        Some(body) if body.len() >= LARGE => {
            let sha256 = hex(digest(&SHA256, &body).as_ref());
            let to = format!("Location: http://localhost:{port}/cdn/{commit}/{name}?signature=secret");
            let linked = format!("X-Linked-Etag: \"{sha256}\"\r\nX-Linked-Size: {}", body.len());
            let name = name_in_xet(&sha256);
            let xet = format!("X-Xet-Hash: {name}\r\nLink: <http://elsewhere/xet>; rel=\"xet-auth\"");
            let known = if path.contains("org/plain") { "X-Other: 1" } else { xet.as_str() };
            reply(302, &[&of, &to, &linked, known], "")
        }
        Some(body) => {
            let etag = format!("ETag: \"{}\"", git(&body));
            Reply { status: 200, headers: vec![of, etag], body, is_file: true }
        }
        None => reply(404, &[&of, "X-Error-Code: EntryNotFound"], ""),
    }
}

/// A list of files, those of a commit in the path.
fn tree(path: &str, state: &State) -> String {
    let entries = state.files.iter().filter(|((commit, _), _)| path.contains(commit.as_str()));
    let entry = |((_, name), body): (&(String, String), &Arc<Vec<u8>>)| {
        let (sha256, size) = (hex(digest(&SHA256, body).as_ref()), body.len());
        let name_in_xet = name_in_xet(&sha256);
        let lfs = format!("\"lfs\":{{\"oid\":\"{sha256}\",\"size\":{size}}}");
        let more = match size >= LARGE {
            true if path.contains("org/plain") => format!(",{lfs}"),
            true => format!(",{lfs},\"xetHash\":\"{name_in_xet}\""),
            false => String::new(),
        };
        format!("{{\"type\":\"file\",\"path\":\"{name}\"{more}}}")
    };
    format!("[{}]", entries.map(entry).collect::<Vec<_>>().join(","))
}

fn send(
    mut stream: &TcpStream,
    method: &str,
    from: usize,
    Reply { mut status, mut headers, body, is_file }: Reply,
    state: &Mutex<State>,
) -> io::Result<()> {
    let manner = if is_file && method == "GET" { state.lock().unwrap().manner } else { Manner::Right };
    let from = if is_file { from.min(body.len()) } else { 0 };
    let mut bytes = body[from..].to_vec();
    match manner {
        Manner::Says(said) => {
            status = said;
            headers.push("Retry-After: 3".into());
            bytes.clear();
        }
        Manner::Flipped | Manner::Slowly(_, true) => {
            let at = bytes.len() / 3;
            bytes[at] ^= 1;
        }
        Manner::Short => bytes.truncate(bytes.len() / 2),
        _ => {}
    }
    if from > 0 {
        status = 206;
        headers.push(format!("Content-Range: bytes {from}-{}/{}", body.len() - 1, body.len()));
    }
    headers.push(format!("Content-Length: {}", bytes.len()));
    headers.push("Connection: close".into());
    let head = format!("HTTP/1.1 {status} Said\r\n{}\r\n\r\n", headers.join("\r\n"));
    stream.write_all(head.as_bytes())?;
    if method == "HEAD" {
        return Ok(());
    }
    let is_half = manner == Manner::Held || manner == Manner::Broken && from == 0;
    let given = if is_half { &bytes[..bytes.len() / 2] } else { &bytes[..] };
    let count = |bytes: &[u8]| state.lock().unwrap().bytes += if is_file { bytes.len() as u64 } else { 0 };
    if let Manner::Slowly(rate, _) = manner {
        for piece in given.chunks(rate / SLOWLY_A_SECOND) {
            stream.write_all(piece)?;
            count(piece);
            std::thread::sleep(Duration::from_secs(1) / SLOWLY_A_SECOND as u32);
        }
    } else {
        stream.write_all(given)?;
        count(given);
    }
    let mut state = state.lock().unwrap();
    if manner == Manner::Held {
        state.held.push(stream.try_clone()?);
    }
    Ok(())
}

/// The name that this hub gives a file in Xet: one of its own, as none of its clients computes it.
pub(crate) fn name_in_xet(sha256: &str) -> String {
    hex(digest(&SHA256, sha256.as_bytes()).as_ref())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn git(bytes: &[u8]) -> String {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    context.update(format!("blob {}\0", bytes.len()).as_bytes());
    context.update(bytes);
    hex(context.finish().as_ref())
}

/// An answer to a client of the hub.
#[derive(Debug)]
pub(crate) struct Heard {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Number of `100 Continue` before it.
    pub nudges: usize,
}

impl Heard {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0.eq_ignore_ascii_case(name)).map(|header| header.1.as_str())
    }
}

/// Asks an endpoint, as clients of the hub do.
pub(crate) fn ask(endpoint: &str, method: &str, path: &str, headers: &[&str]) -> Heard {
    ask_telling(endpoint, method, path, headers, || {})
}

/// The same; tells when the first byte of the body has come.
pub(crate) fn ask_telling(
    endpoint: &str,
    method: &str,
    path: &str,
    headers: &[&str],
    has_begun: impl FnOnce(),
) -> Heard {
    let (host, prefix) = endpoint.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let named = headers.iter().any(|header| header.starts_with("Host:"));
    let own = if named { String::new() } else { format!("Host: {host}\r\n") };
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    let request = format!("{method} /{prefix}{path} HTTP/1.1\r\n{own}{headers}Connection: close\r\n\r\n");
    (&stream).write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(&stream);
    let mut nudges = 0;
    loop {
        let mut lines = reader.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty());
        let status = lines.next().unwrap_or_default();
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.into(), value.into())))
            .collect();
        let status: u16 = status.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        if status == 100 {
            nudges += 1;
            continue;
        }
        let mut body = Vec::new();
        if !reader.fill_buf().unwrap().is_empty() {
            has_begun();
        }
        reader.read_to_end(&mut body).unwrap();
        return Heard { status, headers, body, nudges };
    }
}
