//! Deliveries without Polycast, to compare with: plain TCP from the source to every receiver, `scp`, `rsync`,
//! NFS and BitTorrent. They run in the same namespaces and over the same links as the lab's agents (Datacast,
//! section 7, the comparison study).

mod bittorrent;
mod nfs;
mod programs;
mod ssh;
mod tcp;

use crate::compare::Way;
use crate::datacast;
use crate::error::LabError;
use crate::layout::{Host, Layout};
use crate::processor_time::ProcessorTime;
use crate::spec::Spec;
use polycast_api::error::Kind;
use polycast_api::report::{Delivery, ReceiverReport, Report};
use polycast_types::ObjectId;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes compared at a time.
const COMPARE_LEN: usize = 1 << 20;
/// A receiver that has not got a byte more for so long has failed.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// Interval between checks of which receivers have everything.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Delivery to be made: the object, its source, and its receivers.
pub(crate) struct Job<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) layout: &'a Layout,
    /// A folder of its own, in memory.
    pub(crate) folder: PathBuf,
    pub(crate) path: &'a Path,
    pub(crate) source: Host,
    pub(crate) receivers: Vec<Host>,
}

/// Result for one receiver.
struct Done {
    seconds: f64,
    error: Option<String>,
    copy: PathBuf,
}

/// Result of a delivery: when each receiver had everything, and the source's processor time.
struct Outcome {
    receivers: Vec<Done>,
    source_cpu: ProcessorTime,
}

impl Job<'_> {
    fn address(&self, host: &Host) -> IpAddr {
        address(self.spec, self.layout, host)
    }

    /// The same where the way has IPv4 alone.
    fn address_v4(&self, host: &Host) -> Ipv4Addr {
        match self.address(host) {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => unreachable!("a way that has IPv4 alone is refused before"),
        }
    }

    fn place(&self, host: &Host) -> PathBuf {
        Path::new("/run/netns").join(&host.name)
    }
}

/// A host's address on the links that carry the object.
pub(crate) fn address(spec: &Spec, layout: &Layout, host: &Host) -> IpAddr {
    let number = layout.hosts.iter().position(|other| other == host);
    match (datacast::network_of(spec), number) {
        (Some(_), Some(number)) => datacast::server_address(number as u32).into(),
        _ => host.address,
    }
}

/// Delivers a file. Gives what `send` would report, and the source's processor time.
///
/// # Errors
/// It is no file, or a program cannot be run. Receivers that fail are in the report.
pub(crate) fn deliver(way: Way, job: &Job<'_>) -> Result<(Delivery, ProcessorTime), LabError> {
    let metadata = std::fs::metadata(job.path).map_err(|error| LabError::path("read", job.path, &error))?;
    if !metadata.is_file() {
        let reason = "it delivers single files: name one".to_string();
        return Err(LabError::Way { text: way.to_string(), reason });
    }
    if job.spec.over_ipv6 && matches!(way, Way::Bittorrent | Way::Scp | Way::Rsync | Way::Nfs) {
        let reason = "in a lab with ip=6 only tcp delivers beside polycast".to_string();
        return Err(LabError::Way { text: way.to_string(), reason });
    }
    std::fs::create_dir_all(&job.folder).map_err(|error| LabError::path("make", &job.folder, &error))?;
    let outcome = match way {
        Way::Bittorrent => bittorrent::deliver(job, metadata.len()),
        Way::Scp | Way::Rsync => ssh::deliver(way, job),
        Way::Nfs => nfs::deliver(job),
        _ => tcp::deliver(job, metadata.len()),
    };
    let report = outcome.and_then(|outcome| report(way, job, metadata.len(), outcome));
    std::fs::remove_dir_all(&job.folder).map_err(|error| LabError::path("take away", &job.folder, &error))?;
    report
}

fn report(
    way: Way,
    job: &Job<'_>,
    bytes: u64,
    outcome: Outcome,
) -> Result<(Delivery, ProcessorTime), LabError> {
    let mut receivers = Vec::new();
    let mut seconds = 0.0f64;
    for (host, Done { seconds: took, mut error, copy }) in job.receivers.iter().zip(outcome.receivers) {
        seconds = seconds.max(took);
        if error.is_none() && !is_same(job.path, &copy).map_err(|e| LabError::path("read", &copy, &e))? {
            error = Some("what it got is not the object".into());
        }
        let receiver = ReceiverReport {
            name: host.name.clone(),
            verified: error.is_none(),
            seconds: took,
            bytes: if error.is_none() { bytes } else { 0 },
            fabric: way.to_string(),
            ..ReceiverReport::default()
        };
        receivers.push(receiver.failing(error.map(|why| (Kind::TransferFailed, why))));
    }
    let report = Report {
        object: ObjectId::default(),
        bytes,
        seconds,
        fabric: way.to_string(),
        receivers,
        sent_bytes: 0,
        patched_bytes: 0,
        spared_bytes: 0,
        coded_bytes: 0,
        heard: 0,
        root: None,
        path_lost: None,
        events: Vec::new(),
        control: Vec::new(),
        trees: Vec::new(),
        left: Vec::new(),
        sealed: false,
        forged_packets: 0,
        zones: Vec::new(),
        passed_over: Vec::new(),
        estimate_s: None,
        took_s: None,
    };
    let name = job.path.file_name().unwrap_or_default().to_string_lossy();
    Ok((Delivery::new(&name, report), outcome.source_cpu))
}

/// Returns true if two files have the same content.
fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut here, mut there) = (vec![0; COMPARE_LEN], vec![0; COMPARE_LEN]);
    loop {
        let read = one.read(&mut here)?;
        if read == 0 {
            return Ok(true);
        }
        other.read_exact(&mut there[..read])?;
        if here[..read] != there[..read] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_the_same_to_the_last_byte() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let mut bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
        let (one, same, short) = (file("one", &bytes), file("same", &bytes), file("short", &bytes[1..]));
        *bytes.last_mut().unwrap() ^= 1;
        let other = file("other", &bytes);
        let is_same = |path: &Path| is_same(&one, path).unwrap();
        assert_eq!((is_same(&same), is_same(&short), is_same(&other)), (true, false, false));
    }
}
