//! Circuit switches that do not do what they say, or say more than there is.

use super::*;
use polycast_net::devices::circuits::{Dialect, Glimmerglass, Plain, Request, tl1_answer};
use polycast_net::devices::tl1::Output;
use polycast_testing::HANG;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;

const WHEN: &str = "26-01-01 00:00:00";

/// A switch that answers what this says to each request with its tag.
async fn liar(
    dialect: Arc<dyn Dialect>,
    mut reply: impl FnMut(&Request, &str) -> String + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut buffer, mut text) = ([0; 4_096], String::new());
            while let Ok(len @ 1..) = stream.read(&mut buffer).await {
                text.push_str(&String::from_utf8_lossy(&buffer[..len]));
                while let Some((command, rest)) = text.split_once(';') {
                    let (request, tag) = dialect.parse(command).unwrap();
                    let said = reply(&request, &tag);
                    text = rest.to_string();
                    stream.write_all(said.as_bytes()).await.unwrap();
                }
            }
        }
    });
    address
}

/// The answer that a command was done, with these lines.
fn done(tag: &str, lines: &[&str]) -> String {
    tl1_answer(tag, Ok(lines.iter().map(ToString::to_string).collect()), "SWITCH", WHEN)
}

/// The device, to which three racks have a fibre each.
struct Running {
    jobs: mpsc::Sender<Job>,
    _news: mpsc::Receiver<News>,
}

impl Running {
    fn start(address: SocketAddr, dialect: Arc<dyn Dialect>) -> Self {
        let (connect_timeout, command_timeout) = (HANG, HANG);
        let options = CircuitOptions { connect_timeout, command_timeout, ..CircuitOptions::new(dialect) };
        let ports = PortTable::new(vec![vec![0], vec![1], vec![2]], Vec::new()).unwrap();
        let ((jobs, inbox), (sender, news)) = (mpsc::channel(8), mpsc::channel(8));
        tokio::spawn(Box::new(CircuitSwitch::new(address, options, ports)).run(inbox, sender));
        Running { jobs, _news: news }
    }

    /// Asks for a circuit, and waits for what became of it.
    async fn set(&self, from: u32, to: u32) -> Result<(), DeviceError> {
        let (reply, result) = oneshot::channel();
        let set = vec![DeviceCommand::CrossConnect { from, to }];
        assert!(self.jobs.send(Job { change: Change { set, ..Change::default() }, reply }).await.is_ok());
        timeout(HANG, result).await.unwrap().unwrap()
    }
}

#[tokio::test]
async fn a_circuit_that_is_only_claimed_has_failed() {
    let address = liar(Arc::new(Plain), |_, tag| done(tag, &[])).await;
    let switch = Running::start(address, Arc::new(Plain));
    assert_eq!(switch.set(0, 1).await, Err(DeviceError::NotListed("1,2".into())));
}

/// Nothing has to be changed for it, and it is looked at all the same.
#[tokio::test]
async fn a_circuit_that_was_there_without_light_has_failed() {
    let address = liar(Arc::new(Glimmerglass), |request, tag| match request {
        Request::Retrieve => {
            done(tag, &["GGN:IPORTID=10001,OPORTID=20002,CONNSTATE=fault,CONNCAUSE=no\u{1b}[2Jlight"])
        }
        _ => done(tag, &[]),
    })
    .await;
    let switch = Running::start(address, Arc::new(Glimmerglass));
    let (circuit, fault) = ("10001,20002".to_string(), r"no\u{1b}[2Jlight".to_string());
    assert_eq!(switch.set(0, 1).await, Err(DeviceError::NoLight { circuit, fault }));
}

/// Light cannot leave by two ports: what such a switch says of its circuits is of no use.
#[tokio::test]
async fn a_circuit_beside_another_one_at_its_port_has_failed() {
    let mut is_made = false;
    let address = liar(Arc::new(Plain), move |request, tag| {
        is_made |= matches!(request, Request::Enter(_));
        match request {
            Request::Retrieve if is_made => done(tag, &["1,2", "1,3"]),
            _ => done(tag, &[]),
        }
    })
    .await;
    let switch = Running::start(address, Arc::new(Plain));
    let (circuit, other) = ("1,2".to_string(), "1,3".to_string());
    assert_eq!(switch.set(0, 1).await, Err(DeviceError::Beside { circuit, other }));
}

/// A path of a manager with other settings, or what was put into etcd by another program.
#[tokio::test]
async fn a_circuit_at_ports_of_others_is_not_asked_for() {
    let made = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&made);
    let address = liar(Arc::new(Plain), move |request, tag| {
        counted.fetch_add(usize::from(matches!(request, Request::Enter(_))), Ordering::SeqCst);
        done(tag, &[])
    })
    .await;
    let switch = Running::start(address, Arc::new(Plain));
    for to in [3, u32::MAX] {
        let (from, to_name) = ("1".to_string(), (u64::from(to) + 1).to_string());
        assert_eq!(switch.set(0, to).await, Err(DeviceError::ForeignPorts { from, to: to_name }));
    }
    assert_eq!(made.load(Ordering::SeqCst), 0);
}

/// Its circuits are looked at once for all of them.
#[tokio::test]
async fn alarms_in_floods_are_as_good_as_one() {
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&looks);
    let mut is_made = false;
    let address = liar(Arc::new(Plain), move |request, tag| match request {
        Request::Retrieve => {
            counted.fetch_add(1, Ordering::SeqCst);
            done(tag, if is_made { &["1,2"] } else { &[] })
        }
        Request::Enter(_) => {
            is_made = true;
            let (severity, tag_of_alarm) = (Severity::Critical, "1".to_string());
            let (verb, lines) = ("REPT ALM CRS".to_string(), vec!["1,2:CR,LOS".to_string()]);
            let alarm = Output::Autonomous { severity, tag: tag_of_alarm, verb, lines };
            done(tag, &[]) + &alarm.emit("SWITCH", WHEN).repeat(2_000)
        }
        _ => done(tag, &[]),
    })
    .await;
    let switch = Running::start(address, Arc::new(Plain));
    assert_eq!(switch.set(0, 1).await, Ok(()));
    let mut seen = 0;
    while looks.load(Ordering::SeqCst) > seen {
        seen = looks.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(seen < 100, "its circuits were looked at {seen} times");
    assert_eq!(switch.set(1, 2).await, Err(DeviceError::NotListed("2,3".into())), "it does its jobs");
}
