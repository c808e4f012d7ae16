//! The source's end of a pull transfer: it sets the group up and hears how receivers fare.

use super::super::bell::Bell;
use super::super::clock::wait;
use super::super::control::{Event, Session};
use super::super::entrance::Entrance;
use super::super::error::TransferError;
use super::super::receiver::form_of;
use super::super::unchanged::Unchanged;
use super::super::{
    ControlStep, Path, PathNews, ReceiverReport, Report, RouteChange, SourceSpec, TreePath, trace,
};
use super::sums::Sums;
use crate::forwarder::{FRAME_HEADERS_LEN, NodeHandle, Place, SourceEnd, TreeStatus};
use polycast_api::report::goodput_bps;
use polycast_net::hash::{GROUP_LEN, hex};
use polycast_net::object::ObjectSource;
use polycast_net::seal::{Seal, SealedObject, Secret};
use polycast_protocol::pull::{Blocks, RateConfig, Route, SourceConfig};
use polycast_protocol::push::Geometry;
use polycast_protocol::session::{
    Entry, Expected, Goodbye, GuestId, RosterInput as Input, Stage, Verdicts, Why,
};
use polycast_types::{Duration, Handle, PullTuning, RangeSet, Time};
use polycast_wire::control::NOWHERE;
use polycast_wire::control::{Control, DIGESTS_MAX, Hash, SealSecret, Welcome};
use polycast_wire::pull::HEADER_LEN;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that may wait to be sent to one receiver when more hashes and digests are queued.
const SETUP_QUEUE_LEN: usize = 1 << 20;
/// The caller hears of the transfer this often.
const EVENT_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time without a look at what the caller asks for.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Between two words of a receiver on how far it is, in a small group and at most.
const PROGRESS_MS: u64 = 100;
const PROGRESS_MS_MOST: u64 = 2_000;
/// Receivers that say so as often as one of a small group.
const PROGRESS_RECEIVERS: u64 = 8;
/// A packet is lost that so many have overtaken, as with TCP: trees keep the order.
const OVERTAKEN: u32 = 3;
/// Receivers whose ways are known, those included that are named later.
const ROUTES_MAX: usize = 1 << 16;
/// Interests that may wait at the source for tokens, a tree and port.
const WAITING_MAX: u32 = 1 << 14;

/// The name of the fabric in reports.
const DATACAST: &str = "datacast";

/// The source's end of a pull transfer, before it runs.
pub struct PreparedPull {
    spec: SourceSpec,
    path: TreePath,
    node: NodeHandle,
    place: Arc<Place>,
    entrance: Entrance,
}

/// Sends one object to its receivers, by way of the node that the source is behind; blocks until each is done
/// or has failed.
///
/// # Errors
/// No transfer was possible at all; receivers that failed are in the report.
pub fn deliver_pull(
    spec: SourceSpec,
    node: &NodeHandle,
    on_event: &mut dyn FnMut(&Report),
) -> Result<Report, TransferError> {
    prepare_pull(spec, node)?.run(on_event)
}

/// Opens the control channel, so that its address and the handle can be told to receivers.
///
/// # Errors
/// The path is not one over trees, or no port can be had.
pub fn prepare_pull(spec: SourceSpec, node: &NodeHandle) -> Result<PreparedPull, TransferError> {
    let Path::Trees(path) = &spec.path else {
        return Err(TransferError::Unusable("only paths over trees can be pulled over".into()));
    };
    if path.payload_len == 0 || path.credits == 0 || path.link_bps == 0 || path.trees == 0 {
        return Err(TransferError::Unusable(
            "no packet can be pulled over its trees: they need a payload, credits and a rate".into(),
        ));
    }
    let (path, entrance) = (path.clone(), Entrance::open(spec.interface, &spec.options)?);
    let place = Arc::new(node.place(entrance.handle)?);
    Ok(PreparedPull { spec, path, node: node.clone(), place, entrance })
}

impl PreparedPull {
    /// Returns the address that receivers connect to.
    #[must_use]
    pub fn control_address(&self) -> SocketAddr {
        self.entrance.address
    }

