//! Label switches and the agents of racks as one device: processes of switches take entries (Orca section
//! 3.3), and the leaf controllers of racks take labels (section 3.4). What comes is there before anything
//! goes, so that packets under way keep their way.
//!
//! A process says first which switches it has. It is heard about their links, and takes their entries; what
//! it says of others is refused.

mod peer;

use super::{Change, Device, DeviceError, Job, News, until};
use crate::racks::{Racks, RacksError};
use futures_util::future::{join_all, select_all};
use peer::{Entry, Peer};
use polycast_net::devices::Damped;
use polycast_net::words::WordsKey;
use polycast_planning::DeviceCommand;
use polycast_protocol::rack::Change as LabelChange;
use polycast_topology::{Clos, Graph as _};
use polycast_wire::switches::{Network, Word};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The switches and racks, before their task runs.
#[derive(Clone, Debug)]
pub(crate) struct LabelSwitches {
    /// Addresses where processes of switches take entries.
    pub(crate) switches: Vec<SocketAddr>,
    /// The network that they have to be in.
    pub(crate) network: Network,
    /// The same network, which says what its switches and links are.
    pub(crate) clos: Clos,
    /// The encodings that all switches need to have: [`Network::FILTER`] and others, added.
    pub(crate) encodings: u8,
    /// Address where leaf controllers reach us.
    pub(crate) listen: SocketAddr,
    /// The leaf controllers, in the order of their leafs.
    pub(crate) leaf_controllers: Vec<SocketAddr>,
    /// The node of the first leaf.
    pub(crate) first_leaf: u32,
    /// Time that a change may take.
    pub(crate) answers_within: Duration,
    /// Key that seals messages to leaf controllers.
    pub(crate) key: WordsKey,
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
    peers: Vec<Peer>,
    /// Process that has each switch: the first that claims it.
    owners: BTreeMap<u32, usize>,
    /// Links that a process says are broken.
    broken: BTreeMap<(u32, u32), BTreeSet<usize>>,
    /// The links as we tell of them.
    links: Damped<(u32, u32)>,
    /// The entries that plans need.
    wanted: BTreeSet<Entry>,
    /// Words that were refused, and the processes that the log has named for it.
    refused: u64,
    named: BTreeSet<usize>,
    news: mpsc::Sender<News>,
    /// News just received, to be passed on.
    said: Vec<News>,
}

