//! The devices that hold forwarding state for paths: each is a task with its own connection, and all devices
//! of a plan are told at the same time (Blast section IV-B, Republic section III-B, Shufflecast section
//! III-B).
//!
//! The core never waits for them: a path is granted at once, and what became of its set-up comes back as
//! [`News`].

mod circuit_switch;
mod error;
mod forwarders;
mod label_switches;
mod switch_door;
mod tor;

pub(crate) use circuit_switch::CircuitSwitch;
pub(crate) use error::{DeviceError, SetUpError};
pub(crate) use forwarders::Forwarders;
pub(crate) use label_switches::LabelSwitches;
pub(crate) use switch_door::SwitchDoor;
pub(crate) use tor::{Reach, Tor, TorPorts};

use futures_util::future::join_all;
use polycast_api::forwarder::Word;
use polycast_planning::{DeviceCommand, PlanId};
use polycast_protocol::leases::{Advice, NoAdvice};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Jobs that may wait for one device.
const JOBS_MAX: usize = 1_024;
/// Words of devices that wait to be heard.
const NEWS_MAX: usize = 1_024;
/// Pauses between two tries to connect to a device: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum DeviceId {
    /// The optical circuit switch.
    CircuitSwitch,
    /// All label switches and the agents of their racks.
    LabelSwitches,
    /// The forwarders of a Datacast fabric. They keep nothing for paths, and say which links change.
    Forwarders,
    /// The switch of a rack.
    Tor(u32),
}

impl DeviceId {
    /// The device that keeps what a command says. A new kind of command has to name its device here.
    pub(crate) fn of(command: &DeviceCommand) -> Self {
        match command {
            DeviceCommand::CrossConnect { .. } => DeviceId::CircuitSwitch,
            DeviceCommand::RackRule { rack, .. } | DeviceCommand::RelayRule { rack, .. } => {
                DeviceId::Tor(*rack)
            }
            DeviceCommand::SpineEntry { .. }
            | DeviceCommand::LeafLabel { .. }
            | DeviceCommand::LeafDoor { .. } => DeviceId::LabelSwitches,
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceId::CircuitSwitch => f.write_str("the circuit switch"),
            DeviceId::LabelSwitches => f.write_str("the label switches"),
            DeviceId::Forwarders => f.write_str("the forwarders"),
            DeviceId::Tor(rack) => write!(f, "the switch of rack {rack}"),
        }
    }
}

/// Change of one device: first removals, then additions. If it is empty, the device reports the state of its
/// ports.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    /// Commands that the device no longer has to keep.
    pub(crate) clear: Vec<DeviceCommand>,
    /// Commands that the device has to keep.
    pub(crate) set: Vec<DeviceCommand>,
}

/// A change, and where its result goes.
pub(crate) struct Job {
    pub(crate) change: Change,
    pub(crate) reply: oneshot::Sender<Result<(), DeviceError>>,
}

/// News from devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// Result of a plan's set-up.
    SetUp {
        /// The plan.
        plan: PlanId,
        /// Devices that failed, if any.
        result: Result<(), SetUpError>,
        /// Steps that were done, and the time that each took.
        steps: Vec<Step>,
    },
    /// Commands that a device keeps when it is first reached; none if it does not report them.
    Found {
        /// Commands that it keeps.
        commands: Vec<DeviceCommand>,
    },
    /// A fibre of a rack has lost its light, or has it again.
    Fibre {
        /// The rack.
        rack: u32,
        /// The fibre.
        fibre: Fibre,
        /// True if there is light.
        up: bool,
    },
    /// A link of a network of label switches has broken, or works again.
    Link {
        /// The nodes that it joins.
        ends: (u32, u32),
        /// True if the link works.
        up: bool,
    },
    /// A rack's switch cannot be reached any more, or can be again.
    Switch {
        /// The rack.
        rack: u32,
        /// True if the switch can be reached.
        up: bool,
    },
    /// The external scheduler has answered a question, or could not be asked.
    Advised {
        /// Number of the question.
        number: u64,
        /// The answer, or why there is none.
        advice: Result<Advice, NoAdvice>,
    },
    /// The switches of some racks have said how their ports are, or do not answer.
    Looked(Look),
    /// Links between forwarders have changed.
    Links {
        /// Messages of forwarders, in that order.
        words: Vec<Word>,
        /// Time when the first of them arrived.
        heard: Instant,
    },
}

