//! Scenarios from files: TOML in, [`Scenario`] out. `docs/simulation.md` lists the keys.
//!
//! An error names the line and the key, what is wrong there and what would be right.

use polycast_protocol::pull::Replacement;
use polycast_protocol::push::SlowPolicy;
use polycast_simulator::packet::scenario::{
    Change, Detection, Failed, FailurePlan, FlowPlan, Layout, OpticalPlan, Problem, PullConfig, ReceiverPlan,
    Routing, Scenario, TransferPlan, Transport,
};
use polycast_simulator::packet::tcp::{Growth, TcpConfig};
use polycast_simulator::packet::world::PushConfig;
use polycast_simulator::packet::{Faults, LinkConfig};
use polycast_types::{Duration, Rate, Time, parse_bytes};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, de::Unexpected};
use std::fmt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// A file that holds no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// It cannot be read.
    #[error("cannot read {path}: {error}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Reason.
        error: std::io::Error,
    },
    /// A line is wrong.
    #[error("line {line}: {message}")]
    Line {
        /// The first line is 1.
        line: usize,
        /// The key, what is wrong and what would be right.
        message: String,
    },
}

/// Reads a scenario from a file.
///
/// # Errors
/// If the file cannot be read or is no scenario. Whether its parts fit each other shows when it runs; see
/// [`locate`].
pub fn load(path: &Path) -> Result<(Scenario, String), ScenarioError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ScenarioError::Read { path: path.to_path_buf(), error })?;
    Ok((parse(&text)?, text))
}

/// Reads a scenario from text.
///
/// # Errors
/// If it is no scenario.
pub fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    let file: File = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = line_of(text, start);
        let key = text.lines().nth(line - 1).and_then(|line| line.split_once('=')).map(|(key, _)| key.trim());
        let message = error.message().replace('\n', " ");
        let named = key.filter(|key| !key.is_empty() && !message.contains(&format!("`{key}`")));
        let message = named.map_or(message.clone(), |key| format!("{key}: {message}"));
        ScenarioError::Line { line, message }
    })?;
    file.scenario().map_err(|problem| locate(text, &problem))
}

/// The line of the text that a problem is about.
#[must_use]
pub fn locate(text: &str, problem: &Problem) -> ScenarioError {
    let start = DeTable::parse(text).ok().and_then(|table| place(table.get_ref(), &problem.key)).unwrap_or(0);
    ScenarioError::Line { line: line_of(text, start), message: problem.to_string() }
}

fn line_of(text: &str, at: usize) -> usize {
    text.get(..at).map_or(1, |before| before.matches('\n').count() + 1)
}

/// Finds the place where the value of a key such as `link[2].to` begins, or that of its nearest parent if it
/// is not there.
fn place(table: &DeTable<'_>, key: &str) -> Option<usize> {
    let mut table = table;
    let mut found = None;
    for part in key.split('.') {
        let (name, indices) = part.split_once('[').unwrap_or((part, ""));
        let Some((_, mut value)) = table.iter().find(|(key, _)| key.get_ref() == name) else { break };
        found = Some(value.span().start);
        let numbers = indices.split(['[', ']']).filter_map(|index| index.parse::<usize>().ok());
        for index in numbers {
            let Some(item) = value.get_ref().as_array().and_then(|array| array.get(index)) else { break };
            value = item;
            found = Some(value.span().start);
        }
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    found
}

/// Reads a value that is written as text with a unit, or as a number.
struct Written<T>(&'static str, fn(&str) -> Result<T, String>, fn(i64) -> Option<T>);

impl<T> Visitor<'_> for Written<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        (self.2)(number).ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self.0))
    }
}

macro_rules! written {
    ($name:ident, $of:ty, $expected:literal, $text:expr, $number:expr) => {
        #[derive(Clone, Copy, Debug)]
        struct $name($of);
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Written($expected, $text, $number)).map($name)
            }
        }
    };
}

written!(
    RateText,
    Rate,
    "a rate such as \"10gbit\"",
    |text| text.parse::<Rate>().map_err(|error| error.to_string()),
    |number| u64::try_from(number).ok().filter(|rate| *rate > 0).map(Rate)
);
written!(
    BytesText,
    u64,
    "a size such as \"64M\"",
    |text| parse_bytes(text).map_err(|error| error.to_string()),
    |number| u64::try_from(number).ok()
);
written!(SpanText, Duration, "a time such as \"10us\"", parse_span, |number| (number == 0)
    .then_some(Duration::ZERO));

