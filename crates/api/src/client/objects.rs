//! Objects that are asked for, and topics.

use super::{ClientError, Session};
use crate::agent::fetch_event::Event;
use crate::agent::fetch_request::What;
use crate::agent::{
    AssembleRequest, AssembledFile, ByteRange, FetchEvent, FetchRequest, FilesEvent, FilesRequest,
    FillRequest, Object, ObjectKind, PublishRequest, PublishResponse, PutRequest, SubscribeRequest,
    TakeRequest, TakeResponse, TopicEvent, WatchEvent, WatchRequest,
};
use polycast_types::{DataId, Duration, ModificationTime, ObjectId};
use std::ops::Range;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// An object that is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// By a key: `sha256:HEX`, `git:HEX`, or KIND:TEXT.
    Key(String),
    /// By its number in the application.
    Id(DataId),
}

/// A piece of an object that is brought, an empty one when it was the last, or why there is none.
///
/// That the channel of pieces closes is not the end of the object: it closes also where what reads them was
/// cancelled.
pub type Piece = Result<Vec<u8>, String>;

/// The words of a piece: its bytes, an error, and whether it was the last.
fn said(piece: Piece) -> (Vec<u8>, String, bool) {
    match piece {
        Ok(bytes) => {
            let done = bytes.is_empty();
            (bytes, String::new(), done)
        }
        Err(error) => (Vec::new(), error, false),
    }
}

fn assembled(path: Vec<u8>, from: Option<ObjectId>) -> AssembledFile {
    let app_id = from.map(|from| from.app.0.to_vec()).unwrap_or_default();
    AssembledFile { path, app_id, data_id: from.map_or(0, |from| from.data.0) }
}

impl Session {
    /// Asks for an object; how it goes comes from the value returned, which ends the wish when it is dropped.
    /// With `can_fill` the caller may be told to bring the bytes with [`Session::fill`]. Without a deadline
    /// it is told at once where no agent has the object and none can get it.
    ///
    /// # Errors
    /// The key is none. What the manager says comes as an error of an event.
    pub async fn fetch(
        &self,
        wanted: Wanted,
        can_fill: bool,
        deadline: Option<Duration>,
    ) -> Result<Fetching, ClientError> {
        let what = match wanted {
            Wanted::Key(key) => What::Key(key),
            Wanted::Id(data) => What::DataId(data.0),
        };
        let request = FetchRequest {
            caller: Some(self.caller.clone()),
            what: Some(what),
            can_fill,
            deadline_ms: deadline.map(|deadline| deadline.as_millis().max(1)),
        };
        Ok(Fetching { events: self.stub.clone().fetch(request).await?.into_inner() })
    }

    /// Brings the bytes of an object that a [`Session::fetch`] was told to get: pieces of at most 1 MiB,
    /// until an empty one. `length` is said where it is known; an empty name is the end of the key.
    ///
    /// # Errors
    /// The agent has not told this process to, the bytes are not those that the key names, a piece is an
    /// error, or there is no room.
    pub async fn fill(
        &self,
        key: &str,
        length: Option<u64>,
        name: &str,
        pieces: mpsc::Receiver<Piece>,
    ) -> Result<Object, ClientError> {
        let first = FillRequest {
            caller: Some(self.caller.clone()),
            key: key.to_string(),
            length,
            name: name.to_string(),
            ..FillRequest::default()
        };
        let pieces = ReceiverStream::new(pieces).map(|piece| {
            let (bytes, error, done) = said(piece);
            FillRequest { bytes, error, done, ..FillRequest::default() }
        });
        let requests = tokio_stream::once(first).chain(pieces);
        Ok(self.stub.clone().fill(requests).await?.into_inner())
    }

