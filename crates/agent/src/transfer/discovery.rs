//! Finding a source without a manager.

mod tries;

use super::clock::{Clock, wait};
use super::code::Code;
use super::error::{Offers, TransferError};
use super::fresh::fresh_salt;
use super::link::connect;
use super::pairing::{self, NotPaired, Pairing, same};
use super::{Received, ReceiverProgress, ReceiverSpec, Rendezvous, Sealing, receive};
use polycast_net::frames::{FrameError, FrameStream};
use polycast_net::interface;
use polycast_net::port_in_use::PortInUse;
use polycast_net::tls::{Expected, Security};
use polycast_net::udp::Beacon;
use polycast_protocol::session::{Offer, Why};
use polycast_types::{Duration, Handle, Printable, Time, format_bytes};
use polycast_wire::WireError;
use polycast_wire::control::{Control, Hash, Offered};
use polycast_wire::discovery::{
    Announcement, CodeSign, Discovery, PORT, QUESTION_LEN, QUESTION_LEN_MIN, group_for,
};
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use tries::Tries;

/// Offers are asked for this often.
const SOLICIT_INTERVAL: Duration = Duration::from_millis(500);
/// All sources answer at once: after this, every source on air has been heard.
const GATHER_WITHIN: Duration = Duration::from_millis(250);
/// Sources that begin together are heard within this.
const TOGETHER_WITHIN: Duration = Duration::from_millis(20);
/// Time after which an offer that had no place is requested again, and so is a source that did not answer;
/// that source then after twice as long, and so on.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Maximum number of doublings.
const DOUBLINGS_MAX: u32 = 3;
/// The longest time without a look at whether the caller has asked to end it.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which the results so far are reported, and then now and then.
const NEWS_INTERVAL: Duration = Duration::from_secs(3);
/// An offer that was named and has no place is given up after this: a receiver that lost a place comes back
/// before.
const FULL_FOR: Duration = Duration::from_secs(3);
/// Time for a source to connect, and to report its offer: at the first try, then twice as long, and so on.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// A source that says that it offers its object again is believed so often.
const AGAIN_MAX: u32 = 1_000;
/// Time of nothing but rejected offers after which one of them was the one that was meant.
const REJECTED_FOR: Duration = Duration::from_secs(3);
/// A code is tried so often in a second, with offers that one sender has announced and with those of all.
const TRIES_INTERVAL: Duration = Duration::from_secs(1);
const TRIES_OF_ONE_MAX: u32 = 8;
const TRIES_MAX: u32 = 64;
/// With an offer that has another code it is tried again after this: no source hears more wrong ones of one
/// host than it lets pass.
const OTHER_CODE_FOR: Duration = Duration::from_secs(10);
/// Datagrams that are taken between two looks at something else.
const DATAGRAMS_MAX: usize = 64;
/// Offers that are remembered.
const OFFERS_MAX: usize = 64;
/// Offers that are named where there are several.
const NAMED_MAX: usize = 8;
/// Characters of a name where there are several.
const NAME_CHARS: usize = 40;

/// An offer, as its source has announced it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The source's control address.
    pub address: SocketAddr,
    /// The transfer.
    pub handle: Handle,
    /// The name of the file or directory.
    pub name: String,
    /// The object's length in bytes.
    pub object_len: u64,
    /// The name of the source's machine.
    pub host: String,
    /// Number of further receivers that it takes.
    pub places: u32,
    /// Sign that it shows of its code, if it has one.
    pub(super) sign: Option<CodeSign>,
    /// Pairing data that its source has sent to those who know its code.
    pub(super) pairing: Option<Pairing>,
}

/// Time to wait for an answer, and the flag that ends the wait.
pub(super) type Patience<'a> = (Duration, &'a AtomicBool);

impl Announced {
    fn of(announcement: Announcement) -> Self {
        let Announcement { handle, address, port, object_len, name, host, places, code } = announcement;
        let address = SocketAddr::from((address, port));
        Announced { address, handle, name, object_len, host, places, sign: code, pairing: None }
    }

    /// Checks that a source offers what it has announced: the user may have agreed to that.
    pub(super) fn check(&self, offer: &Offer) -> Result<(), TransferError> {
        // Names are cut in announcements.
        let same = offer.name.starts_with(&self.name) && offer.geometry.object_len == self.object_len;
        let other = || TransferError::Contradiction("it offers something else than it has announced".into());
        if same { Ok(()) } else { Err(other()) }
    }