    /// The transfer's handle.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.entrance.handle
    }

    /// Delivers; blocks until each receiver is done or has failed.
    ///
    /// # Errors
    /// No transfer was possible at all; receivers that failed are in the report.
    pub fn run(self, on_event: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
        let end = trace::Source::begin(self.handle(), &self.spec);
        let outcome = self.run_to_its_end(on_event);
        end.told(&outcome);
        outcome
    }

    fn run_to_its_end(self, on_event: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
        let (node, _place) = (self.node.clone(), Arc::clone(&self.place));
        let handle = self.entrance.handle;
        let mut run = Run::new(self)?;
        let result = run.deliver(on_event);
        run.session.end(match &result {
            Ok(()) => Goodbye::Finished,
            Err(error) => error.goodbye(run.spec.options.again),
        });
        let trees = node.trees(handle);
        node.end(handle);
        for change in run.spec.steering.take() {
            run.session.change(change);
        }
        result.map(|()| run.report(trees))
    }
}

/// Record of the messages to one receiver.
#[derive(Default)]
struct Told {
    /// Roots of lists, and whether the root hash.
    roots: u64,
    root: bool,
    /// Parts of the hashes, where it has asked for them.
    parts: usize,
    /// Trees of which it has said that nothing comes in them.
    stalled: BTreeSet<u8>,
    /// Bytes that it had when it became ready. One that has a part of the object does not say so.
    held_bytes: u64,
}

/// Returns the settings by which the rate of a tree moves.
fn tuned(link_bps: u64, packet_bytes: u32, tuning: &PullTuning) -> RateConfig {
    let usual = RateConfig::in_proportion(link_bps, packet_bytes);
    RateConfig {
        initial_bps: tuning.initial_rate.map_or(usual.initial_bps, |rate| rate.0.min(usual.most_bps)),
        increase_bps: tuning.increase.map_or(usual.increase_bps, |rate| rate.0),
        interval: tuning.interval_us.map_or(usual.interval, |us| Duration::from_micros(us.into())),
        // A packet must fit in.
        depth_bytes: tuning.burst_bytes.map_or(usual.depth_bytes, |bytes| bytes.max(packet_bytes)),
        ..usual
    }
}

struct Run {
    spec: SourceSpec,
    path: TreePath,
    node: NodeHandle,
    session: Session,
    handle: Handle,
    geometry: Geometry,
    block_bytes: u64,
    blocks: Blocks,
    sums: Arc<Sums>,
    /// Check whether the root hash may be sent, without which a receiver has nothing.
    unchanged: Unchanged,
    /// The object as packets carry it.
    object: Arc<dyn ObjectSource>,
    /// Secret that packets are sealed with.
    secret: Option<Secret>,
    told: BTreeMap<GuestId, Told>,
    /// Every receiver's way in each tree, by its name; of some before they are named.
    routes: BTreeMap<String, Vec<Option<Route>>>,
    trees: u8,
    /// Trees that no receiver has a way in.
    gone: Vec<bool>,
    finished: bool,
    path_lost: Option<String>,
    events: Vec<(f64, String)>,
    control: Vec<ControlStep>,
}

