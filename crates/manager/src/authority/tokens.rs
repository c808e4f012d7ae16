//! Tokens: each lets one agent of one name in once, for a while.

use super::{Authority, AuthorityError, read, write};
use polycast_net::tls::{Claim, JoinToken, ShownToken, Utc};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
        "the token {0} has been used already, and each lets in one agent once: 'polycast token new' makes another one"
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
    #[error("the token {id} is for '{name}', not for '{said}': start the agent with --name {name}")]
    OtherName {
        /// Id of the token.
        id: String,
        /// Agent that the token is for.
        name: String,
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
    /// The agent that it lets in.
    pub name: String,
    /// Until when, in seconds since 1970.
    pub until_unix_s: u64,
    /// State of the token.
    pub standing: Standing,
}

/// Its file.
#[derive(Serialize, Deserialize)]
struct Record {
    name: String,
    until_unix_s: u64,
    /// The key that the holder's proofs are made with.
    proof: String,
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
        Self::check_agent(name)?;
        // What could not be certified needs no token.
        self.certificate(name, &super::pair()?)?;
        let token = JoinToken::fresh(&self.pin);
        let record = Record {
            name: name.to_string(),
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
            if let Some(Record { name, until_unix_s, .. }) = record {
                let is_over = until_unix_s < now();
                let standing = match (is_used, is_over) {
                    (true, _) => Standing::Used,
                    (false, true) => Standing::Expired,
                    (false, false) => Standing::Good,
                };
                all.insert(id.to_string(), TokenInfo { id: id.to_string(), name, until_unix_s, standing });
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
        let is_gone = |extension| fs::remove_file(self.token_file(id, extension)).is_ok();
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
        self.check_token(shown, claim)?;
        let (good, used) = (self.token_file(shown.id(), "token"), self.token_file(shown.id(), "used"));
        // Of two that come at the same time one renames it.
        fs::rename(&good, &used).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => TokenError::Used(shown.id().to_string()).into(),
            _ => AuthorityError::File { path: used.clone(), action: "written", source },
        })
    }

    /// Checks that the agent that shows a token may use it for this claim.
    fn check_token(&self, shown: &ShownToken, claim: &Claim<'_>) -> Result<(), AuthorityError> {
        let (id, said) = (|| shown.id().to_string(), claim.name);
        let Some(Record { name, until_unix_s, proof: kept }) = self.record(shown.id(), "token")? else {
            let is_used = self.token_file(shown.id(), "used").exists();
            return Err(if is_used { TokenError::Used(id()) } else { TokenError::Unknown(id()) }.into());
        };
        // One that does not have it, or repeats what another one has shown, learns nothing about the token.
        if !shown.is_proven(&kept, claim) {
            return Err(TokenError::Unknown(id()).into());
        }
        if until_unix_s < now() {
            return Err(TokenError::Expired { id: id(), until: Utc(until_unix_s) }.into());
        }
        if name != said {
            return Err(TokenError::OtherName { id: id(), name, said: said.to_string() }.into());
        }
        Ok(())
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
