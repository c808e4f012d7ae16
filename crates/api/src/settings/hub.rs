//! Settings of the hub endpoint: the section `[hub]` of an agent's.

use super::SettingsError;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Settings of the hub endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HubConfig {
    /// Address on which clients of the hub are answered.
    pub listen: SocketAddr,
    /// Address of the hub that stands behind it.
    #[serde(default = "huggingface")]
    pub upstream: String,
    /// Address of ModelScope, or of a mirror of it.
    #[serde(default = "modelscope")]
    pub modelscope: String,
    /// Machines besides this one that may ask: addresses, and networks such as `10.0.0.0/8`.
    #[serde(default)]
    pub allow: Vec<String>,
}

fn huggingface() -> String {
    "https://huggingface.co".into()
}

fn modelscope() -> String {
    "https://www.modelscope.cn".into()
}

impl HubConfig {
    /// Checks what types alone don't.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check(&self) -> Result<(), SettingsError> {
        let wrong = |setting, reason: String| Err(SettingsError::Value { setting, reason });
        check_listen(("hub.listen", "hub.allow"), self.listen, &self.networks()?)?;
        for (setting, address) in [("hub.upstream", self.upstream()), ("hub.modelscope", self.modelscope())] {
            let place =
                ["https://", "http://"].iter().find_map(|scheme| address.strip_prefix(scheme)).unwrap_or("");
            let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '@' | '\\');
            if place.is_empty() || place.starts_with('/') || place.contains(odd) {
                let reason = "it is not https://HOST or http://HOST, perhaps with a path".into();
                return wrong(setting, reason);
            }
        }
        Ok(())
    }

    /// The hub's address, without a slash at its end.
    #[must_use]
    pub fn upstream(&self) -> &str {
        self.upstream.trim_end_matches('/')
    }

    /// The address of ModelScope, without a slash at its end.
    #[must_use]
    pub fn modelscope(&self) -> &str {
        self.modelscope.trim_end_matches('/')
    }

    /// The networks of `allow`.
    ///
    /// # Errors
    /// One of them is none.
    pub fn networks(&self) -> Result<Vec<Network>, SettingsError> {
        networks_of("hub.allow", &self.allow)
    }
}

/// Refuses to answer other machines where none is named; the settings are called like this.
pub(super) fn check_listen(
    (listen, allow): (&'static str, &'static str),
    address: SocketAddr,
    networks: &[Network],
) -> Result<(), SettingsError> {
    if address.ip().is_loopback() || !networks.is_empty() {
        return Ok(());
    }
    let reason = format!(
        "it answers other machines at {address}: name those that may ask in {allow}, or take 127.0.0.1"
    );
    Err(SettingsError::Value { setting: listen, reason })
}

/// The networks that a setting names.
pub(super) fn networks_of(setting: &'static str, texts: &[String]) -> Result<Vec<Network>, SettingsError> {
    let wrong = |reason| SettingsError::Value { setting, reason };
    texts.iter().map(|text| text.parse().map_err(wrong)).collect()
}

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    /// Returns true if the address is in it; one of IPv4 is also in the clothes of IPv6.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let same = |one: u128, other: u128, width: u32| {
            let rest = width - self.bits;
            // A shift by all bits is none.
            one.checked_shr(rest).unwrap_or(0) == other.checked_shr(rest).unwrap_or(0)
        };
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => same(own.to_bits().into(), other.to_bits().into(), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => same(own.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is neither an address nor a network such as 10.0.0.0/8");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), str::parse).map_err(|_| wrong())?;
        if bits > width { Err(wrong()) } else { Ok(Network { address, bits }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<HubConfig, SettingsError> {
        crate::settings::parse::<HubConfig>(text).and_then(|config| config.check().map(|()| config))
    }

    #[test]
    fn others_ask_only_where_they_are_named() {
        assert_eq!(of("listen = '127.0.0.1:7481'").unwrap().upstream(), "https://huggingface.co");
        of("listen = '0.0.0.0:7481'\nallow = ['10.0.0.0/8']").unwrap();
        for (text, says) in [
            ("listen = '0.0.0.0:7481'", "name those that may ask in hub.allow"),
            ("listen = '127.0.0.1:1'\nallow = ['10.0.0.0/33']", "'10.0.0.0/33' is neither"),
            ("listen = '127.0.0.1:1'\nallow = ['gpu1']", "'gpu1' is neither an address"),
            ("listen = '127.0.0.1:1'\nupstream = 'huggingface.co'", "'hub.upstream' is wrong"),
            ("listen = '127.0.0.1:1'\nupstream = 'ftp://huggingface.co'", "'hub.upstream' is wrong"),
            ("listen = '127.0.0.1:1'\nupstream = 'https://me:secret@host'", "'hub.upstream' is wrong"),
            ("upstream = 'https://a'", "missing field `listen`"),
            ("listen = '127.0.0.1:1'\nupsteam = 'https://a'", "unknown field `upsteam`"),
        ] {
            let said = of(text).unwrap_err().to_string();
            assert!(said.contains(says) && !said.contains("secret"), "{text}: {said}");
        }
    }

    #[test]
    fn networks_have_the_addresses_that_begin_as_they_do() {
        for (network, address, is_in) in [
            ("10.0.0.0/8", "10.255.1.2", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("192.168.1.7", "192.168.1.7", true),
            ("192.168.1.7", "192.168.1.6", false),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fd12::1", true),
            ("::/0", "2001:db8::1", true),
        ] {
            let parsed: Network = network.parse().unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), is_in, "{network} {address}");
        }
    }
}
