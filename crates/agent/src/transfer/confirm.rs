//! A receiver that has the object already: it says so, and nothing is sent to it.

use super::clock::{Clock, wait};
use super::error::TransferError;
use super::link::{Link, error_of};
use super::{ReceiverSpec, Rendezvous};
use polycast_net::hash::keyed_hash;
use polycast_net::object::ObjectSource;
use polycast_protocol::session::{End, GuestInput, GuestOutput, Offer};
use polycast_types::{Duration, ObjectId};
use polycast_wire::control::{Control, Hash, proven_group};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Said to the source, which paces nothing by it: this receiver has no socket for data.
const WINDOW_BYTES: u64 = 1 << 20;
/// The longest time without a look at whether the caller has asked to end it.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// An object that is here, whole and verified.
#[derive(Clone)]
pub struct Held {
    /// Its name.
    pub object: ObjectId,
    /// Its length in bytes.
    pub length: u64,
    /// Its root hash.
    pub root: Hash,
    /// Its bytes.
    pub bytes: Arc<dyn ObjectSource>,
}

/// Joins a transfer of an object that is here, waits for the source's root hash, and says that all of it is
/// verified.
///
/// # Errors
/// The source has another object of this name, or cannot be reached or goes away.
pub fn confirm(spec: &ReceiverSpec, held: &Held) -> Result<(), TransferError> {
    let (Rendezvous::At(address, handle) | Rendezvous::Pull(address, handle)) = spec.rendezvous else {
        return Err(TransferError::Unusable("this receiver was not called by a source".into()));
    };
    let clock = Clock::start();
    let (mut link, offer) = Link::join(spec, address, handle, (WINDOW_BYTES, 0), clock)?;
    let outcome = perform(spec, held, &mut link, &offer, clock);
    if let Err(error) = &outcome {
        link.fail(error);
    }
    outcome
}

fn perform(
    spec: &ReceiverSpec,
    held: &Held,
    link: &mut Link,
    offer: &Offer,
    clock: Clock,
) -> Result<(), TransferError> {
    let other = || TransferError::Unusable(format!("there is another object {} already", held.object));
    if (offer.object, offer.geometry.object_len) != (held.object, held.length) {
        return Err(other());
    }
    link.handle(GuestInput::Stored { resumes: true });
    loop {
        if spec.cancel.load(Ordering::Relaxed) {
            return Err(TransferError::Cancelled);
        }
        link.fill();
        while let Some(frame) = link.next_frame() {
            if let Control::Root(root) = frame {
                if root != held.root {
                    return Err(other());
                }
                link.handle(GuestInput::Verifiable);
            }
        }
        link.note_end();
        while let Some(output) = link.poll() {
            match output {
                GuestOutput::Resume => link.handle(GuestInput::Checked),
                GuestOutput::Begin => {
                    link.say(&Control::Have(std::iter::once(0..offer.geometry.fragments()).collect()));
                    link.handle(GuestInput::Committed);
                    let proof = prove(held, offer)?;
                    link.say(&Control::DataRcvd { patched_bytes: 0, proof });
                }
                GuestOutput::Ended(End::Done) => return Ok(()),
                GuestOutput::Ended(end) => return Err(error_of(end, 0, held.length)),
                _ => {}
            }
        }
        let mut fds: Vec<_> = link.descriptor().into_iter().collect();
        let now = clock.now();
        wait(&mut fds, now, link.guest.deadline(), LOOK_INTERVAL)?;
    }
}

/// Computes the proof for the source that the bytes are here: see DATA_RCVD.
fn prove(held: &Held, offer: &Offer) -> Result<Hash, TransferError> {
    let range = offer.geometry.group_bytes(proven_group(&offer.salt, offer.geometry.groups()));
    let mut bytes = vec![0; (range.end - range.start) as usize];
    held.bytes.read_exact_at(&mut bytes, range.start).map_err(TransferError::Read)?;
    Ok(keyed_hash(&offer.salt, &bytes))
}
