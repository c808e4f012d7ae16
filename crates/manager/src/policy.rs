//! Policy that states which agents may send what to which, and how much at a time: a file that the manager
//! reads again when it changes.
//!
//! Without a rule every agent may send everything to all others. With one, only what a rule allows may be
//! sent.

use polycast_api::settings::{self, SettingsError};
use polycast_types::{Printable, Rate};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;

/// Rules of one kind that a policy may have.
const RULES_MAX: usize = 1_024;
/// Patterns that one rule may have of a kind.
const PATTERNS_MAX: usize = 4_096;

/// A policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct Policy {
    /// Rules that allow something; without one, everything is allowed.
    allow: Vec<Allow>,
    /// Limits on the amount at a time; the first that a source fits holds for it.
    quota: Vec<Quota>,
    /// Agents whose certificates have been revoked: nothing is allowed to them.
    #[serde(skip)]
    revoked: BTreeSet<String>,
}

/// Something that is allowed. In names `*` stands for any characters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Allow {
    /// Agents that may send.
    source: Vec<Pattern>,
    /// Agents that may receive it.
    receivers: Vec<Pattern>,
    /// Names of the objects, and streams, that may be sent.
    objects: Vec<Pattern>,
    /// Allows them to remove these objects there, too.
    remove: bool,
}

impl Default for Allow {
    fn default() -> Self {
        let any = || vec![Pattern("*".into())];
        Allow { source: any(), receivers: any(), objects: any(), remove: true }
    }
}

/// Amounts that each of these sources may have at a time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Quota {
    source: Vec<Pattern>,
    #[serde(deserialize_with = "bytes")]
    bytes_max: Option<u64>,
    transfers_max: Option<usize>,
    #[serde(deserialize_with = "rate")]
    rate_max: Option<Rate>,
}

impl Default for Quota {
    fn default() -> Self {
        Quota { source: vec![Pattern("*".into())], bytes_max: None, transfers_max: None, rate_max: None }
    }
}

fn bytes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    polycast_types::parse_bytes(&text).map(Some).map_err(serde::de::Error::custom)
}

fn rate<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Rate>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// A name in which `*` stands for any characters, also for none.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
struct Pattern(String);

impl Pattern {
    fn fits(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        // The earliest place of each part leaves most for those behind it.
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.len() >= last.len() && rest.ends_with(last)
    }
}

fn any(patterns: &[Pattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.fits(name))
}

/// Current usage of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Transfers that wait or run.
    pub transfers: usize,
    /// Bytes of the transfers.
    pub bytes: u64,
    /// Sum of the rates of paths that are leased to it alone, in bits a second.
    pub rate_bps: u64,
}

/// Reason why something is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ban {
    /// No rule allows to send it there.
    #[error("the manager's policy does not let '{source_name}' send '{}' to '{receiver}'", Printable(object))]
    Send {
        /// The source.
        source_name: String,
        /// Name of the object.
        object: String,
        /// To whom.
        receiver: String,
    },
    /// No rule allows to remove it there.
    #[error("the manager's policy does not let '{source_name}' remove {} at '{receiver}'", object_of(object))]
    Remove {
        /// The agent that asks for it.
        source_name: String,
        /// Name of the object; empty where it is named by its number.
        object: String,
        /// Agent where it would be removed.
        receiver: String,
    },
    /// One of them is not to take part in anything.
    #[error("the certificate of '{0}' has been revoked")]
    Revoked(String),
    /// So many transfers are too many.
    #[error(
        "the manager's policy lets '{source_name}' have {most} transfers at a time, and it has {has}: wait until one has ended"
    )]
    Transfers {
        /// The source.
        source_name: String,
        /// Number of transfers that it may have.
        most: usize,
        /// Number of transfers that it has.
        has: usize,
    },
    /// So many bytes are too many at any time.
    #[error("the manager's policy lets '{source_name}' send {most} bytes at a time, and these are {bytes}")]
    TooLong {
        /// The source.
        source_name: String,
        /// Number of bytes that it may send.
        most: u64,
        /// Number of bytes that it asks for.
        bytes: u64,
    },
    /// So many bytes are too many now.
    #[error(
        "the manager's policy lets '{source_name}' send {most} bytes at a time, and {has} are on their way: wait until they are there"
    )]
    Bytes {
        /// The source.
        source_name: String,
        /// Number of bytes that it may send.
        most: u64,
        /// Number of bytes that it sends.
        has: u64,
    },
    /// Such a rate is too much.
    #[error(
        "the manager's policy lends '{source_name}' paths of {most} together at a time, and with this one it would have {has}"
    )]
    Rate {
        /// The source.
        source_name: String,
        /// Rate that it may have.
        most: Rate,
        /// Rate that it would have.
        has: Rate,
    },
}

