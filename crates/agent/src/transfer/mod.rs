//! Running one transfer: the drivers of the push machines (Republic section III-A).
//!
//! [`deliver`] runs the source's side and [`receive`] a receiver's side; both block the calling
//! thread until the transfer has ended, and may be run for many transfers at the same time.
#![cfg_attr(
    not(feature = "cluster"),
    allow(
        dead_code,
        unused_imports,
        reason = "agents ask for more of a transfer than `cast`, `offer` and `accept` do"
    )
)]

mod arrivals;
pub(crate) mod assembler;
pub(crate) mod bell;
mod channel;
pub(crate) mod clock;
mod code;
mod confirm;
mod control;
mod discovery;
pub(crate) mod door;
mod entrance;
mod error;
mod fresh;
mod gone;
#[cfg(test)]
mod hostile_tests;
mod invite;
mod link;
mod listen;
#[cfg(test)]
mod names_tests;
mod older;
mod pacing;
mod pairing;
#[cfg(test)]
mod pairing_tests;
mod place;
#[cfg(feature = "cluster")]
pub(crate) mod pull;
mod receiver;
mod serve;
#[cfg(test)]
mod session_tests;
mod source;
mod steering;
pub(crate) mod strangers;
mod supply;
#[cfg(test)]
mod tickets_tests;
pub mod trace;
mod unchanged;

pub use arrivals::Arrivals;
pub use code::{Code, DrawnElsewhere, OfferCode};
pub use confirm::{Held, confirm};
pub use discovery::{Announced, News, Search, Unfit, accept};
pub use door::Door;
pub use error::TransferError;
pub use invite::Invitation;
pub(crate) use invite::{TIMEOUT as ANSWER_WITHIN, answer, permit_of};
pub use listen::Listen;
pub use older::OlderVersions;
pub(crate) use place::kind_of;
pub use polycast_protocol::session::{Called, Permitted};
#[cfg(feature = "cluster")]
pub use pull::{PreparedPull, deliver_pull, fetch, prepare_pull};
pub use receiver::receive;
pub use source::{Prepared, Seekers, deliver, prepare};
pub use steering::{Change, ControlStep, Fared, NextPath, PathNews, Permission, Rest, RouteChange, Steering};

use polycast_net::object::{ObjectKind, ObjectSource};
use polycast_net::priority::Dscp;
use polycast_net::store::{MoreRoom, PartFile};
use polycast_net::tls::{Expected, Security};
use polycast_protocol::route::Route;
use polycast_protocol::session::HAVE_WITHIN;
use polycast_types::{Duration, Handle, Location, ModificationTime, ObjectId, PullTuning, Rate};
use polycast_wire::control::{Delta, Hash};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Way that the object travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// IP multicast to this group; TCP takes over where it does not get through.
    Multicast {
        /// Group address and port of the data channel.
        group: SocketAddr,
        /// The granted rate of a dedicated path; `None` on a shared network, where the sender adapts.
        rate: Option<Rate>,
        /// Longest interval between attempts, where the fabric knows how long its set-up takes.
        attempts: Option<Duration>,
        /// A header of the network's own before every datagram, such as a label; packets take turns among
        /// several, all of one length. Empty without.
        outer: Vec<Vec<u8>>,
    },
    /// The TCP overlay from the start: receivers bring the object to each other.
    Chain,
    /// Receivers pull over several trees (Datacast); only with a node of such a fabric.
    Trees(TreePath),
}

/// The trees of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePath {
    /// Number of trees when nothing has failed.
    pub trees: u8,
    /// Bytes of payload in a packet.
    pub payload_len: u16,
    /// Number of packets that a receiver may request at a time in each tree (w).
    pub credits: u32,
    /// The rate of the source's links, in bits a second: no tree is ever sent faster.
    pub link_bps: u64,
    /// Settings that override those which follow from the above.
    pub tuning: PullTuning,
    /// Every receiver's way to the source in each tree, by the receiver's name.
    pub routes: BTreeMap<String, Vec<Option<Route>>>,
}

