//! Label switches and the agents of racks as one device: switches take entries at one address (Orca section 3.3), and the
//! leaf controllers of racks take labels (section 3.4). What comes is there before anything goes, so that packets under way
//! keep their way.

use super::{Change, Device, DeviceError, Job, News, PAUSES};
use crate::racks::{Racks, RacksError};
use polycast_planning::DeviceCommand;
use polycast_protocol::rack::Change as LabelChange;
use polycast_wire::switches::{Change as WireChange, FRAME_LEN_MAX, Word};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// The switches and racks, before their task runs.
#[derive(Clone, Debug)]
pub(crate) struct LabelSwitches {
    /// Where switches take entries.
    pub(crate) switches: SocketAddr,
    /// Where leaf controllers reach us.
    pub(crate) listen: SocketAddr,
    /// The leaf controllers, in the order of their leafs.
    pub(crate) leaf_controllers: Vec<SocketAddr>,
    /// The node of the first leaf.
    pub(crate) first_leaf: u32,
    /// How long a change may take.
    pub(crate) answers_within: Duration,
}

impl Device for LabelSwitches {
    fn run(
        self: Box<Self>,
        jobs: mpsc::Receiver<Job>,
        news: mpsc::Sender<News>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(Task::new(*self, news).run(jobs))
    }
}

struct Task {
    settings: LabelSwitches,
    racks: Option<Racks>,
    connection: Option<Connection>,
    /// The entries that plans need.
    wanted: BTreeSet<Entry>,
    /// Of the last change.
    number: u32,
    news: mpsc::Sender<News>,
    /// What was just heard, to be told.
    said: Vec<News>,
}

