//! Names that the other end of a sealed connection may use, and the end that it has to be.

use super::offerer::ED25519_SPKI;
use polycast_types::Printable;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::fmt;
use webpki::EndEntityCert;

/// Beginning of a SPIFFE identity's path, before the name of an agent.
const SPIFFE_PATH: &str = "/polycast/agent/";

/// The DNS name in the certificates of managers, where settings name no other one. No agent has it.
pub const MANAGER: &str = "manager";
/// Maximum number of names of a certificate in a sentence.
const NAMED_MAX: usize = 4;
/// Maximum number of bytes of each name: an authority can put any text there.
const NAME_SHOWN_MAX: usize = 64;

/// End that has to be at the other side of a connection that this end opens. Ends that share a secret have no
/// names: there it is enough that the other end has the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A manager: its certificate has this DNS name, which no agent has.
    Manager(String),
    /// The member of this name.
    Member(String),
    /// Any end that shares the secret. No end that shows a certificate is one.
    Sharer,
    /// The source of the offer that this end takes, which has a key of its own. Where there is none that this
    /// end could know, any end that shares the secret.
    Offerer,
    /// A device of the network. Its certificate says nothing of its place: settings name its address, and the
    /// authority in `[device-tls]` is for devices alone.
    Device,
}

impl Expected {
    /// Looks whether the end with this certificate, for which an authority vouches, is the one.
    pub(super) fn check(&self, shown: &CertificateDer<'_>) -> Result<(), OtherEnd> {
        let names = PeerNames::of(Some(shown));
        match self {
            Expected::Manager(name) if has_dns_name(shown, name) => Ok(()),
            Expected::Manager(name) => Err(OtherEnd::NoManager { name: name.clone(), names }),
            Expected::Member(name) => Ok(names.check(name)?),
            Expected::Sharer | Expected::Offerer => Err(OtherEnd::Unnamed),
            Expected::Device => Ok(()),
        }
    }
}

/// One that is connected to is another one than it has to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OtherEnd {
    /// It is no manager.
    #[error(
        "the other end is no manager: its certificate is for {names}, and that of a manager has the DNS name '{name}' (--manager-name)"
    )]
    NoManager {
        /// Name of a manager's certificate.
        name: String,
        /// Names of the other end's own certificate.
        names: PeerNames,
    },
    /// It is another member.
    #[error(transparent)]
    Member(#[from] OtherName),
    /// It shows a certificate to an end that knows of a key only.
    #[error("the other end shows a certificate, and nothing says whose it has to be")]
    Unnamed,
}

/// Returns true if a certificate has this DNS name. The names of agents in SPIFFE identities do not count.
fn has_dns_name(certificate: &CertificateDer<'_>, name: &str) -> bool {
    EndEntityCert::try_from(certificate).is_ok_and(|own| own.valid_dns_names().any(|dns| dns == name))
}

/// Names that one has shown to be its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerNames {
    /// Any name is believed: the other end has the key of the cluster, or connections are plain.
    Any,
    /// It has shown nothing.
    Nobody,
    /// Names in its certificate.
    Only(Vec<String>),
}

/// Certificates that an end has shown when a connection to it was sealed.
#[derive(Clone, Debug)]
pub struct Shown {
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// Time of the handshake: what has expired since then goes on.
    pub(super) at: UnixTime,
}

impl Shown {
    /// This now.
    pub(super) fn now(chain: Option<&[CertificateDer<'static>]>) -> Self {
        Shown { chain: chain.unwrap_or_default().to_vec(), at: UnixTime::now() }
    }
}

impl PeerNames {
    /// Returns the names of an end that has shown this in a handshake, in which it had to show something.
    pub(super) fn of(shown: Option<&CertificateDer<'_>>) -> Self {
        let Some(shown) = shown else { return PeerNames::Nobody };
        // A raw key was compared with the only one that is right.
        if shown.starts_with(&ED25519_SPKI) {
            return PeerNames::Any;
        }
        // What is no certificate has no name.
        let Ok(certificate) = EndEntityCert::try_from(shown) else { return PeerNames::Only(Vec::new()) };
        let spiffe = certificate.valid_uri_names().filter_map(agent_of);
        PeerNames::Only(certificate.valid_dns_names().chain(spiffe).map(str::to_string).collect())
    }

    /// Returns true if the end may have this name.
    #[must_use]
    pub fn allow(&self, name: &str) -> bool {
        match self {
            PeerNames::Any => true,
            PeerNames::Nobody => false,
            PeerNames::Only(names) => names.iter().any(|own| own == name),
        }
    }

    /// Checks that the end may use this name; if not, returns the reason to refuse it.
    ///
    /// # Errors
    /// It may not have this name.
    pub fn check(&self, name: &str) -> Result<(), OtherName> {
        if self.allow(name) {
            return Ok(());
        }
        Err(OtherName { said: name.to_string(), names: self.clone() })
    }
}

impl fmt::Display for PeerNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerNames::Any => f.write_str("any name"),
            PeerNames::Nobody => f.write_str("no name"),
            PeerNames::Only(names) if names.is_empty() => f.write_str("no name"),
            PeerNames::Only(names) => {
                for (at, name) in names.iter().take(NAMED_MAX).enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(f, "{comma}'{}'", Shortened(name))?;
                }
                if names.len() > NAMED_MAX {
                    write!(f, " and {} more", names.len() - NAMED_MAX)
                } else {
                    Ok(())
                }
            }
        }
    }
}

/// A name as a sentence has it.
struct Shortened<'a>(&'a str);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, rest) = self.0.split_at(self.0.floor_char_boundary(NAME_SHOWN_MAX));
        write!(f, "{}{}", Printable(shown), if rest.is_empty() { "" } else { "…" })
    }
}

/// One calls itself something else than its certificate does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the certificate of '{name}' is for {names}: start the agent with the name in its certificate, or give it one with the DNS name '{name}'",
    name = Printable(said)
)]
pub struct OtherName {
    said: String,
    names: PeerNames,
}

/// The agent's name in `spiffe://DOMAIN/polycast/agent/NAME`.
fn agent_of(uri: &str) -> Option<&str> {
    let rest = uri.strip_prefix("spiffe://")?;
    let name = rest.find('/').and_then(|at| rest[at..].strip_prefix(SPIFFE_PATH))?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_of_spiffe_identities() {
        assert_eq!(agent_of("spiffe://example.org/polycast/agent/gpu-1"), Some("gpu-1"));
        for other in [
            "spiffe://example.org/polycast/agent/",
            "spiffe://example.org/polycast/agent/a/b",
            "spiffe://example.org/other/agent/a",
            "https://example.org/polycast/agent/a",
            "spiffe://example.org",
        ] {
            assert_eq!(agent_of(other), None, "{other}");
        }
    }

    /// Any name is believed of a raw key alone, which has been compared: what is neither that nor a
    /// certificate has none.
    #[test]
    fn what_is_no_certificate_has_no_name() {
        let key = crate::tls::offerer::spki_of(&[7; 32]).to_vec();
        assert_eq!(PeerNames::of(Some(&key.into())), PeerNames::Any);
        for odd in [Vec::new(), vec![1, 2, 3], vec![0x30; 44], vec![0x30, 0x82, 0, 0]] {
            assert_eq!(PeerNames::of(Some(&odd.into())), PeerNames::Only(Vec::new()));
        }
        assert_eq!(PeerNames::of(None), PeerNames::Nobody);
    }
}