impl Run {
    fn new(prepared: PreparedPull) -> Result<Self, TransferError> {
        let PreparedPull { spec, path, node, entrance, .. } = prepared;
        let mut path = path;
        path.tuning = path.tuning.with(spec.options.pull);
        path.credits = path.tuning.credits.unwrap_or(path.credits);
        let TreePath { payload_len, credits, trees, tuning, .. } = path;
        let object_len = spec.source.len();
        let geometry = Geometry { object_len, fragment_len: payload_len.into(), group_len: GROUP_LEN };
        let in_use = (0..usize::from(trees))
            .filter(|tree| path.routes.values().any(|routes| routes.get(*tree).is_some_and(Option::is_some)));
        let in_use = in_use.count() as u8;
        if in_use == 0 {
            return Err(TransferError::Unusable("there is no tree to any receiver".into()));
        }
        let bell = Bell::new()?;
        let secret = entrance.security.as_ref().map(|_| Secret::fresh());
        let seal = secret.as_ref().map(|secret| Seal::new(secret, entrance.handle));
        let block_bytes =
            tuning.block_bytes.unwrap_or_else(|| Blocks::bytes_for(object_len, payload_len, in_use, credits));
        let blocks = Blocks::new(object_len, payload_len, block_bytes)
            .ok_or_else(|| TransferError::Unusable("the object has too many blocks".into()))?
            .with_lists(GROUP_LEN)
            .ok_or_else(|| {
                TransferError::Unusable("its packets are too short to carry lists of names".into())
            })?;
        let shape = (entrance.handle, geometry, blocks);
        let sums = Sums::start(&spec.source, shape, seal.clone(), bell.clone())?;
        let object: Arc<dyn ObjectSource> = match seal {
            Some(seal) => Arc::new(SealedObject::new(Arc::clone(&spec.source), seal, payload_len.into())),
            None => Arc::clone(&spec.source),
        };
        let (mut expected, addresses) = spec.receivers.expected();
        if let Expected::Count(_) = expected {
            // Those to whom ways are known come by themselves.
            expected = Expected::Named(path.routes.keys().cloned().collect());
        }
        spec.steering.wake_by(bell.clone());
        let verdicts = Verdicts::Roster { deadline: spec.options.deadline };
        let (handle, looks) = (entrance.handle, bell.clone());
        let session = Session::begin(&spec, expected, addresses, entrance, true, verdicts, bell);
        let now = session.clock.now();
        let mut run = Run {
            unchanged: Unchanged::new(Arc::clone(&spec.source), geometry.groups(), looks, now),
            session,
            handle,
            geometry,
            block_bytes,
            blocks,
            sums,
            object,
            secret,
            told: BTreeMap::new(),
            routes: path.routes.clone(),
            trees,
            gone: vec![false; trees.into()],
            finished: false,
            path_lost: None,
            events: Vec::new(),
            control: Vec::new(),
            spec,
            path,
            node,
        };
        run.fail_those_cut_off();
        Ok(run)
    }

    fn now(&self) -> Time {
        self.session.clock.now()
    }

    fn deliver(&mut self, on_event: &mut dyn FnMut(&Report)) -> Result<(), TransferError> {
        let mut next_event = self.now();
        while !self.finished {
            if self.spec.cancel.load(Ordering::Relaxed) {
                return Err(TransferError::Cancelled);
            }
            self.turn_session()?;
            self.look()?;
            self.session.connected().into_iter().for_each(|guest| self.set_up(guest));
            self.sums.check()?;
            self.steer();
            self.turn_session()?;
            let now = self.now();
            if now >= next_event {
                next_event = now + EVENT_INTERVAL;
                self.session.meet_strangers();
                let trees = self.node.trees(self.handle);
                on_event(&self.report(trees));
            }
            if !self.finished {
                self.wait(now)?;
            }
        }
        Ok(())
    }

    /// Looks now and then whether the object is what it was, and once more when all of it is hashed.
    fn look(&mut self) -> Result<(), TransferError> {
        let now = self.now();
        if self.sums.root().is_some() {
            self.unchanged.hashed(now, self.geometry.groups());
        }
        self.unchanged.turn(now).map(drop)
    }

    /// The root hash, when it may be told.
    fn root(&self) -> Option<Hash> {
        self.sums.root().filter(|_| self.unchanged.is_sure())
    }

    /// Does what the session asks of the transport.
    fn turn_session(&mut self) -> Result<(), TransferError> {
        while let Some(event) = self.session.poll() {
            match event {
                Event::Welcome(guest) => self.say_welcome(guest),
                Event::Ready { guest, have, late } => {
                    self.told.entry(guest).or_default().held_bytes = self.bytes_of(&have);
                    if late {
                        self.join_late(guest);
                    }
                }
                Event::Start => self.start()?,
                Event::Forget(guest) => drop(self.told.remove(&guest)),
                Event::Finished => self.finished = true,
                Event::NoneCame => unreachable!("receivers over trees have names"),
                // The node notices by itself that nothing is asked for any more.
                Event::Unawaited(_) | Event::Open(_) | Event::Left { .. } => {}
            }
        }
        Ok(())
    }

    /// Returns the number of the object's bytes in these fragments, of which there may be fewer.
    fn bytes_of(&self, sns: &RangeSet) -> u64 {
        let fragments = self.geometry.fragments();
        let there = sns.iter().map(|sns| sns.start..sns.end.min(fragments)).filter(|sns| !sns.is_empty());
        let bytes = |sn| self.geometry.fragment_bytes(sn);
        there.map(|sns| bytes(sns.end - 1).end - bytes(sns.start).start).sum()
    }