pub use polycast_api::report::{ReceiverReport, Report};
pub use polycast_protocol::push::SlowPolicy;

/// Settings of a transfer; `Default` is right for most.
#[derive(Clone, Debug)]
pub struct Options {
    /// Receivers that are not done by then have failed.
    pub deadline: Option<Duration>,
    /// Time to wait for receivers to appear.
    pub join_timeout: Duration,
    /// Time for a source to take a receiver's connection, and for each answer until the receiver is welcome.
    pub answer_within: Duration,
    /// A receiver that has said HELLO says something at least this often until it says what it has; it loses
    /// its place otherwise.
    pub have_timeout: Duration,
    /// A receiver that the data channel does not reach for this long gets the rest over TCP.
    pub path_timeout: Duration,
    /// A receiver without any sign of life for this long has failed.
    pub stall_timeout: Duration,
    /// Policy for slow receivers.
    pub slow: SlowPolicy,
    /// Fraction of data packets that each receiver throws away on arrival, for tests and demonstrations.
    pub loss: f64,
    /// Seed of the loss.
    pub seed: u64,
    /// Place where this end listens for others.
    pub listen: Listen,
    /// Code that receivers of an offer must know.
    pub code: Option<OfferCode>,
    /// Sealing, which decides which machines can read the bytes on their way.
    pub sealing: Sealing,
    /// A receiver looks at what is at its place already, and is not sent what of it is right.
    pub update: bool,
    /// Older versions of the object at a receiver: their right parts are not sent.
    pub older: OlderVersions,
    /// The byte that a source's stream begins with, so that receivers have it first; after the last one comes
    /// the first.
    pub first_byte: u64,
    /// Settings of a source for a transfer over trees, which override those of its path.
    pub pull: PullTuning,
    /// A receiver says here which bytes are verified.
    pub arrivals: Option<Arc<Arrivals>>,
    /// The class of service that a source's data packets are marked with.
    pub dscp: Option<Dscp>,
    /// Set if a source offers its object again when it is changed while it is sent: receivers are asked to
    /// come again.
    pub again: bool,
    /// Delta that a source sends, and of which its receivers make the object.
    pub delta: Option<Delta>,
}

/// With what connections and packets of a transfer are sealed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sealing {
    /// With nothing: all who are on the network can read along, and put in what they like.
    #[default]
    Plain,
    /// With the secret that those learn who know the offer's code.
    ByCode,
    /// With this.
    By(Security),
}

/// Receivers that a transfer is for.
#[derive(Clone, Debug)]
pub enum Receivers {
    /// This many: the first that answer the announcement (`offer` / `accept`).
    Count(usize),
    /// This many are waited for at the beginning, and others may come until the transfer is cancelled (`offer
    /// --serve`).
    AtLeast(usize),
    /// Agents by name and control address; the source invites each (`send`).
    Named(Vec<(String, SocketAddr)>),
    /// This many, who are told the control address some other way (`cast`).
    Told(usize),
}

impl Default for Options {
    fn default() -> Self {
        Options {
            deadline: None,
            join_timeout: Duration::from_secs(30),
            answer_within: Duration::from_secs(10),
            have_timeout: HAVE_WITHIN,
            path_timeout: Duration::from_secs(1),
            stall_timeout: Duration::from_secs(10),
            slow: SlowPolicy::SHIPPED,
            loss: 0.0,
            seed: 0,
            listen: Listen::default(),
            code: None,
            sealing: Sealing::Plain,
            update: false,
            older: OlderVersions::default(),
            first_byte: 0,
            pull: PullTuning::default(),
            arrivals: None,
            dscp: None,
            again: false,
            delta: None,
        }
    }
}

impl Sealing {
    /// Returns the security of connections, where that does not depend on the offer.
    #[must_use]
    pub fn security(&self) -> Option<Security> {
        match self {
            Sealing::By(security) => Some(security.clone()),
            Sealing::Plain | Sealing::ByCode => None,
        }
    }
}

