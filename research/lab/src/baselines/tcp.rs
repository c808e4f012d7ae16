//! The source sends the file to every receiver over a TCP connection of its own: the simplest overlay, and
//! Orca's unicast (section 5.1).

use super::{Done, Job, Outcome, STALLED_AFTER};
use crate::error::LabError;
use crate::processor_time::ProcessorTime;
use polycast_net::bpf::in_namespace;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

/// Delivers `bytes`. The kernel moves them from the file to the sockets and from there into files.
pub(super) fn deliver(job: &Job<'_>, bytes: u64) -> Result<Outcome, LabError> {
    let failed = |error: io::Error| LabError::system("send over TCP", error);
    let at = SocketAddr::new(job.address(&job.source), 0);
    let listen = || TcpListener::bind(at);
    let listener = in_namespace(&job.place(&job.source), listen).and_then(|made| made).map_err(failed)?;
    let to = listener.local_addr().map_err(failed)?;
    let mut pairs = Vec::new();
    for host in &job.receivers {
        let connect = || TcpStream::connect_timeout(&to, STALLED_AFTER);
        let far = in_namespace(&job.place(host), connect).and_then(|made| made).map_err(failed)?;
        let (near, _) = listener.accept().map_err(failed)?;
        pairs.push((near, far, job.folder.join(&host.name)));
    }
    let begun = Instant::now();
    let (source, mut receivers, mut source_cpu) = (job.path, Vec::new(), ProcessorTime::default());
    std::thread::scope(|scope| {
        let start = |(near, far, copy): (TcpStream, TcpStream, std::path::PathBuf)| {
            let sends = scope.spawn(move || send(source, near));
            let takes = scope.spawn(move || {
                let error = take(far, &copy, bytes).err().map(|error| error.to_string());
                Done { seconds: begun.elapsed().as_secs_f64(), error, copy }
            });
            (sends, takes)
        };
        let threads: Vec<_> = pairs.into_iter().map(start).collect();
        for (sends, takes) in threads {
            // What becomes of the sending end shows at the other one.
            let used =
                sends.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).unwrap_or_default();
            source_cpu.user_s += used.user_s;
            source_cpu.system_s += used.system_s;
            receivers.push(takes.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    Ok(Outcome { receivers, source_cpu })
}

/// Gives the processor time that it took.
fn send(source: &Path, mut stream: TcpStream) -> io::Result<ProcessorTime> {
    stream.set_write_timeout(Some(STALLED_AFTER))?;
    io::copy(&mut File::open(source)?, &mut stream)?;
    stream.flush()?;
    stream.shutdown(std::net::Shutdown::Write)?;
    // The kernel has done it all.
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Ok(ProcessorTime { user_s: 0.0, system_s: used.tv_sec as f64 + used.tv_nsec as f64 / 1e9 })
}

fn take(stream: TcpStream, copy: &Path, bytes: u64) -> io::Result<()> {
    stream.set_read_timeout(Some(STALLED_AFTER))?;
    let taken = io::copy(&mut stream.take(bytes), &mut File::create(copy)?)?;
    if taken == bytes { Ok(()) } else { Err(io::Error::other(format!("it got {taken} of {bytes} bytes"))) }
}
