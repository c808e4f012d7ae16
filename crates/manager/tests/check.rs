//! `polycast manager --check` and switches that come by themselves, with devices that are only tables behind
//! their languages.

use polycast_manager::check::{Findings, check};
use polycast_manager::{Manager, ManagerConfig};
use polycast_net::devices::circuits::{Circuit, Dialect as _, Glimmerglass, Request, tl1_answer};
use polycast_net::devices::openflow::{Message, Port};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A Glimmerglass of 8 ports with these circuits, which lets `admin` in with the password `right`.
async fn circuit_switch(circuits: Vec<Circuit>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(manage(stream, circuits.clone()));
        }
    });
    address
}

async fn manage(mut stream: TcpStream, circuits: Vec<Circuit>) {
    let (mut text, mut buffer, mut is_in) = (String::new(), [0; 4_096], false);
    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
        text.push_str(&String::from_utf8_lossy(&buffer[..len]));
        while let Some(end) = text.find(';') {
            let command: String = text.drain(..=end).collect();
            let Ok((request, tag)) = Glimmerglass.parse(&command[..end]) else { return };
            let outcome = match request {
                Request::Login { user, password }
                    if (user.as_str(), password.as_str()) == ("admin", "right") =>
                {
                    is_in = true;
                    Ok(vec![])
                }
                Request::Login { .. } => Err(("PIUI", "unknown user or password".into())),
                _ if !is_in => Err(("PLNA", "Login Not Active".into())),
                Request::Retrieve => Ok(Glimmerglass.list(&circuits, 8)),
                _ => Ok(vec![]),
            };
            let answer = tl1_answer(&tag, outcome, "OCS", "26-11-21 09:30:00");
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// Properties of a rack's switch.
#[derive(Clone, Copy)]
struct Tor {
    dpid: u64,
    tables: u8,
    groups: u32,
}

const USUAL: Tor = Tor { dpid: 1, tables: 2, groups: 1 };

async fn listening(tor: Tor) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, tor, Arc::default()));
        }
    });
    address
}

/// Talks with a controller, and counts the rules that it is given. The switch has the ports 1 and 9; 9 has no
/// light.
async fn serve(mut stream: TcpStream, tor: Tor, rules: Arc<AtomicUsize>) -> std::io::Result<()> {
    stream.write_all(&Message::Hello { versions: None }.emit(1)).await?;
    let (mut buffer, mut bytes) = ([0; 4_096], Vec::new());
    loop {
        let len = stream.read(&mut buffer).await?;
        if len == 0 {
            return Ok(());
        }
        bytes.extend_from_slice(&buffer[..len]);
        while let Some(len) = Message::len_at(&bytes).unwrap().filter(|len| *len <= bytes.len()) {
            let message: Vec<u8> = bytes.drain(..len).collect();
            let (message, transaction) = Message::parse(&message).unwrap();
            let port = |number, link_down| Port {
                number,
                address: [2, 0, 0, 0, 0, 9],
                name: format!("port{number}"),
                disabled: false,
                link_down,
            };
            let answer = match message {
                Message::FeaturesRequest => {
                    Message::FeaturesReply { datapath_id: tor.dpid, buffers: 0, tables: tor.tables }
                }
                Message::EchoRequest(data) => Message::EchoReply(data),
                Message::BarrierRequest => Message::BarrierReply,
                Message::GroupFeaturesRequest => Message::GroupFeaturesReply { types: tor.groups },
                Message::PortsRequest => {
                    Message::PortsReply { ports: vec![port(1, false), port(9, true)], more: false }
                }
                Message::FlowMod(_) => {
                    rules.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                _ => continue,
            };
            stream.write_all(&answer.emit(transaction)).await?;
        }
    }
}

/// Two racks of a host and a fibre each at the ports 1 and 2 of the circuit switch, and a splitter behind
/// them.
fn settings(folder: &Path, password: &str, switch: SocketAddr, tors: [String; 2]) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let path = folder.join("password");
    std::fs::write(&path, password).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let tor = |(rack, tor): (usize, &String)| {
        format!("[[tor]]\n{tor}\nfibre-ports = [9]\nhosts = [{{ name = 'h{rack}', port = 1 }}]\n")
    };
    let tors: String = tors.iter().enumerate().map(tor).collect();
    format!(
        "listen = '127.0.0.1:0'\nfabrics = ['ocs']\ndevice-timeout-ms = 120000\nopenflow-listen = '127.0.0.1:0'\n\
         [ocs]\naddress = '{switch}'\nuser = 'admin'\npassword-file = {path:?}\nports = 8\nrate = '1gbit'\n\
         rack-ports = [1, 2]\nsplitters = [{{ input = 3, outputs = [4, 5] }}]\n{tors}"
    )
}

async fn look(settings: &str) -> Findings {
    let findings = check(&ManagerConfig::from_toml(settings).unwrap()).await.unwrap();
    assert_eq!(findings.ok, findings.faults.is_empty());
    for fault in &findings.faults {
        assert!(!fault.contains('\n'), "{fault}");
        assert!(findings.text().contains(fault), "{}", findings.text());
    }
    findings
}

