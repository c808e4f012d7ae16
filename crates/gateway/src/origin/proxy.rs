//! Proxies, as the environment names them, and requests that are asked of one.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use std::io;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::http::uri::Scheme;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};
use ureq::{Error, Proxy, ProxyProtocol};

/// Proxies, by the kind of server that they lead to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proxies {
    http: Option<String>,
    https: Option<String>,
    /// Hosts and domains that are reached without; `*` is all.
    none: Vec<String>,
}

impl Proxies {
    pub(crate) fn of_environment() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    /// As `get` gives the variables: `http_proxy`, `https_proxy`, for both `all_proxy`, and `no_proxy`, each
    /// in small or in capital letters.
    pub(super) fn of(get: impl Fn(&str) -> Option<String>) -> Self {
        let either = |name: &str| get(name).or_else(|| get(&name.to_ascii_uppercase()));
        let value =
            |name: &str| either(name).map(|value| value.trim().to_string()).filter(|value| !value.is_empty());
        let all = value("all_proxy");
        let none = either("no_proxy").unwrap_or_default();
        let none = none.split([',', ' ']).map(|host| host.trim().to_ascii_lowercase());
        Proxies {
            http: value("http_proxy").or_else(|| all.clone()),
            https: value("https_proxy").or(all),
            none: none.filter(|host| !host.is_empty()).collect(),
        }
    }

    /// The proxy that leads to this address, if one does.
    pub(super) fn towards(&self, address: &Uri) -> Result<Option<Proxy>, String> {
        let is_sealed = address.scheme() == Some(&Scheme::HTTPS);
        let (name, proxy) = if is_sealed { ("https_proxy", &self.https) } else { ("http_proxy", &self.http) };
        let Some(proxy) = proxy.as_ref().filter(|_| !self.is_without(address)) else { return Ok(None) };
        let known = Proxy::new(proxy);
        // It may have a password, so it is not shown.
        known.map(Some).map_err(|_| format!("the proxy that {name} names is no address"))
    }

    fn is_without(&self, address: &Uri) -> bool {
        let host = address.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
        let port = address.port_u16().map(|port| port.to_string());
        self.none.iter().any(|entry| {
            // A port belongs to an entry only where it has one, and an address of IPv6 has more colons.
            let (name, of_port) = match entry.rsplit_once(':') {
                Some((name, of_port)) if !name.contains(':') => (name, Some(of_port)),
                _ => (entry.as_str(), None),
            };
            let name = name.trim_matches(['[', ']']).trim_start_matches('*').trim_start_matches('.');
            let is_port = of_port.is_none_or(|of_port| port.as_deref() == Some(of_port));
            let is_below = || host.strip_suffix(name).is_some_and(|below| below.ends_with('.'));
            entry == "*" || is_port && !name.is_empty() && (host == name || is_below())
        })
    }
}

/// Asks a proxy in place of the server: the first line of a request names the whole address.
#[derive(Clone, Debug)]
pub(super) struct ViaProxy {
    proxy: Proxy,
}

impl ViaProxy {
    /// Returns true if a proxy can be used like this: it has to be reached unencrypted.
    pub(super) fn can(proxy: &Proxy) -> bool {
        proxy.protocol() == ProxyProtocol::Http
    }

    pub(super) fn new(proxy: Proxy) -> Self {
        ViaProxy { proxy }
    }

    /// Returns the user's credentials for the proxy, if its address contains them.
    pub(super) fn authorization(&self) -> Option<String> {
        let (user, password) = (self.proxy.username()?, self.proxy.password().unwrap_or_default());
        Some(format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))))
    }
}

impl Resolver for ViaProxy {
    fn resolve(&self, _: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        DefaultResolver::default().resolve(self.proxy.uri(), config, timeout)
    }
}

