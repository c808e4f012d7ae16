//! BitTorrent with a real client, aria2: one at every host of the group, all of them neighbours, as in
//! Datacast's comparison (section 7). A tracker of ours tells every client of every other; the time begins
//! when all have asked it.

use super::programs::{Programs, folder_of, start};
use super::{Done, Job, LOOK_AGAIN, Outcome, STALLED_AFTER};
use crate::error::LabError;
use crate::layout::{CONTROL_ADDRESS, Host};
use crate::system::Space;
use sha1::{Digest as _, Sha1};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Port that every client listens on.
const PEER_PORT: u16 = 6_881;
/// Pieces of a small object, in bytes; larger ones have larger pieces, so that there are at most
/// `PIECES_MAX`.
const PIECE_LEN: u64 = 256 << 10;
const PIECES_MAX: u64 = 2_048;
/// Time within which all clients must have asked the tracker.
const GATHERED_WITHIN: Duration = Duration::from_secs(20);
/// The most that a request to the tracker may have, in bytes.
const REQUEST_MAX: u64 = 8 << 10;

/// Delivers `bytes`.
pub(super) fn deliver(job: &Job<'_>, bytes: u64) -> Result<Outcome, LabError> {
    let failed = |error: io::Error| LabError::system("run the tracker of BitTorrent", error);
    let hosts: Vec<&Host> = std::iter::once(&job.source).chain(&job.receivers).collect();
    let listener = TcpListener::bind((CONTROL_ADDRESS, 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let torrent = job.folder.join("object.torrent");
    let about = torrent_of(job.path, bytes, &format!("http://{address}/announce"));
    about
        .and_then(|about| fs::write(&torrent, about))
        .map_err(|error| LabError::path("describe", job.path, &error))?;
    let peers = hosts.iter().map(|host| SocketAddrV4::new(job.address_v4(host), PEER_PORT)).collect();
    let tracker = Tracker { peers, gathering: Mutex::new(0), changed: Condvar::new() };
    let hook = job.folder.join("done.sh");
    write_hook(&hook).map_err(|error| LabError::path("write", &hook, &error))?;
    let mut clients = Programs(Vec::new());
    for host in &hosts {
        clients.0.push(client(job, host, &torrent, &hook)?);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| tracker.serve(&listener));
        let outcome = watch(job, &tracker, &mut clients);
        tracker.stop(address);
        outcome
    })
}

/// Writes the script that a client runs when it has everything: it creates a file beside the client's folder.
fn write_hook(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, "#!/bin/sh\n: > \"$(dirname \"$3\").done\"\n")?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

fn client(job: &Job<'_>, host: &Host, torrent: &Path, hook: &Path) -> Result<Child, LabError> {
    let folder = folder_of(job, host)?;
    let is_source = *host == job.source;
    if is_source {
        // A client writes beside what it gives away: that is not to be the user's folder.
        let copy = folder.join(name_of(job.path));
        fs::copy(job.path, &copy).map_err(|error| LabError::path("copy", job.path, &error))?;
    }
    let mut command = Space::named(&host.name).command("aria2c");
    command.args(["--no-conf", "--enable-dht=false", "--enable-dht6=false", "--bt-enable-lpd=false"]);
    command.args(["--enable-peer-exchange=false", "--file-allocation=none", "--seed-ratio=0.0"]);
    command.args(["--summary-interval=0", "--console-log-level=warn", "--disable-ipv6=true"]);
    command.arg(format!("--listen-port={PEER_PORT}")).arg(format!("--dir={}", folder.display()));
    command.arg(if is_source { "--bt-seed-unverified=true" } else { "--bt-seed-unverified=false" });
    command.arg(format!("--on-bt-download-complete={}", hook.display())).arg(torrent);
    start(job, host, &mut command)
}

/// Waits until all clients have everything, or no client gets anything more.
fn watch(job: &Job<'_>, tracker: &Tracker, clients: &mut Programs) -> Result<Outcome, LabError> {
    if !tracker.gather(clients.0.len()) {
        let reason = "not every client has asked its tracker";
        return Err(LabError::system("gather BitTorrent's clients", reason));
    }
    let begun = Instant::now();
    let name = name_of(job.path);
    let copy = |host: &Host| job.folder.join(&host.name).join(&name);
    let mut done: Vec<Option<f64>> = vec![None; job.receivers.len()];
    let (mut held, mut moved_at) = (0, Instant::now());
    while done.contains(&None) && moved_at.elapsed() < STALLED_AFTER {
        std::thread::sleep(LOOK_AGAIN);
        for (host, done) in job.receivers.iter().zip(&mut done) {
            if done.is_none() && job.folder.join(format!("{}.done", host.name)).exists() {
                *done = Some(begun.elapsed().as_secs_f64());
            }
        }
        // Bytes on the disk, not the length: pieces come in any order.
        let now_held = job.receivers.iter().map(|host| blocks_of(&copy(host))).sum();
        if now_held > held {
            (held, moved_at) = (now_held, Instant::now());
        }
    }
    let source_cpu = clients.0.first().and_then(|child| crate::daemons::cpu(child.id())).unwrap_or_default();
    let end = begun.elapsed().as_secs_f64();
    let receiver = |(host, done): (&Host, Option<f64>)| Done {
        seconds: done.unwrap_or(end),
        error: done.is_none().then(|| "it did not get everything".to_string()),
        copy: copy(host),
    };
    Ok(Outcome { receivers: job.receivers.iter().zip(done).map(receiver).collect(), source_cpu })
}

