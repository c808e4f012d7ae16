//! The forwarders of a Datacast fabric, which say which links change (Datacast, sections 3.1 and 4.2).
//!
//! Each process of forwarders is heard over a connection of its own, which is made again when it ends. Links
//! that fail together are reported one after the other, by both ends: words are gathered for a moment, so
//! that trees are repaired once.

use super::{Device, DeviceError, Job, News, PAUSES};
use polycast_api::forwarder::{WATCH, Word};
use polycast_net::devices::Pauses;
use polycast_net::tls::{Expected, Remark, Security, Talk};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The longest line that is read.
const LINE_LEN_MAX: u64 = 4 << 20;
/// Nodes of which is kept who speaks for them: more than any network has.
const NODES_MAX: usize = 1 << 20;
/// Words that may wait while others are gathered.
const WORDS_MAX: usize = 1_024;
/// Timeout of a connection attempt.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// All forwarders, before their task runs.
#[derive(Debug)]
pub(crate) struct Forwarders {
    /// Addresses of their processes, and the end that has to be at each.
    ends: Vec<(SocketAddr, Expected)>,
    gather: Duration,
    /// Security of connections to them.
    security: Option<Security>,
}

impl Forwarders {
    /// Creates the forwarders of the processes at these addresses; `gather` is the time to wait for further
    /// messages.
    pub(crate) fn new(
        ends: Vec<(SocketAddr, Expected)>,
        gather: Duration,
        security: Option<Security>,
    ) -> Self {
        Forwarders { ends, gather, security }
    }
}

impl Device for Forwarders {
    fn run(
        self: Box<Self>,
        jobs: mpsc::Receiver<Job>,
        news: mpsc::Sender<News>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(run(*self, jobs, news))
    }
}

async fn run(forwarders: Forwarders, mut jobs: mpsc::Receiver<Job>, news: mpsc::Sender<News>) {
    let (sender, mut words) = mpsc::channel(WORDS_MAX);
    // They end with this.
    let mut listeners = JoinSet::new();
    for end in forwarders.ends {
        listeners.spawn(listen(end, forwarders.security.clone(), sender.clone()));
    }
    let mut speakers = Speakers::default();
    loop {
        let first = tokio::select! {
            job = jobs.recv() => {
                let Some(job) = job else { return };
                // No command is for them; the core may be ending.
                let command = job.change.set.iter().chain(&job.change.clear).next();
                let _ = job.reply.send(command.map_or(Ok(()), |command| Err(DeviceError::foreign(command))));
                continue;
            }
            Some(word) = words.recv() => word,
        };
        let heard = Instant::now();
        tokio::time::sleep(forwarders.gather).await;
        let mut said: Vec<Word> = speakers.admit(first).into_iter().collect();
        while let Ok(word) = words.try_recv() {
            said.extend(speakers.admit(word));
        }
        if said.is_empty() {
            continue;
        }
        if news.send(News::Links { words: said, heard }).await.is_err() {
            return;
        }
    }
}

/// Process that speaks for each node: the first that names it, for good.
#[derive(Debug, Default)]
struct Speakers {
    of_node: BTreeMap<u32, SocketAddr>,
    /// Words for nodes that another process speaks for, or that their own process has not named.
    refused: u64,
    /// Processes whose messages have been refused.
    named: BTreeSet<SocketAddr>,
}

impl Speakers {
    /// Returns the rest of a message after everything that its process may not report is removed.
    fn admit(&mut self, (address, word): (SocketAddr, Word)) -> Option<Word> {
        match word {
            Word::Nodes(mut nodes) => {
                nodes.retain(|node| {
                    let owner = self.of_node.get(&node.number).copied();
                    let is_own = match owner {
                        Some(owner) => owner == address,
                        None if self.of_node.len() >= NODES_MAX => false,
                        None => self.of_node.insert(node.number, address).is_none(),
                    };
                    is_own || self.refuse(address, node.number, owner)
                });
                Some(Word::Nodes(nodes))
            }
            Word::Link(change) => {
                let owner = self.of_node.get(&change.number).copied();
                let may = owner == Some(address) || self.refuse(address, change.number, owner);
                may.then_some(Word::Link(change))
            }
        }
    }

    /// Counts a word that is not taken, and names its process once.
    fn refuse(&mut self, address: SocketAddr, node: u32, owner: Option<SocketAddr>) -> bool {
        self.refused += 1;
        if self.named.insert(address) {
            let owner = owner.map_or("no process yet".to_string(), |owner| owner.to_string());
            tracing::warn!(%address, node, %owner, "a forwarder speaks for a node that is not its own; it is not heard");
        }
        false
    }
}

/// Hears one process until the manager ends.
async fn listen(
    (address, expected): (SocketAddr, Expected),
    security: Option<Security>,
    words: mpsc::Sender<(SocketAddr, Word)>,
) {
    let (mut pauses, mut said) = (Pauses::new(PAUSES.0, PAUSES.1), false);
    loop {
        let (mut heard, begun) = (false, Instant::now());
        let reason = hear(address, (security.as_ref(), &expected), &words, &mut heard).await;
        if heard {
            // What its nodes know of their links is unknown now; their neighbours go on to tell.
            tracing::warn!(%address, %reason, "forwarders cannot be heard any more");
            pauses.ended(begun.elapsed());
        } else if security.is_some() && !std::mem::replace(&mut said, true) {
            tracing::warn!(%address, %reason, "no forwarders yet");
        }
        if words.is_closed() {
            return;
        }
        tokio::time::sleep(pauses.take()).await;
    }
}