    /// Takes in what has changed since the start.
    fn steer(&mut self) {
        let now = self.now();
        let seconds = self.session.roster.started_at().map_or(0.0, |at| now.since(at).as_secs_f64());
        for PathNews { event, steps, .. } in self.spec.steering.take_news() {
            self.events.extend(event.map(|event| (seconds, event)));
            self.control.extend(steps);
        }
        let rekeys = self.session.take_changes(&self.spec.steering, self.secret.is_some());
        self.events.extend(rekeys.then(|| (seconds, Why::Rekeyed.to_string())));
        let changes = self.spec.steering.take_routes();
        self.reroute(&changes);
        // What is not over trees is for another transfer, which the rest of the receivers get.
        let next = self.spec.steering.next_path();
        let elsewhere = next.map(|next| next.lost.unwrap_or_else(|| format!("{} took over", next.fabric)));
        if self.path_lost.is_none()
            && let Some(reason) = self.spec.steering.lost().or(elsewhere)
        {
            tracing::warn!(%reason, "the trees are lost");
            self.events.push((seconds, reason.clone()));
            self.path_lost = Some(reason.clone());
            for name in self.names() {
                self.session.handle(Input::Fail { name: &name, why: Why::TreesLost(reason.clone()) });
            }
        }
    }

    fn names(&self) -> Vec<String> {
        self.session.roster.entries().map(|entry| entry.name.clone()).collect()
    }

    /// Receivers that no tree leads to; the ways of one that was added may follow its name.
    fn fail_those_cut_off(&mut self) {
        for name in self.names() {
            if self.routes.get(&name).is_none_or(|routes| routes.iter().all(Option::is_none)) {
                self.session.handle(Input::Fail { name: &name, why: Why::CutOff });
            }
        }
    }

    fn wait(&mut self, now: Time) -> Result<(), TransferError> {
        let mut fds = Vec::new();
        self.session.descriptors(&mut fds);
        wait(&mut fds, now, self.session.roster.deadline(), LOOK_INTERVAL)?;
        let woken = self.session.woken(&fds);
        drop(fds);
        if woken.bell {
            self.session.clear_bell();
        }
        for guest in woken.guests {
            while self.hear(guest)? {
                self.turn_session()?;
            }
        }
        if woken.newcomers {
            // No receiver fetches groups of a pull transfer over TCP: one that says ENTER is sent away.
            self.session.meet_strangers();
        }
        Ok(())
    }

    /// Hears what a receiver has said. Returns true if it has become ready by that, with the rest unread.
    fn hear(&mut self, guest: GuestId) -> Result<bool, TransferError> {
        let (transfer, trees, told) = (self.handle, self.trees, &mut self.told);
        let heard = self.session.read(guest, |control| {
            // Once of each tree: a receiver may say so as often as it likes.
            if let Control::Stalled { tree } = control
                && *tree < trees
                && told.get_mut(&guest).is_some_and(|told| told.stalled.insert(*tree))
            {
                tracing::warn!(%transfer, guest = guest.0, tree, "nothing comes in a tree any more");
            }
        });
        heard.map_err(TransferError::reading)
    }

    fn say_welcome(&mut self, guest: GuestId) {
        let (object, kind, text) = (self.spec.object, self.spec.kind, self.spec.name.clone());
        let welcome = Welcome {
            object,
            form: form_of(kind),
            mode: self.spec.source.mode(),
            name: &text,
            object_len: self.geometry.object_len,
            fragment_len: self.geometry.fragment_len,
            group_len: self.geometry.group_len,
            channel: NOWHERE,
            outer_len: 0,
            stall_ns: self.spec.options.stall_timeout.0,
            salt: self.session.guest(guest).map_or([0; 32], |guest| guest.salt),
            modified: self.spec.source.modified(),
            data_len: None,
        };
        self.session.tell(guest, &Control::Welcome(welcome));
        if let Some(secret) = &self.secret {
            self.session.tell(guest, &Control::Seal(SealSecret(*secret.reveal())));
        }
        let (count, block_bytes, credits) = (self.trees, self.block_bytes, self.path.credits);
        let tuning = self.path.tuning;
        let (retry_ms, progress_ms) = (tuning.rto_ms.unwrap_or(0), self.progress_ms());
        let overtaken = tuning.overtaken.unwrap_or(OVERTAKEN);
        let trees = Control::Trees { count, block_bytes, credits, retry_ms, overtaken, progress_ms };
        self.session.tell(guest, &trees);
        self.told.insert(guest, Told::default());
    }

