//! Changes that a transfer is notified of while it runs: that its path is lost, and that its group has
//! changed (Blast section IV-A).

use super::Path;
use super::bell::Bell;
use polycast_api::error::Refusal;
pub use polycast_api::report::ControlStep;
use polycast_api::report::PassedOver;
use polycast_net::permit::{Group, SignedPermit};
use polycast_protocol::route::Route;
use polycast_wire::permit::ShownPermit;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// A change of a transfer's group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A further receiver, by name and control address.
    Add(String, SocketAddr),
    /// A receiver, by name, that needs nothing any more.
    Remove(String),
    /// One of those that are only counted will not come, by the name that it would have come under.
    Fewer(String),
}

/// Permission that the manager has given a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// As receivers ask to see it.
    pub permit: SignedPermit,
    /// Group that it is for.
    pub group: Group,
    /// Receivers that it is not for, and the reasons.
    pub left_out: BTreeMap<String, String>,
}

impl Permission {
    /// The permit as this receiver is shown it, or why it is not for that one.
    pub(crate) fn show(&self, name: &str) -> Result<ShownPermit<'_>, String> {
        self.permit.show(&self.group, name).ok_or_else(|| {
            let why = self.left_out.get(name).cloned();
            why.unwrap_or_else(|| format!("the manager has not permitted '{name}' to receive this"))
        })
    }

    /// Returns true if the manager has judged about this receiver.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        self.left_out.contains_key(name) || self.permit.show(&self.group, name).is_some()
    }
}

/// News of the path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathNews {
    /// Set while it is not there yet and should be waited for; `None` if that is as before.
    pub waits: Option<bool>,
    /// Event on the path, in a sentence for the report.
    pub event: Option<String>,
    /// Steps of devices.
    pub steps: Vec<ControlStep>,
}

/// Another path for a transfer that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextPath {
    /// The fabric's name.
    pub fabric: String,
    /// The path.
    pub path: Path,
    /// Bytes that may be sent over it; `None` for as many as were left of the one before.
    pub bytes: Option<u64>,
    /// Reason why the one before is lost, if it is.
    pub lost: Option<String>,
}

/// Rest that a transfer still needs when it has sent as much as its path was granted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Bytes that the receiver furthest behind has not verified.
    pub bytes: u64,
    /// The receivers that are not done.
    pub receivers: Vec<String>,
}

/// A way to the source that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteChange {
    /// The receiver.
    pub receiver: String,
    /// The tree.
    pub tree: u8,
    /// The new way; `None` if the tree does not reach it any more.
    pub route: Option<Route>,
}

/// News that wait for the transfer; what comes after is not worth more memory.
const NEWS_MAX: usize = 1_024;

/// The changes that a transfer has not taken in yet.
#[derive(Debug)]
pub struct Steering {
    orders: Mutex<Orders>,
    rest: watch::Sender<Option<Rest>>,
    /// Permission of the manager, or its refusal; not known where agents do not show certificates.
    permission: watch::Sender<Option<Result<Arc<Permission>, Refusal>>>,
    /// Set once the transfer has ended so that another one with other keys takes its place.
    rekeyed: AtomicBool,
    /// Wakes the driver that takes the changes in.
    bell: OnceLock<Bell>,
}

