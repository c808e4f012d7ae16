//! An optical circuit switch: it speaks TL1 over telnet as its management interface and moves packets
//! between its ports as its mirrors stand. What the real ones have in common is here too: a circuit takes
//! its time, and while the mirrors move, at first nothing gets through and then some of it (Blast section
//! VI, Republic section V).
//!
//! Every port is a fibre in and a fibre out. A circuit takes the one of its first port and the other of its
//! second.

use crate::error::LabError;
use crate::layout::ocs_port;
use crate::light::Lamp;
use crate::optics::{self, Light, Mirrors};
use crate::spec::Spec;
use crate::system::Space;
use polycast_net::devices::telnet::Telnet;
use polycast_net::devices::tl1::{Circuit, Completion, Output, Request, RequestError, Severity};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// The switch's own name in its answers.
const NAME: &str = "POLYCAST-OCS";
/// Managers at the same time.
const SESSIONS_MAX: usize = 16;
/// Commands of one manager at the same time.
const COMMANDS_MAX: usize = 1_024;
/// The longest command, in bytes.
const COMMAND_LEN_MAX: usize = 4_096;

/// A circuit switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OcsOptions {
    /// Where it listens for its managers.
    pub listen: SocketAddr,
    /// Its ports, which are the interfaces p1, p2 and so on of its namespace.
    pub ports: u32,
    /// How long a circuit takes.
    pub circuit_time: Duration,
    /// User and password that it wants; anyone may manage it without.
    pub login: Option<(String, String)>,
    /// The lab whose ports at the other ends of the fibres have light only where there is some.
    pub light: Option<Spec>,
}

/// How it misbehaves when it is told to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Fault {
    /// Not at all.
    #[default]
    None,
    /// It refuses every circuit.
    Refuse,
    /// It says that it has made a circuit, and does not list it.
    Lie,
    /// It says that it has made a circuit and lists it, and no light gets through.
    Dark,
    /// It answers this much later than it is done, in milliseconds.
    Late(u32),
    /// It hangs up when it is asked for a circuit.
    HangUp,
}

impl Fault {
    /// How it is told: the word in `ED-FAULT::LATE-500:1;`.
    #[must_use]
    pub fn word(self) -> String {
        match self {
            Fault::None => "NONE".into(),
            Fault::Refuse => "REFUSE".into(),
            Fault::Lie => "LIE".into(),
            Fault::Dark => "DARK".into(),
            Fault::Late(millis) => format!("LATE-{millis}"),
            Fault::HangUp => "HANGUP".into(),
        }
    }
}

impl FromStr for Fault {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Ok(match word {
            "NONE" => Fault::None,
            "REFUSE" => Fault::Refuse,
            "LIE" => Fault::Lie,
            "DARK" => Fault::Dark,
            "HANGUP" => Fault::HangUp,
            late => Fault::Late(late.strip_prefix("LATE-").ok_or(())?.parse().map_err(drop)?),
        })
    }
}

/// Moves the light.
trait Move {
    async fn change(&self, circuit: Circuit, light: Light) -> Result<(), LabError>;
}

impl Move for Mirrors {
    async fn change(&self, circuit: Circuit, light: Light) -> Result<(), LabError> {
        Mirrors::change(self, circuit.from, circuit.to, light).await
    }
}

/// The switch's state: where the light of each port goes.
struct Switch<M> {
    options: OcsOptions,
    mirrors: M,
    /// By the port where light enters; whether the circuit is whole.
    circuits: RefCell<BTreeMap<u32, (u32, bool)>>,
    fault: RefCell<Fault>,
    reports: RefCell<Vec<mpsc::Sender<String>>>,
    report_tag: RefCell<u32>,
}

