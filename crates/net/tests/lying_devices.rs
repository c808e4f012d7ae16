//! Devices that lie: whatever one says, its own conversation ends with a reason, soon and without taking much
//! memory.

use polycast_net::devices::circuits::{CircuitClient, CircuitOptions, Dialect as _, Plain};
use polycast_net::devices::openflow::{Endpoint, Message, Switch, SwitchOptions};
use polycast_net::devices::tl1::{Completion, Output};
use polycast_testing::HANG;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

type Talk = fn(TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Time that an operation may take, whatever the device does.
const SOON: Duration = Duration::from_millis(500);

async fn liar(talk: Talk) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(talk(stream));
        }
    });
    address
}

/// The tag of the next command.
async fn tag(stream: &mut TcpStream) -> Option<String> {
    let mut text = String::new();
    loop {
        let mut buffer = [0; 256];
        let len = stream.read(&mut buffer).await.ok().filter(|len| *len > 0)?;
        text.push_str(&String::from_utf8_lossy(&buffer[..len]));
        if let Some((command, _)) = text.split_once(';') {
            return Plain.parse(command).ok().map(|(_, tag)| tag);
        }
    }
}

/// Part of an answer after which more is promised.
fn part(tag: String, line: String) -> Vec<u8> {
    let (completion, code, comment) = (Completion::Retrieved, None, String::new());
    let output = Output::Response { tag, completion, code, lines: vec![line], comment, more: true };
    output.emit("OCS", "26-11-21 09:30:00").into_bytes()
}

fn closes(_stream: TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async {})
}

fn garbage(mut stream: TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(
        async move { while stream.write_all(&[0xde, 0xad, 0xff, 0x00, b';', b'\n', b'M']).await.is_ok() {} },
    )
}

/// Writes without an end and reads nothing.
fn endless_line(mut stream: TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move { while stream.write_all(&[b'x'; 65_536]).await.is_ok() {} })
}

fn drips(mut stream: TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        while stream.write_all(b"M").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

fn another_tag(mut stream: TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        while tag(&mut stream).await.is_some() {
            let answer = part("999998".into(), "1,2".into());
            if stream.write_all(&answer).await.is_err() {
                return;
            }
        }
    })
}

fn no_circuits(mut stream: TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        while let Some(tag) = tag(&mut stream).await {
            let (lines, comment) = (vec!["-1,99999999999999999999".to_string()], String::new());
            let completion = Completion::Retrieved;
            let answer = Output::Response { tag, completion, code: None, lines, comment, more: false };
            if stream.write_all(answer.emit("OCS", "26-11-21 09:30:00").as_bytes()).await.is_err() {
                return;
            }
        }
    })
}

#[tokio::test]
async fn a_circuit_switch_that_lies_is_given_up() {
    let liars: [(&str, Talk); 6] = [
        ("closes", closes),
        ("garbage", garbage),
        ("endless line", endless_line),
        ("drips", drips),
        ("another tag", another_tag),
        ("no circuits", no_circuits),
    ];
    for (name, talk) in liars {
        let address = liar(talk).await;
        let (connect_timeout, command_timeout) = (SOON, SOON);
        let options =
            CircuitOptions { connect_timeout, command_timeout, ..CircuitOptions::new(Arc::new(Plain)) };
        let talking = async {
            let client = CircuitClient::connect(address, options).await?;
            client.retrieve().await.map(drop)
        };
        let result = timeout(HANG, talking).await.unwrap_or_else(|_| panic!("{name}: it hangs"));
        let error = result.expect_err(name).to_string();
        assert!(error.len() < 1_000, "{name}: {error}");
    }
}

/// An answer that never ends is given up long before it fills the memory.
#[tokio::test]
async fn an_answer_without_end_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let talk = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let tag = tag(&mut stream).await.unwrap();
        let part = part(tag, "9".repeat(1_000_000));
        for sent in 0..200 {
            if stream.write_all(&part).await.is_err() {
                return sent;
            }
        }
        200
    });
    // Its length ends it, and not the time that a busy machine takes for it.
    let options = CircuitOptions { command_timeout: HANG, ..CircuitOptions::new(Arc::new(Plain)) };
    let client = CircuitClient::connect(address, options).await.unwrap();
    let error = client.retrieve().await.unwrap_err().to_string();
    let sent = talk.await.unwrap();
    assert!(sent < 100, "{sent} MB were taken: {error}");
}

/// A header that promises more than ever comes.
fn promises(mut stream: TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let _ = stream.write_all(&[4, 0, 0xff, 0xff, 0, 0, 0, 1]).await;
        while stream.write_all(&[0]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

fn too_short(mut stream: TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move { while stream.write_all(&[4, 0, 0, 3, 0, 0, 0, 1]).await.is_ok() {} })
}

/// Asks for echoes without an end and reads none.
fn echoes(mut stream: TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let echo = Message::EchoRequest(vec![7; 60_000]).emit(1);
    Box::pin(async move { while stream.write_all(&echo).await.is_ok() {} })
}

#[tokio::test]
async fn a_switch_of_a_rack_that_lies_is_given_up() {
    let liars: [(&str, Talk); 7] = [
        ("closes", closes),
        ("garbage", garbage),
        ("endless line", endless_line),
        ("drips", drips),
        ("promises", promises),
        ("too short", too_short),
        ("echoes", echoes),
    ];
    for (name, talk) in liars {
        let address = liar(talk).await;
        let (connect_timeout, command_timeout) = (SOON, SOON);
        let options = SwitchOptions { connect_timeout, command_timeout, ..SwitchOptions::default() };
        let (endpoint, hangs) = (Endpoint::Tcp(address), || panic!("{name}: it hangs"));
        let result = timeout(HANG, Switch::connect(&endpoint, options)).await.unwrap_or_else(|_| hangs());
        let error = result.expect_err(name).to_string();
        assert!(error.len() < 1_000, "{name}: {error}");
    }
}