    /// Returns the interval in milliseconds at which a receiver reports its progress: longer in large groups,
    /// so that the source receives as many reports in all.
    fn progress_ms(&self) -> u32 {
        let often = self.session.roster.entries().count() as u64 / PROGRESS_RECEIVERS;
        let rarest = PROGRESS_MS_MOST.min(self.spec.options.stall_timeout.0 / 4_000_000).max(1);
        (PROGRESS_MS * often.max(1)).min(rarest) as u32
    }

    /// Sends what receivers need of the lists of names as it becomes known, and as fast as it is taken.
    fn set_up(&mut self, guest: GuestId) {
        let root = self.root();
        let Some(told) = self.told.get_mut(&guest) else { return };
        let sums = Arc::clone(&self.sums);
        while self.session.queued(guest).is_some_and(|queued| queued <= SETUP_QUEUE_LEN) {
            let mut digests = sums.roots_from(told.roots);
            if !digests.is_empty() {
                digests.truncate(DIGESTS_MAX);
                let first = told.roots;
                told.roots += digests.len() as u64;
                self.session.tell(guest, &Control::Roots { first, digests });
                continue;
            }
            if let Some(part) = sums.part(told.parts).filter(|_| self.session.asks_hashes(guest)) {
                let first = sums.first_of(told.parts).0;
                told.parts += 1;
                self.session.tell(guest, &Control::Hashes { first, hashes: part.hashes.clone() });
                continue;
            }
            if let Some(root) = root.filter(|_| !told.root) {
                told.root = true;
                self.session.tell(guest, &Control::Root(root));
            }
            return;
        }
    }

    /// Puts the source behind its node and tells receivers the ways to it.
    fn start(&mut self) -> Result<(), TransferError> {
        let TreePath { payload_len, credits, link_bps, .. } = self.path;
        let packet = FRAME_HEADERS_LEN + HEADER_LEN;
        let config = SourceConfig {
            transfer: self.handle,
            blocks: self.blocks,
            trees: self.trees,
            credits,
            rate: tuned(link_bps, packet as u32 + u32::from(payload_len), &self.path.tuning),
            header_bytes: packet as u16,
            decide_ahead: credits,
            waiting_max: WAITING_MAX,
            chance: self.path.tuning.chance.unwrap_or(true),
        };
        let (source, sums) = (Arc::clone(&self.object), Arc::clone(&self.sums));
        self.node.serve(SourceEnd::new(config, payload_len, source, sums));
        for tree in (0..self.trees).filter(|tree| !self.goes_on(*tree)).collect::<Vec<_>>() {
            self.gone[usize::from(tree)] = true;
            self.node.tree_gone(self.handle, tree);
        }
        let ready = self.session.roster.entries().filter(|entry| entry.stage == Stage::Ready);
        let ready: Vec<GuestId> = ready.filter_map(|entry| entry.guest).collect();
        for guest in ready {
            (0..self.trees).for_each(|tree| self.tell_route(guest, tree, None));
        }
        Ok(())
    }

    /// One is ready after the start: it begins with the blocks that travel now, which caches hold.
    fn join_late(&mut self, guest: GuestId) {
        // Trees that led to no receiver may be needed again.
        self.keep_trees();
        let blocks = self.node.blocks(self.handle);
        tracing::info!(guest = guest.0, ?blocks, "a receiver joins a transfer that runs");
        for tree in 0..self.trees {
            self.tell_route(guest, tree, blocks.get(usize::from(tree)).copied().flatten());
        }
    }

    fn route(&self, name: &str, tree: u8) -> Option<Route> {
        self.routes.get(name)?.get(usize::from(tree)).copied().flatten()
    }

    fn tell_route(&mut self, guest: GuestId, tree: u8, begins: Option<u32>) {
        let Some(entry) = self.session.roster.entry(guest) else { return };
        let route = self.route(&entry.name, tree);
        let hops = route.as_ref().map_or(&[][..], Route::bytes);
        self.session.tell(guest, &Control::Route { tree, begins, hops });
    }

    /// Returns true if a tree still leads to a receiver that needs it.
    fn goes_on(&self, tree: u8) -> bool {
        let mut open = self.session.roster.entries().filter(|entry| !entry.is_settled());
        open.any(|entry| self.route(&entry.name, tree).is_some())
    }