    /// Returns its line, under this name.
    fn in_words(&self, name: &str) -> String {
        let len = format_bytes(self.object_len);
        let (name, host) = (Printable(name), Printable(&self.host));
        if self.name.is_empty() {
            return format!("something sealed from {} ({host}), handle {:016x}", self.address, self.handle.0);
        }
        format!("{name} ({len}) from {} ({host}), handle {:016x}", self.address, self.handle.0)
    }
}

impl fmt::Display for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_words(&self.name))
    }
}

/// These offers, in a line.
fn in_a_line(all: &[Announced]) -> Offers {
    let name = |offer: &Announced| offer.name.chars().take(NAME_CHARS).collect::<String>();
    let named = all.iter().take(NAMED_MAX).map(|offer| offer.in_words(&name(offer))).collect::<Vec<_>>();
    let others = if all.len() > NAMED_MAX { "; and others" } else { "" };
    Offers(format!("{} offers are on air: {}{others}", all.len(), named.join("; ")))
}

/// Opens the discovery socket on an interface.
pub(crate) fn beacon(interface: IpAddr) -> Result<Beacon, TransferError> {
    Beacon::open(interface, SocketAddr::new(group_for(interface), PORT)).map_err(
        |source| match PortInUse::of(PORT, &source) {
            Some(in_use) => TransferError::PortInUse(in_use),
            None => TransferError::Multicast { interface, source },
        },
    )
}

/// Search for an offer: which one, where, and for how long.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The one with this handle.
    pub handle: Option<Handle>,
    /// The one with this code; without a code one that any host may take.
    pub code: Option<Code>,
    /// Addresses of the source, the first one that answers; where there is none, it is found by multicast.
    pub from: Vec<SocketAddr>,
    /// Time limit.
    pub timeout: Option<Duration>,
}

/// Event that is reported while an offer is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// There is an offer, and it is not for us.
    Passed(Announced, Unfit),
    /// A source does not answer yet.
    Away(SocketAddr, String),
    /// Sources cannot be asked by multicast from here, for this reason; what they announce is still heard.
    Mute(String),
    /// Nothing was found yet.
    Searching {
        /// For so long.
        span: Duration,
        /// Set if there were offers, or a host was there where the source should be.
        heard: bool,
    },
}

/// Reason why an offer is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfit {
    /// It has a code, and none was given.
    NeedsCode,
    /// It has another code.
    OtherCode,
    /// A code was given, and any host may take it.
    IsOpen,
    /// All who are to get it are there.
    Full,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unfit::NeedsCode => "it is for those who know its code: polycast accept CODE",
            Unfit::OtherCode => "it has another code",
            Unfit::IsOpen => "it has no code: polycast accept without one takes it",
            Unfit::Full => "all its receivers have joined",
        })
    }
}

/// Looks for an offer and receives it. `on_news` hears what is noticed meanwhile; `on_offer` hears what it is
/// and may refuse it before its source hears anything. The spec's rendezvous does not count.
///
/// # Errors
/// There are several offers and nothing says which, none is found in time, `on_offer` refuses, or as
/// [`receive`].
pub fn accept(
    mut spec: ReceiverSpec,
    search: &Search,
    on_news: &mut dyn FnMut(&News),
    on_offer: &mut dyn FnMut(&Announced) -> Result<(), TransferError>,
    on_event: &mut dyn FnMut(&ReceiverProgress),
) -> Result<Received, TransferError> {
    // Of those who have a key, only they can tell which offer is theirs.
    let takes_any = matches!(spec.options.sealing, Sealing::By(_));
    let mut seeker = Seeker { takes_any, ..Seeker::new(search) };
    let mut again = 0;
    loop {
        let found = seeker.find(spec.interface, &spec.cancel, on_news)?;
        let (handle, address, pairing) = (found.handle, found.address, found.pairing.clone());
        spec.options.answer_within = seeker.patience(address);
        spec.rendezvous = Rendezvous::Announced(found.clone());
        // What is offered is told only to those that know the code.
        let found = match spec.security()? {
            Some(security) => {
                let patience = (spec.options.answer_within, &*spec.cancel);
                match ask(address, handle, Some(&security), patience) {
                    Ok(known) => Announced { sign: found.sign, pairing, ..known },
                    Err(error) if error.is_silence() => {
                        seeker.try_later(address, &error, on_news);
                        continue;
                    }
                    Err(error) => {
                        seeker.reject(&found, error, on_news)?;
                        continue;
                    }
                }
            }
            None => found,
        };
        on_offer(&found)?;
        spec.rendezvous = Rendezvous::Announced(found);
        match receive(spec.clone(), on_event) {
            Err(error) if error.is_silence() => seeker.try_later(address, &error, on_news),
            // Another one took the last place meanwhile. It may lose it again: one that says nothing more is
            // not waited for. Or it has just ended.
            Err(error) if !search.is_one() && error.is_turned_down() => {
                tracing::info!(%error, "turned down, waiting for a place or another offer");
                let again_at = seeker.clock.now() + AGAIN_AFTER;
                seeker.tried(address).again_at = again_at;
            }
            // What is verified of it is kept; the time to look for it begins anew.
            Err(error) if error.comes_again() && search.handle.is_none() && again < AGAIN_MAX => {
                tracing::info!(%error, "waiting for the source to offer it again");
                again += 1;
                seeker = Seeker { takes_any, ..Seeker::new(search) };
                let again_at = seeker.clock.now() + AGAIN_AFTER;
                seeker.tried(address).again_at = again_at;
            }
            outcome => return outcome,
        }
    }
}