impl Task {
    fn new(settings: LabelSwitches, news: mpsc::Sender<News>) -> Self {
        Task {
            settings,
            racks: None,
            connection: None,
            wanted: BTreeSet::new(),
            number: 0,
            news,
            said: Vec::new(),
        }
    }

    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut pause = PAUSES.0;
        if let Err(error) = self.racks() {
            tracing::warn!(%error, "no leaf controllers yet");
        }
        loop {
            let connecting = self.connection.is_none();
            let heard = async {
                match &mut self.connection {
                    Some(connection) => connection.next(|word| hear(&mut self.said, &word)).await,
                    None => {
                        tokio::time::sleep(pause).await;
                        Ok(())
                    }
                }
            };
            tokio::select! {
                job = jobs.recv() => {
                    let Some(job) = job else { return };
                    self.perform(job).await;
                }
                heard = heard => {
                    tell(&self.news, &mut self.said).await;
                    if let Err(error) = heard {
                        tracing::warn!(%error, "the connection to the label switches has ended");
                        self.connection = None;
                    }
                    if connecting {
                        // Ahead of the first job, so that it does not have to wait for it.
                        match self.connect().await {
                            Ok(()) => pause = PAUSES.0,
                            Err(_) => pause = (pause * 2).min(PAUSES.1),
                        }
                    }
                }
            }
        }
    }

    /// Connects, and says all that plans need: what listens there may have begun anew.
    async fn connect(&mut self) -> Result<(), DeviceError> {
        if self.connection.is_some() {
            return Ok(());
        }
        let (address, within) = (self.settings.switches, self.settings.answers_within);
        let connecting = tokio::time::timeout(within, TcpStream::connect(address));
        let millis = within.as_millis();
        let stream = connecting.await.map_err(|_| DeviceError::NotInTime { millis })?;
        let unreachable =
            |error: std::io::Error| DeviceError::Unreachable { address, reason: error.to_string() };
        let stream = stream.map_err(unreachable)?;
        // Without it small words would wait for each other, which costs time and nothing else.
        let _ = stream.set_nodelay(true);
        tracing::info!(address = %self.settings.switches, "connected to the label switches");
        self.connection = Some(Connection { stream, inbox: Vec::new(), used: 0 });
        let wanted: Vec<Entry> = self.wanted.iter().copied().collect();
        self.ask(&wanted, &[]).await
    }

    /// The central controller, which begins when it can.
    fn racks(&mut self) -> Result<&Racks, DeviceError> {
        if self.racks.is_none() {
            let LabelSwitches { listen, ref leaf_controllers, .. } = self.settings;
            let started = Racks::start(listen, leaf_controllers.clone());
            let fails =
                |error: std::io::Error| DeviceError::NoController { listen, reason: error.to_string() };
            self.racks = Some(started.map_err(fails)?);
        }
        Ok(self.racks.as_ref().expect("it was started just now, if not before"))
    }

    /// Hands labels to the racks, waits for the switches, and answers when both are done; the next job does not wait for the
    /// racks of this one.
    async fn perform(&mut self, job: Job) {
        let Job { change, reply } = job;
        let (labels, entries) = match self.parts(&change) {
            Ok(parts) => parts,
            Err(error) => {
                // The core may be ending.
                let _ = reply.send(Err(error));
                return;
            }
        };
        let confirmed = match labels.is_empty() {
            true => Ok(None),
            false => self.racks().and_then(|racks| Ok(Some(racks.set(labels)?))),
        };
        let entered = self.enter(&entries.set, &entries.clear).await;
        let within = self.settings.answers_within;
        tokio::spawn(async move {
            let confirmed = match confirmed {
                Ok(None) => Ok(()),
                Ok(Some(confirmed)) => match tokio::time::timeout(within, confirmed).await {
                    Ok(result) => result.unwrap_or(Err(RacksError::Ended)).map_err(DeviceError::from),
                    Err(_) => Err(DeviceError::Unconfirmed { millis: within.as_millis() }),
                },
                Err(error) => Err(error),
            };
            // The core may be ending.
            let _ = reply.send(entered.and(confirmed));
        });
    }

    /// What changes at racks, and at switches. A label that is replaced is not cleared.
    fn parts(&self, change: &Change) -> Result<(Vec<LabelChange>, Entries), DeviceError> {
        let (mut labels, mut entries) = (Vec::new(), Entries::default());
        for command in &change.set {
            match part(command)? {
                Part::Label { leaf, session, label } => {
                    labels.push(self.label(leaf, session, label.to_vec()));
                }
                Part::Entry(entry) => entries.set.push(entry),
            }
        }
        let set: BTreeSet<(u32, u32)> = labels.iter().map(|label| (label.leaf, label.session)).collect();
        for command in &change.clear {
            match part(command)? {
                Part::Label { leaf, session, .. } => {
                    let cleared = self.label(leaf, session, Vec::new());
                    labels.extend((!set.contains(&(cleared.leaf, session))).then_some(cleared));
                }
                Part::Entry(entry) => entries.clear.push(entry),
            }
        }
        Ok((labels, entries))
    }

    fn label(&self, leaf: u32, session: u32, label: Vec<u8>) -> LabelChange {
        LabelChange { leaf: leaf.wrapping_sub(self.settings.first_leaf), session, label }
    }

    /// Has switches keep and forget entries.
    async fn enter(&mut self, set: &[Entry], clear: &[Entry]) -> Result<(), DeviceError> {
        for entry in clear {
            self.wanted.remove(entry);
        }
        if set.is_empty() && clear.is_empty() {
            return Ok(());
        }
        self.connect().await?;
        self.ask(set, clear).await?;
        self.wanted.extend(set);
        Ok(())
    }

    /// Asks for changes and waits until all are done; gives the first reason why one is not.
    async fn ask(&mut self, set: &[Entry], clear: &[Entry]) -> Result<(), DeviceError> {
        let mut bytes = Vec::new();
        let mut open = BTreeSet::new();
        for change in set.iter().map(Entry::set).chain(clear.iter().map(Entry::clear)) {
            self.number = self.number.wrapping_add(1);
            open.insert(self.number);
            Word::Change { number: self.number, change }.emit(&mut bytes);
        }
        let Some(connection) = &mut self.connection else { return Err(broken("connect again")) };
        let mut failure = None;
        let asked = async {
            connection.stream.write_all(&bytes).await.map_err(broken)?;
            while !open.is_empty() {
                let answer = |word: Word<'_>| match word {
                    Word::Done { number } => drop(open.remove(&number)),
                    Word::Failed { number, reason } => {
                        if open.remove(&number) && failure.is_none() {
                            failure = Some(reason.to_string());
                        }
                    }
                    word => hear(&mut self.said, &word),
                };
                connection.next(answer).await?;
                tell(&self.news, &mut self.said).await;
            }
            Ok(())
        };
        match tokio::time::timeout(self.settings.answers_within, asked).await {
            Ok(Ok(())) => failure.map_or(Ok(()), |reason| Err(DeviceError::Refused(reason))),
            Ok(Err(error)) => {
                self.connection = None;
                Err(error)
            }
            Err(_) => Err(DeviceError::Silent { millis: self.settings.answers_within.as_millis() }),
        }
    }
}

