//! Label switches and the agents of racks as one device: their controllers take changes at one address (Orca sections 3.3
//! and 3.4). What comes is there before anything goes, so that packets under way keep their way.

use super::{Change, Device, Job, News, PAUSES};
use polycast_planning::DeviceCommand;
use polycast_wire::switches::{Change as WireChange, FRAME_LEN_MAX, Word};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// The controllers, before their task runs.
#[derive(Debug)]
pub(crate) struct LabelSwitches {
    address: SocketAddr,
    answers_within: Duration,
}

impl LabelSwitches {
    /// Those that take changes here; a change may take as long.
    pub(crate) fn new(address: SocketAddr, answers_within: Duration) -> Self {
        LabelSwitches { address, answers_within }
    }
}

impl Device for LabelSwitches {
    fn run(
        self: Box<Self>,
        jobs: mpsc::Receiver<Job>,
        news: mpsc::UnboundedSender<News>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let LabelSwitches { address, answers_within } = *self;
        let (connection, wanted, number) = (None, BTreeSet::new(), 0);
        let task = Task { address, answers_within, connection, wanted, number, news };
        Box::pin(task.run(jobs))
    }
}

struct Task {
    address: SocketAddr,
    answers_within: Duration,
    connection: Option<Connection>,
    /// What plans need.
    wanted: BTreeSet<DeviceCommand>,
    /// Of the last change.
    number: u32,
    news: mpsc::UnboundedSender<News>,
}

