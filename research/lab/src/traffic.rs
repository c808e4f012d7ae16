//! Other traffic beside a delivery, and how fast everything is in the meantime (Datacast, section 7 and
//! figure 6).

use crate::error::LabError;
use crate::layout::{Cable, Layout};
use polycast_net::bpf::in_namespace;
use polycast_types::parse_bytes;
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The latest time of a flow, in seconds.
const SECONDS_MAX: f64 = 3_600.0;
/// Bytes handed over or taken at a time.
const CHUNK_LEN: usize = 64 << 10;
/// A flow looks so often whether it is to end.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Readings of one delivery; what comes after is not kept.
const SAMPLES_MAX: usize = 100_000;

/// A TCP connection between two hosts that sends as fast as it can for a while.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Flow {
    /// The host that sends, by name or number.
    pub from: String,
    /// The host that takes.
    pub to: String,
    /// Start, in seconds after the delivery was requested.
    pub begin_s: f64,
    /// End, counted likewise.
    pub end_s: f64,
    /// Number of bytes that may be in flight; the kernel chooses without it.
    pub window_bytes: Option<u64>,
}

impl FromStr for Flow {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let wrong = || LabError::Flow { text: text.into() };
        let (way, times) = text.split_once('@').ok_or_else(wrong)?;
        let (times, window) = match times.split_once('=') {
            Some((times, window)) => (times, Some(parse_bytes(window).map_err(|_| wrong())?)),
            None => (times, None),
        };
        let (from, to) =
            way.split_once('-').filter(|(a, b)| !a.is_empty() && !b.is_empty()).ok_or_else(wrong)?;
        let (begin, end) = times.split_once("..").ok_or_else(wrong)?;
        let seconds = |text: &str| text.parse::<f64>().ok().filter(|at| (0.0..=SECONDS_MAX).contains(at));
        let (begin_s, end_s) = seconds(begin).zip(seconds(end)).filter(|(a, b)| a < b).ok_or_else(wrong)?;
        let fits = window.is_none_or(|bytes| (4_096..=1 << 30).contains(&bytes));
        let flow = Flow { from: from.into(), to: to.into(), begin_s, end_s, window_bytes: window };
        fits.then_some(flow).ok_or_else(wrong)
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}@{}..{}", self.from, self.to, self.begin_s, self.end_s)?;
        self.window_bytes.map_or(Ok(()), |bytes| write!(f, "={bytes}"))
    }
}

/// Rates of everything in one interval.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// The end of the interval, in seconds after the delivery was asked for.
    pub at_s: f64,
    /// Rate at which the source sent on each of its links, in bits a second, all bytes of all frames.
    pub links_bps: Vec<u64>,
    /// Rate of each flow at its end, in bits a second of its own bytes.
    pub flows_bps: Vec<u64>,
}

/// Readings taken while a delivery ran.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Readings {
    /// Nodes at the far ends of the source's links, in the order of the samples.
    pub links: Vec<String>,
    /// The flows, in the order of the samples.
    pub flows: Vec<String>,
    /// One after the other.
    pub samples: Vec<Sample>,
}

impl Readings {
    /// Mean rates between two moments, of every link and every flow, in bits a second. `None` where nothing
    /// was read.
    #[must_use]
    pub fn mean(&self, from_s: f64, to_s: f64) -> Option<(Vec<u64>, Vec<u64>)> {
        let within: Vec<&Sample> =
            self.samples.iter().filter(|sample| sample.at_s > from_s && sample.at_s <= to_s).collect();
        let count = within.len() as u64;
        let mean = |of: &dyn Fn(&Sample) -> u64| within.iter().map(|sample| of(sample)).sum::<u64>() / count;
        (count > 0).then(|| {
            let links = (0..self.links.len()).map(|at| mean(&|sample| sample.links_bps[at])).collect();
            let flows = (0..self.flows.len()).map(|at| mean(&|sample| sample.flows_bps[at])).collect();
            (links, flows)
        })
    }
}

/// A flow with the places where it runs.
pub(crate) struct Placed {
    pub(crate) flow: Flow,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) address: IpAddr,
}

/// The links of a host that carry data: names of interfaces, and where they lead.
pub(crate) fn links_of(layout: &Layout, host: &str, carries: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let of = |cable: &Cable| match host {
        _ if cable.a.node == host => Some((cable.a.interface.clone(), cable.b.node.clone())),
        _ if cable.b.node == host => Some((cable.b.interface.clone(), cable.a.node.clone())),
        _ => None,
    };
    layout.cables.iter().filter_map(of).filter(|(interface, _)| carries(interface)).collect()
}