impl Default for Steering {
    fn default() -> Self {
        Steering {
            orders: Mutex::default(),
            rest: watch::Sender::new(None),
            permission: watch::Sender::new(None),
            rekeyed: AtomicBool::new(false),
            bell: OnceLock::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Orders {
    /// The first path's fabric, and the bytes that it was granted for where these are not all.
    fabric: Option<String>,
    allowed: Option<u64>,
    /// The racks of receivers, by name.
    racks: BTreeMap<String, u32>,
    lost: Option<String>,
    outer: Option<Vec<Vec<u8>>>,
    next: Option<NextPath>,
    changes: Vec<Change>,
    /// Receivers that the path leads to no more.
    cut_off: BTreeSet<String>,
    news: Vec<PathNews>,
    /// By receiver and tree: only the newest way matters.
    routes: BTreeMap<(String, u8), Option<Route>>,
    /// Outcome of the path, as far as it is known.
    fared: Fared,
    /// The fabrics that have carried it and do not any more.
    passed_over: Vec<PassedOver>,
}

/// Outcome of a path: its manager allocates nothing again that is dead.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Fared {
    /// Names of the receivers that got nothing over it, or nothing more, though its devices held it.
    pub unreached: Vec<String>,
    /// All receivers got all that they needed over it.
    pub reached_all: bool,
    /// Time from the transfer's grant to its end, if that tells something of the fabric.
    pub took: Option<Duration>,
    /// Names of the receivers whose agents could not be reached.
    pub unreachable: BTreeSet<String>,
    /// Names of the receivers whose agents have answered.
    pub reachable: BTreeSet<String>,
}

impl Steering {
    /// Sets the bell that wakes the driver that takes the changes in; there is one.
    pub(crate) fn wake_by(&self, bell: Bell) {
        assert!(self.bell.set(bell).is_ok(), "a second driver takes the same changes in");
    }

    fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }

    /// The manager has said what it allows.
    pub fn permit(&self, permission: Result<Permission, Refusal>) {
        self.permission.send_replace(Some(permission.map(Arc::new)));
    }

    /// Returns a watch on the latest permission of the manager.
    #[must_use]
    pub fn permissions(&self) -> watch::Receiver<Option<Result<Arc<Permission>, Refusal>>> {
        self.permission.subscribe()
    }

    /// Returns the permission that receivers are to be shown.
    pub(crate) fn permission(&self) -> Option<Arc<Permission>> {
        self.permission.borrow().as_ref()?.as_ref().ok().cloned()
    }

    /// The transfer ends, and another one with other keys has to take its place.
    pub(crate) fn rekey(&self) {
        self.rekeyed.store(true, Ordering::Relaxed);
    }

    /// Returns true once the transfer has ended for that.
    #[must_use]
    pub fn is_rekeyed(&self) -> bool {
        self.rekeyed.load(Ordering::Relaxed)
    }

    /// Sets the first path: its fabric, and the bytes that it was granted for where these are not all.
    pub fn begin(&self, fabric: &str, bytes: Option<u64>) {
        let mut orders = self.lock();
        (orders.fabric, orders.allowed) = (Some(fabric.to_string()), bytes);
    }

    /// In which racks receivers are, by their names: where several share one, the source hears one of them.
    pub fn set_racks(&self, racks: BTreeMap<String, u32>) {
        self.lock().racks = racks;
    }

    /// In which racks receivers are, as far as that is known.
    pub(crate) fn racks(&self) -> BTreeMap<String, u32> {
        self.lock().racks.clone()
    }

    /// The fabric of the first path, where it was named.
    pub(crate) fn fabric(&self) -> Option<String> {
        self.lock().fabric.clone()
    }

    /// Bytes that the first path was granted for; `None` for all.
    pub(crate) fn allowed(&self) -> Option<u64> {
        self.lock().allowed
    }

    /// The transfer goes on over this path.
    pub fn take_path(&self, next: NextPath) {
        let mut orders = self.lock();
        // Headers for the path before mean nothing on this one.
        (orders.next, orders.outer) = (Some(next), None);
        drop(orders);
        self.ring();
    }

    /// The path to go on over, if there is a new one.
    pub(crate) fn next_path(&self) -> Option<NextPath> {
        self.lock().next.take()
    }

    /// A fabric carries the transfer no more, for this reason.
    pub fn pass_over(&self, fabric: &str, why: &str) {
        let passed = &mut self.lock().passed_over;
        if passed.len() < NEWS_MAX {
            passed.push(PassedOver { fabric: fabric.into(), why: why.into() });
        }
    }

    /// The fabrics that have carried it and do not any more.
    #[must_use]
    pub fn passed_over(&self) -> Vec<PassedOver> {
        self.lock().passed_over.clone()
    }

    /// Records the outcome of the path in use up to now.
    pub(crate) fn set_fared(&self, fared: Fared) {
        self.lock().fared = fared;
    }

    /// So long the transfer took from its grant to its end, which tells something of the fabric.
    pub fn set_took(&self, took: Duration) {
        self.lock().fared.took = Some(took);
    }

    /// Takes the outcome of the path that is given back now.
    #[must_use]
    pub fn take_fared(&self) -> Fared {
        std::mem::take(&mut self.lock().fared)
    }

    /// Asks for a path for the rest.
    pub(crate) fn ask_for(&self, rest: Rest) {
        self.rest.send_replace(Some(rest));
    }

    /// Returns a watch on the latest rest that further paths are needed for.
    #[must_use]
    pub fn rests(&self) -> watch::Receiver<Option<Rest>> {
        self.rest.subscribe()
    }

    /// The path must not be used any more, for this reason.
    pub fn lose_path(&self, reason: &str) {
        self.lock().lost.get_or_insert_with(|| reason.to_string());
        self.ring();
    }

    /// The path goes another way in the same network: its datagrams have these headers from now on, for this
    /// reason.
    pub fn reroute(&self, outer: Vec<Vec<u8>>, reason: &str) {
        self.lock().outer = Some(outer);
        self.tell(PathNews { event: Some(reason.to_string()), ..PathNews::default() });
    }

    /// Failures have cut these receivers off: the transfer does not wait for them any more.
    pub fn cut_off(&self, receivers: impl IntoIterator<Item = String>) {
        self.lock().cut_off.extend(receivers);
        self.ring();
    }

    /// The receivers that were cut off since the last call.
    pub(crate) fn take_cut_off(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.lock().cut_off)
    }

    /// The headers that have changed since the last call.
    pub(crate) fn take_outer(&self) -> Option<Vec<Vec<u8>>> {
        self.lock().outer.take()
    }

    /// Changes the group.
    pub fn change(&self, change: Change) {
        self.lock().changes.push(change);
        self.ring();
    }

    /// Tells what is known about the path.
    pub fn tell(&self, news: PathNews) {
        let mut orders = self.lock();
        if orders.news.len() < NEWS_MAX || news.waits.is_some() {
            orders.news.push(news);
        }
        drop(orders);
        self.ring();
    }

    /// Changes ways to the source.
    pub fn change_routes(&self, changes: impl IntoIterator<Item = RouteChange>) {
        let changes = changes.into_iter().map(|change| ((change.receiver, change.tree), change.route));
        self.lock().routes.extend(changes);
        self.ring();
    }

    /// The ways that have changed since the last call.
    pub(crate) fn take_routes(&self) -> Vec<RouteChange> {
        let routes = std::mem::take(&mut self.lock().routes);
        routes.into_iter().map(|((receiver, tree), route)| RouteChange { receiver, tree, route }).collect()
    }

    /// The news of the path since the last call.
    pub(crate) fn take_news(&self) -> Vec<PathNews> {
        std::mem::take(&mut self.lock().news)
    }

    /// Returns the reason why the path is lost, if it is.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        self.lock().lost.clone()
    }

    /// The changes since the last call.
    pub(crate) fn take(&self) -> Vec<Change> {
        std::mem::take(&mut self.lock().changes)
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        // Nothing here panics between two changes that belong together.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