/// A refusal in TL1's words.
type Denial = (&'static str, String);

impl<M: Move> Switch<M> {
    fn new(options: OcsOptions, mirrors: M) -> Self {
        let (circuits, fault, reports) = (RefCell::default(), RefCell::default(), RefCell::default());
        Switch { options, mirrors, circuits, fault, reports, report_tag: RefCell::default() }
    }

    fn check_ports(&self, circuit: Circuit) -> Result<(), Denial> {
        let ports = self.options.ports;
        match [circuit.from, circuit.to].into_iter().find(|port| *port >= ports) {
            Some(port) => Err(("IIAC", format!("there is no port {}: the ports are 1 to {ports}", port + 1))),
            None if circuit.from == circuit.to => {
                Err(("IIAC", format!("port {} cannot be joined to itself", circuit.from + 1)))
            }
            None => Ok(()),
        }
    }

    /// Makes a circuit; ends when the light is through.
    async fn enter(&self, circuit: Circuit) -> Result<(), Denial> {
        self.check_ports(circuit)?;
        let fault = *self.fault.borrow();
        if fault == Fault::Refuse {
            return Err(("SROF", "the mirrors do not move".into()));
        }
        if fault == Fault::Lie {
            return Ok(());
        }
        {
            let mut circuits = self.circuits.borrow_mut();
            let taken = |(from, (to, _)): (&u32, &(u32, bool))| {
                let other = Circuit { from: *from, to: *to };
                (other.from == circuit.from || other.to == circuit.to).then_some(other)
            };
            if let Some(other) = circuits.iter().find_map(taken) {
                return Err(("SROF", format!("circuit {} has one of these ports already", other.aid())));
            }
            circuits.insert(circuit.from, (circuit.to, false));
        }
        let half = self.options.circuit_time / 2;
        if !half.is_zero() && fault != Fault::Dark {
            tokio::time::sleep(half).await;
            self.shine(circuit, Light::Partial).await?;
            tokio::time::sleep(half).await;
        }
        if fault != Fault::Dark {
            self.shine(circuit, Light::Full).await?;
        }
        if let Some(state) = self.circuits.borrow_mut().get_mut(&circuit.from) {
            state.1 = true;
        }
        if let Fault::Late(millis) = fault {
            tokio::time::sleep(Duration::from_millis(millis.into())).await;
        }
        Ok(())
    }

    /// A circuit that was taken down while its mirrors still moved stays dark.
    async fn shine(&self, circuit: Circuit, light: Light) -> Result<(), Denial> {
        if self.circuits.borrow().get(&circuit.from).map(|(to, _)| *to) != Some(circuit.to) {
            return Err(("SROF", format!("circuit {} was taken down meanwhile", circuit.aid())));
        }
        self.mirrors.change(circuit, light).await.map_err(|error| {
            self.circuits.borrow_mut().remove(&circuit.from);
            ("SROF", error.to_string())
        })
    }

    /// Takes a circuit down: mirrors may leave at once.
    async fn delete(&self, circuit: Circuit) -> Result<(), Denial> {
        self.check_ports(circuit)?;
        let there = self.circuits.borrow().get(&circuit.from).copied();
        if there.map(|(to, _)| to) != Some(circuit.to) {
            return Err(("SROF", format!("there is no circuit {}", circuit.aid())));
        }
        self.circuits.borrow_mut().remove(&circuit.from);
        // What never was there cannot be taken away.
        let _ = self.mirrors.change(circuit, Light::Dark).await;
        self.report(Severity::Message, "REPT EVT CRS-FIBER", format!("{}:DLT", circuit.aid()));
        Ok(())
    }

    fn retrieve(&self) -> Vec<String> {
        let line = |(from, (to, _)): (&u32, &(u32, bool))| Circuit { from: *from, to: *to }.aid();
        self.circuits.borrow().iter().filter(|(_, (_, whole))| *whole).map(line).collect()
    }

    /// Tells all managers something that they did not ask for.
    fn report(&self, severity: Severity, verb: &str, line: String) {
        let mut tag = self.report_tag.borrow_mut();
        *tag = *tag % 999_999 + 1;
        let output =
            Output::Autonomous { severity, tag: tag.to_string(), verb: verb.into(), lines: vec![line] };
        let text = output.emit(NAME, &time_in_words());
        // A manager that does not listen misses it.
        self.reports.borrow_mut().retain(|manager| {
            !matches!(manager.try_send(text.clone()), Err(mpsc::error::TrySendError::Closed(_)))
        });
    }
}

/// Date and time of this machine as TL1 writes them, `26-11-21 09:30:00`, in UTC.
fn time_in_words() -> String {
    let since =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = ((since / 86_400) as i64, since % 86_400);
    // Days since 1 March of the year 0, in cycles of 400 years: the calendar is the same in each.
    let day = days + 719_468;
    let (cycle, of_cycle) = (day / 146_097, day % 146_097);
    let year = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = (400 * cycle + year + carry) % 100;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:02}-{month:02}-{date:02} {hour:02}:{minute:02}:{second:02}")
}

/// Runs a circuit switch in this namespace until the process ends. Calls `ready` with its address when it
/// listens.
///
/// # Errors
/// It cannot listen, or an interface is missing.
pub fn run(options: OcsOptions, ready: impl FnOnce(SocketAddr)) -> Result<(), LabError> {
    let names: Vec<String> = (0..options.ports).map(ocs_port).collect();
    let entrances: Vec<String> = names.iter().map(|name| optics::entrance(name)).collect();
    optics::apply(&Space::Network, &entrances)?;
    let failed = |error: std::io::Error| LabError::system("run the circuit switch", error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut mirrors = Mirrors::new(&names)?;
        if let Some(spec) = &options.light {
            mirrors.shine(Lamp::light(spec).await?);
        }
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        ready(listener.local_addr().map_err(failed)?);
        serve(listener, Rc::new(Switch::new(options, mirrors))).await;
        Ok(())
    })
}