    /// Trees have been repaired or are back, or have lost receivers. Only those hear of it whose way has
    /// changed.
    fn reroute(&mut self, changes: &[RouteChange]) {
        let mut changed = Vec::new();
        for change in changes.iter().filter(|change| change.tree < self.trees) {
            let named = self.session.roster.named(&change.receiver);
            let guest = named.filter(|entry| entry.stage == Stage::Ready).and_then(|entry| entry.guest);
            if named.is_none() && self.routes.len() >= ROUTES_MAX {
                continue;
            }
            let is_named = named.is_some();
            let routes = self.routes.entry(change.receiver.clone()).or_default();
            routes.resize(usize::from(self.trees), None);
            let had = std::mem::replace(&mut routes[usize::from(change.tree)], change.route);
            if is_named && routes.iter().all(Option::is_none) {
                self.session.handle(Input::Fail { name: &change.receiver, why: Why::CutOff });
            } else {
                changed.extend(guest.map(|guest| (guest, change.tree, had.is_some())));
            }
        }
        if changes.is_empty() || self.session.roster.started_at().is_none() {
            return;
        }
        let begins = self.keep_trees();
        let blocks = self.node.blocks(self.handle);
        for (guest, tree, had) in changed {
            let number = usize::from(tree);
            // One that had no way in a tree begins with what it carries now.
            let now = blocks.get(number).copied().flatten().filter(|_| !had);
            self.tell_route(guest, tree, begins[number].or(now));
        }
    }

    /// Gives up trees that lead to no receiver, and takes up those that do again; gives the blocks that these
    /// begin with.
    fn keep_trees(&mut self) -> Vec<Option<u32>> {
        let mut begins = vec![None; usize::from(self.trees)];
        for tree in 0..self.trees {
            let at = usize::from(tree);
            let gone = !self.goes_on(tree);
            if gone && !self.gone[at] {
                self.node.tree_gone(self.handle, tree);
            } else if !gone && self.gone[at] {
                begins[at] = self.node.tree_back(self.handle, tree);
            }
            self.gone[at] = gone;
        }
        begins
    }

    fn report(&self, mut trees: Vec<TreeStatus>) -> Report {
        let (roster, now) = (&self.session.roster, self.now());
        let receiver = |entry: &Entry| {
            let told = entry.guest.and_then(|guest| self.told.get(&guest));
            let spared_bytes = told.map_or(0, |told| told.held_bytes);
            let came_bytes = entry.verified_bytes.saturating_sub(spared_bytes);
            let seconds = roster.time_of(entry, now).as_secs_f64();
            let report = ReceiverReport {
                name: entry.name.clone(),
                verified: entry.stage == Stage::Done,
                seconds,
                bytes: entry.verified_bytes,
                spared_bytes,
                came_bytes,
                rate_bps: goodput_bps(came_bytes, seconds),
                fabric: DATACAST.to_string(),
                ..ReceiverReport::default()
            };
            report.failing(self.session.failure_of(entry))
        };
        let receivers: Vec<_> = roster.entries().map(receiver).collect();
        let left = roster.entries().filter(|entry| entry.failure().is_some_and(Why::may_go_on));
        let sent_bytes = trees.iter().map(|tree| tree.sent_bytes).sum();
        let first_bytes: u64 = trees.iter().map(|tree| tree.first_bytes).sum();
        // Those that were never asked for anything are no trees of this transfer.
        trees.retain(|tree| tree.interests > 0);
        Report {
            object: self.spec.object,
            bytes: self.geometry.object_len,
            root: self.root().map(|root| hex(&root)),
            seconds: receivers.iter().map(|receiver| receiver.seconds).fold(0.0, f64::max),
            sent_bytes,
            patched_bytes: sent_bytes - first_bytes,
            spared_bytes: receivers.iter().map(|receiver| receiver.spared_bytes).sum(),
            coded_bytes: 0,
            heard: roster.heard(),
            fabric: DATACAST.into(),
            path_lost: self.path_lost.clone(),
            events: self.events.clone(),
            control: self.control.clone(),
            left: left.map(|entry| entry.name.clone()).collect(),
            receivers,
            trees,
            sealed: self.secret.is_some(),
            // Nodes drop what has not the digest that was asked for, and count it themselves.
            forged_packets: 0,
            zones: Vec::new(),
            passed_over: Vec::new(),
            estimate_s: None,
            took_s: None,
        }
    }
}
