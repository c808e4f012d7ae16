//! Settings of the mirror of container registries: the section `[oci]` of an agent's.

use super::SettingsError;
use super::hub::{Network, check_listen, networks_of};
use serde::Deserialize;
use std::net::SocketAddr;

/// Settings of the mirror of container registries.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OciConfig {
    /// Address on which container runtimes are answered.
    pub listen: SocketAddr,
    /// Registries that it stands in for: `ghcr.io`, `registry.example:5000`, or with `http://` before it one
    /// that is not sealed.
    #[serde(default = "public")]
    pub registries: Vec<String>,
    /// Machines besides this one that may ask: addresses, and networks such as `10.0.0.0/8`.
    #[serde(default)]
    pub allow: Vec<String>,
}

fn public() -> Vec<String> {
    ["docker.io", "ghcr.io", "quay.io", "registry.k8s.io"].map(String::from).to_vec()
}

impl OciConfig {
    /// Checks what types alone don't.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check(&self) -> Result<(), SettingsError> {
        check_listen(("oci.listen", "oci.allow"), self.listen, &self.networks()?)?;
        for registry in &self.registries {
            let host = registry.strip_prefix("http://").unwrap_or(registry);
            let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
            if host.is_empty() || !host.chars().all(is_known) {
                let reason = format!("'{registry}' is no registry, such as ghcr.io or registry.example:5000");
                return Err(SettingsError::Value { setting: "oci.registries", reason });
            }
        }
        Ok(())
    }

    /// The networks of `allow`.
    ///
    /// # Errors
    /// One of them is none.
    pub fn networks(&self) -> Result<Vec<Network>, SettingsError> {
        networks_of("oci.allow", &self.allow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_named_by_their_hosts() {
        let of = |text: &str| {
            crate::settings::parse::<OciConfig>(text).and_then(|config| config.check().map(|()| config))
        };
        assert_eq!(of("listen = '127.0.0.1:7482'").unwrap().registries.len(), 4);
        of("listen = '127.0.0.1:1'\nregistries = ['r.example:5000', 'http://127.0.0.1:5000']").unwrap();
        for (text, says) in [
            ("listen = '0.0.0.0:7482'", "name those that may ask in oci.allow"),
            ("listen = '127.0.0.1:1'\nregistries = ['https://a']", "'https://a' is no registry"),
            ("listen = '127.0.0.1:1'\nregistries = ['a/b']", "'a/b' is no registry"),
        ] {
            let said = of(text).unwrap_err().to_string();
            assert!(said.contains(says), "{text}: {said}");
        }
    }
}