/// Everything the source of a transfer needs.
pub struct SourceSpec {
    /// The object's name.
    pub object: ObjectId,
    /// File or directory name, without a path, that receivers may use.
    pub name: String,
    /// File or directory.
    pub kind: ObjectKind,
    /// The bytes.
    pub source: Arc<dyn ObjectSource>,
    /// Their root hash, where it is known: receivers that have this object already need not get it again.
    pub root: Option<Hash>,
    /// The receivers.
    pub receivers: Receivers,
    /// Zone and rack of this host.
    pub location: Location,
    /// Address of the local interface to send from.
    pub interface: IpAddr,
    /// The path.
    pub path: Path,
    /// Settings.
    pub options: Options,
    /// Set to end the transfer early; receivers are told.
    pub cancel: Arc<AtomicBool>,
    /// Channel by which the transfer is notified of changes while it runs.
    pub steering: Arc<Steering>,
}

/// Way in which a receiver finds the source.
#[derive(Clone, Debug)]
pub enum Rendezvous {
    /// Announcement of the source (`accept`).
    Announced(Announced),
    /// The source's control address and the transfer's handle, from an invitation.
    At(SocketAddr, Handle),
    /// The same for an object that is pulled over trees.
    Pull(SocketAddr, Handle),
}

/// Destination of a received object.
#[derive(Clone, Debug)]
pub enum Sink {
    /// To this path: a file, or for a directory object the directory; nothing is there before all is
    /// verified.
    At {
        /// The path.
        path: PathBuf,
        /// Set to replace existing data; otherwise it stays, and nothing is received.
        replace: bool,
    },
    /// Into this folder, under the name that the source gives the object.
    Into {
        /// The folder.
        folder: PathBuf,
        /// Set to replace data that has that name already; otherwise it stays, and nothing is received.
        replace: bool,
    },
    /// To this file as the raw object bytes, also for directories.
    Raw(PathBuf),
    /// The same in an agent's store, which keeps the object before the source hears that it is here.
    Kept {
        /// The file.
        path: PathBuf,
        /// The store.
        keeper: Keeper,
    },
}

/// Object that a receiver has verified, when it is about to get its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// The object.
    pub object: ObjectId,
    /// The name it has at the source.
    pub name: String,
    /// File, directory or set.
    pub kind: ObjectKind,
    /// Its length.
    pub len_bytes: u64,
    /// Permissions that the file has at the source.
    pub mode: u16,
    /// Time of the file's last change there, if that is known.
    pub modified: Option<ModificationTime>,
    /// BLAKE3 root hash in hex.
    pub root: String,
}

/// An agent's store, as a transfer sees it: it gives a verified object its place, where it would survive
/// whatever happens next, or says why it has none there; the source hears only then that it is here. And it
/// makes room where its file system is full.
#[derive(Clone)]
pub struct Keeper {
    keep: Arc<Keeping>,
    more: MoreRoom,
}

type Keeping = dyn Fn(PartFile, &Verified) -> Result<(), TransferError> + Send + Sync;

impl Keeper {
    /// One that does this.
    pub fn by(
        keep: impl Fn(PartFile, &Verified) -> Result<(), TransferError> + Send + Sync + 'static,
        more: MoreRoom,
    ) -> Self {
        Keeper { keep: Arc::new(keep), more }
    }

    /// Keeps an object whose bytes are all in its part file.
    ///
    /// # Errors
    /// The store does not take it, or fails.
    pub fn keep(&self, part: PartFile, object: &Verified) -> Result<(), TransferError> {
        (self.keep)(part, object)
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keeper")
    }
}