impl Search {
    /// Returns true if it names the offer that is meant.
    fn is_one(&self) -> bool {
        self.handle.is_some() || self.code.is_some() || !self.from.is_empty()
    }
}

/// A source that had no place, or did not answer.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    /// Number of times that it did not answer.
    silences: u32,
    /// Time from which it may be tried again.
    again_at: Time,
}

/// Verdict on an offer.
enum Judged {
    /// It is the one, or one of them.
    Fits(Announced),
    /// Its code can only be checked by trying it.
    Unknown(Announced),
    /// It is not for us.
    Unfit,
}

/// One that looks for an offer.
struct Seeker<'a> {
    search: &'a Search,
    clock: Clock,
    /// Sources that had no place, or did not answer.
    tried: BTreeMap<SocketAddr, Tried>,
    /// The caller has been told that sources cannot be asked.
    is_mute: bool,
    /// Offers that were reported to the caller as unfit, with the reasons.
    told: BTreeSet<(Handle, Unfit)>,
    /// Offers with which the code was tried: those that have another one say when it may be tried again.
    known: VecDeque<(Handle, SocketAddr, Result<Pairing, Time>)>,
    versions: BTreeSet<u8>,
    /// Time at which the offer that was looked for was first seen without a place.
    full_since: Option<Time>,
    heard: bool,
    next_news: Time,
    /// Offers are tried one after the other.
    takes_any: bool,
    /// Offers that were none, since the first of them.
    rejected: BTreeSet<(Handle, SocketAddr)>,
    rejected_since: Option<Time>,
    /// Number of times that the code was tried in this second, by sender.
    tries: BTreeMap<IpAddr, u32>,
    tries_since: Time,
}

impl<'a> Seeker<'a> {
    fn new(search: &'a Search) -> Self {
        Seeker {
            search,
            clock: Clock::start(),
            tried: BTreeMap::new(),
            is_mute: false,
            told: BTreeSet::new(),
            known: VecDeque::new(),
            versions: BTreeSet::new(),
            full_since: None,
            heard: false,
            next_news: Time::ZERO + NEWS_INTERVAL,
            takes_any: false,
            rejected: BTreeSet::new(),
            rejected_since: None,
            tries: BTreeMap::new(),
            tries_since: Time::ZERO,
        }
    }

    /// Rejects an announcement that has led to something other than it says: another one may be right. After
    /// a while it is the one that was meant.
    fn reject(
        &mut self,
        offer: &Announced,
        error: TransferError,
        on_news: &mut dyn FnMut(&News),
    ) -> Result<(), TransferError> {
        let now = self.clock.now();
        let since = *self.rejected_since.get_or_insert(now);
        let is_told = !self.search.from.is_empty() || now >= since + REJECTED_FOR;
        if is_told || matches!(error, TransferError::Cancelled) {
            return Err(error);
        }
        self.pass_over(offer, &error, on_news);
        Ok(())
    }

    /// An offer is not looked at again.
    fn pass_over(&mut self, offer: &Announced, error: &TransferError, on_news: &mut dyn FnMut(&News)) {
        if self.rejected.len() == OFFERS_MAX {
            self.rejected.clear();
        }
        if self.rejected.insert((offer.handle, offer.address)) {
            on_news(&News::Away(offer.address, error.to_string()));
        }
    }

