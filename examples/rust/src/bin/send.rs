//! Sends a file to receivers by name, waits until each of them has it, and says how each one fared. At a
//! receiver it waits for the file, and says where it lies.
//!
//! ```console
//! $ cargo run -p polycast-examples --bin send -- send 7 model.bin host-b host-c
//! $ cargo run -p polycast-examples --bin send -- read 7
//! ```
//!
//! It talks to the agent of this host: at `POLYCAST_SOCKET`, or where the agent of this user listens.

use polycast_api::agent::send_event::Event;
use polycast_api::client::{AgentClient, Receivers, SendOptions, Session, Wait, default_socket};
use polycast_types::{AppId, DataId};
use std::error::Error;
use std::path::PathBuf;

const USAGE: &str = "usage: send send NUMBER FILE RECEIVER... | send read NUMBER";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let socket = std::env::var_os("POLYCAST_SOCKET").map_or_else(default_socket, PathBuf::from);
    let agent = AgentClient::connect(&socket).await?;
    // Objects belong to an application. This one is the default, which the command line uses too.
    let session = agent.register(AppId::default(), u64::from(std::process::id())).await?;
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["send", number, file, receivers @ ..] if !receivers.is_empty() => {
            send(&session, DataId(number.parse()?), file, receivers).await
        }
        ["read", number] => read(&session, DataId(number.parse()?)).await,
        _ => Err(USAGE.into()),
    };
    session.unregister().await?;
    outcome
}

async fn send(session: &Session, id: DataId, file: &str, to: &[&str]) -> Result<(), Box<dyn Error>> {
    // The agent reads the file where it lies. It is not copied, and must not change.
    session.add(id, &std::path::absolute(file)?).await?;
    let receivers = Receivers::Named(to.iter().map(ToString::to_string).collect());
    let mut transfer = session.send(id, &receivers, &SendOptions::default()).await?;
    while let Some(event) = transfer.next().await? {
        match event {
            Event::Waiting(_) => println!("the manager has been asked for a path"),
            Event::Granted(path) => println!("the path goes over {}", path.fabric),
            Event::Progress(report) => println!("{:.1} s", report.seconds),
            Event::Finished(report) => {
                for receiver in &report.receivers {
                    match receiver.verified {
                        true => println!("{} has all {} bytes", receiver.name, report.length),
                        false => println!("{} failed: {}", receiver.name, receiver.error),
                    }
                }
                if !report.is_complete() {
                    return Err("some receivers do not have the file".into());
                }
            }
        }
    }
    Ok(())
}

async fn read(session: &Session, id: DataId) -> Result<(), Box<dyn Error>> {
    // It waits for the file, whether or not its source has begun to send it.
    let object = session.read(id, Wait::UntilReady(None)).await?;
    println!("{} has {} bytes, all verified, in {}", object.name, object.length, object.path);
    Ok(())
}