/// What label switches say by themselves.
fn hear(said: &mut Vec<News>, word: &Word<'_>) {
    match *word {
        Word::Link { ends, works } => said.push(News::Link { ends, up: works }),
        _ => tracing::debug!(?word, "label switches say"),
    }
}

/// Tells it, as fast as it is taken: whoever says more has to wait.
async fn tell(news: &mpsc::Sender<News>, said: &mut Vec<News>) {
    for word in said.drain(..) {
        // The core may be ending.
        let _ = news.send(word).await;
    }
}

/// An entry of a spine switch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry {
    spine: u32,
    session: u32,
    leaf: u32,
}

impl Entry {
    fn set(&self) -> WireChange {
        let Entry { spine, session, leaf } = *self;
        WireChange::SetEntry { spine, session, leaf }
    }

    fn clear(&self) -> WireChange {
        let Entry { spine, session, leaf } = *self;
        WireChange::ClearEntry { spine, session, leaf }
    }
}

/// What changes at switches.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Entries {
    set: Vec<Entry>,
    clear: Vec<Entry>,
}

/// A command by whom it is for.
enum Part<'a> {
    /// The agents of a rack.
    Label { leaf: u32, session: u32, label: &'a [u8] },
    /// A switch.
    Entry(Entry),
}

/// Whom a command is for. No device takes labels of pods' spines yet: only planners and the simulator use them.
fn part(command: &DeviceCommand) -> Result<Part<'_>, DeviceError> {
    match command {
        DeviceCommand::LeafLabel { leaf, session, label } => {
            Ok(Part::Label { leaf: *leaf, session: *session, label })
        }
        DeviceCommand::SpineEntry { spine, session, leaf } => {
            Ok(Part::Entry(Entry { spine: *spine, session: *session, leaf: *leaf }))
        }
        other => Err(DeviceError::foreign(other)),
    }
}

fn broken(reason: impl ToString) -> DeviceError {
    DeviceError::Broken(reason.to_string())
}

struct Connection {
    stream: TcpStream,
    inbox: Vec<u8>,
    /// Bytes at the front of `inbox` that have been read.
    used: usize,
}