    /// Makes an object of bytes that the caller brings: pieces of at most 1 MiB, until an empty one.
    ///
    /// # Errors
    /// The id is taken, these are not as many bytes as were said, a piece is an error, or there is no room.
    pub async fn put(
        &self,
        data: DataId,
        what: ToPut,
        pieces: mpsc::Receiver<Piece>,
    ) -> Result<Object, ClientError> {
        let ToPut { name, kind, length, mode, modified, private } = what;
        let first = PutRequest {
            caller: Some(self.caller.clone()),
            data_id: data.0,
            name,
            kind: kind.into(),
            length,
            mode,
            modified_seconds: modified.map(|modified| modified.seconds),
            modified_nanos: modified.map_or(0, |modified| modified.nanos),
            private,
            ..PutRequest::default()
        };
        let pieces = ReceiverStream::new(pieces).map(|piece| {
            let (bytes, error, done) = said(piece);
            PutRequest { bytes, error, done, ..PutRequest::default() }
        });
        let requests = tokio_stream::once(first).chain(pieces);
        Ok(self.stub.clone().put(requests).await?.into_inner())
    }

    /// Makes a file of this name from an object in the agent's store, which stays.
    ///
    /// # Errors
    /// The object is not in the store, the id is taken, or the agent runs as another user.
    pub async fn assemble(&self, data: DataId, name: &str, from: ObjectId) -> Result<Object, ClientError> {
        let file = assembled(Vec::new(), Some(from));
        self.assemble_all(data, name, vec![file], true).await
    }

    /// Makes a set of this name from objects in the agent's store, each a file with a path; those without an
    /// object have no bytes.
    ///
    /// # Errors
    /// As there, or the paths make no directory.
    pub async fn assemble_set(
        &self,
        data: DataId,
        name: &str,
        files: Vec<(String, Option<ObjectId>)>,
    ) -> Result<Object, ClientError> {
        let files = files.into_iter().map(|(path, from)| assembled(path.into_bytes(), from)).collect();
        self.assemble_all(data, name, files, false).await
    }

    async fn assemble_all(
        &self,
        data: DataId,
        name: &str,
        files: Vec<AssembledFile>,
        single: bool,
    ) -> Result<Object, ClientError> {
        let (caller, name) = (Some(self.caller.clone()), name.to_string());
        let request = AssembleRequest { caller, data_id: data.0, name, files, single };
        Ok(self.stub.clone().assemble(request).await?.into_inner())
    }

    /// Begins to get the bytes of an object that is here.
    ///
    /// # Errors
    /// It is not here, or not for this user.
    pub async fn take(&self, id: ObjectId) -> Result<Taking, ClientError> {
        let app_id = id.app.0.to_vec();
        let request = TakeRequest { caller: Some(self.caller.clone()), data_id: id.data.0, app_id };
        let pieces = self.stub.clone().take(request).await?.into_inner();
        Ok(Taking { pieces, _session: self.clone() })
    }

    /// Gives all subscribers of a topic a new version; waits until it is committed.
    ///
    /// # Errors
    /// The object is not here, the version is not above the last, the topic is another application's, or the
    /// manager cannot be reached.
    pub async fn publish(
        &self,
        topic: &str,
        version: Option<u64>,
        data: DataId,
        deadline: Option<Duration>,
    ) -> Result<PublishResponse, ClientError> {
        let request = PublishRequest {
            caller: Some(self.caller.clone()),
            topic: topic.to_string(),
            version,
            data_id: data.0,
            deadline_ms: deadline.map(|deadline| deadline.as_millis().max(1)),
        };
        Ok(self.stub.clone().publish(request).await?.into_inner())
    }

    /// Hears which bytes of an object are verified as they come, of these ranges or, where there are none, of
    /// all. The file that an event names can be read and mapped at these places; other bytes in it mean
    /// nothing.
    ///
    /// # Errors
    /// A range is empty. That one lies outside the object, and that the object does not come, are errors of
    /// an event.
    pub async fn watch(
        &self,
        data: DataId,
        ranges: &[Range<u64>],
        timeout: Option<Duration>,
    ) -> Result<Watching, ClientError> {
        let range = |range: &Range<u64>| ByteRange {
            offset: range.start,
            length: range.end.saturating_sub(range.start),
        };
        let request = WatchRequest {
            caller: Some(self.caller.clone()),
            data_id: data.0,
            ranges: ranges.iter().map(range).collect(),
            timeout_ms: timeout.map(|timeout| timeout.as_millis().max(1)),
        };
        Ok(Watching { events: self.stub.clone().watch(request).await?.into_inner() })
    }