    /// Returns the time that a source now has to connect, and to answer: longer at each try, and no longer
    /// than the user looks for one.
    fn patience(&self, address: SocketAddr) -> Duration {
        let times = self.tried.get(&address).map_or(0, |tried| tried.silences);
        let wanted = ANSWER_WITHIN * (1 << times.min(DOUBLINGS_MAX));
        let now = self.clock.now();
        let left = self.search.timeout.map_or(wanted, |timeout| (Time::ZERO + timeout).since(now));
        wanted.min(left).max(LOOK_INTERVAL)
    }

    /// A source did not answer: it is tried again, and meanwhile others are.
    fn try_later(&mut self, address: SocketAddr, error: &TransferError, on_news: &mut dyn FnMut(&News)) {
        let now = self.clock.now();
        let tried = self.tried(address);
        if tried.silences == 0 {
            on_news(&News::Away(address, error.to_string()));
        }
        tried.again_at = now + AGAIN_AFTER * (1 << tried.silences.min(DOUBLINGS_MAX));
        tried.silences += 1;
    }

    /// Returns the record of a source.
    fn tried(&mut self, address: SocketAddr) -> &mut Tried {
        if self.tried.len() == OFFERS_MAX && !self.tried.contains_key(&address) {
            self.tried.clear();
        }
        self.tried.entry(address).or_default()
    }

    /// Returns true while a source is left alone.
    fn waits(&self, address: SocketAddr) -> bool {
        self.tried.get(&address).is_some_and(|tried| self.clock.now() < tried.again_at)
    }

    /// Returns true if the code may be tried with an offer announced from there: that takes a connection, and
    /// any host can announce.
    fn may_try(&mut self, now: Time, from: IpAddr) -> bool {
        if now >= self.tries_since + TRIES_INTERVAL {
            self.tries.clear();
            self.tries_since = now;
        }
        let all: u32 = self.tries.values().sum();
        let of_one = self.tries.entry(from).or_default();
        let may = *of_one < TRIES_OF_ONE_MAX && all < TRIES_MAX;
        *of_one += u32::from(may);
        may
    }

    fn find(
        &mut self,
        interface: IpAddr,
        cancel: &AtomicBool,
        on_news: &mut dyn FnMut(&News),
    ) -> Result<Announced, TransferError> {
        match self.search.from.is_empty() {
            true => self.find_by_multicast(interface, cancel, on_news),
            false => self.find_there(cancel, on_news),
        }
    }

    /// Checks whether the search is to end, and whether the caller is to be notified that nothing was found
    /// yet.
    fn look(&mut self, cancel: &AtomicBool, on_news: &mut dyn FnMut(&News)) -> Result<Time, TransferError> {
        if cancel.load(Ordering::Relaxed) {
            return Err(TransferError::Cancelled);
        }
        let now = self.clock.now();
        if let Some(timeout) = self.search.timeout.filter(|timeout| now >= Time::ZERO + *timeout) {
            return Err(TransferError::NothingOffered(timeout));
        }
        if self.full_since.is_some_and(|since| self.search.is_one() && now >= since + FULL_FOR) {
            return Err(TransferError::Refused(Why::Full.to_string()));
        }
        if now >= self.next_news {
            let span = now.since(Time::ZERO);
            // The same again is news only after a time that counts beside the one before.
            self.next_news = now + span.max(NEWS_INTERVAL * 10);
            on_news(&News::Searching { span, heard: self.heard });
        }
        Ok(now)
    }

    /// Checks whether this offer is the one; otherwise the caller is notified of the reason, once.
    fn judge(&mut self, mut offer: Announced, on_news: &mut dyn FnMut(&News)) -> Judged {
        if self.search.handle.is_some_and(|wanted| wanted != offer.handle) {
            return Judged::Unfit;
        }
        self.heard = true;
        let unfit = match (&self.search.code, offer.sign) {
            (None, None) => None,
            (None, Some(_)) => Some(Unfit::NeedsCode),
            (Some(_), None) => Some(Unfit::IsOpen),
            (Some(code), Some(sign)) if code.sign() != sign => Some(Unfit::OtherCode),
            (Some(_), Some(_)) => match self.known(&offer) {
                Some(Ok(pairing)) => {
                    offer.pairing = Some(pairing.clone());
                    None
                }
                Some(Err(again_at)) if self.clock.now() < *again_at => Some(Unfit::OtherCode),
                Some(Err(_)) | None => return Judged::Unknown(offer),
            },
        };
        let is_full = unfit.is_none() && offer.places == 0;
        match (unfit, is_full) {
            (None, true) => drop(self.full_since.get_or_insert(self.clock.now())),
            (None, false) => self.full_since = None,
            _ => {}
        }
        let Some(unfit) = unfit.or(is_full.then_some(Unfit::Full)) else { return Judged::Fits(offer) };
        if self.told.len() < OFFERS_MAX && self.told.insert((offer.handle, unfit)) {
            on_news(&News::Passed(offer, unfit));
        }
        Judged::Unfit
    }