impl Task {
    fn new(settings: LabelSwitches, news: mpsc::Sender<News>) -> Self {
        Task {
            peers: settings.switches.iter().map(|address| Peer::new(*address)).collect(),
            settings,
            racks: None,
            owners: BTreeMap::new(),
            broken: BTreeMap::new(),
            links: Damped::default(),
            wanted: BTreeSet::new(),
            refused: 0,
            named: BTreeSet::new(),
            news,
            said: Vec::new(),
        }
    }

    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        if let Err(error) = self.racks() {
            tracing::warn!(%error, "no leaf controllers yet");
        }
        loop {
            let (within, links_at) = (self.settings.answers_within, self.links.due_at());
            tokio::select! {
                () = until(links_at) => {
                    let due = self.links.due().into_iter();
                    self.said.extend(due.map(|(ends, up)| News::Link { ends, up }));
                    tell(&self.news, &mut self.said).await;
                }
                job = jobs.recv() => {
                    let Some(job) = job else { return };
                    self.perform(job).await;
                }
                (peer, heard) = next_of(&mut self.peers, within) => self.listen(peer, heard).await,
            }
        }
    }

    /// Takes in what a process said, or that it cannot be heard.
    async fn listen(&mut self, at: usize, heard: Result<Vec<u8>, DeviceError>) {
        let known = self.peers[at].nodes.len();
        match heard {
            Ok(frame) => self.hear(at, &frame),
            Err(error) => self.peers[at].lost(&error),
        }
        tell(&self.news, &mut self.said).await;
        if self.peers[at].nodes.len() > known {
            // What listens there may have begun anew.
            let nodes = &self.peers[at].nodes;
            let wanted: Vec<Entry> =
                self.wanted.iter().filter(|entry| nodes.contains(&entry.switch())).cloned().collect();
            if let Err(error) = self.ask(&wanted, &[]).await {
                tracing::warn!(%error, "switches lack entries");
            }
        }
    }

    fn hear(&mut self, at: usize, frame: &[u8]) {
        match Word::parse(frame) {
            Ok(Word::Switch { node, network, encodings }) => {
                let taken = match self.why_not(at, node, network) {
                    Some(why) => Err(why),
                    None => self.take(at, node, encodings),
                };
                if let Err(why) = taken {
                    self.refuse(at, &why);
                }
            }
            Ok(Word::Link { ends, works }) => match self.why_no_link(at, ends) {
                None => self.link(at, ends, works),
                Some(why) => self.refuse(at, &why),
            },
            Ok(word) => tracing::debug!(?word, "label switches say"),
            Err(error) => self.peers[at].lost(&peer::broken(error)),
        }
    }

    /// Returns the reason why a switch is not accepted, in words.
    fn why_not(&self, at: usize, node: u32, network: Network) -> Option<String> {
        let ours = self.settings.network;
        if network != ours {
            return Some(format!("its network is {network:?}, and the manager's [orca] is {ours:?}"));
        }
        let (clos, nodes) = (&self.settings.clos, self.settings.clos.node_count());
        if !(clos.hosts()..nodes).contains(&node) {
            let (first, last) = (clos.hosts(), nodes.saturating_sub(1));
            return Some(format!(
                "it says that it has node {node}, and switches are nodes {first} to {last}"
            ));
        }
        let owner = self.owners.get(&node).filter(|owner| **owner != at)?;
        let owner = self.peers[*owner].address;
        Some(format!("it says that it has node {node}, which {owner} has"))
    }

    /// Takes a switch of ours, unless it lacks an encoding.
    fn take(&mut self, at: usize, node: u32, encodings: u8) -> Result<(), String> {
        if let Some(why) = self.lacking_of(at, node, encodings) {
            self.peers[at].lacking.insert(node, why.clone());
            return Err(why);
        }
        self.peers[at].lacking.remove(&node);
        self.owners.insert(node, at);
        self.peers[at].nodes.insert(node);
        match encodings & Network::DOORS {
            0 => self.peers[at].doorless.insert(node),
            _ => self.peers[at].doorless.remove(&node),
        };
        Ok(())
    }

    /// Returns the reason why a message about a link is not accepted, in words.
    fn why_no_link(&self, at: usize, ends: (u32, u32)) -> Option<String> {
        let (one, other) = ends;
        let nodes = &self.peers[at].nodes;
        if !nodes.contains(&one) && !nodes.contains(&other) {
            return Some(format!("it speaks of the link {ends:?}, and has neither of its switches"));
        }
        let clos = &self.settings.clos;
        let are_nodes = one.max(other) < clos.node_count();
        let is_joined = are_nodes && clos.port_to(one, other).is_some();
        (!is_joined).then(|| format!("it speaks of the link {ends:?}, and no link joins these nodes"))
    }

    /// Returns advice about a switch that lacks an encoding.
    fn lacking_of(&self, at: usize, node: u32, encodings: u8) -> Option<String> {
        let needed = self.settings.encodings;
        let name = |encodings: u8| match encodings & (Network::FILTER | Network::PODS) {
            Network::FILTER => "\"filter\"",
            Network::PODS => "\"pods\"",
            0 => "no encoding that is known here",
            _ => "\"filter\" and \"pods\"",
        };
        (encodings & needed != needed).then(|| {
            format!(
                "the switch of node {node} at {} forwards by {}, and orca.encoding needs {}: renew the switch, or \
                 set an encoding that all switches have",
                self.peers[at].address,
                name(encodings),
                name(needed)
            )
        })
    }

    /// Counts what a process may not say, and names the process once.
    fn refuse(&mut self, at: usize, why: &str) {
        self.refused += 1;
        if self.named.insert(at) {
            tracing::warn!(address = %self.peers[at].address, "label switches are refused: {why}");
        }
    }

    /// A link is broken while a process says so, at either end.
    fn link(&mut self, at: usize, (one, other): (u32, u32), works: bool) {
        let ends = (one.min(other), one.max(other));
        let sayers = self.broken.entry(ends).or_default();
        let before = sayers.is_empty();
        if works {
            sayers.remove(&at);
        } else {
            sayers.insert(at);
        }
        let after = sayers.is_empty();
        if after {
            self.broken.remove(&ends);
        }
        if before != after && self.links.hear(ends, after) {
            self.said.push(News::Link { ends, up: after });
        }
    }

    /// Waits until all these switches have said that they are there.
    async fn await_switches(&mut self, switches: BTreeSet<u32>) -> Result<(), DeviceError> {
        let until = Instant::now() + self.settings.answers_within;
        let is_there = |task: &Self, switch: &u32| {
            let peer = task.owners.get(switch).map(|owner| &task.peers[*owner]);
            peer.is_some_and(|peer| peer.nodes.contains(switch))
        };
        while let Some(missing) = switches.iter().find(|spine| !is_there(self, spine)) {
            let missing = |peers: &[Peer]| {
                let reason = peers.iter().find_map(|peer| peer.unreachable.clone());
                reason.unwrap_or_else(|| {
                    DeviceError::Refused(format!("no label switches have said that node {missing} is theirs"))
                })
            };
            let within = self.settings.answers_within;
            self.peers.iter_mut().for_each(Peer::hurry);
            match tokio::time::timeout_at(until, next_of(&mut self.peers, within)).await {
                Err(_) => return Err(missing(&self.peers)),
                Ok((at, heard)) => self.listen(at, heard).await,
            }
        }
        Ok(())
    }

    /// The central controller, which begins when it can.
    fn racks(&mut self) -> Result<&Racks, DeviceError> {
        if self.racks.is_none() {
            let LabelSwitches { listen, ref leaf_controllers, ref key, .. } = self.settings;
            let started = Racks::start(listen, leaf_controllers.clone(), key);
            let fails =
                |error: std::io::Error| DeviceError::NoController { listen, reason: error.to_string() };
            self.racks = Some(started.map_err(fails)?);
        }
        Ok(self.racks.as_ref().expect("it was started just now, if not before"))
    }

    /// Hands labels to the racks, waits for the switches, and answers when both are done; the next job does
    /// not wait for the racks of this one.
    async fn perform(&mut self, job: Job) {
        let Job { change, reply } = job;
        // Packets would be lost at that switch.
        let mut lacking = self.peers.iter().flat_map(|peer| peer.lacking.values());
        if let Some(why) = lacking.next().filter(|_| !change.set.is_empty()) {
            let _ = reply.send(Err(DeviceError::Refused(why.clone())));
            return;
        }
        let (labels, entries) = match self.parts(&change) {
            Ok(parts) => parts,
            Err(error) => {
                // The core may be ending.
                let _ = reply.send(Err(error));
                return;
            }
        };
        // No job waits for racks to forget labels: a rack that failures have cut off never confirms it.
        let (forgotten, labels): (Vec<_>, Vec<_>) =
            labels.into_iter().partition(|label| label.label.is_empty());
        let confirmed = match labels.is_empty() {
            true => Ok(None),
            false => self.racks().and_then(|racks| Ok(Some(racks.set(labels)?))),
        };
        if !forgotten.is_empty()
            && let Err(error) = self.racks().and_then(|racks| Ok(racks.set(forgotten)?))
        {
            tracing::warn!(%error, "racks keep labels that no path needs");
        }
        let entered = self.enter(&entries).await;
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

    /// Splits a change into changes at racks and at switches. A label or a door that is replaced is
    /// not cleared.
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
        let doors: BTreeSet<(u32, u32)> = entries.set.iter().filter_map(Entry::door).collect();
        let set: BTreeSet<(u32, u32)> = labels.iter().map(|label| (label.leaf, label.session)).collect();
        for command in &change.clear {
            match part(command)? {
                Part::Label { leaf, session, .. } => {
                    let cleared = self.label(leaf, session, Vec::new());
                    labels.extend((!set.contains(&(cleared.leaf, session))).then_some(cleared));
                }
                Part::Entry(entry) => {
                    let is_replaced = entry.door().is_some_and(|door| doors.contains(&door));
                    let list = if is_replaced { &mut entries.replaced } else { &mut entries.clear };
                    list.push(entry);
                }
            }
        }
        Ok((labels, entries))
    }

    fn label(&self, leaf: u32, session: u32, label: Vec<u8>) -> LabelChange {
        LabelChange { leaf: leaf.wrapping_sub(self.settings.first_leaf), session, label }
    }

    /// Has switches keep and forget entries.
    async fn enter(&mut self, entries: &Entries) -> Result<(), DeviceError> {
        let Entries { set, clear, replaced } = entries;
        for entry in clear.iter().chain(replaced) {
            self.wanted.remove(entry);
        }
        if set.is_empty() && clear.is_empty() {
            return Ok(());
        }
        // A switch that is gone has nothing to forget.
        self.await_switches(set.iter().map(Entry::switch).collect()).await?;
        if let Some(why) = set.iter().filter_map(Entry::door).find_map(|(leaf, _)| self.doorless(leaf)) {
            return Err(DeviceError::Refused(why));
        }
        self.ask(set, clear).await?;
        self.wanted.extend(set.iter().cloned());
        Ok(())
    }

    /// Returns advice about a leaf that takes no packets without labels.
    fn doorless(&self, leaf: u32) -> Option<String> {
        let peer = self.peers.iter().find(|peer| peer.doorless.contains(&leaf))?;
        let address = peer.address;
        Some(format!(
            "the switch of node {leaf} at {address} takes no packets that an application sends itself: renew it"
        ))
    }

    /// Asks all switches at the same time, and waits until all is done; gives the first reason why something
    /// is not.
    async fn ask(&mut self, set: &[Entry], clear: &[Entry]) -> Result<(), DeviceError> {
        let within = self.settings.answers_within;
        let asking = self.peers.iter_mut().map(async |peer| {
            let own = |entries: &[Entry]| -> Vec<Entry> {
                entries.iter().filter(|entry| peer.nodes.contains(&entry.switch())).cloned().collect()
            };
            let (set, clear) = (own(set), own(clear));
            let mut words = Vec::new();
            let asked = peer.ask(&set, &clear, within, &mut words).await;
            (asked, words)
        });
        let answers = join_all(asking).await;
        let mut result = Ok(());
        for (at, (asked, words)) in answers.into_iter().enumerate() {
            words.iter().for_each(|frame| self.hear(at, frame));
            result = result.and(asked);
        }
        tell(&self.news, &mut self.said).await;
        result
    }
}

