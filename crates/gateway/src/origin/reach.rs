//! Limit on redirects: a server may not redirect to an address that is nearer to this machine than its own.
//! Services at nearer addresses trust every program here, such as a cloud's, which gives away the machine's
//! keys.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, OnceLock};
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Nearness of an address to this machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Nearness {
    Public,
    Private,
    Loopback,
    LinkLocal,
}

impl Nearness {
    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => Self::of_v6(address),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            [169, 254, ..] => Nearness::LinkLocal,
            // The kernel takes an address of zeros for this machine.
            [0 | 127, ..] => Nearness::Loopback,
            // What providers give out behind their own translation of addresses.
            [100, 64..=127, ..] => Nearness::Private,
            _ if address.is_private() => Nearness::Private,
            _ => Nearness::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        // Addresses of IPv4 in the clothes of IPv6; so are ::1 and ::, which this takes for 0.0.0.1 and
        // 0.0.0.0.
        if let Some(address) = address.to_ipv4() {
            return Self::of_v4(address);
        }
        match address.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                Self::of_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
            }
            [0xfe80..=0xfebf, ..] => Nearness::LinkLocal,
            [0xfec0..=0xfeff | 0xfc00..=0xfdff, ..] => Nearness::Private,
            _ => Nearness::Public,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Nearness::Public => "a public address",
            Nearness::Private => "a private address",
            Nearness::Loopback => "a loopback address",
            Nearness::LinkLocal => "a link-local address",
        }
    }
}

/// Limit on how near servers may be. The first one sets it: its address is the user's choice.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach(Arc<OnceLock<Nearness>>);

impl Reach {
    /// Returns the addresses of a server that may be contacted.
    fn allowed(&self, addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, String> {
        let nearest = addresses.iter().copied().max_by_key(|address| Nearness::of(*address));
        let Some(nearest) = nearest else { return Ok(Vec::new()) };
        let most = *self.0.get_or_init(|| Nearness::of(nearest));
        let kept: Vec<IpAddr> =
            addresses.into_iter().filter(|address| Nearness::of(*address) <= most).collect();
        if kept.is_empty() {
            let what = Nearness::of(nearest).words();
            return Err(format!("the server sends on to {nearest}, {what}, and its own is farther away"));
        }
        Ok(kept)
    }

    /// Checks that a proxy may be asked for a resource of this host. Names are known to the proxy alone,
    /// which has rules of its own.
    pub(super) fn check_named(&self, host: &str) -> Result<(), String> {
        let host = host.trim_matches(['[', ']']);
        let address = match host.parse() {
            Ok(address) => address,
            Err(_) if host.eq_ignore_ascii_case("localhost") => Ipv4Addr::LOCALHOST.into(),
            Err(_) => {
                self.0.get_or_init(|| Nearness::Public);
                return Ok(());
            }
        };
        self.allowed(vec![address]).map(drop)
    }
}

/// Checks the addresses that are then connected to: a name may lead elsewhere each time.
impl Resolver for Reach {
    fn resolve(
        &self,
        address: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let found = DefaultResolver::default().resolve(address, config, timeout)?;
        let allowed = self.allowed(found.iter().map(|found| found.ip()).collect());
        let allowed = allowed.map_err(|why| Error::Io(io::Error::other(why)))?;
        let mut kept = self.empty();
        found.iter().filter(|found| allowed.contains(&found.ip())).for_each(|found| kept.push(*found));
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_are_known_in_all_their_forms() {
        for (near, texts) in [
            (
                Nearness::LinkLocal,
                &["169.254.169.254", "fe80::1", "::ffff:169.254.1.1", "64:ff9b::a9fe:a9fe"][..],
            ),
            (
                Nearness::Loopback,
                &["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::127.0.0.1"],
            ),
            (
                Nearness::Private,
                &[
                    "10.1.2.3",
                    "172.31.0.1",
                    "192.168.0.1",
                    "100.100.100.200",
                    "fd00:ec2::254",
                    "fec0::1",
                    "::ffff:10.0.0.1",
                ],
            ),
            (
                Nearness::Public,
                &["8.8.8.8", "172.32.0.1", "100.128.0.1", "2001:4860::8888", "64:ff9b::808:808"],
            ),
        ] {
            for text in texts {
                assert_eq!(Nearness::of(text.parse().unwrap()), near, "{text}");
            }
        }
    }

    #[test]
    fn a_server_sends_on_to_nothing_nearer_than_itself() {
        for (origin, allowed, refused) in [
            (
                "8.8.8.8",
                &["9.9.9.9"][..],
                &["10.0.0.1", "127.0.0.1", "169.254.169.254", "::ffff:10.0.0.1", "::1"][..],
            ),
            ("10.0.0.1", &["9.9.9.9", "192.168.0.1", "fd00::1"], &["127.0.0.1", "::1", "fe80::1"]),
            ("127.0.0.1", &["9.9.9.9", "10.0.0.1", "::1"], &["169.254.169.254", "::ffff:169.254.169.254"]),
            ("169.254.1.1", &["9.9.9.9", "127.0.0.1", "fe80::1"], &[]),
        ] {
            let reach = Reach::default();
            assert_eq!(reach.allowed(addresses(&[origin])), Ok(addresses(&[origin])));
            for to in allowed {
                assert_eq!(reach.allowed(addresses(&[to])), Ok(addresses(&[to])), "{origin} {to}");
                reach.check_named(to).unwrap();
            }
            for to in refused {
                let said = reach.allowed(addresses(&[to])).unwrap_err();
                assert!(
                    said.contains("the server sends on to") && said.contains("its own is farther"),
                    "{said}"
                );
                reach.check_named(&format!("[{to}]")).unwrap_err();
                // Of several it is asked at those that it may be.
                let some = reach.allowed(addresses(&["9.9.9.9", to]));
                assert_eq!(some, Ok(addresses(&["9.9.9.9"])));
            }
        }
        let reach = Reach::default();
        reach.check_named("origin.invalid").unwrap();
        reach.check_named("LOCALHOST").unwrap_err();
    }
}