impl<In: Transport> Connector<In> for ViaProxy {
    type Out = Addressed<In>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Addressed<In>>, Error> {
        let authority = details.uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        // The name of the user at the server is for that alone.
        let host = authority.rsplit('@').next().unwrap_or_default();
        let place = format!("http://{host}");
        Ok(chained.map(|inner| Addressed { inner, place: Some(place) }))
    }
}

/// A connection on which the first line of the only request names the whole address.
#[derive(Debug)]
pub(super) struct Addressed<T> {
    inner: T,
    /// Text to put before the path; `None` once it was.
    place: Option<String>,
}

impl<T: Transport> Transport for Addressed<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let added = match self.place.take() {
            Some(place) => insert(self.inner.buffers().output(), amount, place.as_bytes())?,
            None => 0,
        };
        self.inner.transmit_output(amount + added, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }
}

/// Puts the place before the path in the first `amount` bytes, which begin with a request; gives how many
/// bytes that were.
fn insert(output: &mut [u8], amount: usize, place: &[u8]) -> Result<usize, Error> {
    let path = output[..amount].windows(2).position(|pair| pair == b" /").map(|space| space + 1);
    let (Some(path), true) = (path, amount + place.len() <= output.len()) else {
        return Err(Error::Io(io::Error::other("the address is too long to be asked of a proxy")));
    };
    output.copy_within(path..amount, path + place.len());
    output[path..path + place.len()].copy_from_slice(place);
    Ok(place.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_which_proxy_leads_where() {
        let of = |pairs: &'static [(&str, &str)], address: &str| {
            let get = |name: &str| {
                pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
            };
            let proxy = Proxies::of(get).towards(&address.parse().unwrap());
            proxy.map(|proxy| proxy.map(|proxy| proxy.host().to_string()))
        };
        let both: &[(&str, &str)] =
            &[("http_proxy", "a:1"), ("HTTPS_PROXY", "http://b:1"), ("all_proxy", "c:1")];
        assert_eq!(of(both, "http://host/"), Ok(Some("a".into())));
        assert_eq!(of(both, "https://host/"), Ok(Some("b".into())));
        let all: &[(&str, &str)] = &[("ALL_PROXY", "c:1"), ("http_proxy", "")];
        assert_eq!(of(all, "http://host/"), Ok(Some("c".into())));
        assert_eq!(of(&[], "http://host/"), Ok(None));
        let said = of(&[("http_proxy", "http://me:secret@")], "http://host/").unwrap_err();
        assert!(said.contains("http_proxy") && !said.contains("secret"), "{said}");
    }

    #[test]
    fn hosts_without_a_proxy_are_named_as_for_other_programs() {
        for (none, address, is_without) in [
            ("host", "http://host/", true),
            ("host", "http://HOST:81/", true),
            ("host", "http://a.host/", true),
            ("host", "http://ahost/", false),
            (".org", "http://a.org/", true),
            ("*.org", "http://a.b.org/", true),
            ("a, b ,c", "http://b/", true),
            ("*", "http://any/", true),
            ("", "http://any/", false),
            ("host:81", "http://host:81/", true),
            ("host:81", "http://host/", false),
            ("::1", "http://[::1]:80/", true),
            ("[::1]", "http://[::1]/", true),
            ("127.0.0.1", "http://127.0.0.11/", false),
        ] {
            let proxies = Proxies::of(|name| (name == "no_proxy").then(|| none.to_string()));
            assert_eq!(proxies.is_without(&address.parse().unwrap()), is_without, "{none} for {address}");
        }
    }

    #[test]
    fn the_first_line_gets_the_whole_address_or_is_too_long() {
        let mut output = *b"GET /a/b HTTP/1.1\r\n..........";
        let added = insert(&mut output, 19, b"http://h").unwrap();
        assert_eq!(&output[..19 + added], b"GET http://h/a/b HTTP/1.1\r\n");
        assert!(insert(&mut output, 27, b"http://h").is_err());
        assert!(insert(&mut output[..3], 3, b"").is_err());
    }
}
