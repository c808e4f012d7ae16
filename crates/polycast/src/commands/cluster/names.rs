//! Objects by their names: what people type in place of a number.

use crate::args::place::is_name;
use crate::exit::Failure;
use crate::output;
use polycast_api::agent::{Object, ObjectState};
use polycast_api::client::Session;
use polycast_api::error::Kind;
use polycast_types::{AppId, DataId, ObjectId, Printable};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Ids that the user has not chosen have so many bits: few enough to be typed, and many enough for all files
/// of a cluster.
const ID_BITS: u32 = 48;
/// Ids that are named where a name has several.
const NAMED_MAX: usize = 8;

/// An object as it is typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// By its id.
    Id(ObjectId),
    /// By its name, in the default application.
    Name(String),
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id: Result<ObjectId, _> = text.parse();
        match id {
            Ok(id) => Ok(Which::Id(id)),
            Err(_) if is_name(text) => Ok(Which::Name(text.to_string())),
            Err(error) => Err(format!("{error}, and no name of an object either")),
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Which::Id(id) => write!(f, "{id}"),
            Which::Name(name) => write!(f, "{}", Printable(name)),
        }
    }
}

impl Which {
    /// The application to ask in.
    pub(crate) fn app(&self) -> AppId {
        match self {
            Which::Id(id) => id.app,
            Which::Name(_) => AppId::default(),
        }
    }

    /// The objects here that are meant, the newest first; an id may be one that is not here.
    pub(crate) fn among(&self, objects: &[Object]) -> Result<Vec<ObjectId>, Failure> {
        let name = match self {
            Which::Id(id) => return Ok(vec![*id]),
            Which::Name(name) => name,
        };
        let mut found: Vec<&Object> = objects.iter().filter(|object| object.name == *name).collect();
        // One that is coming is newer than any that is here.
        let age = |object: &&Object| (object.state() == ObjectState::Receiving, object.since_unix_ms);
        found.sort_by_key(|object| std::cmp::Reverse(age(object)));
        if found.is_empty() {
            let failure = Failure::of(
                Kind::ObjectUnknown,
                format!("there is no object called {} here", Printable(name)),
            );
            return Err(failure.hint("polycast ls lists what is here"));
        }
        Ok(found.iter().filter_map(|object| object.id().ok()).collect())
    }

    /// The one object that is meant: of several of a name the newest, which is said.
    pub(crate) fn newest_among(&self, objects: &[Object]) -> Result<ObjectId, Failure> {
        let found = self.among(objects)?;
        if let [newest, others @ ..] = &found[..]
            && !others.is_empty()
        {
            let ids: Vec<String> = others.iter().take(NAMED_MAX).map(ToString::to_string).collect();
            let more = if others.len() > NAMED_MAX { " and more" } else { "" };
            output::say(&format!(
                "{self} is {newest}, the newest of this name; older: {}{more}",
                ids.join(", ")
            ));
        }
        Ok(found[0])
    }
}

/// At which machine's agent an object is, and whose it is there.
pub(crate) struct Whose {
    machine: String,
    /// User, where it is not the agent's.
    user: Option<u32>,
}

impl Whose {
    /// Returns the agent and user of objects that this process adds.
    pub(crate) fn of(session: &Session) -> Self {
        let user = session.is_other_user().then(|| rustix::process::geteuid().as_raw());
        Whose { machine: session.agent_name().to_string(), user }
    }
}

/// Returns the stamp of an object's state: as a set a directory has another one.
pub(crate) fn stamp_of(mut stamp: [u8; 32], files: bool) -> [u8; 32] {
    stamp[0] ^= u8::from(files);
    stamp
}

/// The id of a file or directory for which the user has chosen none: the same one as long as it does not
/// change, so that the same command goes on from what an earlier one has sent.
pub(crate) fn id_of(whose: &Whose, paths: &[PathBuf], name: &str, stamp: [u8; 32]) -> DataId {
    let mut words = Vec::new();
    // A path that cannot be resolved is refused where it is opened.
    let paths = paths.iter().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    let paths: Vec<Vec<u8>> = paths.map(|path| path.into_os_string().into_encoded_bytes()).collect();
    let known = [whose.machine.as_bytes(), name.as_bytes(), &stamp];
    // What one user has brought is not another one's, also where both can read the same file.
    let user = whose.user.map(u32::to_be_bytes);
    let user = user.iter().map(|user| &user[..]);
    for word in known.into_iter().chain(paths.iter().map(Vec::as_slice)).chain(user) {
        words.extend_from_slice(&(word.len() as u64).to_be_bytes());
        words.extend_from_slice(word);
    }
    let hash = polycast_net::hash::keyed_hash(b"the id of an object, from a file", &words);
    let number = u64::from_be_bytes(std::array::from_fn(|at| hash[at]));
    DataId((number & ((1 << ID_BITS) - 1)).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(data_id: u64, name: &str, since_unix_ms: u64) -> Object {
        Object { app_id: vec![0; 16], data_id, name: name.into(), since_unix_ms, ..Object::default() }
    }

    #[test]
    fn of_several_of_a_name_the_newest_is_meant() {
        let objects = [object(1, "model", 10), object(2, "model", 30), object(3, "other", 40)];
        let which: Which = "model".parse().unwrap();
        assert_eq!(which.newest_among(&objects).unwrap().data, DataId(2));
        assert_eq!(which.among(&objects).unwrap().len(), 2);
        let none: Which = "nothing".parse().unwrap();
        assert!(none.among(&objects).unwrap_err().message.contains("no object called nothing"));
        let id: Which = "7".parse().unwrap();
        assert_eq!(id.newest_among(&[]).unwrap().data, DataId(7));
        for text in ["", "-", "a/b", "..", "-x"] {
            assert!(text.parse::<Which>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_coming_is_the_newest() {
        let coming = Object { state: ObjectState::Receiving.into(), ..object(2, "model", 0) };
        let which: Which = "model".parse().unwrap();
        assert_eq!(which.newest_among(&[object(1, "model", 10), coming]).unwrap().data, DataId(2));
    }

    #[test]
    fn the_same_file_has_the_same_id() {
        let of = |machine: &str, user, stamp| {
            let whose = Whose { machine: machine.into(), user };
            id_of(&whose, &["/data/model".into()], "model", [stamp; 32])
        };
        let id = |machine, stamp| of(machine, None, stamp);
        assert_eq!(id("a", 1), id("a", 1));
        assert_ne!(id("a", 1), id("a", 2));
        assert_ne!(id("a", 1), id("b", 1));
        assert!(id("a", 1).0 < 1 << ID_BITS);
        // Two users of one machine have an object each of the same file.
        assert_eq!(of("a", Some(7), 1), of("a", Some(7), 1));
        assert_ne!(of("a", Some(7), 1), of("a", Some(8), 1));
        assert_ne!(of("a", Some(7), 1), id("a", 1));
    }
}