/// Returns the next message of any process, or the reason why it cannot be received. A call that is dropped
/// while it waits loses nothing.
async fn next_of(peers: &mut [Peer], within: Duration) -> (usize, Result<Vec<u8>, DeviceError>) {
    if peers.is_empty() {
        return std::future::pending().await;
    }
    let (heard, at, _) = select_all(peers.iter_mut().map(|peer| Box::pin(peer.next(within)))).await;
    (at, heard)
}

/// Hands news over as fast as they are taken: the task that has more to say waits.
async fn tell(news: &mpsc::Sender<News>, said: &mut Vec<News>) {
    for word in said.drain(..) {
        // The core may be ending.
        let _ = news.send(word).await;
    }
}

/// Changes at switches.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Entries {
    set: Vec<Entry>,
    clear: Vec<Entry>,
    /// Doors whose place others in `set` take.
    replaced: Vec<Entry>,
}

/// A command by whom it is for.
enum Part<'a> {
    /// The agents of a rack.
    Label { leaf: u32, session: u32, label: &'a [u8] },
    /// A switch.
    Entry(Entry),
}

/// Finds the recipient of a command.
fn part(command: &DeviceCommand) -> Result<Part<'_>, DeviceError> {
    match command {
        DeviceCommand::LeafLabel { leaf, session, label } => {
            Ok(Part::Label { leaf: *leaf, session: *session, label })
        }
        DeviceCommand::SpineEntry { spine, session, leaf } => {
            Ok(Part::Entry(Entry::Block { spine: *spine, session: *session, leaf: *leaf }))
        }
        DeviceCommand::LeafDoor { leaf, session, ports, encoding, label } => {
            let hosts =
                ports.iter().filter(|port| **port < u128::BITS).fold(0, |hosts, port| hosts | 1 << port);
            let (kind, label) = (encoding.kind(), label.clone());
            Ok(Part::Entry(Entry::Door { leaf: *leaf, session: *session, hosts, kind, label }))
        }
        other => Err(DeviceError::foreign(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_testing::HANG;
    use polycast_wire::switches::FRAME_LEN_MAX;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    fn label(session: u32, byte: u8) -> DeviceCommand {
        DeviceCommand::LeafLabel { leaf: 16, session, label: vec![byte; 3] }
    }

    fn entry(session: u32) -> DeviceCommand {
        DeviceCommand::SpineEntry { spine: 24, session, leaf: 17 }
    }

    const NETWORK: Network = Network { pods: 2, leafs: 4, spines: 2, servers: 2, cores: 1, filter_bits: 69 };

    fn clos() -> Clos {
        Clos::new(NETWORK.pods, NETWORK.leafs, NETWORK.spines, NETWORK.servers, NETWORK.cores).unwrap()
    }

    fn settings(listeners: &[&TcpListener]) -> LabelSwitches {
        LabelSwitches {
            switches: listeners.iter().map(|listener| listener.local_addr().unwrap()).collect(),
            network: NETWORK,
            clos: clos(),
            encodings: Network::FILTER,
            listen: "127.0.0.1:0".parse().unwrap(),
            leaf_controllers: vec!["127.0.0.1:9".parse().unwrap()],
            first_leaf: 16,
            answers_within: HANG,
            key: WordsKey::default(),
        }
    }

    fn switch(node: u32, network: Network) -> Word<'static> {
        Word::Switch { node, network, encodings: Network::FILTER }
    }

    async fn say(stream: &mut TcpStream, words: &[Word<'_>]) {
        let mut bytes = Vec::new();
        words.iter().for_each(|word| word.emit(&mut bytes));
        stream.write_all(&bytes).await.unwrap();
    }

    /// Says that it is a switch, reads words until it has heard so many, and answers each: those of session
    /// 13 with a failure.
    async fn serve(listener: &TcpListener, node: u32, count: usize) -> Vec<String> {
        let (mut stream, _) = listener.accept().await.unwrap();
        say(&mut stream, &[switch(node, NETWORK)]).await;
        let (mut heard, mut inbox) = (Vec::new(), Vec::with_capacity(FRAME_LEN_MAX));
        while heard.len() < count {
            while let Some(len) = Word::frame_len(&inbox).unwrap().filter(|len| *len <= inbox.len()) {
                let frame: Vec<u8> = inbox.drain(..len).collect();
                let Word::Change { number, change } = Word::parse(&frame).unwrap() else {
                    panic!("{frame:?}")
                };
                heard.push(format!("{change:?}"));
                let answer = match format!("{change:?}").contains("session: 13") {
                    true => Word::Failed { number, reason: "its table is full" },
                    false => Word::Done { number },
                };
                say(&mut stream, &[answer]).await;
            }
            if heard.len() < count {
                assert!(stream.read_buf(&mut inbox).await.unwrap() > 0, "{heard:?}");
            }
        }
        heard
    }

    #[tokio::test]
    async fn changes_are_made_in_order_and_again_after_a_loss() {
        use super::super::{DeviceId, Devices};
        use polycast_planning::PlanId;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let device = settings(&[&listener]);
        let devices: BTreeMap<DeviceId, Box<dyn Device>> =
            BTreeMap::from([(DeviceId::LabelSwitches, Box::new(device) as Box<dyn Device>)]);
        let (devices, mut news) = Devices::start(devices);
        let mut result = async || loop {
            if let Some(News::SetUp { result, .. }) = news.recv().await {
                return result;
            }
        };
        devices.change(Some(PlanId(1)), &[], &[entry(6), entry(7)]);
        let heard = serve(&listener, 24, 2).await;
        assert!(heard.iter().all(|word| word.starts_with("SetEntry")) && heard.len() == 2, "{heard:?}");
        assert_eq!(result().await, Ok(()));
        // The connection has ended: what is needed is said again, then what is new.
        devices.change(Some(PlanId(2)), &[entry(7)], &[entry(8)]);
        let heard = serve(&listener, 24, 3).await;
        assert!(
            heard.iter().any(|word| word.starts_with("SetEntry") && word.contains("session: 8")),
            "{heard:?}"
        );
    }

    #[tokio::test]
    async fn a_refusal_and_a_rack_without_agents_are_the_plans_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (news, mut said) = mpsc::channel(8);
        let mut task = Task::new(settings(&[&listener]), news);
        let ask = |set: Vec<DeviceCommand>| {
            let (reply, answer) = tokio::sync::oneshot::channel();
            (Job { change: Change { clear: vec![], set }, reply }, answer)
        };
        let (job, answer) = ask(vec![entry(13), entry(14)]);
        let ((), heard) = tokio::join!(task.perform(job), serve(&listener, 24, 2));
        assert_eq!(
            (answer.await.unwrap(), heard.len()),
            (Err(DeviceError::Refused("its table is full".into())), 2)
        );
        assert!(task.wanted.is_empty());
        task.settings.answers_within = Duration::from_millis(300);
        let (job, answer) = ask(vec![label(13, 1)]);
        task.perform(job).await;
        let reason = answer.await.unwrap().unwrap_err().to_string();
        assert!(reason.contains("have not confirmed their label within 300 ms"), "{reason}");
        // A job does not wait for a rack that is to forget a label and does not answer.
        let (reply, answer) = tokio::sync::oneshot::channel();
        task.perform(Job { change: Change { clear: vec![label(13, 1)], set: vec![] }, reply }).await;
        assert_eq!(answer.await.unwrap(), Ok(()));
        let link = News::Link { ends: (16, 24), up: false };
        let mut word = Vec::new();
        Word::Link { ends: (24, 16), works: false }.emit(&mut word);
        task.hear(0, &word);
        tell(&task.news, &mut task.said).await;
        assert_eq!(said.recv().await, Some(link));
    }

    #[tokio::test]
    async fn every_spine_is_told_by_its_own_process_and_none_speaks_for_others() {
        let listeners = [
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        ];
        let (news, _said) = mpsc::channel(8);
        let mut task = Task::new(settings(&[&listeners[0], &listeners[1]]), news);
        let of = |spine, session| DeviceCommand::SpineEntry { spine, session, leaf: 17 };
        let (reply, answer) = tokio::sync::oneshot::channel();
        let job = Job { change: Change { clear: vec![], set: vec![of(24, 1), of(26, 2), of(24, 3)] }, reply };
        let ((), first, second) =
            tokio::join!(task.perform(job), serve(&listeners[0], 24, 2), serve(&listeners[1], 26, 1));
        assert_eq!(answer.await.unwrap(), Ok(()));
        assert!(first.iter().all(|word| word.contains("spine: 24")), "{first:?}");
        assert!(second[0].contains("spine: 26"), "{second:?}");
        // Another one's switch, another network, an encoding that it does not have, and a link that is at no
        // switch here.
        let mut say = |word: &Word<'_>| {
            let mut frame = Vec::new();
            word.emit(&mut frame);
            task.hear(1, &frame);
        };
        say(&switch(24, NETWORK));
        say(&switch(27, Network { pods: 3, ..NETWORK }));
        say(&Word::Switch { node: 27, network: NETWORK, encodings: 0 });
        say(&Word::Link { ends: (16, 24), works: false });
        // A server and what is beyond the network are no switches, and spines of two pods have no link.
        say(&switch(15, NETWORK));
        say(&switch(30, NETWORK));
        say(&Word::Link { ends: (24, 26), works: false });
        say(&Word::Link { ends: (26, 99), works: false });
        assert_eq!((task.refused, task.named.len(), task.said.len()), (8, 1, 0));
        assert_eq!(task.owners.keys().copied().collect::<Vec<_>>(), [24, 26]);
        assert!(task.broken.is_empty());
        assert_eq!(task.peers[1].nodes, BTreeSet::from([26]));
        // A link is broken while either end says so.
        for (at, works) in [(0, false), (1, false), (0, true), (1, true)] {
            task.link(at, (24, 26), works);
        }
        let ends = (24, 26);
        assert_eq!(task.said, [News::Link { ends, up: false }, News::Link { ends, up: true }]);
    }

    /// One sentence, and no plan while the switch is there.
    #[tokio::test]
    async fn an_encoding_that_a_switch_lacks_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let both = Network::FILTER | Network::PODS;
        for (needed, has, says) in [
            (Network::PODS, Network::FILTER, "forwards by \"filter\", and orca.encoding needs \"pods\": "),
            (Network::FILTER, Network::PODS, "forwards by \"pods\", and orca.encoding needs \"filter\": "),
            (both, Network::FILTER, "and orca.encoding needs \"filter\" and \"pods\": "),
            (Network::PODS, 0, "forwards by no encoding that is known here, "),
        ] {
            let (news, _said) = mpsc::channel(8);
            let mut task = Task::new(LabelSwitches { encodings: needed, ..settings(&[&listener]) }, news);
            let mut frame = Vec::new();
            Word::Switch { node: 24, network: NETWORK, encodings: has }.emit(&mut frame);
            task.hear(0, &frame);
            assert_eq!((task.refused, task.peers[0].nodes.len()), (1, 0));
            let (reply, answer) = tokio::sync::oneshot::channel();
            task.perform(Job { change: Change { clear: vec![], set: vec![label(13, 1)] }, reply }).await;
            let error = answer.await.unwrap().unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains('\n'), "{error}");
            // What is gone lacks nothing.
            task.listen(0, Err(peer::broken("gone"))).await;
            assert!(task.peers[0].lacking.is_empty());
            let mut frame = Vec::new();
            Word::Switch { node: 24, network: NETWORK, encodings: both }.emit(&mut frame);
            task.hear(0, &frame);
            assert_eq!(task.peers[0].nodes.len(), 1);
        }
    }

    /// Doors go to their leaf, one in place of another without a gap; a switch that has none is named.
    #[tokio::test]
    async fn doors_are_set_where_switches_have_them() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (news, _said) = mpsc::channel(8);
        let mut task = Task::new(settings(&[&listener]), news);
        let door = |ports: &[u32]| DeviceCommand::LeafDoor {
            leaf: 16,
            session: 5,
            ports: ports.to_vec(),
            encoding: polycast_planning::labels::Encoding::Filter,
            label: vec![7; 3],
        };
        let change = Change { clear: vec![door(&[0])], set: vec![door(&[0, 1])] };
        let (_, entries) = task.parts(&change).unwrap();
        assert_eq!((entries.set.len(), entries.clear.len(), entries.replaced.len()), (1, 0, 1));
        let mut frame = Vec::new();
        Word::Switch { node: 16, network: NETWORK, encodings: Network::FILTER }.emit(&mut frame);
        task.hear(0, &frame);
        let why = task.enter(&entries).await.unwrap_err().to_string();
        assert!(why.contains("the switch of node 16 at") && why.contains("renew it"), "{why}");
        // Its program is renewed.
        task.listen(0, Err(peer::broken("gone"))).await;
        let encodings = Network::FILTER | Network::DOORS;
        let (entered, heard) = tokio::join!(task.enter(&entries), async {
            let (mut stream, _) = listener.accept().await.unwrap();
            say(&mut stream, &[Word::Switch { node: 16, network: NETWORK, encodings }]).await;
            let mut frame = vec![0; 1_024];
            let len = stream.read(&mut frame).await.unwrap();
            let Ok(Word::Change { number, change }) = Word::parse(&frame[..len]) else { panic!("{len}") };
            let heard = format!("{change:?}");
            say(&mut stream, &[Word::Done { number }]).await;
            heard
        });
        assert_eq!(entered, Ok(()));
        assert!(
            heard.contains("SetDoor") && heard.contains("hosts: 3") && heard.contains("[7, 7, 7]"),
            "{heard}"
        );
        assert_eq!(task.wanted.len(), 1);
    }

    /// Switches of another network, or of a connection that has ended in any way, hold up no plans.
    #[tokio::test]
    async fn only_switches_that_are_there_and_ours_hold_plans_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (news, _said) = mpsc::channel(8);
        let mut task = Task::new(settings(&[&listener]), news);
        let holds_up = |task: &Task| task.peers.iter().any(|peer| !peer.lacking.is_empty());
        let frame_of = |word: &Word<'_>| {
            let mut frame = Vec::new();
            word.emit(&mut frame);
            frame
        };
        let foreign = Network { pods: 3, ..NETWORK };
        task.hear(0, &frame_of(&Word::Switch { node: 24, network: foreign, encodings: 0 }));
        assert!(!holds_up(&task), "it is none of ours");
        let lacks = Word::Switch { node: 24, network: NETWORK, encodings: 0 };
        task.hear(0, &frame_of(&lacks));
        assert!(holds_up(&task));
        task.hear(0, b"no frame");
        assert!(!holds_up(&task), "the connection has ended by a frame");
        // It says that it lacks something while changes are asked for, and goes.
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            say(&mut stream, &[switch(26, NETWORK)]).await;
            let mut inbox = Vec::with_capacity(FRAME_LEN_MAX);
            assert!(stream.read_buf(&mut inbox).await.unwrap() > 0);
            say(&mut stream, &[lacks]).await;
        };
        let set = vec![Entry::Block { spine: 26, session: 1, leaf: 20 }];
        let entries = Entries { set, ..Entries::default() };
        let (entered, ()) = tokio::join!(task.enter(&entries), serve);
        assert!(entered.is_err() && task.wanted.is_empty(), "{entered:?}");
        assert!(!holds_up(&task) && task.peers[0].nodes.is_empty(), "the connection has ended");
    }

    /// A process that never stops to speak of its links takes neither memory without an end nor all the time
    /// that a change may take.
    #[tokio::test]
    async fn a_process_that_speaks_without_an_end_is_hung_up_on() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (news, _said) = mpsc::channel(8);
        let mut task = Task::new(settings(&[&listener]), news);
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            say(&mut stream, &[switch(26, NETWORK)]).await;
            let mut inbox = Vec::with_capacity(FRAME_LEN_MAX);
            assert!(stream.read_buf(&mut inbox).await.unwrap() > 0);
            let mut flood = Vec::new();
            (0..1_000).for_each(|_| Word::Link { ends: (16, 26), works: false }.emit(&mut flood));
            let mut said = 0;
            while stream.write_all(&flood).await.is_ok() {
                said += 1_000;
                assert!(said < 3_000_000, "it is heard without an end");
            }
        };
        let set = vec![Entry::Block { spine: 26, session: 1, leaf: 20 }];
        let entries = Entries { set, ..Entries::default() };
        let (entered, ()) = tokio::join!(task.enter(&entries), serve);
        let said = entered.unwrap_err().to_string();
        assert!(said.contains("it says more while it is asked"), "{said}");
        assert!(task.said.is_empty() && task.broken.is_empty(), "what it said has gone with it");
    }

    #[test]
    fn a_label_that_is_replaced_is_not_cleared() {
        let (news, _) = mpsc::channel(8);
        let leafs = vec!["127.0.0.1:9".parse().unwrap()];
        let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let settings = LabelSwitches {
            switches: vec![address],
            network: NETWORK,
            clos: clos(),
            encodings: Network::FILTER,
            listen: address,
            leaf_controllers: leafs,
            first_leaf: 16,
            answers_within: Duration::from_secs(1),
            key: WordsKey::default(),
        };
        let task = Task::new(settings, news);
        let change = Change { clear: vec![label(7, 1), label(8, 1), entry(7)], set: vec![label(7, 2)] };
        let (labels, entries) = task.parts(&change).unwrap();
        let clear = vec![Entry::Block { spine: 24, session: 7, leaf: 17 }];
        assert_eq!(entries, Entries { clear, ..Entries::default() });
        let expected = [
            LabelChange { leaf: 0, session: 7, label: vec![2; 3] },
            LabelChange { leaf: 0, session: 8, label: vec![] },
        ];
        assert_eq!(labels, expected);
        // What no device here can do is an error, and never left out.
        let spine = DeviceCommand::CrossConnect { from: 1, to: 2 };
        for change in [
            Change { clear: vec![], set: vec![entry(6), spine.clone()] },
            Change { clear: vec![spine.clone()], set: vec![] },
        ] {
            assert_eq!(task.parts(&change), Err(DeviceError::foreign(&spine)));
        }
    }
}