/// Runs flows and reads counters while `work` goes on; both end with it. Without an interval nothing is read.
pub(crate) fn beside<T>(
    source: &str,
    links: &[(String, String)],
    flows: &[Placed],
    interval: Option<Duration>,
    work: impl FnOnce() -> T,
) -> (T, Readings) {
    let over = AtomicBool::new(false);
    let taken: Vec<AtomicU64> = flows.iter().map(|_| AtomicU64::new(0)).collect();
    let mut readings = Readings {
        links: links.iter().map(|(_, far)| far.clone()).collect(),
        flows: flows.iter().map(|placed| placed.flow.to_string()).collect(),
        samples: Vec::new(),
    };
    let begun = Instant::now();
    let outcome = std::thread::scope(|scope| {
        for (placed, taken) in flows.iter().zip(&taken) {
            let over = &over;
            scope.spawn(move || {
                if let Err(error) = run_flow(placed, begun, taken, over) {
                    tracing::error!(flow = %placed.flow, %error, "a flow has failed");
                }
            });
        }
        let reader = interval.map(|interval| {
            let (over, taken) = (&over, &taken);
            scope.spawn(move || read(source, links, taken, begun, interval, over))
        });
        let outcome = work();
        over.store(true, Ordering::Relaxed);
        let samples =
            reader.map(|reader| reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        readings.samples = samples.unwrap_or_default();
        outcome
    });
    (outcome, readings)
}

fn space(host: &str) -> std::path::PathBuf {
    Path::new("/run/netns").join(host)
}

/// Waits until a moment; false if all is over before.
fn wait_until(at_s: f64, begun: Instant, over: &AtomicBool) -> bool {
    while begun.elapsed().as_secs_f64() < at_s {
        if over.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN.min(Duration::from_secs_f64(at_s).saturating_sub(begun.elapsed())));
    }
    true
}

fn run_flow(placed: &Placed, begun: Instant, taken: &AtomicU64, over: &AtomicBool) -> io::Result<()> {
    let Flow { begin_s, end_s, window_bytes, .. } = placed.flow;
    let at = SocketAddr::new(placed.address, 0);
    let listener = in_namespace(&space(&placed.to), || {
        let listener = TcpListener::bind(at)?;
        if let Some(bytes) = window_bytes {
            // The connection has it from the listener, before its window is told.
            sockopt::set_socket_recv_buffer_size(&listener, bytes as usize)?;
        }
        Ok::<_, io::Error>(listener)
    })??;
    let to = listener.local_addr()?;
    if !wait_until(begin_s, begun, over) {
        return Ok(());
    }
    let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5));
    let mut near = in_namespace(&space(&placed.from), connect)??;
    let (mut far, _) = listener.accept()?;
    near.set_write_timeout(Some(LOOK_AGAIN))?;
    far.set_read_timeout(Some(LOOK_AGAIN))?;
    let goes_on = || begun.elapsed().as_secs_f64() < end_s && !over.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = vec![0; CHUNK_LEN];
            while goes_on() {
                match far.read(&mut bytes) {
                    Ok(read) => drop(taken.fetch_add(read as u64, Ordering::Relaxed)),
                    Err(error) if is_late(&error) => {}
                    Err(_) => return,
                }
            }
        });
        let bytes = vec![0; CHUNK_LEN];
        while goes_on() {
            match near.write(&bytes) {
                Ok(_) => {}
                Err(error) if is_late(&error) => {}
                Err(_) => return,
            }
        }
    });
    Ok(())
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn read(
    source: &str,
    links: &[(String, String)],
    taken: &[AtomicU64],
    begun: Instant,
    interval: Duration,
    over: &AtomicBool,
) -> Vec<Sample> {
    let readings = in_namespace(&space(source), || {
        let now = || {
            let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
            let counters = crate::world::parse_counters(&text);
            let of = |name: &String| counters.iter().find(|(known, ..)| known == name).map_or(0, |c| c.2);
            let links: Vec<u64> = links.iter().map(|(name, _)| of(name)).collect();
            let flows: Vec<u64> = taken.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect();
            (begun.elapsed().as_secs_f64(), links, flows)
        };
        let mut samples: Vec<Sample> = Vec::new();
        let mut last = now();
        while wait_until(last.0 + interval.as_secs_f64(), begun, over) && samples.len() < SAMPLES_MAX {
            let next = now();
            let rate = |before: &[u64], after: &[u64]| {
                let bps = |(before, after): (&u64, &u64)| {
                    (after.saturating_sub(*before) as f64 * 8.0 / (next.0 - last.0)) as u64
                };
                before.iter().zip(after).map(bps).collect()
            };
            let (links_bps, flows_bps) = (rate(&last.1, &next.1), rate(&last.2, &next.2));
            samples.push(Sample { at_s: next.0, links_bps, flows_bps });
            last = next;
        }
        samples
    });
    readings.unwrap_or_else(|error| {
        tracing::error!(%error, "the source's counters cannot be read");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_read_and_written() {
        for text in ["h8-h7@2..6=65536", "8-7@0..0.5"] {
            assert_eq!(text.parse::<Flow>().unwrap().to_string(), text);
        }
        let bare = "h1-h2@1..2=128KiB".parse::<Flow>().unwrap();
        assert_eq!(bare.window_bytes, Some(128 << 10));
        for text in
            ["", "h1@1..2", "h1-h2", "h1-h2@2..1", "h1-h2@1", "h1-h2@1..2=x", "-h2@1..2", "h1-h2@1..2=1"]
        {
            let message = text.parse::<Flow>().unwrap_err().to_string();
            assert!(message.contains("h8-h7@2..6"), "{message}");
        }
    }

    #[test]
    fn means_are_of_their_interval_alone() {
        let sample = |at_s, rate| Sample { at_s, links_bps: vec![rate, 2 * rate], flows_bps: vec![] };
        let samples = vec![sample(0.5, 100), sample(1.0, 10), sample(1.5, 30), sample(2.0, 900)];
        let readings = Readings { links: vec!["a".into(), "b".into()], flows: vec![], samples };
        assert_eq!(readings.mean(0.5, 1.5), Some((vec![20, 40], vec![])));
        assert_eq!(readings.mean(2.0, 3.0), None);
    }
}