/// Reads a time as scenarios write it.
///
/// # Errors
/// If it is none: a sentence that says what one looks like.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a time: write 500ns, 10us, 1.5ms or 2s");
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(wrong)?;
    let number: f64 = text[..end].parse().map_err(|_| wrong())?;
    let unit = match text[end..].trim() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(wrong()),
    };
    let nanos = number * unit;
    if nanos < 1e18 { Ok(Duration(nanos as u64)) } else { Err(wrong()) }
}

/// A share from 0 to 1, in parts of a million.
#[derive(Clone, Copy, Debug)]
struct Share(u32);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let share = f64::deserialize(deserializer)?;
        if (0.0..=1.0).contains(&share) {
            return Ok(Share((share * 1e6).round() as u32));
        }
        Err(de::Error::custom(format!("{share} is not a share: write 0 to 1, such as 0.01")))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    seed: Option<u64>,
    time_limit: Option<SpanText>,
    network: NetworkKeys,
    #[serde(default)]
    links: LinkKeys,
    #[serde(default)]
    link: Vec<ChangeKeys>,
    #[serde(deserialize_with = "one_or_several")]
    transfer: Vec<TransferKeys>,
    push: Option<PushKeys>,
    pull: Option<PullKeys>,
    #[serde(default)]
    tcp: TcpKeys,
    #[serde(default)]
    flow: Vec<FlowKeys>,
    #[serde(default)]
    failure: Vec<FailureKeys>,
    manager: Option<ManagerKeys>,
    #[serde(default)]
    receiver: Vec<ReceiverKeys>,
    #[serde(default)]
    optical: Vec<OpticalKeys>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkKeys {
    topology: Option<String>,
    nodes: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct LinkKeys {
    rate: Option<RateText>,
    delay: Option<SpanText>,
    queue: Option<BytesText>,
    loss: Option<Share>,
    corruption: Option<Share>,
    duplication: Option<Share>,
    reordering: Option<Share>,
    reordering_delay: Option<SpanText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeKeys {
    from: u32,
    to: u32,
    #[serde(default)]
    one_way: bool,
    rate: Option<RateText>,
    delay: Option<SpanText>,
    queue: Option<BytesText>,
    loss: Option<Share>,
    corruption: Option<Share>,
    duplication: Option<Share>,
    reordering: Option<Share>,
    reordering_delay: Option<SpanText>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum TransportName {
    Push,
    Pull,
    Tcp,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "write \"all\" or a list of hosts such as [1, 2, 3]")]
enum ReceiversKey {
    Word(AllWord),
    List(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum AllWord {
    All,
}

#[derive(Deserialize, Clone, Copy, Default)]
#[serde(rename_all = "lowercase")]
enum RoutingName {
    #[default]
    Natural,
    Labels,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferKeys {
    transport: TransportName,
    #[serde(default)]
    routing: RoutingName,
    tree: Option<Vec<(u32, u32)>>,
    filter_bits: Option<u32>,
    source: u32,
    receivers: ReceiversKey,
    bytes: BytesText,
    start: Option<SpanText>,
    push: Option<PushKeys>,
}

/// `[transfer]`, or `[[transfer]]` for each of several.
fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<TransferKeys>, D::Error> {
    struct Transfers;

    impl<'de> Visitor<'de> for Transfers {
        type Value = Vec<TransferKeys>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a [transfer], or a [[transfer]] for each of several")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            TransferKeys::deserialize(de::value::MapAccessDeserializer::new(map)).map(|keys| vec![keys])
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
            Vec::deserialize(de::value::SeqAccessDeserializer::new(seq))
        }
    }

    deserializer.deserialize_any(Transfers)
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(deny_unknown_fields)]
struct PushKeys {
    fragment: Option<BytesText>,
    group: Option<BytesText>,
    window: Option<BytesText>,
    rate: Option<RateText>,
    service: Option<SpanText>,
    deadline: Option<SpanText>,
    stall_timeout: Option<SpanText>,
    slow: Option<SlowName>,
    slow_after: Option<SpanText>,
    multicast: Option<bool>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum SlowName {
    Wait,
    CatchUp,
    Drop,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(deny_unknown_fields)]
struct PullKeys {
    payload: Option<u16>,
    block: Option<BytesText>,
    credits: Option<u32>,
    store: Option<u32>,
    rate: Option<RateText>,
    increase: Option<RateText>,
    interval: Option<SpanText>,
    burst: Option<BytesText>,
    rto: Option<SpanText>,
    overtaken: Option<u32>,
    chance: Option<bool>,
    pending: Option<u32>,
    replacement: Option<ReplacementName>,
    trees: Option<u32>,
    header: Option<u16>,
    lists: Option<bool>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum ReplacementName {
    Oldest,
    LeastRecentlyUsed,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct TcpKeys {
    growth: Option<GrowthName>,
    segment: Option<u32>,
    initial_segments: Option<u32>,
    receive_window: Option<BytesText>,
    timeout_min: Option<SpanText>,
    timeout_max: Option<SpanText>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum GrowthName {
    Reno,
    Cubic,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowKeys {
    from: u32,
    to: u32,
    bytes: Option<BytesText>,
    start: Option<SpanText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FailureKeys {
    at: SpanText,
    until: Option<SpanText>,
    link: Option<(u32, u32)>,
    node: Option<u32>,
    #[serde(default)]
    one_way: bool,
    reroute_after: Option<SpanText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ManagerKeys {
    greeting: Option<SpanText>,
    damping: Option<SpanText>,
    probe: Option<SpanText>,
    carrier: Option<bool>,
    control_delay: Option<SpanText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceiverKeys {
    node: u32,
    service: Option<SpanText>,
    crash: Option<SpanText>,
    restart: Option<SpanText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OpticalKeys {
    node: u32,
    ready_at: SpanText,
    loss: Share,
}

fn at(span: SpanText) -> Time {
    Time(span.0.0)
}

fn problem(key: impl Into<String>, message: impl Into<String>) -> Problem {
    Problem { key: key.into(), message: message.into() }
}

/// The most bytes of a fragment: a datagram of 64 KiB without its headers.
const FRAGMENT_MAX: u64 = 60_000;
const GROUP_MAX: u64 = 1 << 30;
const SEGMENT_MAX: u32 = 65_000;
/// The most packets of a content store, and interests that are pending at a node.
const TABLE_MAX: u32 = 1 << 22;

impl File {
    fn scenario(self) -> Result<Scenario, Problem> {
        self.refuse_what_means_nothing()?;
        let links = self.links.over(LinkConfig::new(Rate(10_000_000_000), Duration::from_micros(1)));
        let transfers: Vec<TransferPlan> =
            (0..self.transfer.len()).map(|index| self.transfer_plan(index)).collect::<Result<_, _>>()?;
        let pulls = transfers.iter().any(|plan| matches!(plan.transport, Transport::Pull(_)));
        Ok(Scenario {
            seed: self.seed.unwrap_or(1),
            layout: self.network.layout()?,
            links,
            changes: self.link.iter().map(|change| change.change(links)).collect(),
            transfers,
            detection: self.manager.map(|keys| keys.detection(pulls)).transpose()?,
            tcp: self.tcp.config()?,
            flows: self.flow.iter().map(FlowKeys::plan).collect(),
            failures: self.failure.iter().enumerate().map(FailureKeys::plan).collect::<Result<_, _>>()?,
            receivers: self.receiver.iter().map(ReceiverKeys::plan).collect(),
            optical: self.optical.iter().map(OpticalKeys::plan).collect(),
            time_limit: self.time_limit.map_or(Time(3_600_000_000_000), at),
        })
    }
}

impl File {
    /// The key of a transfer as the file has it.
    fn key(&self, index: usize, name: &str) -> String {
        match self.transfer.len() {
            1 => format!("transfer.{name}"),
            _ => format!("transfer[{index}].{name}"),
        }
    }

    fn transfer_plan(&self, index: usize) -> Result<TransferPlan, Problem> {
        let keys = &self.transfer[index];
        Ok(TransferPlan {
            transport: match keys.transport {
                TransportName::Push => Transport::Push(match &keys.push {
                    None => self.push.unwrap_or_default().config()?,
                    Some(own) => own.config().map_err(|wrong| Problem {
                        key: self.key(index, &wrong.key),
                        message: wrong.message,
                    })?,
                }),
                TransportName::Pull => Transport::Pull(self.pull.unwrap_or_default().config()?),
                TransportName::Tcp => Transport::Tcp,
            },
            routing: keys.routing(|name| self.key(index, name))?,
            source: keys.source,
            receivers: match &keys.receivers {
                ReceiversKey::Word(AllWord::All) => None,
                ReceiversKey::List(hosts) => Some(hosts.clone()),
            },
            bytes: keys.bytes.0,
            start: keys.start.map_or(Time::ZERO, at),
        })
    }

    /// Refuses keys that the chosen transports never read: the file's author expects something of them.
    fn refuse_what_means_nothing(&self) -> Result<(), Problem> {
        let only = |key: String, of: &str| {
            let message =
                format!("this goes with the transport {of} only: take it out, or change the transport");
            Err(problem(key, message))
        };
        let by =
            |wanted: fn(&TransportName) -> bool| self.transfer.iter().any(|keys| wanted(&keys.transport));
        let shared = self
            .transfer
            .iter()
            .any(|keys| matches!(keys.transport, TransportName::Push) && keys.push.is_none());
        if self.push.is_some() && !shared {
            if by(|name| matches!(name, TransportName::Push)) {
                let message = "every transfer by push has its own settings: take these out";
                return Err(problem("push", message));
            }
            return only("push".into(), "push");
        }
        if self.pull.is_some() && !by(|name| matches!(name, TransportName::Pull)) {
            return only("pull".into(), "pull");
        }
        for (index, keys) in self.transfer.iter().enumerate() {
            if matches!(keys.transport, TransportName::Push) {
                continue;
            }
            if keys.push.is_some() {
                return only(self.key(index, "push"), "push");
            }
            if keys.tree.is_some() {
                return only(self.key(index, "tree"), "push");
            }
            if matches!(keys.routing, RoutingName::Labels) {
                return only(self.key(index, "routing"), "push");
            }
        }
        Ok(())
    }
}

impl ManagerKeys {
    fn detection(self, pulls: bool) -> Result<Detection, Problem> {
        let not_here = |key: &str, message: &str| Err(problem(format!("manager.{key}"), message));
        if pulls && self.probe.is_some() {
            return not_here("probe", "nodes of pull greet each other: write greeting in its place");
        }
        if !pulls && self.greeting.is_some() {
            return not_here(
                "greeting",
                "only nodes of pull greet each other: write probe, the switches' time",
            );
        }
        if !pulls && self.damping.is_some() {
            let message =
                "switches that probe say a change at once: take this out, or change the transport to pull";
            return not_here("damping", message);
        }
        let period = self.greeting.or(self.probe).map_or(Duration::from_millis(100), |span| span.0);
        if period < Duration::from_micros(10) {
            let key = if pulls { "greeting" } else { "probe" };
            return not_here(key, "it is 10us at least: write a time such as \"100ms\"");
        }
        Ok(Detection {
            period,
            damping: self.damping.map_or(Duration::ZERO, |span| span.0),
            carrier: self.carrier.unwrap_or(true),
            control_delay: self.control_delay.map_or(Duration::from_micros(500), |span| span.0),
        })
    }
}

impl NetworkKeys {
    fn layout(&self) -> Result<Layout, Problem> {
        match (&self.topology, self.nodes) {
            (Some(name), None) => name.parse().map_err(|error: String| problem("network.topology", error)),
            (None, Some(nodes)) => Ok(Layout::Nodes(nodes)),
            _ => {
                let message =
                    "write `topology`, such as \"leaf-spine:4,2,8\", or `nodes` and a [[link]] for each link";
                Err(problem("network", message))
            }
        }
    }
}

impl LinkKeys {
    fn over(&self, base: LinkConfig) -> LinkConfig {
        let ppm = |share: Option<Share>, base: u32| share.map_or(base, |share| share.0);
        LinkConfig {
            rate: self.rate.map_or(base.rate, |rate| rate.0),
            delay: self.delay.map_or(base.delay, |delay| delay.0),
            queue_bytes: self.queue.map_or(base.queue_bytes, |queue| queue.0),
            priorities: base.priorities,
            faults: Faults {
                loss_ppm: ppm(self.loss, base.faults.loss_ppm),
                corruption_ppm: ppm(self.corruption, base.faults.corruption_ppm),
                duplication_ppm: ppm(self.duplication, base.faults.duplication_ppm),
                reordering_ppm: ppm(self.reordering, base.faults.reordering_ppm),
                reordering_delay: self.reordering_delay.map_or(base.faults.reordering_delay, |span| span.0),
            },
        }
    }
}

impl ChangeKeys {
    fn change(&self, links: LinkConfig) -> Change {
        let keys = LinkKeys {
            rate: self.rate,
            delay: self.delay,
            queue: self.queue,
            loss: self.loss,
            corruption: self.corruption,
            duplication: self.duplication,
            reordering: self.reordering,
            reordering_delay: self.reordering_delay,
        };
        Change { from: self.from, to: self.to, config: keys.over(links), one_way: self.one_way }
    }
}

impl TransferKeys {
    fn routing(&self, key: impl Fn(&str) -> String) -> Result<Routing, Problem> {
        if self.filter_bits.is_some() && !matches!(self.routing, RoutingName::Labels) {
            return Err(problem(key("filter_bits"), "this goes with routing = \"labels\" only"));
        }
        match (&self.tree, self.routing) {
            (Some(links), RoutingName::Natural) => Ok(Routing::Tree(links.clone())),
            (Some(_), _) => Err(problem(key("tree"), "a tree and a routing exclude each other: write one")),
            (None, RoutingName::Natural) => Ok(Routing::Natural),
            (None, RoutingName::Labels) => {
                Ok(Routing::Labels { filter_bits: self.filter_bits.unwrap_or(69) })
            }
        }
    }
}

impl PushKeys {
    fn config(&self) -> Result<PushConfig, Problem> {
        let base = PushConfig::default();
        let fragment = self.fragment.map_or(base.fragment_bytes.into(), |size| size.0);
        if !(1..=FRAGMENT_MAX).contains(&fragment) {
            return Err(problem("push.fragment", format!("a fragment holds 1 to {FRAGMENT_MAX} bytes")));
        }
        let group = self.group.map_or(base.group_bytes.into(), |size| size.0);
        if !(1_024..=GROUP_MAX).contains(&group) || !group.is_power_of_two() {
            return Err(problem("push.group", "a hash group is a power of two from 1 KiB to 1 GiB"));
        }
        if self.slow_after.is_some() && matches!(self.slow, Some(SlowName::Wait)) {
            let message = "a source that waits has no time limit: take it out, or write slow = \"catch-up\" or \"drop\"";
            return Err(problem("push.slow_after", message));
        }
        let after = self.slow_after.map(|span| span.0);
        let after = after.or(SlowPolicy::SHIPPED.patience()).unwrap_or(Duration::ZERO);
        let slow = match self.slow {
            Some(SlowName::Wait) => SlowPolicy::Wait,
            Some(SlowName::CatchUp) | None => SlowPolicy::CatchUp { after },
            Some(SlowName::Drop) => SlowPolicy::Drop { after },
        };
        Ok(PushConfig {
            fragment_bytes: fragment as u32,
            group_bytes: group as u32,
            rate: self.rate.map(|rate| rate.0),
            window_bytes: self.window.map_or(base.window_bytes, |window| window.0),
            service: self.service.map_or(base.service, |service| service.0),
            deadline: self.deadline.map(|deadline| deadline.0),
            stall_timeout: self.stall_timeout.map_or(base.stall_timeout, |span| span.0),
            slow,
            multicast: self.multicast.unwrap_or(base.multicast),
            ..base
        })
    }
}

impl PullKeys {
    fn config(&self) -> Result<PullConfig, Problem> {
        let base = PullConfig::default();
        let payload_bytes = self.payload.unwrap_or(base.payload_bytes);
        let block_bytes = self.block.map_or(base.block_bytes, |block| block.0);
        let credits = self.credits.unwrap_or(base.credits);
        for (key, value) in [
            ("pull.payload", u64::from(payload_bytes)),
            ("pull.block", block_bytes),
            ("pull.credits", credits.into()),
            ("pull.pending", self.pending.unwrap_or(1).into()),
            ("pull.trees", self.trees.unwrap_or(1).into()),
        ] {
            if value == 0 {
                return Err(problem(key, "write a number of at least 1"));
            }
        }
        for (key, span) in [("pull.interval", self.interval), ("pull.rto", self.rto)] {
            if span.is_some_and(|span| span.0 == Duration::ZERO) {
                return Err(problem(key, "it is above zero: write a time such as \"1ms\""));
            }
        }
        for (key, value) in [("pull.store", self.store), ("pull.pending", self.pending)] {
            if value.is_some_and(|value| value > TABLE_MAX) {
                return Err(problem(key, format!("every node has such a table: write at most {TABLE_MAX}")));
            }
        }
        let burst = self.burst.map(|burst| burst.0);
        let packet = u64::from(payload_bytes) + u64::from(self.header.unwrap_or(0));
        if burst.is_some_and(|burst| !(packet..=1 << 30).contains(&burst)) {
            let message = format!("it holds a packet of {packet} bytes at least, and 1 GiB at most");
            return Err(problem("pull.burst", message));
        }
        Ok(PullConfig {
            payload_bytes,
            block_bytes,
            credits,
            store_packets: self.store.unwrap_or(base.store_packets),
            initial_rate: self.rate.map(|rate| rate.0),
            increase: self.increase.map(|rate| rate.0),
            interval: self.interval.map(|interval| interval.0),
            burst_bytes: burst.map(|burst| burst as u32),
            retry: self.rto.map(|rto| rto.0),
            chance: self.chance.unwrap_or(base.chance),
            lists: self.lists.unwrap_or(base.lists),
            overtaken: self.overtaken.unwrap_or(base.overtaken),
            pending_interests: self.pending.unwrap_or(base.pending_interests),
            replacement: match self.replacement {
                Some(ReplacementName::LeastRecentlyUsed) => Replacement::LeastRecentlyUsed,
                Some(ReplacementName::Oldest) | None => Replacement::Oldest,
            },
            trees_max: self.trees,
            header_bytes: self.header,
        })
    }
}

impl TcpKeys {
    fn config(&self) -> Result<TcpConfig, Problem> {
        let base = TcpConfig::default();
        let config = TcpConfig {
            segment_bytes: self.segment.unwrap_or(base.segment_bytes),
            initial_segments: self.initial_segments.unwrap_or(base.initial_segments),
            receive_window: self.receive_window.map_or(base.receive_window, |window| window.0),
            growth: match self.growth {
                Some(GrowthName::Reno) => Growth::Reno,
                Some(GrowthName::Cubic) => Growth::Cubic,
                None => base.growth,
            },
            timeout_min: self.timeout_min.map_or(base.timeout_min, |span| span.0),
            timeout_max: self.timeout_max.map_or(base.timeout_max, |span| span.0),
        };
        if !(1..=SEGMENT_MAX).contains(&config.segment_bytes) {
            return Err(problem("tcp.segment", format!("a segment holds 1 to {SEGMENT_MAX} bytes")));
        }
        if config.initial_segments == 0 {
            return Err(problem("tcp.initial_segments", "write a number of at least 1"));
        }
        if config.receive_window < config.segment_bytes.into() {
            return Err(problem("tcp.receive_window", "the window holds at least one segment"));
        }
        if config.timeout_min.0 == 0 || config.timeout_max < config.timeout_min {
            return Err(problem(
                "tcp.timeout_min",
                "time-outs are above zero, and the longest is not below the shortest",
            ));
        }
        Ok(config)
    }
}

impl FlowKeys {
    fn plan(&self) -> FlowPlan {
        let start = self.start.map_or(Time::ZERO, at);
        FlowPlan { from: self.from, to: self.to, bytes: self.bytes.map(|bytes| bytes.0), start }
    }
}

impl FailureKeys {
    fn plan((index, keys): (usize, &Self)) -> Result<FailurePlan, Problem> {
        let what = match (keys.link, keys.node) {
            (Some((from, to)), None) => Failed::Link { from, to, one_way: keys.one_way },
            (None, Some(node)) if !keys.one_way => Failed::Node(node),
            _ => {
                let message = "write `link = [FROM, TO]`, with `one_way = true` if you like, or `node = N`";
                return Err(problem(format!("failure[{index}]"), message));
            }
        };
        let reroute_after = keys.reroute_after.map(|span| span.0);
        Ok(FailurePlan { at: at(keys.at), what, until: keys.until.map(at), reroute_after })
    }
}

impl ReceiverKeys {
    fn plan(&self) -> ReceiverPlan {
        let service = self.service.map(|span| span.0);
        ReceiverPlan { node: self.node, service, crash: self.crash.map(at), restart: self.restart.map(at) }
    }
}

impl OpticalKeys {
    fn plan(&self) -> OpticalPlan {
        OpticalPlan { node: self.node, ready_at: at(self.ready_at), loss_ppm: self.loss.0 }
    }
}

#[cfg(test)]
mod tests;
