//! Tokens: each lets one agent of one name in once, or several agents each once, for a while.
//!
//! A token is a file. One that lets a single agent in is renamed by its use. One for several has a file for
//! each name that it has let in and one for each use: of agents that come at the same time, one makes the
//! file.

use super::{Authority, AuthorityError, read, write};
use polycast_net::tls::{Claim, JoinToken, ShownToken, Utc};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Names of a token that a sentence has.
const NAMES_SAID: usize = 3;
/// Beginning of the extension of a name that a token for several has let in; the name follows.
const NAME_OF: &str = "name-";
/// Beginning of the extension of one of its uses; its number follows.
const USE_OF: &str = "use-";

/// Reason why a token cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is none.
    #[error(
        "there is no token {0} here: it was revoked, or made by another authority; 'polycast token new' makes one"
    )]
    Unknown(String),
    /// It has been used.
    #[error(
        "the token {0} has been used already, and lets in each of its agents once: 'polycast token new' makes another one"
    )]
    Used(String),
    /// Its time is over.
    #[error("the token {id} was good until {until}: 'polycast token new' makes another one")]
    Expired {
        /// Id of the token.
        id: String,
        /// Until when it could be used.
        until: Utc,
    },
    /// It is another agent's.
    #[error(
        "the token {id} is for {}, not for '{said}': start the agent with --name {}",
        shortened(names), names.first().map_or("", String::as_str)
    )]
    OtherName {
        /// Id of the token.
        id: String,
        /// Agents that the token is for.
        names: Vec<String>,
        /// The agent that has come with it.
        said: String,
    },
}

/// State of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It can be used.
    Good,
    /// It has been used.
    Used,
    /// Its time is over.
    Expired,
}

/// Information about a token.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TokenInfo {
    /// Id of the token.
    pub id: String,
    /// The agent that it lets in; several with commas between them.
    pub name: String,
    /// Agents that it lets in.
    pub uses: usize,
    /// Agents that it has let in.
    pub used: usize,
    /// Until when, in seconds since 1970.
    pub until_unix_s: u64,
    /// State of the token.
    pub standing: Standing,
}

/// Its file.
#[derive(Serialize, Deserialize)]
struct Record {
    /// Agents' names with commas between them, which no name has.
    name: String,
    /// Names that it lets in.
    #[serde(default = "once")]
    uses: usize,
    until_unix_s: u64,
    /// The key that the holder's proofs are made with.
    proof: String,
}

fn once() -> usize {
    1
}

impl Record {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.name.split(',')
    }
}

