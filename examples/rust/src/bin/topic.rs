//! Publishes versions of a file to a topic, or subscribes to it: a subscriber hears of a version when every
//! subscriber has it.
//!
//! ```console
//! $ cargo run -p polycast-examples --bin topic -- subscribe weights 2      # ends after version 2
//! $ cargo run -p polycast-examples --bin topic -- publish weights 1 step-1.bin
//! $ cargo run -p polycast-examples --bin topic -- publish weights 2 step-2.bin
//! ```
//!
//! It talks to the agent of this host: at `POLYCAST_SOCKET`, or where the agent of this user listens.

use polycast_api::client::{AgentClient, Session, default_socket};
use polycast_types::{AppId, DataId};
use std::error::Error;
use std::path::PathBuf;

const USAGE: &str = "usage: topic publish TOPIC VERSION FILE | topic subscribe TOPIC LAST-VERSION";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let socket = std::env::var_os("POLYCAST_SOCKET").map_or_else(default_socket, PathBuf::from);
    let agent = AgentClient::connect(&socket).await?;
    // A topic belongs to the application that uses it first. All programs of an application name the same
    // one.
    let session = agent.register(AppId::default(), u64::from(std::process::id())).await?;
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["publish", topic, version, file] => publish(&session, topic, version.parse()?, file).await,
        ["subscribe", topic, last] => subscribe(&session, topic, last.parse()?).await,
        _ => Err(USAGE.into()),
    };
    session.unregister().await?;
    outcome
}

async fn publish(session: &Session, topic: &str, version: u64, file: &str) -> Result<(), Box<dyn Error>> {
    // Each version is an object with a number of its own; here it is the version's.
    let id = DataId(version);
    session.add(id, &std::path::absolute(file)?).await?;
    // It answers when all subscribers have the version that live and can.
    let outcome = session.publish(topic, Some(version), id, None).await?;
    println!("version {} is committed, and {} have it", outcome.version, outcome.have.join(", "));
    for missing in outcome.missing {
        println!("{} does not have it: {}", missing.name, missing.reason);
    }
    Ok(())
}

async fn subscribe(session: &Session, topic: &str, last: u64) -> Result<(), Box<dyn Error>> {
    let mut versions = session.subscribe(topic).await?;
    println!("subscribed");
    while let Some(event) = versions.next().await? {
        // The first word of a version says that it is about to come.
        let Some(object) = event.object.filter(|_| event.committed) else { continue };
        println!("version {} lies in {}", event.version, object.path);
        if event.version >= last {
            break;
        }
    }
    Ok(())
}