/// Hears one process until its connection ends; gives why.
async fn hear(
    address: SocketAddr,
    (security, expected): (Option<&Security>, &Expected),
    words: &mpsc::Sender<(SocketAddr, Word)>,
    heard: &mut bool,
) -> String {
    let (name, remark) = (address.to_string(), Remark::default());
    let connecting = Talk::connect(&name, security, expected, &remark);
    let connecting = tokio::time::timeout(CONNECT_WITHIN, connecting);
    let stream = match connecting.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return error.to_string(),
        Err(_) => return "no connection in time".into(),
    };
    let (reading, mut writing) = tokio::io::split(stream);
    if let Err(error) = writing.write_all(WATCH.as_bytes()).await {
        return error.to_string();
    }
    let mut reader = BufReader::new(reading);
    let mut line = String::new();
    loop {
        line.clear();
        match (&mut reader).take(LINE_LEN_MAX).read_line(&mut line).await {
            Ok(0) => return "the connection has ended".into(),
            Ok(_) => {}
            Err(error) => return error.to_string(),
        }
        let word = match serde_json::from_str(&line) {
            Ok(word) => word,
            Err(error) => return format!("it says what is no word of a forwarder: {error}"),
        };
        if !std::mem::replace(heard, true) {
            tracing::info!(%address, "forwarders are heard");
        }
        if words.send((address, word)).await.is_err() {
            return "the manager is ending".into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_api::forwarder::{LinkChange, NodeLinks};
    use tokio::net::TcpListener;

    fn link(port: u32, up: bool) -> Word {
        Word::Link(LinkChange { name: "s4".into(), number: 4, port, up })
    }

    /// The word that names the nodes of a process.
    fn nodes(numbers: &[u32]) -> Word {
        let links = |number: &u32| NodeLinks { name: format!("s{number}"), number: *number, down: vec![] };
        Word::Nodes(numbers.iter().map(links).collect())
    }

    #[test]
    fn a_process_speaks_for_its_own_nodes_alone() {
        let [first, liar]: [SocketAddr; 2] = ["10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap()];
        let mut speakers = Speakers::default();
        assert_eq!(speakers.admit((liar, link(1, false))), None, "it has not said that it is node 4");
        assert_eq!(speakers.admit((first, nodes(&[4]))), Some(nodes(&[4])));
        assert_eq!(speakers.admit((liar, nodes(&[4, 5]))), Some(nodes(&[5])));
        assert_eq!(speakers.admit((liar, link(1, false))), None);
        assert_eq!(speakers.admit((first, link(1, false))), Some(link(1, false)));
        assert_eq!((speakers.refused, speakers.named.len()), (3, 1));
    }

    /// A process that names one node after the other takes no more memory than the largest network.
    #[test]
    fn there_are_no_more_nodes_than_a_network_has() {
        let [first, liar]: [SocketAddr; 2] = ["10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap()];
        let many = (10..).take(NODES_MAX - 1).map(|node| (node, liar)).collect();
        let mut speakers = Speakers { of_node: many, ..Speakers::default() };
        assert_eq!(speakers.admit((first, nodes(&[4]))), Some(nodes(&[4])));
        assert_eq!(speakers.admit((liar, nodes(&[3, 10]))), Some(nodes(&[10])));
        assert_eq!((speakers.of_node.len(), speakers.refused), (NODES_MAX, 1));
        assert_eq!(speakers.admit((first, link(1, false))), Some(link(1, false)), "others are heard");
    }

    #[tokio::test]
    async fn words_that_come_together_are_one_news_and_a_lost_connection_is_made_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_jobs, inbox) = mpsc::channel(1);
        let (sender, mut news) = mpsc::channel(8);
        let ends = vec![(address, Expected::Sharer)];
        let device = Box::new(Forwarders::new(ends, Duration::from_millis(50), None));
        tokio::spawn(device.run(inbox, sender));
        for round in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; WATCH.len()];
            stream.read_exact(&mut asked).await.unwrap();
            assert_eq!(asked, WATCH.as_bytes());
            let said = [nodes(&[4]), link(1, false), link(round, true)];
            for word in &said {
                let line = format!("{}\n", serde_json::to_string(word).unwrap());
                stream.write_all(line.as_bytes()).await.unwrap();
            }
            let Some(News::Links { words, .. }) = news.recv().await else { panic!("no news") };
            assert_eq!(words, said);
        }
        // Noise ends a connection and nothing else.
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"hello\n").await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"{\"nodes\":[]}\n").await.unwrap();
        let Some(News::Links { words, .. }) = news.recv().await else { panic!("no news") };
        assert_eq!(words, [Word::Nodes(Vec::new())]);
    }
}
