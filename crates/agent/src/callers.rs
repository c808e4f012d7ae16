//! Connections to a daemon whose other end has not shown that it belongs here. Any machine can open them, so
//! they are few, and those that say nothing keep none out.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limits on the connections of callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CallersMax {
    /// Connections from one address.
    pub(crate) of_one: usize,
    /// Connections from all addresses together.
    pub(crate) all: usize,
}

/// Connections of the callers.
///
/// If one more is too many, the oldest of the address that has the most is closed. So there is always room
/// for one more, and one host closes none but its own.
#[derive(Debug)]
pub(crate) struct Callers {
    max: CallersMax,
    calls: Mutex<Calls>,
}

#[derive(Default, Debug)]
struct Calls {
    next: u64,
    /// The oldest first.
    open: VecDeque<Call>,
}

#[derive(Debug)]
struct Call {
    number: u64,
    from: IpAddr,
    stream: TcpStream,
}

impl Callers {
    /// None yet.
    pub(crate) fn new(max: CallersMax) -> Arc<Self> {
        Arc::new(Callers { max, calls: Mutex::default() })
    }

    /// Counts one that has called from this address.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn enter(self: &Arc<Self>, from: IpAddr, stream: &TcpStream) -> io::Result<Caller> {
        let (from, stream) = (from.to_canonical(), stream.try_clone()?);
        let mut calls = self.calls();
        if let Some(call) = calls.too_many(from, self.max).and_then(|at| calls.open.remove(at)) {
            // It may have gone already.
            let _ = call.stream.shutdown(Shutdown::Both);
        }
        let number = calls.next;
        calls.next += 1;
        calls.open.push_back(Call { number, from, stream });
        Ok(Caller { callers: Arc::clone(self), number })
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    /// Finds the connection to close when another one comes from this address.
    fn too_many(&self, from: IpAddr, max: CallersMax) -> Option<usize> {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        self.open.iter().for_each(|call| *counts.entry(call.from).or_default() += 1);
        let most = match counts.get(&from) {
            Some(count) if *count >= max.of_one => *count,
            _ if self.open.len() >= max.all => counts.values().copied().max()?,
            _ => return None,
        };
        let is_own = counts.get(&from) == Some(&most);
        self.open.iter().position(|call| if is_own { call.from == from } else { counts[&call.from] == most })
    }
}

/// One of those who have called, as long as this lives: then it is counted no more, and not closed any more.
#[derive(Debug)]
pub(crate) struct Caller {
    callers: Arc<Callers>,
    number: u64,
}

impl Caller {
    /// Tells it from all others.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.callers.calls().open.retain(|call| call.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::net::{Ipv4Addr, TcpListener};

    /// The two ends of a connection.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let here = listener.accept().unwrap().0;
        here.set_nonblocking(true).unwrap();
        (here, there)
    }

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    #[test]
    fn one_host_closes_none_but_its_own() {
        let callers = Callers::new(CallersMax { of_one: 3, all: 5 });
        let mut ends = Vec::new();
        let mut call = |last: u8| {
            let (here, there) = connection();
            ends.push((callers.enter(address(last), &here).unwrap(), here, there));
            // What is closed has come to its end; what is open has not said anything.
            ends.iter_mut().map(|(_, here, _)| here.read(&mut [0]).is_err()).collect::<Vec<bool>>()
        };
        for calls in 1..=3 {
            assert_eq!(call(1), vec![true; calls]);
        }
        assert_eq!(call(1), [false, true, true, true], "one too many of one address");
        assert_eq!(call(2), [false, true, true, true, true]);
        assert_eq!(call(3), [false, true, true, true, true, true]);
        assert_eq!(
            call(4),
            [false, false, true, true, true, true, true],
            "the oldest of those that are most"
        );
        assert_eq!(call(1)[2..], [false, true, true, true, true, true], "its own");
        drop(ends.drain(3..).collect::<Vec<_>>());
        assert_eq!(callers.calls().open.len(), 0, "those that have gone are counted no more");
    }
}