/// Names as a sentence has them: few of many.
fn shortened(names: &[String]) -> String {
    match names {
        few if few.len() <= NAMES_SAID => format!("'{}'", few.join("', '")),
        many => format!("'{}' and {} more", many[..NAMES_SAID].join("', '"), many.len() - NAMES_SAID),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

impl Authority {
    fn token_file(&self, id: &str, extension: &str) -> PathBuf {
        self.folder.join("tokens").join(format!("{id}.{extension}"))
    }

    /// Reads the file of a token; `None` if there is none of this extension. Another process may rename or
    /// remove it at any time.
    fn record(&self, id: &str, extension: &str) -> Result<Option<Record>, AuthorityError> {
        let path = self.token_file(id, extension);
        let text = match read(&path) {
            Err(AuthorityError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            text => text?,
        };
        let foreign = |error: serde_json::Error| AuthorityError::Foreign { path, reason: error.to_string() };
        serde_json::from_str(&text).map(Some).map_err(foreign)
    }

    /// A new token for an agent of this name.
    ///
    /// # Errors
    /// No certificate of an agent can be for the name, or the token cannot be written.
    pub fn new_token(&self, name: &str, span: Duration) -> Result<JoinToken, AuthorityError> {
        self.new_shared_token(&[name.to_string()], 1, span)
    }

    /// A new token for so many of the agents of these names, each of which it lets in once.
    ///
    /// # Errors
    /// No certificate of an agent can be for one of the names, it is for more agents than there are names,
    /// or the token cannot be written.
    pub fn new_shared_token(
        &self,
        names: &[String],
        uses: usize,
        span: Duration,
    ) -> Result<JoinToken, AuthorityError> {
        // What could not be certified needs no token.
        let pair = super::pair()?;
        for name in names {
            Self::check_agent(name)?;
            self.certificate(name, &pair)?;
        }
        let mut different = names.to_vec();
        different.sort();
        different.dedup();
        if !(1..=different.len()).contains(&uses) {
            return Err(AuthorityError::Uses { uses, names: different.len() });
        }
        let token = JoinToken::fresh(&self.pin);
        let record = Record {
            name: names.join(","),
            uses,
            until_unix_s: now().saturating_add(span.as_secs().max(1)),
            proof: token.kept(),
        };
        let text = serde_json::to_string(&record).expect("a record is plain text and numbers");
        write(&self.token_file(&token.id, "token"), &text)?;
        Ok(token)
    }

    /// All tokens, in the order of their ids.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn tokens(&self) -> Result<Vec<TokenInfo>, AuthorityError> {
        let folder = self.folder.join("tokens");
        let failed = |source| AuthorityError::File { path: folder.clone(), action: "read", source };
        // One that is used meanwhile may be met by both of its names.
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            let Some((id, "token" | "used")) = name.split_once('.') else { continue };
            let (record, is_used) = match self.record(id, "token")? {
                Some(record) => (Some(record), false),
                None => (self.record(id, "used")?, true),
            };
            // Otherwise it is revoked by now.
            if let Some(Record { name, uses, until_unix_s, .. }) = record {
                let is_over = until_unix_s < now();
                let used = if is_used { uses } else { self.used(id, uses) };
                let standing = match (is_used, is_over) {
                    (true, _) => Standing::Used,
                    (false, true) => Standing::Expired,
                    (false, false) => Standing::Good,
                };
                let id = id.to_string();
                all.insert(id.clone(), TokenInfo { id, name, uses, used, until_unix_s, standing });
            }
        }
        Ok(all.into_values().collect())
    }

    /// Makes a token of no use.
    ///
    /// # Errors
    /// There is none of this id.
    pub fn revoke_token(&self, id: &str) -> Result<(), AuthorityError> {
        let is_id = id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_gone = |extension| {
            let record = self.record(id, extension).ok().flatten();
            let is_gone = fs::remove_file(self.token_file(id, extension)).is_ok();
            record.inspect(|record| self.forget_uses(id, record));
            is_gone
        };
        // A used one lets no agent in any more: it is only forgotten.
        if is_id && (is_gone("token") || is_gone("used")) {
            return Ok(());
        }
        Err(TokenError::Unknown(id.to_string()).into())
    }

    /// The certificate of an agent that shows a token for this, which is used then.
    ///
    /// # Errors
    /// The token cannot be used, or not by this agent; or the name or the request is none, and then the token
    /// stays good.
    pub fn certify_for_token(&self, shown: &ShownToken, claim: &Claim<'_>) -> Result<String, AuthorityError> {
        // First: nothing is read or signed for a host that has no token.
        self.check_token(shown, claim)?;
        let certificate = self.certify(claim.name, claim.request)?;
        self.redeem(shown, claim)?;
        Ok(certificate)
    }

    /// Takes a token from the agent that shows it for this; it is used then.
    ///
    /// # Errors
    /// It cannot be used, or not by this agent.
    pub fn redeem(&self, shown: &ShownToken, claim: &Claim<'_>) -> Result<(), AuthorityError> {
        let uses = self.check_token(shown, claim)?;
        let id = shown.id();
        if uses == 1 {
            return self.use_up(id).and_then(|is_first| match is_first {
                true => Ok(()),
                false => Err(TokenError::Used(id.to_string()).into()),
            });
        }
        // The name first, so that an agent which comes twice at the same time takes one use.
        let name = format!("{NAME_OF}{}", claim.name);
        if !self.is_made(id, &name)? {
            return Err(TokenError::Used(id.to_string()).into());
        }
        for at in 0..uses {
            if self.is_made(id, &format!("{USE_OF}{at}"))? {
                // The last one leaves nothing to use.
                return if at + 1 == uses { self.use_up(id).map(drop) } else { Ok(()) };
            }
        }
        let _ = fs::remove_file(self.token_file(id, &name));
        Err(TokenError::Used(id.to_string()).into())
    }

    /// Ends a token's use; returns false if it has ended before.
    fn use_up(&self, id: &str) -> Result<bool, AuthorityError> {
        let (good, used) = (self.token_file(id, "token"), self.token_file(id, "used"));
        // Of two that come at the same time one renames it.
        match fs::rename(&good, &used) {
            Ok(()) => Ok(true),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(AuthorityError::File { path: used, action: "written", source }),
        }
    }

    /// Makes an empty file of a token; returns false if it is there.
    fn is_made(&self, id: &str, extension: &str) -> Result<bool, AuthorityError> {
        let path = self.token_file(id, extension);
        match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => Ok(true),
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(AuthorityError::File { path, action: "written", source }),
        }
    }

    /// Agents that a token for several has let in.
    fn used(&self, id: &str, uses: usize) -> usize {
        (0..uses).filter(|at| self.token_file(id, &format!("{USE_OF}{at}")).exists()).count()
    }

    /// Removes the files of a token's uses.
    fn forget_uses(&self, id: &str, record: &Record) {
        if record.uses > 1 {
            let names = record.names().map(|name| format!("{NAME_OF}{name}"));
            let uses = (0..record.uses).map(|at| format!("{USE_OF}{at}"));
            names.chain(uses).for_each(|extension| drop(fs::remove_file(self.token_file(id, &extension))));
        }
    }

    /// Checks that the agent that shows a token may use it for this claim; gives how many it lets in.
    fn check_token(&self, shown: &ShownToken, claim: &Claim<'_>) -> Result<usize, AuthorityError> {
        let (id, said) = (|| shown.id().to_string(), claim.name);
        let Some(record) = self.record(shown.id(), "token")? else {
            let is_used = self.token_file(shown.id(), "used").exists();
            return Err(if is_used { TokenError::Used(id()) } else { TokenError::Unknown(id()) }.into());
        };
        // One that does not have it, or repeats what another one has shown, learns nothing about the token.
        if !shown.is_proven(&record.proof, claim) {
            return Err(TokenError::Unknown(id()).into());
        }
        if record.until_unix_s < now() {
            return Err(TokenError::Expired { id: id(), until: Utc(record.until_unix_s) }.into());
        }
        if record.names().all(|name| name != said) {
            let names = record.names().map(str::to_string).collect();
            return Err(TokenError::OtherName { id: id(), names, said: said.to_string() }.into());
        }
        if self.token_file(shown.id(), &format!("{NAME_OF}{said}")).exists() {
            return Err(TokenError::Used(id()).into());
        }
        Ok(record.uses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_net::tls::{BINDING_LEN, Binding};

    #[test]
    fn a_token_lets_one_agent_in_once() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Authority::open(folder.path()), Err(AuthorityError::Missing { .. })));
        let authority = Authority::open_or_new(folder.path()).unwrap();
        let hour = Duration::from_secs(3_600);
        let token = authority.new_token("b", hour).unwrap();
        let binding = Binding([7; BINDING_LEN]);
        let redeem = |token: &JoinToken, name: &str| {
            let claim = Claim { binding: &binding, name, request: b"key" };
            authority.redeem(&token.show(&claim), &claim)
        };
        let said = |token: &JoinToken, name: &str| redeem(token, name).unwrap_err().to_string();
        assert!(said(&token, "c").contains("is for 'b', not for 'c'"));
        let forged = JoinToken { secret: JoinToken::fresh("").secret, ..token.clone() };
        assert!(said(&forged, "b").contains("there is no token"));
        // What another connection has shown is of no use here.
        let elsewhere = Claim { binding: &Binding([8; BINDING_LEN]), name: "b", request: b"key" };
        let here = Claim { binding: &binding, ..elsewhere };
        let replayed = authority.redeem(&token.show(&elsewhere), &here).unwrap_err().to_string();
        assert!(replayed.contains("there is no token"), "{replayed}");
        // Nothing that comes with a token that is none is looked at.
        let odd = Claim { request: b"no request", ..here };
        let none = authority.certify_for_token(&forged.show(&odd), &odd).unwrap_err();
        assert!(none.to_string().contains("there is no token"), "{none}");
        let wrong = authority.certify_for_token(&token.show(&odd), &odd).unwrap_err();
        assert!(wrong.to_string().contains("the certificate request is wrong"), "{wrong}");
        redeem(&token, "b").unwrap();
        assert!(said(&token, "b").contains("has been used already"));

        let late = authority.new_token("b", hour).unwrap();
        let path = authority.token_file(&late.id, "token");
        let text = fs::read_to_string(&path).unwrap();
        let until = authority.record(&late.id, "token").unwrap().unwrap().until_unix_s;
        fs::write(&path, text.replace(&until.to_string(), "951782400")).unwrap();
        assert!(said(&late, "b").contains("was good until 2000-02-29 00:00 UTC"));

        let third = authority.new_token("b", hour).unwrap();
        let mut standings: Vec<(String, Standing)> =
            authority.tokens().unwrap().into_iter().map(|token| (token.id, token.standing)).collect();
        let mut right = vec![
            (token.id, Standing::Used),
            (late.id, Standing::Expired),
            (third.id.clone(), Standing::Good),
        ];
        standings.sort_by(|a, b| a.0.cmp(&b.0));
        right.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(standings, right);
        authority.revoke_token(&third.id).unwrap();
        assert!(said(&third, "b").contains("there is no token"));
        assert!(authority.revoke_token("../../x").is_err());
        assert!(matches!(authority.new_token("a b", hour), Err(AuthorityError::Name(_))));
        assert!(matches!(authority.new_token("manager", hour), Err(AuthorityError::Managers)));
        assert!(matches!(authority.certify("manager", &[]), Err(AuthorityError::Managers)));
        // Another run has the same authority.
        assert_eq!(Authority::open_or_new(folder.path()).unwrap().pem(), authority.pem());
    }

    #[test]
    fn a_token_for_several_lets_each_in_once_and_no_more_than_it_is_for() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open_or_new(folder.path()).unwrap();
        let hour = Duration::from_secs(3_600);
        let names: Vec<String> = (1..=5).map(|at| format!("gpu-{at}")).collect();
        for uses in [0, 6] {
            let refused = authority.new_shared_token(&names, uses, hour).unwrap_err().to_string();
            assert!(refused.contains("5 names"), "{refused}");
        }
        let twice = [names[0].clone(), names[0].clone()];
        assert!(authority.new_shared_token(&twice, 2, hour).is_err());
        let token = authority.new_shared_token(&names, 3, hour).unwrap();
        let binding = Binding([7; BINDING_LEN]);
        let redeem = |name: &str| {
            let claim = Claim { binding: &binding, name, request: b"key" };
            authority.redeem(&token.show(&claim), &claim).map_err(|error| error.to_string())
        };
        let info = || authority.tokens().unwrap().remove(0);
        let other = redeem("gpu-6").unwrap_err();
        assert!(other.contains("is for 'gpu-1', 'gpu-2', 'gpu-3' and 2 more, not for 'gpu-6'"), "{other}");
        redeem("gpu-4").unwrap();
        assert!(redeem("gpu-4").unwrap_err().contains("has been used already"));
        assert_eq!((info().used, info().uses, info().standing), (1, 3, Standing::Good));
        // All the others at the same time: two of them come in.
        let came = std::thread::scope(|scope| {
            let all: Vec<_> = ["gpu-1", "gpu-2", "gpu-3", "gpu-5", "gpu-1"]
                .into_iter()
                .map(|name| scope.spawn(move || redeem(name).is_ok()))
                .collect();
            all.into_iter().map(|one| one.join().unwrap()).filter(|came| *came).count()
        });
        assert_eq!(came, 2);
        assert_eq!((info().used, info().standing), (3, Standing::Used));
        assert!(redeem("gpu-2").unwrap_err().contains("has been used already"));
        authority.revoke_token(&token.id).unwrap();
        assert_eq!(fs::read_dir(folder.path().join("tokens")).unwrap().count(), 0);
    }

    /// A file that was in the folder and cannot be found is one that was renamed or removed meanwhile.
    #[test]
    fn a_token_that_is_used_or_revoked_meanwhile_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open_or_new(folder.path()).unwrap();
        let new = || authority.new_token("b", Duration::from_secs(3_600)).unwrap().id;
        let [good, used, revoked] = [new(), new(), new()];
        let file = |id: &str, extension: &str| authority.token_file(id, extension);
        fs::rename(file(&used, "token"), file(&used, "used")).unwrap();
        fs::remove_file(file(&revoked, "token")).unwrap();
        for id in [&used, &revoked] {
            std::os::unix::fs::symlink("gone", file(id, "token")).unwrap();
        }
        let listed = authority.tokens().unwrap().into_iter().map(|token| (token.id, token.standing));
        let mut right = [(good, Standing::Good), (used, Standing::Used)];
        right.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(listed.collect::<Vec<_>>(), right);
    }
}