async fn serve<M: Move + 'static>(listener: TcpListener, switch: Rc<Switch<M>>) {
    let sessions = std::sync::Arc::new(tokio::sync::Semaphore::new(SESSIONS_MAX));
    loop {
        // Without a place a manager waits until another one leaves.
        let Ok(place) = std::sync::Arc::clone(&sessions).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let switch = Rc::clone(&switch);
                tokio::task::spawn_local(async move {
                    converse(stream, switch).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a manager cannot be heard");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Talks with one manager until it leaves.
async fn converse<M: Move + 'static>(stream: TcpStream, switch: Rc<Switch<M>>) {
    // Answers must not wait for more of them.
    let _ = stream.set_nodelay(true);
    let (mut reader, mut writer) = stream.into_split();
    let (answers, mut outgoing) = mpsc::channel::<String>(COMMANDS_MAX);
    switch.reports.borrow_mut().push(answers.clone());
    let (mut telnet, mut text, mut buffer) = (Telnet::new(), Vec::new(), [0; 4_096]);
    let mut logged_in = switch.options.login.is_none();
    let mut refusals = Vec::new();
    loop {
        let mut wire = std::mem::take(&mut refusals);
        tokio::select! {
            read = reader.read(&mut buffer) => {
                let Ok(len @ 1..) = read else { return };
                telnet.receive(&buffer[..len], &mut text, &mut refusals);
                while let Some(end) = text.iter().position(|byte| *byte == b';') {
                    let command: Vec<u8> = text.drain(..=end).collect();
                    let command = String::from_utf8_lossy(&command[..end]).into_owned();
                    if !take(&command, &switch, &answers, &mut logged_in) {
                        return;
                    }
                }
                if text.len() > COMMAND_LEN_MAX {
                    return;
                }
            }
            answer = outgoing.recv() => {
                let Some(answer) = answer else { return };
                Telnet::send(answer.as_bytes(), &mut wire);
            }
        }
        wire.append(&mut refusals);
        if !wire.is_empty() && writer.write_all(&wire).await.is_err() {
            return;
        }
    }
}

/// Takes a command; gives whether the conversation goes on.
fn take<M: Move + 'static>(
    command: &str,
    switch: &Rc<Switch<M>>,
    answers: &mpsc::Sender<String>,
    logged_in: &mut bool,
) -> bool {
    if let Some((fault, tag)) = fault(command) {
        *switch.fault.borrow_mut() = fault;
        return answers.try_send(respond(&tag, Ok(vec![]))).is_ok();
    }
    let (request, tag) = match Request::parse(command) {
        Ok(parsed) => parsed,
        Err(RequestError { tag, code, text }) => {
            return answers.try_send(respond(&tag, Err((code, text)))).is_ok();
        }
    };
    let immediate = match request {
        Request::Login { user, password } => match &switch.options.login {
            Some((known, secret)) if (known, secret) != (&user, &password) => {
                Err(("PIUI", "unknown user or password".to_string()))
            }
            _ => {
                *logged_in = true;
                Ok(vec![])
            }
        },
        _ if !*logged_in => Err(("PLNA", "log in first".to_string())),
        Request::Logout { .. } => {
            *logged_in = switch.options.login.is_none();
            Ok(vec![])
        }
        Request::Enter(_) if *switch.fault.borrow() == Fault::HangUp => return false,
        Request::Enter(circuit) | Request::Delete(circuit) => {
            let (switch, answers) = (Rc::clone(switch), answers.clone());
            let enter = matches!(request, Request::Enter(_));
            tokio::task::spawn_local(async move {
                let outcome = if enter { switch.enter(circuit).await } else { switch.delete(circuit).await };
                // The manager may have left meanwhile; the circuit stays.
                let _ = answers.try_send(respond(&tag, outcome.map(|()| vec![])));
            });
            return true;
        }
        Request::Retrieve => Ok(switch.retrieve()),
        Request::Alarms | Request::Header => Ok(vec![]),
    };
    answers.try_send(respond(&tag, immediate)).is_ok()
}

/// `ED-FAULT::REFUSE:7`: how labs make a switch misbehave. No real switch knows it.
fn fault(command: &str) -> Option<(Fault, String)> {
    let mut blocks = command.trim().strip_prefix("ED-FAULT::")?.split(':');
    let (mode, tag) = (blocks.next()?, blocks.next()?.to_string());
    let fault = mode.parse().ok()?;
    Some((fault, tag))
}

fn respond(tag: &str, outcome: Result<Vec<String>, Denial>) -> String {
    let (completion, code, lines, comment) = match outcome {
        Ok(lines) => (Completion::Completed, None, lines, String::new()),
        Err((code, text)) => (Completion::Denied, Some(code.to_string()), vec![], text),
    };
    let output = Output::Response { tag: tag.into(), completion, code, lines, comment, more: false };
    output.emit(NAME, &time_in_words())
}

#[cfg(test)]
mod tests;
