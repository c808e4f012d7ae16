//! Place of a received object, and the way in which it gets there.

use super::error::TransferError;
use super::link::Link;
use super::{Sink, Verified};
use polycast_net::archive;
use polycast_net::object::{FileSource, ObjectKind, ObjectSource};
use polycast_net::store::{PartFile, Placing, Size, check_name, follow};
use polycast_protocol::session::Offer;
use polycast_wire::control::{Control, Form};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Permissions of raw bytes: they are the receiver's own.
const RAW_MODE: u16 = 0o600;
/// A source hears this often that this end lives while bytes go to the disk.
const ALIVE_INTERVAL: Duration = Duration::from_millis(200);

/// Checks that something of this name may be created or replaced, and makes room for the object beside it.
pub(super) fn make_room(
    sink: &Sink,
    offer: &Offer,
    update: bool,
) -> Result<(PathBuf, PartFile), TransferError> {
    let (target, replace) = match sink {
        Sink::At { path, replace } => (path.clone(), *replace),
        Sink::Into { folder, replace } => {
            // The name comes from another machine.
            check_name(&offer.name).map_err(|why| TransferError::Name(offer.name.clone(), why))?;
            (folder.join(&offer.name), *replace)
        }
        Sink::Raw(path) | Sink::Kept { path, .. } => (path.clone(), true),
    };
    let raw = matches!(sink, Sink::Raw(_) | Sink::Kept { .. });
    let replace = replace || update;
    if offer.form == Form::Set && !raw {
        let what = "it offers a list of files, which only an agent can take: send the directory itself";
        return Err(TransferError::Contradiction(what.into()));
    }
    let unpacked = offer.form == Form::Directory && !raw;
    if unpacked {
        archive::check_target(&target, replace).map_err(TransferError::Unpack)?;
    }
    let placing = Placing { replace, unpacked };
    let more = match sink {
        Sink::Kept { keeper, .. } => Some(keeper.more.clone()),
        _ => None,
    };
    let size = Size { len: offer.geometry.object_len, data_len: offer.data_len };
    let part = PartFile::open_with(&target, size, placing, more)?;
    Ok((target, part))
}

/// Returns the data at the object's place already: an older version of it, or the object.
pub(super) fn present(target: &Path, offer: &Offer) -> Result<Option<Arc<dyn ObjectSource>>, TransferError> {
    if offer.geometry.object_len == 0 {
        return Ok(None);
    }
    Ok(match kind_of(offer) {
        ObjectKind::Directory if target.is_dir() => match archive::present(target) {
            Ok(tree) => Some(Arc::new(tree)),
            Err(error) => {
                tracing::info!(%error, "what is there already is of no use");
                None
            }
        },
        ObjectKind::File if target.is_file() => Some(Arc::new(FileSource::open(target)?)),
        _ => None,
    })
}

/// Leaves what is at the object's place already, since it is the object; its permissions and its time follow.
pub(super) fn leave(mut part: PartFile, target: &Path, offer: &Offer) -> Result<(), TransferError> {
    part.discard();
    if kind_of(offer) == ObjectKind::File {
        follow(target, offer.mode, offer.modified)?;
    }
    Ok(())
}

/// Returns the description of an offer's object, once all of it is verified.
pub(super) fn verified(offer: &Offer, root: String) -> Verified {
    Verified {
        object: offer.object,
        name: offer.name.clone(),
        kind: kind_of(offer),
        len_bytes: offer.geometry.object_len,
        mode: offer.mode,
        modified: offer.modified,
        root,
    }
}

/// Gives a verified object its place; of a directory the rest is unpacked where the sink asks for one. This
/// takes as long as the disk does: the source hears meanwhile that this end lives.
pub(super) fn put_in_place(
    part: PartFile,
    target: &Path,
    sink: &Sink,
    object: &Verified,
    link: &mut Link,
) -> Result<PathBuf, TransferError> {
    let (done, outcome) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || done.send(settle(part, target, sink, object)));
        loop {
            match outcome.recv_timeout(ALIVE_INTERVAL) {
                Ok(outcome) => return outcome,
                Err(mpsc::RecvTimeoutError::Timeout) => link.say(&Control::Alive),
                Err(mpsc::RecvTimeoutError::Disconnected) => unreachable!("it says how it has ended"),
            }
        }
    })
}

fn settle(part: PartFile, target: &Path, sink: &Sink, object: &Verified) -> Result<PathBuf, TransferError> {
    match (sink, object.kind) {
        (Sink::Raw(_), _) => Ok(part.commit(RAW_MODE, None)?),
        (Sink::Kept { keeper, .. }, _) => keeper.keep(part, object).map(|()| target.to_path_buf()),
        (Sink::At { .. } | Sink::Into { .. }, ObjectKind::Directory) => {
            part.unpack().map_err(TransferError::Unpack)?;
            Ok(target.to_path_buf())
        }
        (Sink::At { .. } | Sink::Into { .. }, ObjectKind::File | ObjectKind::Set) => {
            Ok(part.commit(object.mode, object.modified)?)
        }
    }
}

/// Returns the kind of the object, as WELCOME reports it.
pub(crate) fn kind_of(offer: &Offer) -> ObjectKind {
    match offer.form {
        Form::File => ObjectKind::File,
        Form::Directory => ObjectKind::Directory,
        Form::Set => ObjectKind::Set,
    }
}