/// Everything a receiver of a transfer needs.
#[derive(Clone)]
pub struct ReceiverSpec {
    /// The receiver's name in reports.
    pub name: String,
    /// Way to find the source.
    pub rendezvous: Rendezvous,
    /// Transfer that the source has called for; `None` where this end has not been called.
    pub called: Option<Called>,
    /// Zone and rack of this host.
    pub location: Location,
    /// Address of the local interface to receive on.
    pub interface: IpAddr,
    /// Destination of the object.
    pub sink: Sink,
    /// Settings (loss and stall time-out are used).
    pub options: Options,
    /// Set to end early.
    pub cancel: Arc<AtomicBool>,
}

impl ReceiverSpec {
    /// Returns the end that the source has to be.
    fn expected(&self) -> Expected {
        match self.called.as_ref().and_then(|called| called.permitted.as_ref()) {
            Some(permitted) => Expected::Member(permitted.source.clone()),
            // An offer's source, and one in this process, has no name: it is known by its key, or by the
            // secret that it shares.
            None => Expected::Offerer,
        }
    }

    /// Returns the end that has to be where the source places the receiver of this name; without a name it is
    /// the source itself.
    fn named(&self, name: Option<String>) -> Expected {
        match (name, self.expected()) {
            (Some(name), _) => Expected::Member(name),
            // Receivers of an offer have its secret, and no names.
            (None, Expected::Offerer) => Expected::Sharer,
            (None, source) => source,
        }
    }

    /// Holds a root hash against what this end was called for.
    fn check_root(&self, root: &Hash) -> Result<(), TransferError> {
        Ok(self.called.as_ref().map_or(Ok(()), |called| called.check_root(root))?)
    }

    /// Returns the security of connections to the source, and to other receivers.
    fn security(&self) -> Result<Option<Security>, TransferError> {
        match (&self.options.sealing, &self.rendezvous) {
            (Sealing::Plain, _) => Ok(None),
            (Sealing::By(security), _) => Ok(Some(security.clone())),
            (Sealing::ByCode, Rendezvous::Announced(Announced { pairing: Some(pairing), .. })) => {
                Ok(Some(pairing.security()))
            }
            (Sealing::ByCode, _) => Err(TransferError::Unusable("there is no code to seal with".into())),
        }
    }
}

/// Names that the engine has for its two ways.
const MULTICAST: &str = "ip-multicast";
const CHAIN: &str = "tcp-chain";

/// Object that a receiver got.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// The object.
    pub object: ObjectId,
    /// The name it had at the source.
    pub name: String,
    /// File or directory.
    pub kind: ObjectKind,
    /// Its length in bytes.
    pub bytes: u64,
    /// Permissions that the file has at the source.
    pub mode: u16,
    /// Time of the file's last change there, if that is known.
    pub modified: Option<ModificationTime>,
    /// BLAKE3 root hash in hex.
    pub root: String,
    /// Path of the object now.
    pub path: PathBuf,
    /// Seconds from the first contact with the source.
    pub seconds: f64,
    /// Seconds of these before the first bytes came: the source waits for its receivers.
    pub waited: f64,
    /// Bytes that came as patches.
    pub patched_bytes: u64,
    /// Bytes that were here already, of an older version or an earlier try, and were not sent.
    pub spared_bytes: u64,
    /// Bytes that came over the network: the others were here, or are holes.
    pub came_bytes: u64,
    /// Hash groups that came with wrong bytes, and again.
    pub corrupt_groups: u64,
    /// Set if only the source and its receivers could read the bytes on their way.
    pub sealed: bool,
    /// Packets that came for the transfer and were not its source's.
    pub forged_packets: u64,
    /// The object was there already, and was left as it is.
    pub unchanged: bool,
}

/// A receiver's progress.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceiverProgress {
    /// The name that the object has at the source.
    pub name: String,
    /// Verified bytes.
    pub bytes: u64,
    /// Bytes of these that did not have to come: they were here, or are holes.
    pub spared_bytes: u64,
    /// Length of the object.
    pub total: u64,
    /// Hash groups that have come with wrong bytes so far.
    pub corrupt_groups: u64,
    /// Once the object is where it belongs: what was received. The transfer may go on for others, which fetch
    /// from here.
    pub received: Option<Received>,
}