impl Connection {
    /// Hands the next word to `hear`. A call that is dropped while it waits loses nothing.
    async fn next(&mut self, hear: impl FnOnce(Word<'_>)) -> Result<(), DeviceError> {
        self.inbox.drain(..std::mem::take(&mut self.used));
        let len = loop {
            match Word::frame_len(&self.inbox).map_err(broken)? {
                Some(len) if self.inbox.len() >= len => break len,
                _ => {}
            }
            self.inbox.reserve(FRAME_LEN_MAX);
            if self.stream.read_buf(&mut self.inbox).await.map_err(broken)? == 0 {
                return Err(broken("the other end has closed it"));
            }
        };
        self.used = len;
        hear(Word::parse(&self.inbox[..len]).map_err(broken)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tokio::net::TcpListener;

    fn label(session: u32, byte: u8) -> DeviceCommand {
        DeviceCommand::LeafLabel { leaf: 16, session, label: vec![byte; 3] }
    }

    fn entry(session: u32) -> DeviceCommand {
        DeviceCommand::SpineEntry { spine: 24, session, leaf: 17 }
    }

    fn settings(listener: &TcpListener) -> LabelSwitches {
        LabelSwitches {
            switches: listener.local_addr().unwrap(),
            listen: "127.0.0.1:0".parse().unwrap(),
            leaf_controllers: vec!["127.0.0.1:9".parse().unwrap()],
            first_leaf: 16,
            answers_within: Duration::from_secs(5),
        }
    }

    /// Reads words until it has heard so many, and answers each: those of session 13 with a failure.
    async fn serve(listener: &TcpListener, count: usize) -> Vec<String> {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = Connection { stream, inbox: Vec::new(), used: 0 };
        let mut heard = Vec::new();
        while heard.len() < count {
            let mut answer = Vec::new();
            let hear = |word: Word<'_>| {
                let Word::Change { number, change } = &word else { panic!("{word:?}") };
                heard.push(format!("{change:?}"));
                if format!("{change:?}").contains("session: 13") {
                    Word::Failed { number: *number, reason: "its table is full" }.emit(&mut answer);
                } else {
                    Word::Done { number: *number }.emit(&mut answer);
                }
            };
            connection.next(hear).await.unwrap();
            connection.stream.write_all(&answer).await.unwrap();
        }
        heard
    }

    #[tokio::test]
    async fn changes_are_made_in_order_and_again_after_a_loss() {
        use super::super::{DeviceId, Devices};
        use polycast_planning::PlanId;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let device = settings(&listener);
        let devices: BTreeMap<DeviceId, Box<dyn Device>> =
            BTreeMap::from([(DeviceId::LabelSwitches, Box::new(device) as Box<dyn Device>)]);
        let (devices, mut news) = Devices::start(devices);
        let mut result = async || loop {
            if let Some(News::SetUp { result, .. }) = news.recv().await {
                return result;
            }
        };
        devices.change(Some(PlanId(1)), &[], &[entry(6), entry(7)]);
        let heard = serve(&listener, 2).await;
        assert!(heard.iter().all(|word| word.starts_with("SetEntry")) && heard.len() == 2, "{heard:?}");
        assert_eq!(result().await, Ok(()));
        // The connection has ended: what is needed is said again, then what is new.
        devices.change(Some(PlanId(2)), &[entry(7)], &[entry(8)]);
        let heard = serve(&listener, 3).await;
        assert!(
            heard.iter().any(|word| word.starts_with("SetEntry") && word.contains("session: 8")),
            "{heard:?}"
        );
    }

    #[tokio::test]
    async fn a_refusal_and_a_rack_without_agents_are_the_plans_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (news, mut said) = mpsc::channel(8);
        let short = Duration::from_millis(300);
        let mut task = Task::new(LabelSwitches { answers_within: short, ..settings(&listener) }, news);
        let ask = |set: Vec<DeviceCommand>| {
            let (reply, answer) = tokio::sync::oneshot::channel();
            (Job { change: Change { clear: vec![], set }, reply }, answer)
        };
        let (job, answer) = ask(vec![entry(13), entry(14)]);
        let ((), heard) = tokio::join!(task.perform(job), serve(&listener, 2));
        assert_eq!(
            (answer.await.unwrap(), heard.len()),
            (Err(DeviceError::Refused("its table is full".into())), 2)
        );
        assert!(task.wanted.is_empty());
        let (job, answer) = ask(vec![label(13, 1)]);
        task.perform(job).await;
        let reason = answer.await.unwrap().unwrap_err().to_string();
        assert!(reason.contains("have not confirmed their label within 300 ms"), "{reason}");
        let link = News::Link { ends: (16, 24), up: false };
        hear(&mut task.said, &Word::Link { ends: (16, 24), works: false });
        tell(&task.news, &mut task.said).await;
        assert_eq!(said.recv().await, Some(link));
    }

    #[test]
    fn a_label_that_is_replaced_is_not_cleared() {
        let (news, _) = mpsc::channel(8);
        let leafs = vec!["127.0.0.1:9".parse().unwrap()];
        let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let settings = LabelSwitches {
            switches: address,
            listen: address,
            leaf_controllers: leafs,
            first_leaf: 16,
            answers_within: Duration::from_secs(1),
        };
        let task = Task::new(settings, news);
        let change = Change { clear: vec![label(7, 1), label(8, 1), entry(7)], set: vec![label(7, 2)] };
        let (labels, entries) = task.parts(&change).unwrap();
        assert_eq!(entries, Entries { set: vec![], clear: vec![Entry { spine: 24, session: 7, leaf: 17 }] });
        let expected = [
            LabelChange { leaf: 0, session: 7, label: vec![2; 3] },
            LabelChange { leaf: 0, session: 8, label: vec![] },
        ];
        assert_eq!(labels, expected);
        // What no device here can do is an error, and never left out.
        let spine = DeviceCommand::SpineLabel { leaf: 16, session: 7, label: vec![1] };
        for change in [
            Change { clear: vec![], set: vec![entry(6), spine.clone()] },
            Change { clear: vec![spine.clone()], set: vec![] },
        ] {
            assert_eq!(task.parts(&change), Err(DeviceError::foreign(&spine)));
        }
    }
}