/// A look at the ports of some racks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    /// For which network, by its place among those that draw conclusions.
    pub(crate) network: usize,
    /// Number of this look in the network.
    pub(crate) number: u64,
}

/// A fibre of a rack, by its place in the settings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fibre {
    /// To the circuit switch, or into the rack's splitter.
    Out(u32),
    /// From a splitter.
    In(u32),
}

/// Step that one device did for a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    /// In words.
    pub(crate) what: String,
    /// Time from the making of the plan until the step was done, in microseconds.
    pub(crate) micros: u64,
}

/// A device's task.
pub(crate) trait Device: Send {
    /// Does its jobs, and keeps what they said through losses of the connection, until no more jobs can come.
    fn run(
        self: Box<Self>,
        jobs: mpsc::Receiver<Job>,
        news: mpsc::Sender<News>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// All devices.
#[derive(Debug)]
pub(crate) struct Devices {
    inboxes: BTreeMap<DeviceId, mpsc::Sender<Job>>,
    news: mpsc::Sender<News>,
}

impl Devices {
    /// Starts the devices' tasks; they end when this is dropped. Needs a tokio runtime around it.
    pub(crate) fn start(devices: BTreeMap<DeviceId, Box<dyn Device>>) -> (Self, mpsc::Receiver<News>) {
        // A device that says more than can be heard waits, and what it says next with it.
        let (news, heard) = mpsc::channel(NEWS_MAX);
        let start = |(id, device): (DeviceId, Box<dyn Device>)| {
            let (inbox, jobs) = mpsc::channel(JOBS_MAX);
            tokio::spawn(device.run(jobs, news.clone()));
            (id, inbox)
        };
        let inboxes = devices.into_iter().map(start).collect();
        (Devices { inboxes, news }, heard)
    }

    /// The way of news that do not come from devices.
    pub(crate) fn news(&self) -> mpsc::Sender<News> {
        self.news.clone()
    }

    /// All devices.
    pub(crate) fn ids(&self) -> impl Iterator<Item = DeviceId> {
        self.inboxes.keys().copied()
    }

    /// Ends the devices' tasks; what they were told last is still done.
    pub(crate) fn stop(&mut self) {
        self.inboxes.clear();
    }

    /// Brings all devices from `old` to `new` at the same time. With a plan, [`News::SetUp`] tells what came
    /// of it.
    pub(crate) fn change(&self, plan: Option<PlanId>, old: &[DeviceCommand], new: &[DeviceCommand]) {
        let begun = Instant::now();
        let changes = changes(old, new);
        if changes.is_empty() {
            if let Some(plan) = plan {
                let (news, steps) = (self.news.clone(), vec![]);
                // The core may be ending.
                tokio::spawn(async move { news.send(News::SetUp { plan, result: Ok(()), steps }).await });
            }
            return;
        }
        let ask = |(id, change): (DeviceId, Change)| {
            let (what, needed) = (words(id, &change), !change.set.is_empty());
            (id, what, needed, self.ask(id, change))
        };
        let asked: Vec<_> = changes.into_iter().map(ask).collect();
        let news = self.news.clone();
        tokio::spawn(async move {
            let waits = asked.into_iter().map(|(id, what, needed, reply)| async move {
                let result = match reply {
                    Ok(reply) => reply.await.unwrap_or(Err(DeviceError::Ending)),
                    Err(reason) => Err(reason),
                };
                (id, what, needed, result, begun.elapsed())
            });
            let mut steps = Vec::new();
            let mut failures = Vec::new();
            for (id, what, needed, result, took) in join_all(waits).await {
                match result {
                    Ok(()) => steps.push(Step { what, micros: took.as_micros() as u64 }),
                    Err(error) if needed => failures.push((id, error)),
                    // The path does not miss what only was to go.
                    Err(error) => tracing::warn!(device = %id, %error, "a device keeps what it need not"),
                }
            }
            let result = if failures.is_empty() { Ok(()) } else { Err(SetUpError(failures)) };
            if let Err(error) = &result {
                tracing::warn!(plan = plan.map(|plan| plan.0), %error, "devices failed");
            }
            if let Some(plan) = plan {
                let _ = news.send(News::SetUp { plan, result, steps }).await;
            }
        });
    }

    /// Has the switches of these racks say how their ports are; [`News::Looked`] comes behind what they say.
    pub(crate) fn look(&self, racks: impl IntoIterator<Item = u32>, look: Look) {
        let asked: Vec<_> =
            racks.into_iter().map(|rack| self.ask(DeviceId::Tor(rack), Change::default())).collect();
        let news = self.news.clone();
        tokio::spawn(async move {
            // One that does not answer says nothing.
            join_all(asked.into_iter().flatten()).await;
            // The core may be ending.
            let _ = news.send(News::Looked(look)).await;
        });
    }

    fn ask(
        &self,
        id: DeviceId,
        change: Change,
    ) -> Result<oneshot::Receiver<Result<(), DeviceError>>, DeviceError> {
        let inbox = self.inboxes.get(&id).ok_or(DeviceError::Unknown)?;
        let (reply, result) = oneshot::channel();
        inbox.try_send(Job { change, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => DeviceError::Busy,
            mpsc::error::TrySendError::Closed(_) => DeviceError::Ended,
        })?;
        Ok(result)
    }
}

/// Waits until then, where there is such a time.
async fn until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Returns the change of each device.
fn changes(old: &[DeviceCommand], new: &[DeviceCommand]) -> BTreeMap<DeviceId, Change> {
    let mut changes: BTreeMap<DeviceId, Change> = BTreeMap::new();
    let before: std::collections::BTreeSet<&DeviceCommand> = old.iter().collect();
    let after: std::collections::BTreeSet<&DeviceCommand> = new.iter().collect();
    for command in old.iter().filter(|command| !after.contains(command)) {
        changes.entry(DeviceId::of(command)).or_default().clear.push(command.clone());
    }
    for command in new.iter().filter(|command| !before.contains(command)) {
        changes.entry(DeviceId::of(command)).or_default().set.push(command.clone());
    }
    changes
}

/// Counts the messages to devices that bring them from `old` to `new`.
pub(crate) fn messages(old: &[DeviceCommand], new: &[DeviceCommand]) -> usize {
    changes(old, new).values().map(|change| change.clear.len() + change.set.len()).sum()
}

fn words(id: DeviceId, change: &Change) -> String {
    match id {
        DeviceId::CircuitSwitch if change.set.is_empty() => {
            format!("{} circuits taken down", change.clear.len())
        }
        DeviceId::CircuitSwitch => format!("{} circuits", change.set.len()),
        DeviceId::LabelSwitches => format!("{} labels and entries", change.set.len() + change.clear.len()),
        DeviceId::Forwarders => "the forwarders".into(),
        DeviceId::Tor(rack) => format!("rules of rack {rack}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_planning::RackPort;

    fn circuit(from: u32, to: u32) -> DeviceCommand {
        DeviceCommand::CrossConnect { from, to }
    }

    fn rule(rack: u32, last: u8) -> DeviceCommand {
        let to = vec![RackPort::Circuit(0)];
        DeviceCommand::RackRule {
            rack,
            group: [239, 255, 64, last].into(),
            from: RackPort::FromSplitters,
            to,
        }
    }

    #[test]
    fn a_path_like_the_last_one_changes_nothing() {
        let commands = [circuit(1, 2), rule(0, 1)];
        assert_eq!(changes(&commands, &commands), BTreeMap::new());
        // The same circuits for other hosts: only the rules change.
        let changed = changes(&commands, &[circuit(1, 2), rule(0, 2)]);
        let expected = Change { clear: vec![rule(0, 1)], set: vec![rule(0, 2)] };
        assert_eq!(changed, BTreeMap::from([(DeviceId::Tor(0), expected)]));
    }

    #[tokio::test]
    async fn a_device_that_is_not_there_fails_and_says_so() {
        let (devices, mut news) = Devices::start(BTreeMap::new());
        devices.change(Some(PlanId(7)), &[], &[circuit(1, 2)]);
        let Some(News::SetUp { plan: PlanId(7), result: Err(error), .. }) = news.recv().await else {
            panic!("no failure")
        };
        assert_eq!(error, SetUpError(vec![(DeviceId::CircuitSwitch, DeviceError::Unknown)]));
        assert_eq!(error.to_string(), "the circuit switch: the settings do not say where it is");
        let label = DeviceCommand::LeafLabel { leaf: 16, session: 7, label: vec![1] };
        devices.change(Some(PlanId(9)), &[], &[label]);
        let Some(News::SetUp { plan: PlanId(9), result: Err(error), .. }) = news.recv().await else {
            panic!("no failure")
        };
        assert_eq!(error.0, [(DeviceId::LabelSwitches, DeviceError::Unknown)]);
        devices.change(Some(PlanId(8)), &[], &[]);
        assert!(matches!(news.recv().await, Some(News::SetUp { result: Ok(()), .. })));
    }
}