impl Task {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut pause = PAUSES.0;
        loop {
            let connecting = self.connection.is_none();
            let heard = async {
                match &mut self.connection {
                    Some(connection) => connection.next(|word| hear(&self.news, &word)).await,
                    None => {
                        tokio::time::sleep(pause).await;
                        Ok(())
                    }
                }
            };
            tokio::select! {
                job = jobs.recv() => {
                    let Some(job) = job else { return };
                    let result = self.perform(&job.change).await;
                    // Whoever asked may be ending.
                    let _ = job.reply.send(result);
                }
                heard = heard => {
                    if let Err(reason) = heard {
                        tracing::warn!(%reason, "the connection to the label switches has ended");
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

    /// Connects, and says all that plans need: whoever listens there may have begun anew.
    async fn connect(&mut self) -> Result<(), String> {
        if self.connection.is_some() {
            return Ok(());
        }
        let connecting = tokio::time::timeout(self.answers_within, TcpStream::connect(self.address));
        let stream = connecting.await.map_err(|_| "no connection in time".to_string())?;
        let stream = stream.map_err(|error| format!("{}: {error}", self.address))?;
        // Without it small words would wait for each other, which costs time and nothing else.
        let _ = stream.set_nodelay(true);
        tracing::info!(address = %self.address, "connected to the label switches");
        self.connection = Some(Connection { stream, inbox: Vec::new(), used: 0 });
        let wanted: Vec<DeviceCommand> = self.wanted.iter().cloned().collect();
        self.ask(&wanted, &[]).await
    }

    async fn perform(&mut self, change: &Change) -> Result<(), String> {
        for command in &change.clear {
            self.wanted.remove(command);
        }
        let result = match self.connect().await {
            Ok(()) => self.ask(&change.set, &change.clear).await,
            Err(reason) => Err(reason),
        };
        if result.is_ok() {
            self.wanted.extend(change.set.iter().cloned());
        }
        result
    }

    /// Asks for changes and waits until all are done; gives the first reason why one is not.
    async fn ask(&mut self, set: &[DeviceCommand], clear: &[DeviceCommand]) -> Result<(), String> {
        let mut bytes = Vec::new();
        let mut open = BTreeSet::new();
        let setting = set.iter().filter_map(|command| wire(command, true));
        let clearing = clear.iter().filter(|command| !is_replaced(command, set));
        for change in setting.chain(clearing.filter_map(|command| wire(command, false))) {
            self.number = self.number.wrapping_add(1);
            open.insert(self.number);
            Word::Change { number: self.number, change }.emit(&mut bytes);
        }
        let Some(connection) = &mut self.connection else { return Err("there is no connection".into()) };
        let mut failure = None;
        let asked = async {
            connection.stream.write_all(&bytes).await.map_err(|error| error.to_string())?;
            while !open.is_empty() {
                let answer = |word: Word<'_>| match word {
                    Word::Done { number } => drop(open.remove(&number)),
                    Word::Failed { number, reason } => {
                        if open.remove(&number) && failure.is_none() {
                            failure = Some(reason.to_string());
                        }
                    }
                    word => hear(&self.news, &word),
                };
                connection.next(answer).await?;
            }
            Ok(())
        };
        match tokio::time::timeout(self.answers_within, asked).await {
            Ok(Ok(())) => failure.map_or(Ok(()), Err),
            Ok(Err(reason)) => {
                self.connection = None;
                Err(reason)
            }
            Err(_) => Err(format!("no answer within {} ms", self.answers_within.as_millis())),
        }
    }
}

/// What label switches say by themselves.
fn hear(news: &mpsc::UnboundedSender<News>, word: &Word<'_>) {
    match *word {
        // The core may be ending.
        Word::Link { ends, works } => drop(news.send(News::Link { ends, up: works })),
        _ => tracing::debug!(?word, "label switches say"),
    }
}

/// Whether a label that goes is replaced by one that comes.
fn is_replaced(command: &DeviceCommand, set: &[DeviceCommand]) -> bool {
    let DeviceCommand::LeafLabel { leaf, session, .. } = command else { return false };
    set.iter().any(|other| {
        matches!(other, DeviceCommand::LeafLabel { leaf: l, session: s, .. } if (l, s) == (leaf, session))
    })
}

/// A command as it is asked for, if it is one for label switches.
fn wire(command: &DeviceCommand, set: bool) -> Option<WireChange<'_>> {
    match command {
        DeviceCommand::LeafLabel { leaf, session, label } => Some(if set {
            WireChange::SetLabel { leaf: *leaf, session: *session, label }
        } else {
            WireChange::ClearLabel { leaf: *leaf, session: *session }
        }),
        DeviceCommand::SpineEntry { spine, session, leaf } => Some(if set {
            WireChange::SetEntry { spine: *spine, session: *session, leaf: *leaf }
        } else {
            WireChange::ClearEntry { spine: *spine, session: *session, leaf: *leaf }
        }),
        _ => None,
    }
}

struct Connection {
    stream: TcpStream,
    inbox: Vec<u8>,
    /// Bytes at the front of `inbox` that have been read.
    used: usize,
}

impl Connection {
    /// Hands the next word to `hear`. Whoever stops waiting loses nothing.
    async fn next(&mut self, hear: impl FnOnce(Word<'_>)) -> Result<(), String> {
        self.inbox.drain(..std::mem::take(&mut self.used));
        let len = loop {
            match Word::frame_len(&self.inbox).map_err(|error| error.to_string())? {
                Some(len) if self.inbox.len() >= len => break len,
                _ => {}
            }
            self.inbox.reserve(FRAME_LEN_MAX);
            if self.stream.read_buf(&mut self.inbox).await.map_err(|error| error.to_string())? == 0 {
                return Err("the other end has closed it".into());
            }
        };
        self.used = len;
        hear(Word::parse(&self.inbox[..len]).map_err(|error| error.to_string())?);
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
        let device = LabelSwitches::new(listener.local_addr().unwrap(), Duration::from_secs(5));
        let devices: BTreeMap<DeviceId, Box<dyn Device>> =
            BTreeMap::from([(DeviceId::LabelSwitches, Box::new(device) as Box<dyn Device>)]);
        let (devices, mut news) = Devices::start(devices);
        let mut result = async || loop {
            if let Some(News::SetUp { result, .. }) = news.recv().await {
                return result;
            }
        };
        devices.change(Some(PlanId(1)), &[], &[label(7, 1), entry(7)]);
        let heard = serve(&listener, 2).await;
        assert!(heard.iter().any(|word| word.starts_with("SetLabel")) && heard.len() == 2, "{heard:?}");
        assert_eq!(result().await, Ok(()));
        // The connection has ended: what is needed is said again, then what is new; a replaced label is not cleared.
        devices.change(Some(PlanId(2)), &[label(7, 1), entry(7)], &[label(7, 2)]);
        let heard = serve(&listener, 2).await;
        let last = heard.last().unwrap();
        assert!(last.starts_with("SetLabel") || last.starts_with("ClearEntry"), "{heard:?}");
        assert!(!heard.iter().any(|word| word.starts_with("ClearLabel")), "{heard:?}");
    }

    #[tokio::test]
    async fn a_refusal_is_the_plans_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, answers_within) = (listener.local_addr().unwrap(), Duration::from_secs(5));
        let (news, mut said) = mpsc::unbounded_channel();
        let (connection, wanted, number) = (None, BTreeSet::new(), 0);
        let mut task = Task { address, answers_within, connection, wanted, number, news };
        let change = Change { clear: vec![], set: vec![label(13, 1), label(14, 1)] };
        let (result, heard) = tokio::join!(task.perform(&change), serve(&listener, 2));
        let link = News::Link { ends: (16, 24), up: false };
        hear(&task.news, &Word::Link { ends: (16, 24), works: false });
        assert_eq!(said.recv().await, Some(link));
        assert_eq!((result, heard.len()), (Err("its table is full".into()), 2));
        assert!(task.wanted.is_empty());
    }
}