fn object_of(name: &str) -> String {
    if name.is_empty() { "objects by their numbers".into() } else { format!("'{}'", Printable(name)) }
}

impl Policy {
    /// Reads and checks the policy in a file.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub(crate) fn load(path: &Path) -> Result<Self, SettingsError> {
        let wrong = |error: SettingsError| SettingsError::Value {
            setting: "policy",
            reason: format!("{}: {}", path.display(), error.to_string().replace(" of the settings", "")),
        };
        let text = settings::read_text(path).map_err(|error| SettingsError::Value {
            setting: "policy",
            reason: format!("{} cannot be read: {error}", path.display()),
        })?;
        Self::from_toml(&text).map_err(wrong)
    }

    /// Reads and checks a policy.
    ///
    /// # Errors
    /// It makes no sense.
    pub(crate) fn from_toml(text: &str) -> Result<Self, SettingsError> {
        let policy: Policy = settings::parse(text)?;
        let wrong = |reason: String| SettingsError::Value { setting: "policy", reason };
        if policy.allow.len().max(policy.quota.len()) > RULES_MAX {
            return Err(wrong(format!("more than {RULES_MAX} sections of a kind")));
        }
        let of_allow = policy.allow.iter().flat_map(|rule| {
            [("source", &rule.source), ("receivers", &rule.receivers), ("objects", &rule.objects)]
        });
        let of_quota = policy.quota.iter().map(|rule| ("source", &rule.source));
        for (key, patterns) in of_allow.chain(of_quota) {
            if patterns.is_empty() || patterns.iter().any(|pattern| pattern.0.is_empty()) {
                return Err(wrong(format!("'{key}' names no agent: write [\"*\"] for all, or leave it out")));
            }
            if patterns.len() > PATTERNS_MAX {
                return Err(wrong(format!("'{key}' has more than {PATTERNS_MAX} names: use * in them")));
            }
        }
        for rule in &policy.quota {
            if rule.bytes_max == Some(0) || rule.transfers_max == Some(0) || rule.rate_max == Some(Rate(0)) {
                return Err(wrong(
                    "a quota of 0 lets nothing through: write an [[allow]] without that source".into(),
                ));
            }
            if rule.bytes_max.is_none() && rule.transfers_max.is_none() && rule.rate_max.is_none() {
                return Err(wrong("a [[quota]] needs bytes-max, transfers-max or rate-max".into()));
            }
        }
        Ok(policy)
    }

    fn allows(&self, source: &str, object: &str, receiver: &str, is_removal: bool) -> bool {
        self.allow.is_empty()
            || self.allow.iter().any(|rule| {
                (rule.remove || !is_removal)
                    && any(&rule.source, source)
                    && any(&rule.receivers, receiver)
                    && any(&rule.objects, object)
            })
    }

    /// Checks that a source may send an object, or a stream, of this name to this receiver.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn send(&self, source: &str, object: &str, receiver: &str) -> Result<(), Ban> {
        if let Some(name) = [source, receiver].into_iter().find(|name| self.revoked.contains(*name)) {
            return Err(Ban::Revoked(name.to_string()));
        }
        if self.allows(source, object, receiver, false) {
            return Ok(());
        }
        let [source_name, object, receiver] = [source, object, receiver].map(str::to_string);
        Err(Ban::Send { source_name, object, receiver })
    }

    /// Checks that an agent may remove an object of this name at this receiver. An object that is named by
    /// its number has any name: its removal is allowed where all names are.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn remove(&self, source: &str, object: Option<&str>, receiver: &str) -> Result<(), Ban> {
        let name = object.unwrap_or_default();
        let is_any = |rule: &Allow| object.is_some() || rule.objects.iter().any(|pattern| pattern.0 == "*");
        let allowed = match object {
            Some(name) => self.allows(source, name, receiver, true),
            None => {
                self.allow.is_empty()
                    || self.allow.iter().any(|rule| {
                        rule.remove
                            && is_any(rule)
                            && any(&rule.source, source)
                            && any(&rule.receivers, receiver)
                    })
            }
        };
        if allowed || source == receiver {
            return Ok(());
        }
        let [source_name, object, receiver] = [source, name, receiver].map(str::to_string);
        Err(Ban::Remove { source_name, object, receiver })
    }

    fn quota(&self, source: &str) -> Option<&Quota> {
        self.quota.iter().find(|quota| any(&quota.source, source))
    }

    /// Checks that a source with this usage may begin a transfer of this many bytes.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn begin(&self, source: &str, has: Usage, bytes: u64) -> Result<(), Ban> {
        let Some(quota) = self.quota(source) else { return Ok(()) };
        let source_name = || source.to_string();
        if let Some(most) = quota.transfers_max.filter(|most| has.transfers >= *most) {
            return Err(Ban::Transfers { source_name: source_name(), most, has: has.transfers });
        }
        match quota.bytes_max {
            Some(most) if bytes > most => Err(Ban::TooLong { source_name: source_name(), most, bytes }),
            Some(most) if has.bytes.saturating_add(bytes) > most => {
                Err(Ban::Bytes { source_name: source_name(), most, has: has.bytes })
            }
            _ => Ok(()),
        }
    }

    /// The same policy for others, of which nothing allows these agents anything.
    #[must_use]
    pub(crate) fn without(self, revoked: BTreeSet<String>) -> Self {
        Policy { revoked, ..self }
    }

    /// The agents whose certificates have been revoked.
    #[must_use]
    pub(crate) fn revoked(&self) -> &BTreeSet<String> {
        &self.revoked
    }

    /// Checks that a source may have this rate, of all paths that are leased to it alone.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn rate(&self, source: &str, has_bps: u64) -> Result<(), Ban> {
        match self.quota(source).and_then(|quota| quota.rate_max) {
            Some(most) if has_bps > most.0 => {
                Err(Ban::Rate { source_name: source.to_string(), most, has: Rate(has_bps) })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, fits) in [
            ("gpu-*", "gpu-1", true),
            ("gpu-*", "gpu-", true),
            ("gpu-*", "cpu-1", false),
            ("*", "", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("*b*d", "abcd", true),
            ("*b*d", "abcdx", false),
            ("a*a", "a", false),
            ("a**b", "ab", true),
            ("*aab", "aaab", true),
        ] {
            assert_eq!(Pattern(pattern.into()).fits(name), fits, "{pattern} {name}");
        }
    }

    const POLICY: &str = "
        [[allow]]
        source = ['train-*']
        receivers = ['gpu-*']
        objects = ['model-*', 'data']
        [[allow]]
        source = ['admin']
        remove = true
        [[allow]]
        source = ['guest']
        remove = false
        [[quota]]
        source = ['train-1']
        bytes-max = '2GB'
        transfers-max = 2
        [[quota]]
        rate-max = '20gbit'
    ";

    #[test]
    fn what_no_rule_allows_is_refused_in_a_sentence() {
        let policy = Policy::from_toml(POLICY).unwrap();
        assert_eq!(policy.send("train-1", "model-7", "gpu-3"), Ok(()));
        let refused = policy.send("train-1", "model-7", "db-1").unwrap_err().to_string();
        assert_eq!(refused, "the manager's policy does not let 'train-1' send 'model-7' to 'db-1'");
        assert!(policy.send("train-1", "secrets", "gpu-3").is_err());
        assert!(policy.send("web", "data", "gpu-3").is_err());
        assert_eq!(policy.send("guest", "data", "gpu-3"), Ok(()));
        assert_eq!(policy.remove("admin", None, "gpu-3"), Ok(()));
        assert!(policy.remove("guest", Some("data"), "gpu-3").is_err());
        assert_eq!(policy.remove("guest", None, "guest"), Ok(()), "at itself");
        assert_eq!(policy.remove("train-1", Some("data"), "gpu-3"), Ok(()));
        assert!(policy.remove("train-1", None, "gpu-3").is_err(), "a number may be any object's");
        let open = Policy::from_toml("").unwrap();
        assert_eq!(open.send("a", "x", "b"), Ok(()));
        assert_eq!(open.remove("a", None, "b"), Ok(()));
    }

    #[test]
    fn quotas_hold_for_each_source() {
        let policy = Policy::from_toml(POLICY).unwrap();
        let has = |transfers, bytes| Usage { transfers, bytes, rate_bps: 0 };
        assert_eq!(policy.begin("train-1", has(1, 1_000_000_000), 1_000_000_000), Ok(()));
        let said = |usage, bytes| policy.begin("train-1", usage, bytes).unwrap_err().to_string();
        assert!(said(has(2, 0), 1).contains("2 transfers at a time, and it has 2"));
        assert!(
            said(has(0, 0), 2_000_000_001).contains("2000000000 bytes at a time, and these are 2000000001")
        );
        assert!(said(has(1, 5), 2_000_000_000).contains("and 5 are on their way"));
        assert_eq!(policy.begin("other", has(9, u64::MAX), 1), Ok(()));
        assert_eq!(policy.rate("other", 20_000_000_000), Ok(()));
        assert!(policy.rate("other", 20_000_000_001).is_err());
        assert_eq!(policy.rate("train-1", u64::MAX), Ok(()), "the first quota that it fits holds");
    }

    #[test]
    fn the_sample_is_read() {
        let sample = include_str!("../../../docs/policy.sample.toml");
        let policy = Policy::from_toml(sample).unwrap();
        assert!(policy.allow.is_empty() && policy.quota.is_empty());
        let lines = sample.lines().filter_map(|line| line.strip_prefix("# "));
        let all: Vec<&str> = lines.filter(|line| line.starts_with('[') || line.contains(" = ")).collect();
        let policy = Policy::from_toml(&all.join("\n")).unwrap();
        assert_eq!((policy.allow.len(), policy.quota.len()), (1, 1));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            (
                "[[allow]]\nrecievers = ['a']",
                "line 2 of the settings: unknown field `recievers`, expected one of `source`, `receivers`",
            ),
            ("[[alow]]", "unknown field `alow`, expected `allow` or `quota`"),
            ("[[allow]]\nsource = 'a'", "line 2"),
            ("[[allow]]\nsource = []", "'source' names no agent"),
            ("[[quota]]\nsource = ['a']", "needs bytes-max, transfers-max or rate-max"),
            ("[[quota]]\ntransfers-max = 0", "a quota of 0"),
            ("[[quota]]\nbytes-max = 'much'", "'much'"),
            ("[[quota]]\nrate-max = 'fast'", "'fast'"),
        ] {
            let message = Policy::from_toml(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
            assert!(!message.contains('\n'), "{message}");
        }
        let missing = Policy::load(Path::new("/no/such")).unwrap_err().to_string();
        assert!(missing.contains("'policy'") && missing.contains("/no/such cannot be read"), "{missing}");
    }
}