    /// Returns the result of the code with this offer, where it was tried.
    fn known(&self, offer: &Announced) -> Option<&Result<Pairing, Time>> {
        let is = |(handle, address): (Handle, SocketAddr)| handle == offer.handle && address == offer.address;
        self.known.iter().find(|(handle, address, _)| is((*handle, *address))).map(|(.., outcome)| outcome)
    }

    /// The code was tried with an offer; gives it back where it is the one.
    fn tried_code(
        &mut self,
        offer: Announced,
        outcome: Result<Pairing, NotPaired>,
        on_news: &mut dyn FnMut(&News),
    ) -> Result<Option<Announced>, TransferError> {
        let outcome = match outcome {
            Ok(pairing) => Ok(pairing),
            Err(NotPaired::OtherCode) => Err(self.clock.now() + OTHER_CODE_FOR),
            Err(NotPaired::Failed(TransferError::Cancelled)) => return Ok(None),
            // It may say another word later: what it offers has just changed, or too many wrong codes have
            // come.
            Err(NotPaired::Failed(error)) if error.is_turned_down() => {
                self.try_later(offer.address, &error, on_news);
                return Ok(None);
            }
            // It has announced what it is not; the one that was meant may still come.
            Err(NotPaired::Failed(error)) if self.search.from.is_empty() => {
                self.pass_over(&offer, &error, on_news);
                return Ok(None);
            }
            Err(NotPaired::Failed(error)) => return Err(error),
        };
        self.known.retain(|(handle, address, _)| (*handle, *address) != (offer.handle, offer.address));
        if self.known.len() == OFFERS_MAX {
            self.known.pop_front();
        }
        self.known.push_back((offer.handle, offer.address, outcome));
        match self.judge(offer, on_news) {
            Judged::Fits(offer) => Ok(Some(offer)),
            Judged::Unknown(_) | Judged::Unfit => Ok(None),
        }
    }

    /// Asks where the source should be, until it is there.
    fn find_there(
        &mut self,
        cancel: &AtomicBool,
        on_news: &mut dyn FnMut(&News),
    ) -> Result<Announced, TransferError> {
        let mut said = BTreeSet::new();
        loop {
            self.look(cancel, on_news)?;
            for address in &self.search.from {
                if self.waits(*address) {
                    continue;
                }
                let patience = (self.patience(*address), cancel);
                match ask(*address, self.search.handle.unwrap_or(Handle(0)), None, patience) {
                    Ok(offer) => {
                        let found = match (self.judge(offer, on_news), &self.search.code) {
                            (Judged::Fits(offer), _) => Some(offer),
                            (Judged::Unknown(offer), Some(code)) => {
                                let outcome = pairing::pair((offer.address, offer.handle), code, patience);
                                self.tried_code(offer, outcome, on_news)?
                            }
                            (Judged::Unknown(_) | Judged::Unfit, _) => None,
                        };
                        if let Some(offer) = found {
                            return Ok(offer);
                        }
                    }
                    Err(TransferError::Cancelled) => return Err(TransferError::Cancelled),
                    Err(error) => {
                        let why = error.to_string();
                        self.heard |= matches!(error, TransferError::Refused(_) | TransferError::NoOffer(_));
                        let now = self.clock.now();
                        let tried = self.tried(*address);
                        // The longer there is nothing, the less often it is asked.
                        tried.again_at = now + AGAIN_AFTER * (1 << tried.silences.min(DOUBLINGS_MAX));
                        tried.silences += u32::from(error.is_silence());
                        if said.len() < OFFERS_MAX && said.insert(why.clone()) {
                            on_news(&News::Away(*address, why));
                        }
                    }
                }
            }
            let now = self.clock.now();
            wait(&mut [], now, Some(now + SOLICIT_INTERVAL), SOLICIT_INTERVAL)?;
        }
    }

