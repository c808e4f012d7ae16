//! Between the words of the services and those of the rest of Polycast.

use crate::agent::{Caller, Object, TransferReport};
use crate::error::{Kind, Refusal};
use polycast_types::{AppId, DataId, ObjectId};

/// An application id from the wire; empty is the default application.
///
/// # Errors
/// It is neither empty nor 16 bytes long.
pub fn app_id(bytes: &[u8]) -> Result<AppId, Refusal> {
    match bytes.try_into() {
        Ok(id) => Ok(AppId(id)),
        Err(_) if bytes.is_empty() => Ok(AppId::default()),
        Err(_) => {
            let message = format!("an application id has 16 bytes, not {}", bytes.len());
            Err(Refusal::new(Kind::Invalid, message))
        }
    }
}

/// An object's full name from the wire.
///
/// # Errors
/// The application id is malformed.
pub fn object_id(app: &[u8], data: u64) -> Result<ObjectId, Refusal> {
    Ok(ObjectId { app: app_id(app)?, data: DataId(data) })
}

impl Caller {
    /// A process of an application.
    #[must_use]
    pub fn new(app: AppId, process: u64) -> Self {
        Caller { app_id: app.0.to_vec(), process_id: process }
    }
}

impl Object {
    /// The object's full name.
    ///
    /// # Errors
    /// The application id is malformed.
    pub fn id(&self) -> Result<ObjectId, Refusal> {
        object_id(&self.app_id, self.data_id)
    }
}

impl TransferReport {
    /// The object's full name.
    ///
    /// # Errors
    /// The application id is malformed.
    pub fn id(&self) -> Result<ObjectId, Refusal> {
        object_id(&self.app_id, self.data_id)
    }

    /// Returns true once every receiver has verified every byte.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.receivers.is_empty() && self.receivers.iter().all(|receiver| receiver.verified)
    }
}