fn blocks_of(path: &PathBuf) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).map_or(0, |metadata| metadata.blocks())
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The description of a file for BitTorrent (BEP 3).
fn torrent_of(path: &Path, bytes: u64, announce: &str) -> io::Result<Vec<u8>> {
    let mut piece_len = PIECE_LEN;
    while bytes.div_ceil(piece_len) > PIECES_MAX {
        piece_len *= 2;
    }
    let mut file = File::open(path)?;
    let mut hashes = Vec::with_capacity(20 * bytes.div_ceil(piece_len) as usize);
    let mut piece = Vec::new();
    loop {
        piece.clear();
        (&mut file).take(piece_len).read_to_end(&mut piece)?;
        if piece.is_empty() {
            break;
        }
        hashes.extend_from_slice(&Sha1::digest(&piece));
    }
    let name = name_of(path);
    let text = |text: &str| format!("{}:{text}", text.len());
    // The keys of a dictionary stand in the order of their bytes.
    let mut about = format!(
        "d8:announce{}4:infod6:lengthi{bytes}e4:name{}12:piece lengthi{piece_len}e6:pieces{}:",
        text(announce),
        text(&name),
        hashes.len()
    )
    .into_bytes();
    about.extend_from_slice(&hashes);
    about.extend_from_slice(b"ee");
    Ok(about)
}

/// Tells every client of all others once all have asked (BEP 3 and 23).
struct Tracker {
    peers: Vec<SocketAddrV4>,
    /// Number of clients that have asked, or `OPEN` once they may be answered or the delivery is over.
    gathering: Mutex<usize>,
    changed: Condvar,
}

const OPEN: usize = usize::MAX;

impl Tracker {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.gathering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers until it is stopped, each client in a thread of its own.
    fn serve(&self, listener: &TcpListener) {
        std::thread::scope(|scope| {
            for stream in listener.incoming().map_while(Result::ok) {
                if stream.peer_addr().is_ok_and(|from| from.ip() == CONTROL_ADDRESS) {
                    // The word to stop: clients are elsewhere.
                    return;
                }
                // A client that goes away asks again.
                scope.spawn(move || drop(self.answer(stream)));
            }
        });
    }

    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(GATHERED_WITHIN))?;
        let mut request = BufReader::new((&mut stream).take(REQUEST_MAX));
        let mut line = String::new();
        while request.read_line(&mut line)? > 2 {
            line.clear();
        }
        {
            let mut asked = self.lock();
            if *asked != OPEN {
                *asked += 1;
                self.changed.notify_all();
            }
            let wait = self.changed.wait_timeout_while(asked, GATHERED_WITHIN, |asked| *asked != OPEN);
            drop(wait.unwrap_or_else(PoisonError::into_inner));
        }
        let mut body = format!("d8:intervali1800e5:peers{}:", 6 * self.peers.len()).into_bytes();
        for peer in &self.peers {
            body.extend_from_slice(&Ipv4Addr::octets(peer.ip()));
            body.extend_from_slice(&peer.port().to_be_bytes());
        }
        body.push(b'e');
        write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
        stream.write_all(&body)
    }

    /// Waits until so many have asked, and lets all know; false if they do not in time.
    fn gather(&self, clients: usize) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), GATHERED_WITHIN, |asked| *asked < clients);
        let (mut asked, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let all = *asked >= clients;
        *asked = OPEN;
        self.changed.notify_all();
        all
    }

    fn stop(&self, address: std::net::SocketAddr) {
        *self.lock() = OPEN;
        self.changed.notify_all();
        // The listener blocks until a connection comes. This one ends it; it is of this process.
        let _ = TcpStream::connect(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torrent_has_a_hash_for_every_piece() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x y");
        let bytes: Vec<u8> = (0..600_000u32).map(|at| (at % 253) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let about = torrent_of(&path, 600_000, "http://1.2.3.4:5/announce").unwrap();
        let head = b"d8:announce25:http://1.2.3.4:5/announce4:infod6:lengthi600000e4:name3:x y\
            12:piece lengthi262144e6:pieces60:";
        assert_eq!(&about[..head.len()], head);
        let hash = Sha1::digest(&bytes[2 * 262_144..]);
        assert_eq!(&about[head.len() + 40..head.len() + 60], hash.as_slice());
        assert_eq!(&about[head.len() + 60..], b"ee");
    }

    #[test]
    fn the_tracker_waits_for_all_and_names_all() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peers = vec!["10.0.0.1:6881".parse().unwrap(), "10.0.0.2:258".parse().unwrap()];
        let tracker = Tracker { peers, gathering: Mutex::new(0), changed: Condvar::new() };
        std::thread::scope(|scope| {
            let ask = move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(b"GET /announce?port=6881 HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).unwrap();
                answer
            };
            let one = scope.spawn(ask);
            let (tracker, listener) = (&tracker, &listener);
            scope.spawn(move || {
                for stream in listener.incoming().take(2).map(Result::unwrap) {
                    scope.spawn(move || tracker.answer(stream).unwrap());
                }
            });
            std::thread::sleep(Duration::from_millis(30));
            assert!(!one.is_finished(), "the other one has not asked yet");
            let other = scope.spawn(ask);
            assert!(tracker.gather(2));
            for answer in [one, other].map(|thread| thread.join().unwrap()) {
                assert!(
                    answer.ends_with(b"5:peers12:\x0a\0\0\x01\x1a\xe1\x0a\0\0\x02\x01\x02e"),
                    "{answer:?}"
                );
            }
        });
    }
}