    /// Asks for offers until one with a free place comes.
    fn find_by_multicast(
        &mut self,
        interface: IpAddr,
        cancel: &AtomicBool,
        on_news: &mut dyn FnMut(&News),
    ) -> Result<Announced, TransferError> {
        let beacon = beacon(interface)?;
        let asked_at = self.clock.now();
        let mut next_solicit = Time::ZERO;
        let mut offers = BTreeMap::new();
        let mut decide_at: Option<Time> = None;
        let (mut tries, mut found) = (Tries::new()?, Vec::new());
        let mut buffer = [0; 2_048];
        loop {
            let now = self.look(cancel, on_news)?;
            if now >= next_solicit {
                next_solicit = now + SOLICIT_INTERVAL;
                // Sources of earlier versions know the short one only, which the others do not answer.
                let asked = [QUESTION_LEN, QUESTION_LEN_MIN]
                    .into_iter()
                    .try_for_each(|len| beacon.send(&Discovery::Solicit { len }.emit()));
                if let Err(error) = asked {
                    self.note_mute(interface, &error, on_news)?;
                }
            }
            for _ in 0..DATAGRAMS_MAX {
                let Some((datagram, from)) = beacon.receive(&mut buffer) else { break };
                let Some(offer) = self.read(datagram) else { continue };
                if self.rejected.contains(&(offer.handle, offer.address)) {
                    continue;
                }
                match (self.judge(offer, on_news), &self.search.code) {
                    (Judged::Fits(offer) | Judged::Unknown(offer), _) if self.waits(offer.address) => {}
                    (Judged::Fits(offer), _) => found.push(offer),
                    (Judged::Unknown(offer), Some(code)) => {
                        if !tries.is_trying(&offer) && self.may_try(now, from.ip()) {
                            let patience = self.patience(offer.address);
                            tries.begin(offer, code.clone(), patience);
                        }
                    }
                    (Judged::Unknown(_) | Judged::Unfit, _) => {}
                }
            }
            for (offer, outcome) in tries.take() {
                found.extend(self.tried_code(offer, outcome, on_news)?);
            }
            for offer in found.drain(..).take(OFFERS_MAX - offers.len()) {
                // What was on air before has answered by now, if it was asked long enough ago.
                decide_at.get_or_insert((now + TOGETHER_WITHIN).max(asked_at + GATHER_WITHIN));
                offers.entry(offer.handle).or_insert(offer);
            }
            let is_named = self.search.handle.is_some() || self.search.code.is_some() || self.takes_any;
            if decide_at.is_some_and(|at| is_named || now >= at) {
                let first = offers.pop_first();
                return match first {
                    Some((_, only)) if offers.is_empty() || self.takes_any => Ok(only),
                    first => {
                        let all = first.into_iter().chain(offers).map(|(_, offer)| offer);
                        Err(TransferError::SeveralOffers(in_a_line(&all.collect::<Vec<_>>())))
                    }
                };
            }
            let beacon = PollFd::from_borrowed_fd(beacon.as_fd(), PollFlags::IN);
            let mut fds = [beacon, tries.descriptor()];
            wait(&mut fds, now, decide_at, LOOK_INTERVAL)?;
        }
    }

    /// Sources cannot be asked. They announce themselves now and then, so that they are found all the same,
    /// unless this machine has another address by now.
    fn note_mute(
        &mut self,
        interface: IpAddr,
        error: &io::Error,
        on_news: &mut dyn FnMut(&News),
    ) -> Result<(), TransferError> {
        if !interface::is_here(interface) {
            return Err(TransferError::AddressGone(interface));
        }
        if !std::mem::replace(&mut self.is_mute, true) {
            on_news(&News::Mute(error.to_string()));
        }
        Ok(())
    }

    fn read(&mut self, datagram: &[u8]) -> Option<Announced> {
        match Discovery::parse(datagram) {
            Ok(Discovery::Announce(announcement)) => Some(Announced::of(announcement)),
            // It need not be meant for us; the others are still waited for.
            Err(error @ WireError::Version(version)) => {
                if self.versions.insert(version) {
                    tracing::warn!(%error, "an offer cannot be read");
                }
                None
            }
            _ => None,
        }
    }
}

/// Asks the source at an address what it offers.
fn ask(
    address: SocketAddr,
    handle: Handle,
    security: Option<&Security>,
    (within, cancel): (Duration, &AtomicBool),
) -> Result<Announced, TransferError> {
    // An offer's code or key says whose it is: its source has no name.
    let mut stream = connect(address, within, (security, &Expected::Offerer), cancel)?;
    let nonce = fresh_salt();
    question(&mut stream, &Control::Ask { handle, nonce }, (within, cancel), |answer| {
        let Control::Offered(offered) = answer else { return None };
        Some(Announced {
            address,
            handle: offered.handle,
            name: offered.name.to_string(),
            object_len: offered.object_len,
            host: offered.host.to_string(),
            places: offered.places,
            sign: offered.code,
            pairing: None,
        })
    })
}

