//! Gets an object by its key. If no agent of the cluster has it, one of the programs that ask for it brings
//! the bytes out of its origin, which is a file here, and the others get them over the network.
//!
//! ```console
//! $ cargo run -p polycast-examples --bin fetch -- data:2026-11/part-1 /archive/part-1
//! ```
//!
//! It talks to the agent of this host: at `POLYCAST_SOCKET`, or where the agent of this user listens.

use polycast_api::agent::fetch_event::Event;
use polycast_api::client::{AgentClient, Piece, Session, Wanted, default_socket};
use polycast_types::AppId;
use std::error::Error;
use std::path::PathBuf;
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

const USAGE: &str = "usage: fetch KEY ORIGIN";
/// The agent takes pieces of at most 1 MiB.
const PIECE_BYTES: usize = 1 << 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [key, origin] = arguments.as_slice() else { return Err(USAGE.into()) };
    let socket = std::env::var_os("POLYCAST_SOCKET").map_or_else(default_socket, PathBuf::from);
    let agent = AgentClient::connect(&socket).await?;
    let session = agent.register(AppId::default(), u64::from(std::process::id())).await?;
    let outcome = fetch(&session, key, origin).await;
    session.unregister().await?;
    outcome
}

async fn fetch(session: &Session, key: &str, origin: &str) -> Result<(), Box<dyn Error>> {
    let mut fetching = session.fetch(Wanted::Key(key.to_string()), true, None).await?;
    while let Some(event) = fetching.next().await? {
        match event {
            Event::Waiting(_) => println!("the cluster has been asked"),
            Event::Progress(progress) => println!("{} of {} bytes", progress.bytes, progress.total),
            Event::Fill(_) => {
                println!("no agent has it: it is read from {origin}");
                fill(session, key, origin).await?;
            }
            Event::Object(object) => {
                println!("{} bytes, all verified, in {}", object.length, object.path);
                break;
            }
        }
    }
    Ok(())
}

/// Brings the bytes, piece by piece. The agent checks them against a key that is a digest.
async fn fill(session: &Session, key: &str, origin: &str) -> Result<(), Box<dyn Error>> {
    let mut file = File::open(origin).await?;
    let length = file.metadata().await?.len();
    let (pieces, taken) = mpsc::channel::<Piece>(4);
    let reading = tokio::spawn(async move {
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let read = file.read(&mut piece).await;
            let is_last = !matches!(read, Ok(len) if len > 0);
            // An empty piece says that these were all.
            let piece = match read {
                Ok(len) => Ok(piece[..len].to_vec()),
                Err(error) => Err(error.to_string()),
            };
            // The agent takes no more where the call has failed; `fill` says why.
            if pieces.send(piece).await.is_err() || is_last {
                break;
            }
        }
    });
    session.fill(key, Some(length), "", taken).await?;
    reading.await?;
    Ok(())
}
