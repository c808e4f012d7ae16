//! A container registry that counts the bytes that it gives: it asks for a token that it gives to all, sends
//! on for layers, and keeps one repository for the user `me` with the password `secret`.

use super::hub::hex;
use ring::digest::{SHA256, digest};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// `me:secret`, as it stands in headers and files.
pub(crate) const USER: &str = "bWU6c2VjcmV0";
/// The type of manifests here.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

#[derive(Default)]
pub(crate) struct Given {
    /// Lines of the requests: method and path.
    pub asked: Vec<String>,
    /// Bytes of manifests and layers that have been given.
    pub bytes: u64,
    /// One bit of layers is another.
    pub flipped: bool,
    /// It gives nothing without name and password, and asks for these themselves.
    pub is_basic: bool,
}

/// A registry with the repositories `org/image` and `org/private`, which have the tag `1`, the tag `2` for
/// the same image in a list of images for platforms, and `3` for an artifact of two files.
pub(crate) struct Registry {
    /// Host and port.
    pub address: String,
    /// Digests of the manifest and of the layer.
    pub manifest: String,
    pub layer: String,
    state: Arc<Mutex<Given>>,
}

impl Registry {
    pub(crate) fn start(layer: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let name = |bytes: &[u8]| format!("sha256:{}", hex(digest(&SHA256, bytes).as_ref()));
        let layer_name = name(&layer);
        let manifest = format!("{{\"layers\":[{{\"digest\":\"{layer_name}\"}}]}}").into_bytes();
        let manifest_name = name(&manifest);
        let platform = "\"platform\":{\"os\":\"linux\",\"architecture\":\"riscv64\"}";
        let index = format!("{{\"manifests\":[{{\"digest\":\"{manifest_name}\",{platform}}}]}}").into_bytes();
        let index_name = name(&index);
        let file = |digest: &str, path: &str| {
            let title = format!("\"annotations\":{{\"org.opencontainers.image.title\":\"{path}\"}}");
            format!("{{\"digest\":\"{digest}\",{title}}}")
        };
        let files = [file(&layer_name, "weights/model.bin"), file(&manifest_name, "config.json")];
        let artifact = format!("{{\"layers\":[{}]}}", files.join(",")).into_bytes();
        let artifact_name = name(&artifact);
        let state = Arc::new(Mutex::new(Given::default()));
        let shared = Arc::clone(&state);
        let bytes = BTreeMap::from([
            (layer_name.clone(), layer),
            (manifest_name.clone(), manifest),
            (index_name.clone(), index),
            (artifact_name.clone(), artifact),
        ]);
        let served = Arc::new((bytes, [manifest_name.clone(), index_name, artifact_name]));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, served) = (Arc::clone(&shared), Arc::clone(&served));
                // A client may go at any time.
                std::thread::spawn(move || serve(&stream, port, &served, &state));
            }
        });
        Registry { address: format!("127.0.0.1:{port}"), manifest: manifest_name, layer: layer_name, state }
    }

    pub(crate) fn given(&self) -> MutexGuard<'_, Given> {
        self.state.lock().unwrap()
    }
}

/// A request.
struct Heard {
    line: String,
    /// It has a token: that for all, or that of the user.
    token: bool,
    is_me: bool,
    /// It has the user's name and password.
    password: bool,
    accepts: bool,
    form: String,
}

fn heard(stream: &TcpStream) -> io::Result<Heard> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let (mut token, mut is_me, mut password, mut accepts, mut len) = (false, false, false, false, 0);
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        let header_line = header.trim().to_ascii_lowercase();
        is_me |= header_line == "authorization: bearer for-me";
        token |= is_me || header_line == "authorization: bearer for-all";
        password |= header.trim().ends_with(&format!(" Basic {USER}"));
        len = header_line.strip_prefix("content-length: ").map_or(len, |len| len.parse().unwrap());
        accepts |= header_line == format!("accept: {MANIFEST}");
        header.clear();
    }
    let mut form = vec![0; len];
    reader.read_exact(&mut form)?;
    let form = String::from_utf8_lossy(&form).into_owned();
    Ok(Heard { line, token, is_me, password, accepts, form })
}

fn serve(
    mut stream: &TcpStream,
    port: u16,
    (bytes, [manifest, index, artifact]): &(BTreeMap<String, Vec<u8>>, [String; 3]),
    state: &Mutex<Given>,
) -> io::Result<()> {
    let Heard { line, token, is_me, password, accepts, form } = heard(stream)?;
    let is_basic = state.lock().unwrap().is_basic;
    let (token, is_me) = (token || is_basic && password, is_me || is_basic && password);
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    state.lock().unwrap().asked.push(format!("{method} {path}"));
    let reference = path.rsplit('/').next().unwrap_or_default();
    let reference = match reference {
        "1" => manifest.as_str(),
        "2" => index.as_str(),
        "3" => artifact.as_str(),
        other => other,
    };
    let here = bytes.get(reference);
    let mut headers = Vec::new();
    let mut body: &[u8] = &[];
    let status = if path.starts_with("/token") {
        body = match password || form.contains("grant_type=refresh_token") && form.contains("=identity&") {
            true => b"{\"access_token\":\"for-me\",\"expires_in\":300}",
            false => b"{\"token\":\"for-all\",\"expires_in\":300}",
        };
        200
    } else if path.starts_with("/store/") {
        body = here.map_or(&[], Vec::as_slice);
        // A store of others takes no token of the registry's.
        if token || password { 400 } else { 200 }
    } else if is_basic && !token {
        headers.push("WWW-Authenticate: Basic realm=\"here\"".into());
        401
    } else if !token || path.contains("org/private") && !is_me {
        let realm = format!("Bearer realm=\"http://127.0.0.1:{port}/token\",service=\"registry\"");
        headers.push(format!("WWW-Authenticate: {realm}"));
        401
    } else if path.contains("/blobs/") && here.is_some() {
        headers.push(format!("Location: http://localhost:{port}/store/{reference}"));
        307
    } else if let Some(there) = here.filter(|_| path.contains("/manifests/") && accepts) {
        headers.push(format!("Content-Type: {MANIFEST}\r\nDocker-Content-Digest: {reference}"));
        body = there;
        200
    } else {
        404
    };
    let mut body = body.to_vec();
    let mut state = state.lock().unwrap();
    if state.flipped && path.starts_with("/store/") {
        body[7] ^= 1;
    }
    headers.push(format!("Content-Length: {}\r\nConnection: close", body.len()));
    if method == "GET" && !path.starts_with("/token") {
        state.bytes += body.len() as u64;
    }
    drop(state);
    stream.write_all(format!("HTTP/1.1 {status} Said\r\n{}\r\n\r\n", headers.join("\r\n")).as_bytes())?;
    if method == "HEAD" { Ok(()) } else { stream.write_all(&body) }
}