/// Shows a source on a connection that is not sealed that this end has the offer's secret, and sees that the
/// source does; gives the proof for JOIN.
pub(super) fn show(
    stream: &mut FrameStream,
    pairing: &Pairing,
    (handle, name): (Handle, &str),
    patience: Patience<'_>,
) -> Result<Hash, TransferError> {
    let nonce = fresh_salt();
    let answer = question(stream, &Control::Ask { handle, nonce }, patience, |answer| match answer {
        Control::Offered(Offered { challenge, proof, .. }) => Some((*challenge, *proof)),
        _ => None,
    });
    let (challenge, proof) = answer?;
    if !same(&proof, &pairing.of_source(handle, &nonce)) {
        return Err(TransferError::Contradiction(
            "it is not the source that has told the offer's secret".into(),
        ));
    }
    Ok(pairing.of_receiver(handle, &challenge, name))
}

/// Says something to which there is one answer, and reads it.
pub(super) fn question<T>(
    stream: &mut FrameStream,
    words: &Control<'_>,
    (within, cancel): Patience<'_>,
    read: impl FnOnce(&Control<'_>) -> Option<T>,
) -> Result<T, TransferError> {
    let failed = |error| match error {
        FrameError::Wire(error) => TransferError::Protocol(error),
        error @ FrameError::Seal(_) => TransferError::Refused(format!("what is there is no offer ({error})")),
        error => TransferError::NoOffer(error.to_string()),
    };
    stream.send(words).map_err(failed)?;
    let clock = Clock::start();
    while clock.now() < Time::ZERO + within {
        if cancel.load(Ordering::Relaxed) {
            return Err(TransferError::Cancelled);
        }
        let open = stream.fill();
        match stream.next_frame().map_err(failed)? {
            Some(Control::Refuse(words)) => return Err(TransferError::Refused(words.to_string())),
            Some(answer) => return read(&answer).ok_or(TransferError::Protocol(WireError::Malformed)),
            None => open.map_err(failed)?,
        };
        stream.wait(std::time::Duration::from_millis(50))?;
    }
    Err(TransferError::NoAnswer(within))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn code() -> Code {
        "four words of ours".parse().unwrap()
    }

    fn announced(handle: u64, port: u16, sign: Option<CodeSign>) -> Announced {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (name, host) = (String::new(), String::new());
        Announced {
            address,
            handle: Handle(handle),
            name,
            object_len: 0,
            host,
            places: 1,
            sign,
            pairing: None,
        }
    }

    /// The user may have said yes to a name and a length: another object is refused, however long the name
    /// was cut.
    #[test]
    fn what_was_announced_is_what_is_offered() {
        let told = Announced { name: "weights".into(), object_len: 5, ..announced(7, 9, None) };
        let offer = |name: &str, object_len| Offer {
            object: polycast_types::ObjectId::default(),
            name: name.into(),
            form: polycast_wire::control::Form::File,
            mode: 0o644,
            modified: None,
            data_len: object_len,
            geometry: polycast_protocol::push::Geometry {
                object_len,
                fragment_len: 1_400,
                group_len: 1 << 16,
            },
            channel: ([224, 0, 0, 9].into(), 9),
            outer_len: 0,
            stall: polycast_types::Duration::from_millis(1_000),
            salt: [0; 32],
        };
        told.check(&offer("weights", 5)).expect("it is the same");
        told.check(&offer("weights-of-a-name-that-an-announcement-cuts", 5)).expect("it begins so");
        for other in [offer(".bashrc", 5), offer("weight", 5), offer("weights", 6)] {
            let error = told.check(&other).expect_err("it is another");
            assert!(matches!(error, TransferError::Contradiction(_)), "{}: {error}", other.name);
        }
    }

    /// Any host can announce offers, with each of which the code has to be tried on a connection.
    #[test]
    fn a_code_is_tried_a_few_times_in_a_second() {
        let search = Search { code: Some(code()), ..Search::default() };
        let mut seeker = Seeker::new(&search);
        let now = Time::ZERO + Duration::from_secs(5);
        let from = |last: u8| IpAddr::from([10, 0, 0, last]);
        let tried =
            |seeker: &mut Seeker<'_>, last| (0..100).filter(|_| seeker.may_try(now, from(last))).count();
        assert_eq!(tried(&mut seeker, 1), TRIES_OF_ONE_MAX as usize);
        assert_eq!(tried(&mut seeker, 2), TRIES_OF_ONE_MAX as usize, "others have their own");
        let all: usize = (3..200).map(|last| tried(&mut seeker, last)).sum();
        assert_eq!(all, (TRIES_MAX - 2 * TRIES_OF_ONE_MAX) as usize);
        let last = now + (TRIES_INTERVAL - Duration::from_millis(1));
        assert!(!seeker.may_try(last, from(1)), "it is the same second");
        assert!(seeker.may_try(now + TRIES_INTERVAL, from(1)), "it is another second");
    }

    /// However many offers are announced that have other codes, drawn words are tried with none of them.
    #[test]
    fn what_shows_another_first_word_is_not_tried() {
        let code: Code = "lusab-babad-gutih-tugad".parse().unwrap();
        let CodeSign::Drawn(own) = code.sign() else { panic!("it was drawn") };
        let search = Search { code: Some(code), ..Search::default() };
        let mut seeker = Seeker::new(&search);
        for plate in (0..=u16::MAX).filter(|plate| *plate != own) {
            let offer = announced(plate.into(), 9, Some(CodeSign::Drawn(plate)));
            assert!(matches!(seeker.judge(offer, &mut |_| ()), Judged::Unfit));
        }
        for sign in [None, Some(CodeSign::Own)] {
            assert!(matches!(seeker.judge(announced(1, 9, sign), &mut |_| ()), Judged::Unfit));
        }
        let right = announced(1, 9, Some(CodeSign::Drawn(own)));
        assert!(matches!(seeker.judge(right, &mut |_| ()), Judged::Unknown(_)));
        assert!(seeker.told.len() <= OFFERS_MAX);
    }

    /// A source that does not answer is tried again, has longer each time, and is spoken of once.
    #[test]
    fn a_silent_source_is_tried_again_and_has_longer() {
        let seconds = Duration::from_secs;
        let search = Search { timeout: Some(seconds(3_600)), ..Search::default() };
        let (mut seeker, mut said) = (Seeker::new(&search), 0);
        let (silent, other) = (announced(7, 9, None).address, announced(7, 10, None).address);
        let silence = TransferError::NoAnswer(ANSWER_WITHIN);
        assert!(silence.is_silence());
        let mut had = Vec::new();
        for _ in 0..6 {
            had.push(seeker.patience(silent));
            seeker.try_later(silent, &silence, &mut |_| said += 1);
            assert!(seeker.waits(silent) && !seeker.waits(other));
        }
        assert_eq!(had, [2, 4, 8, 16, 16, 16].map(seconds));
        assert_eq!((said, seeker.patience(other)), (1, seconds(2)));
        for port in 0..3 * OFFERS_MAX as u16 {
            seeker.try_later(announced(7, port, None).address, &silence, &mut |_| ());
        }
        assert!(seeker.tried.len() <= OFFERS_MAX, "any host can announce offers");
        let soon = Search { timeout: Some(seconds(1)), ..Search::default() };
        assert!(Seeker::new(&soon).patience(silent) <= seconds(1), "the user waits no longer");
    }

    /// An announcement that leads nowhere is left, and others are tried, for some time.
    #[test]
    fn who_repeats_an_announcement_is_passed_over() {
        let search = Search { code: Some(code()), ..Search::default() };
        let (mut seeker, mut said) = (Seeker::new(&search), 0);
        let wrong = || TransferError::Unusable("the other end has another key".into());
        for _ in 0..3 {
            seeker.reject(&announced(7, 9, None), wrong(), &mut |_| said += 1).expect("there may be others");
        }
        assert_eq!(said, 1);
        assert!(seeker.rejected.contains(&(Handle(7), announced(7, 9, None).address)));
        assert!(!seeker.rejected.contains(&(Handle(7), announced(7, 10, None).address)), "another address");
        let cancelled = seeker.reject(&announced(8, 9, None), TransferError::Cancelled, &mut |_| ());
        assert!(matches!(cancelled, Err(TransferError::Cancelled)));
        let there = Search { from: vec![announced(7, 9, None).address], ..search.clone() };
        let told = Seeker::new(&there).reject(&announced(7, 9, None), wrong(), &mut |_| ());
        assert!(told.is_err(), "this one was named");
    }
}
