//! Addresses of an agent: the interface's address, and its control port there. Both change when the
//! interface's address does, for example when a DHCP lease has run out.

pub(crate) use super::addresses::Place;
use super::manager_link::LinkState;
use super::shared::Shared;
use crate::transfer::clock::wait;
use polycast_net::interface;
use polycast_net::link_watch::NetworkWatch;
use polycast_net::reach::Answerer;
use polycast_types::Time;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The longest time without a look at whether the agent ends.
const LOOK_INTERVAL: polycast_types::Duration = polycast_types::Duration::from_millis(500);
/// Time within which related changes happen together: an address goes before another one comes.
const SETTLE: Duration = Duration::from_millis(100);

/// Interface and port that were requested for an agent.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// The interface, by name or address.
    pub interface: Option<String>,
    /// The port; any where the usual one is taken.
    pub port: Option<u16>,
    /// The usual one.
    pub usual_port: u16,
}

impl Wish {
    /// Listens at this address, at the port that was wished for.
    ///
    /// # Errors
    /// The port, or the address, cannot be had.
    pub(super) fn listen(&self, address: IpAddr) -> io::Result<(TcpListener, Place)> {
        let listener = TcpListener::bind((address, self.port.unwrap_or(self.usual_port)));
        let listener = listener.or_else(|error| match self.port {
            None => TcpListener::bind((address, 0)),
            Some(_) => Err(error),
        })?;
        let control = listener.local_addr()?;
        Ok((listener, Place { interface: address, control }))
    }
}

/// A thread that answers `polycast doctor` of other hosts; it ends when this is dropped.
struct Answering(Arc<AtomicBool>);

impl Answering {
    fn start(shared: &Shared) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        match Answerer::open(shared.interface(), &shared.name) {
            Ok(answerer) => {
                std::thread::spawn(move || answerer.run(&|| ended.load(Ordering::Relaxed), &mut |_, _| {}));
            }
            // Transfers do not need it.
            Err(error) => tracing::info!(%error, "no answers for the doctors of other machines"),
        }
        Answering(ends)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Keeps an agent where its interface is, until it has `ended`, which is held while it is looked: an agent
/// that has ended is used no more.
pub(super) fn follow(shared: &Weak<Shared>, wish: &Wish, ended: &Mutex<bool>) {
    let mut answering: Option<Answering> = None;
    let mut watch = match NetworkWatch::open() {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::warn!(%error, "the kernel does not tell of changes: they are looked for while no manager is there");
            None
        }
    };
    // What has changed before the kernel was listened to is seen now.
    let (mut is_due, mut trouble) = (true, None);
    loop {
        {
            let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(shared) = shared.upgrade().filter(|_| !*ended) else { return };
            let has_moved = is_due && follow_once(&shared, wish, &mut trouble);
            if has_moved || answering.is_none() {
                answering = Some(Answering::start(&shared));
            }
            is_due = trouble.is_some() || shared.link.state() != LinkState::Joined;
        }
        if hear(watch.as_mut()) {
            std::thread::sleep(SETTLE);
            is_due = true;
        }
    }
}

/// Looks once, and says what is in the way if that is new; gives whether the agent has moved.
fn follow_once(shared: &Shared, wish: &Wish, trouble: &mut Option<String>) -> bool {
    match look(shared, wish) {
        Ok(has_moved) => {
            *trouble = None;
            has_moved
        }
        Err(error) => {
            let words = error.to_string();
            if trouble.as_ref() != Some(&words) {
                tracing::warn!(%error, "the agent cannot follow its interface's address: tries again");
            }
            *trouble = Some(words);
            false
        }
    }
}

/// Waits for a change for a while; gives whether there was one.
fn hear(watch: Option<&mut NetworkWatch>) -> bool {
    let mut fds: Vec<PollFd<'_>> =
        watch.iter().map(|watch| PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)).collect();
    if wait(&mut fds, Time::ZERO, None, LOOK_INTERVAL).is_err() {
        std::thread::sleep(SETTLE);
    }
    drop(fds);
    watch.is_some_and(|watch| watch.heard().unwrap_or(true))
}

/// Moves the agent where it is to be, if that is elsewhere; gives whether it has moved.
fn look(shared: &Shared, wish: &Wish) -> io::Result<bool> {
    let at_large = shared.link.state() != LinkState::Joined;
    let before = shared.place();
    let Some(to) = interface::elsewhere(wish.interface.as_deref(), before.interface, at_large)? else {
        return Ok(false);
    };
    let (listener, place) = wish.listen(to.address)?;
    listener.set_nonblocking(true)?;
    tracing::warn!(before = %before.control, now = %place.control, interface = %to.name,
        "the machine's address has changed: the agent listens at the new one");
    shared.door.move_to(place.control);
    shared.moved.put(listener);
    shared.link.move_to(place);
    Ok(true)
}