#[tokio::test]
async fn a_network_that_is_as_its_settings_say_has_no_faults() {
    let folder = tempfile::tempdir().unwrap();
    // One circuit is ours, one is of others.
    let switch = circuit_switch(vec![Circuit { from: 0, to: 1 }, Circuit { from: 6, to: 7 }]).await;
    let one = format!("openflow = '{}'\ndpid = '0x1'", listening(USUAL).await);
    let other = format!("openflow = '{}'", listening(Tor { dpid: 2, ..USUAL }).await);
    let findings = look(&settings(folder.path(), "right\n", switch, [one, other])).await;
    assert!(findings.ok, "{:?}", findings.faults);
    let found = findings.circuit_switch.clone().unwrap();
    let circuits: Vec<_> = found.circuits.iter().map(|found| (found.name.as_str(), found.ours)).collect();
    assert_eq!(circuits, [("10001,20002", true), ("10007,20008", false)]);
    assert_eq!((findings.tors.len(), findings.tors[1].dpid.as_deref()), (2, Some("0x2")));
    let plan = &findings.plans[0];
    assert_eq!((plan.from.as_str(), plan.fabric.as_deref()), ("h0", Some("ocs")));
    assert!(plan.steps.iter().any(|step| step == "circuit 10001,20002"), "{:?}", plan.steps);
    assert!(findings.text().ends_with("nothing is wrong\n"), "{}", findings.text());
}

#[tokio::test]
async fn every_fault_is_a_sentence_with_its_setting() {
    let folder = tempfile::tempdir().unwrap();
    // Another program uses the port of rack 1.
    let switch = circuit_switch(vec![Circuit { from: 6, to: 1 }]).await;
    let wrong = format!("openflow = '{}'\ndpid = '0x7'", listening(USUAL).await);
    let dull = format!("openflow = '{}'", listening(Tor { dpid: 2, tables: 1, groups: 0 }).await);
    let text = settings(folder.path(), "right\n", switch, [wrong, dull])
        .replace("name = 'h1', port = 1", "name = 'h1', port = 5");
    let faults = look(&text).await.faults;
    for part in [
        "circuit 10007,20002 joins a port of rack 1 to one that the settings do not name",
        "rack 0: it is the switch with the dpid 0x1, and tor.dpid says 0x7",
        "rack 1: it has 1 tables of flows, and 2 are needed: write tables = 1",
        "rack 1: it has no groups of type all",
        "rack 1: it has no port 5 for host h1: it has 1 (port1), 9 (port9)",
    ] {
        assert!(faults.iter().any(|fault| fault.contains(part)), "{part}: {faults:?}");
    }
    assert_eq!(faults.len(), 5, "{faults:?}");
}

#[tokio::test]
async fn who_does_not_let_us_in_or_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let switch = circuit_switch(vec![]).await;
    let unused = "openflow = '127.0.0.1:1'".to_string();
    let other = format!("openflow = '{}'", listening(USUAL).await);
    let text = settings(folder.path(), "guess\n", switch, [unused, other]);
    let faults = look(&text).await.faults;
    for part in [
        "refuses the login of 'admin': unknown user or password",
        "rack 0: the switch at 127.0.0.1:1 cannot be reached",
    ] {
        assert!(faults.iter().any(|fault| fault.contains(part)), "{part}: {faults:?}");
    }
    assert!(!faults.iter().any(|fault| fault.contains("guess")), "{faults:?}");
}

#[tokio::test]
async fn a_switch_that_does_not_come_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let switch = circuit_switch(vec![]).await;
    let one = format!("openflow = '{}'", listening(USUAL).await);
    let text = settings(folder.path(), "right\n", switch, [one, "dpid = '0x2'".into()]);
    let faults = look(&text.replace("device-timeout-ms = 120000", "device-timeout-ms = 500")).await.faults;
    let part = "rack 1: no switch with the dpid 0x2 has connected to openflow-listen within 500 ms";
    assert!(faults.iter().any(|fault| fault.contains(part)), "{part}: {faults:?}");
}

/// Switches that connect are told what they have to keep; others are not.
#[tokio::test]
async fn switches_that_connect_are_known_by_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let switch = circuit_switch(vec![]).await;
    let port = SocketAddr::from(([127, 0, 0, 1], polycast_testing::free_port()));
    let text = settings(folder.path(), "right\n", switch, ["dpid = '0x1'".into(), "dpid = '00:02'".into()]);
    let text = text.replace("openflow-listen = '127.0.0.1:0'", &format!("openflow-listen = '{port}'"));
    let manager = Manager::bind(ManagerConfig::from_toml(&text).unwrap()).await.unwrap();
    let running = tokio::spawn(manager.serve(std::future::pending()));
    let mut rules = Vec::new();
    for dpid in [1, 2, 3] {
        let counted: Arc<AtomicUsize> = Arc::default();
        rules.push(Arc::clone(&counted));
        tokio::spawn(async move {
            loop {
                // The manager may not listen yet.
                if let Ok(stream) = TcpStream::connect(port).await {
                    let _ = serve(stream, Tor { dpid, ..USUAL }, Arc::clone(&counted)).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    let begun = Instant::now();
    while rules[..2].iter().any(|rules| rules.load(Ordering::SeqCst) == 0) {
        assert!(begun.elapsed() < polycast_testing::HANG, "no rules yet: {rules:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(rules[2].load(Ordering::SeqCst), 0, "no setting names the third");
    running.abort();
}
