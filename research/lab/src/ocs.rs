//! An optical circuit switch: it speaks the dialect of a real one as its management interface and moves
//! packets between its ports as its mirrors stand. What the real ones have in common is here too: a circuit
//! takes its time, and while the mirrors move, at first nothing gets through and then some of it (Blast
//! section VI, Republic section V).
//!
//! Every port is a fibre in and a fibre out. A circuit takes the one of its first port and the other of its
//! second.

use crate::error::LabError;
use crate::layout::ocs_port;
use crate::light::Lamp;
use crate::optics::{self, Light, Mirrors};
use crate::spec::Spec;
use crate::system::Space;
use polycast_net::devices::circuits::{Circuit, Dialect, Framing};
use polycast_net::devices::tl1::{Output, Severity};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

mod talk;

/// The switch's own name in its answers.
const NAME: &str = "POLYCAST-OCS";
/// Managers at the same time.
const SESSIONS_MAX: usize = 16;

/// A circuit switch.
#[derive(Clone, Debug)]
pub struct OcsOptions {
    /// Dialect of the switch.
    pub dialect: Arc<dyn Dialect>,
    /// Address on which it listens for its managers.
    pub listen: SocketAddr,
    /// Its ports, which are the interfaces p1, p2 and so on of its namespace.
    pub ports: u32,
    /// Time that a circuit takes.
    pub circuit_time: Duration,
    /// The user and password that it asks for. Without them every client may manage it.
    pub login: Option<(String, String)>,
    /// The lab whose ports at the other ends of the fibres have light only where there is some.
    pub light: Option<Spec>,
}

/// Fault of the circuit switch, made on command.
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
    /// So it does with circuits from or to this port alone; ports count from 1.
    DarkAt(u32),
    /// It answers this much later than it is done, in milliseconds.
    Late(u32),
    /// It hangs up when it is asked for a circuit.
    HangUp,
}

impl Fault {
    /// Returns its name on the wire: the word in `ED-FAULT::LATE-500:1;`.
    #[must_use]
    pub fn word(self) -> String {
        match self {
            Fault::None => "NONE".into(),
            Fault::Refuse => "REFUSE".into(),
            Fault::Lie => "LIE".into(),
            Fault::Dark => "DARK".into(),
            Fault::DarkAt(port) => format!("DARK-{port}"),
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
            dark if dark.starts_with("DARK-") => Fault::DarkAt(dark["DARK-".len()..].parse().map_err(drop)?),
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

/// The switch's state: where the light of each port goes. Here ports are places, from 0 on.
struct Switch<M> {
    options: OcsOptions,
    /// The places of ports by their numbers in the dialect.
    places: BTreeMap<u32, u32>,
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
        let places = (0..options.ports).map(|place| (options.dialect.nth_port(place), place)).collect();
        Switch { options, places, mirrors, circuits, fault, reports, report_tag: RefCell::default() }
    }

    /// Returns the dialect's name of a port.
    fn port_name(&self, place: u32) -> String {
        self.options.dialect.port_name(self.options.dialect.nth_port(place))
    }

    /// A circuit in the dialect's numbers.
    fn in_dialect(&self, circuit: Circuit) -> Circuit {
        let dialect = &self.options.dialect;
        Circuit { from: dialect.nth_port(circuit.from), to: dialect.nth_port(circuit.to) }
    }

    fn name(&self, circuit: Circuit) -> String {
        self.options.dialect.circuit_name(self.in_dialect(circuit))
    }

    /// The place of a port.
    fn place(&self, port: u32) -> Result<u32, Denial> {
        self.places.get(&port).copied().ok_or_else(|| {
            let (dialect, last) = (&self.options.dialect, self.options.ports.saturating_sub(1));
            let (port, first, last) = (dialect.port_name(port), self.port_name(0), self.port_name(last));
            ("IIAC", format!("there is no port {port}: the ports are {first} to {last}"))
        })
    }

    /// A circuit of the dialect's ports in places.
    fn placed(&self, circuit: Circuit) -> Result<Circuit, Denial> {
        let placed = Circuit { from: self.place(circuit.from)?, to: self.place(circuit.to)? };
        if placed.from == placed.to {
            return Err(("IIAC", format!("port {} cannot be joined to itself", self.port_name(placed.from))));
        }
        Ok(placed)
    }

    /// Makes a circuit; ends when the light is through.
    async fn enter(&self, circuit: Circuit) -> Result<(), Denial> {
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
                return Err(("SROF", format!("circuit {} has one of these ports already", self.name(other))));
            }
            circuits.insert(circuit.from, (circuit.to, false));
        }
        let half = self.options.circuit_time / 2;
        let is_dark = match fault {
            Fault::Dark => true,
            Fault::DarkAt(port) => [circuit.from, circuit.to].contains(&port.wrapping_sub(1)),
            _ => false,
        };
        if !half.is_zero() && !is_dark {
            tokio::time::sleep(half).await;
            self.shine(circuit, Light::Partial).await?;
            tokio::time::sleep(half).await;
        }
        if !is_dark {
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
            return Err(("SROF", format!("circuit {} was taken down meanwhile", self.name(circuit))));
        }
        self.mirrors.change(circuit, light).await.map_err(|error| {
            self.circuits.borrow_mut().remove(&circuit.from);
            ("SROF", error.to_string())
        })
    }

    /// Takes a circuit down: mirrors may leave at once.
    async fn delete(&self, circuit: Circuit) -> Result<(), Denial> {
        let there = self.circuits.borrow().get(&circuit.from).copied();
        if there.map(|(to, _)| to) != Some(circuit.to) {
            return Err(("SROF", format!("there is no circuit {}", self.name(circuit))));
        }
        self.circuits.borrow_mut().remove(&circuit.from);
        // What never was there cannot be taken away.
        let _ = self.mirrors.change(circuit, Light::Dark).await;
        self.report(Severity::Message, "REPT EVT CRS-FIBER", format!("{}:DLT", self.name(circuit)));
        Ok(())
    }

    /// Takes down whatever circuit light from this place takes.
    async fn delete_from(&self, from: u32) -> Result<(), Denial> {
        let to = self.circuits.borrow().get(&from).map(|(to, _)| *to);
        match to {
            Some(to) => self.delete(Circuit { from, to }).await,
            None => Err(("SROF", format!("there is no circuit from port {}", self.port_name(from)))),
        }
    }

    fn retrieve(&self) -> Vec<String> {
        let circuit =
            |(from, (to, _)): (&u32, &(u32, bool))| self.in_dialect(Circuit { from: *from, to: *to });
        let circuits: Vec<Circuit> =
            self.circuits.borrow().iter().filter(|(_, (_, whole))| *whole).map(circuit).collect();
        self.options.dialect.list(&circuits, self.options.ports)
    }

    /// Tells all managers something that they did not ask for.
    fn report(&self, severity: Severity, verb: &str, line: String) {
        // Instruments speak when they are asked.
        if self.options.dialect.framing() == Framing::Scpi {
            return;
        }
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
                    talk::converse(stream, switch).await;
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

#[cfg(test)]
mod tests;