    /// Hears of the files of a set, and of each as soon as it is here. The set need not be on its way yet.
    ///
    /// # Errors
    /// That it is no set, and that it does not come, are errors of an event.
    pub async fn files(&self, data: DataId, timeout: Option<Duration>) -> Result<Files, ClientError> {
        let request = FilesRequest {
            caller: Some(self.caller.clone()),
            data_id: data.0,
            timeout_ms: timeout.map(|timeout| timeout.as_millis().max(1)),
        };
        Ok(Files { events: self.stub.clone().files(request).await?.into_inner() })
    }

    /// Hears of every version of a topic, from the last one on, until the value returned is dropped.
    ///
    /// # Errors
    /// There are too many. What the manager says comes as an error of an event.
    pub async fn subscribe(&self, topic: &str) -> Result<Versions, ClientError> {
        let request = SubscribeRequest { caller: Some(self.caller.clone()), topic: topic.to_string() };
        Ok(Versions { events: self.stub.clone().subscribe(request).await?.into_inner() })
    }
}

/// Object that is brought to the agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToPut {
    /// Name of the object at the receivers.
    pub name: String,
    /// A directory's bytes are a tar stream.
    pub kind: ObjectKind,
    /// All bytes that come.
    pub length: u64,
    /// Permissions that a copy of the file gets; 0: the usual ones.
    pub mode: u32,
    /// Time of the file's last change, if known.
    pub modified: Option<ModificationTime>,
    /// Other users of this host are not to see it.
    pub private: bool,
}

/// The bytes of an object, on their way here.
#[derive(Debug)]
pub struct Taking {
    pieces: Streaming<TakeResponse>,
    /// The connection lives as long as this does.
    _session: Session,
}

impl Taking {
    /// The next bytes.
    ///
    /// # Errors
    /// They cannot be read, or the agent went away.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        Ok(self.pieces.message().await?.map(|piece| piece.bytes))
    }
}

/// An object that is on its way.
#[derive(Debug)]
pub struct Fetching {
    events: Streaming<FetchEvent>,
}

impl Fetching {
    /// The next event; [`Event::Object`] is the last.
    ///
    /// # Errors
    /// It does not come, or the agent went away.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        loop {
            match self.events.message().await? {
                // An event that a later version has added says nothing to us.
                Some(FetchEvent { event: None }) => {}
                Some(FetchEvent { event }) => return Ok(event),
                None => return Ok(None),
            }
        }
    }
}

/// Verified bytes of an object, as they come.
#[derive(Debug)]
pub struct Watching {
    events: Streaming<WatchEvent>,
}

impl Watching {
    /// The next ones; the last event is complete.
    ///
    /// # Errors
    /// A range lies outside the object, the object does not come, or the agent went away.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, ClientError> {
        Ok(self.events.message().await?)
    }
}

/// The files of a set, as they come.
#[derive(Debug)]
pub struct Files {
    events: Streaming<FilesEvent>,
}

impl Files {
    /// The next ones; the last event is complete.
    ///
    /// # Errors
    /// It is no set, it does not come, or the agent went away.
    pub async fn next(&mut self) -> Result<Option<FilesEvent>, ClientError> {
        Ok(self.events.message().await?)
    }
}

/// The versions of a topic.
#[derive(Debug)]
pub struct Versions {
    events: Streaming<TopicEvent>,
}

impl Versions {
    /// The next one, when it is about to come and when it is committed and here.
    ///
    /// # Errors
    /// The topic is another application's, or the agent went away.
    pub async fn next(&mut self) -> Result<Option<TopicEvent>, ClientError> {
        Ok(self.events.message().await?)
    }
}
