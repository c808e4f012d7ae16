//! A mirror of container registries (OCI distribution): manifests and layers by their digests, each read
//! from its registry once for all hosts.
//!
//! The registry is asked before anything is given: for all, or for the user whose name and password come with
//! the request. What it does not give to these is not here: the runtime then asks the registry itself, with
//! its own secrets.

pub(crate) mod artifact;
mod login;
pub(crate) mod pull;

use crate::answers::{Answers, Fresh};
use crate::counts::Counts;
use crate::door::{Admission, Visitor, asked_range};
use crate::files::{Asked, Endpoint, Files};
use crate::origin::{Answer, length_of};
use crate::trouble::Trouble;
use crate::upstream::{Upstream, not_reached, refused};
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Response};
use login::{Login, Who};
use polycast_api::settings::{OciConfig, SettingsError};
use polycast_types::Printable;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time for which the word of a registry on a digest holds; then it is asked again whether all may have it.
const DIGEST_HOLDS: Duration = Duration::from_secs(60);
/// The same of a tag, which another image can get.
const TAG_HOLDS: Duration = Duration::from_secs(10);
/// A failure holds so long: many ask at one moment.
const TROUBLE_HOLDS: Duration = Duration::from_secs(1);
/// Runtimes wait 30 s for the head of an answer: before that it is sent, and what then goes wrong ends the
/// body.
const HEAD_WITHIN: Duration = Duration::from_secs(20);
/// The longest manifest, in bytes: registries take no longer ones.
const MANIFEST_LEN_MAX: u64 = 4 << 20;
/// The longest answer with a token, in bytes.
const TOKEN_LEN_MAX: u64 = 1 << 20;
/// Tokens of a registry that are kept at most: one for each user and repository.
const TOKENS_MAX: usize = 4_096;
/// A token is used for so long at most.
const TOKEN_MAX: Duration = Duration::from_secs(300);

const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const API_VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");
const NAMESPACE: HeaderName = HeaderName::from_static("oci-namespace");

/// A manifest or a layer that is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    registry: String,
    /// `library/debian`.
    name: String,
    is_manifest: bool,
    /// A tag, or `sha256:HEX`.
    reference: String,
}

impl Place {
    /// `None` where the path is no place of an image.
    fn parse(uri: &Uri) -> Option<Self> {
        let parts: Vec<&str> = uri.path().strip_prefix("/v2/")?.split('/').collect();
        let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        let is_part =
            |part: &&str| !part.is_empty() && *part != "." && *part != ".." && part.chars().all(is_known);
        if uri.path().len() > 1_024 || !parts.iter().all(is_part) {
            return None;
        }
        let [repository @ .., kind, reference] = &parts[..] else { return None };
        let is_manifest = match *kind {
            "manifests" => true,
            "blobs" => false,
            _ => return None,
        };
        let named = uri.query().and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("ns=")));
        let named = named.map(|named| percent_encoding::percent_decode_str(named).decode_utf8_lossy());
        let (registry, name) = match named {
            Some(named) => (named.into_owned(), repository.join("/")),
            // Runtimes that name no registry put it into the path.
            None => (repository.first()?.to_string(), repository[1..].join("/")),
        };
        let is_tag = |text: &str| text.len() <= 128 && !text.contains(':');
        let is_reference = hex_of(reference).is_some() || is_manifest && is_tag(reference);
        if name.is_empty() || !is_reference {
            return None;
        }
        Some(Place { registry, name, is_manifest, reference: reference.to_string() })
    }

    fn path(&self) -> String {
        let kind = if self.is_manifest { "manifests" } else { "blobs" };
        format!("/v2/{}/{kind}/{}", self.name, self.reference)
    }
}

/// The digits of a digest.
fn hex_of(text: &str) -> Option<&str> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.bytes().all(is_digit))
}

/// Digest, length and type of a manifest or a layer, as its registry tells them.
#[derive(Clone, Debug)]
struct Meta {
    hex: String,
    size: u64,
    kind: Option<HeaderValue>,
    /// The token that it gives to the one who asks.
    token: Option<HeaderValue>,
}

/// Registries as runtimes on this host see them.
pub(crate) struct Images {
    registries: BTreeMap<String, Arc<Registry>>,
    files: Arc<Files>,
    admission: Admission,
    metas: Answers<Result<Meta, Trouble>>,
}

impl Images {
    pub(crate) fn new(config: &OciConfig, agent: &Path, counts: Arc<Counts>) -> Result<Self, SettingsError> {
        config.check()?;
        Ok(Images {
            registries: config.registries.iter().map(|named| registry_of(named)).collect(),
            files: Arc::new(Files::new(agent, Endpoint::Images, counts)),
            admission: Admission { allow: config.networks()?, setting: "oci.allow" },
            metas: Answers::new(),
        })
    }

    async fn respond(self: &Arc<Self>, visitor: &Visitor, request: Request) -> Result<Response, Trouble> {
        let headers = request.headers().clone();
        self.admission.check(visitor.from.ip(), &headers)?;
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(Trouble::new(StatusCode::METHOD_NOT_ALLOWED, "images can only be pulled here"));
        }
        if matches!(request.uri().path(), "/v2" | "/v2/") {
            return Ok((StatusCode::OK, "{}").into_response());
        }
        let none = || Trouble::new(StatusCode::NOT_FOUND, "here are manifests and layers of images");
        let place = Place::parse(request.uri()).ok_or_else(none)?;
        let other = || Trouble::new(StatusCode::NOT_FOUND, "that registry is not in oci.registries");
        let registry = Arc::clone(self.registries.get(&place.registry).ok_or_else(other)?);
        let meta = self.meta(&registry, &place, &headers).await?;
        let mut response = Response::new(Body::empty());
        let own = response.headers_mut();
        let named = |text: String| HeaderValue::from_str(&text).ok();
        own.extend(named(format!("sha256:{}", meta.hex)).map(|value| (CONTENT_DIGEST, value)));
        own.extend(named(format!("\"sha256:{}\"", meta.hex)).map(|value| (header::ETAG, value)));
        own.extend(named(place.registry.clone()).map(|value| (NAMESPACE, value)));
        let plain = HeaderValue::from_static("application/octet-stream");
        own.insert(header::CONTENT_TYPE, meta.kind.clone().unwrap_or(plain));
        own.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        own.insert(header::CONTENT_LENGTH, meta.size.into());
        if request.method() == Method::HEAD {
            return Ok(response);
        }
        let mut range = 0..meta.size;
        if let Some(part) = asked_range(&headers, &format!("sha256:{}", meta.hex), meta.size)? {
            let own = response.headers_mut();
            own.extend(
                named(format!("bytes {}-{}/{}", part.start, part.end - 1, meta.size))
                    .map(|value| (header::CONTENT_RANGE, value)),
            );
            own.insert(header::CONTENT_LENGTH, (part.end - part.start).into());
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            range = part;
        }
        if range.is_empty() {
            return Ok(response);
        }
        let mut coming = self.files.get(registry.asked(&place, &meta)?);
        if let Ok(begun) = tokio::time::timeout(HEAD_WITHIN, coming.from(range.start)).await {
            begun.map_err(|trouble| for_others(trouble, &Who::of_request(&headers)))?;
        }
        *response.body_mut() = coming.body(range);
        Ok(response)
    }

    /// Asks the registry for digest and length, as it tells them to all, or to the user of the request.
    async fn meta(
        &self,
        registry: &Arc<Registry>,
        place: &Place,
        headers: &HeaderMap,
    ) -> Result<Meta, Trouble> {
        // Clients send several lines of these, and the registry needs all.
        let accepts: Vec<HeaderValue> = headers.get_all(header::ACCEPT).iter().cloned().collect();
        let mut question = format!("{}{}", place.registry, place.path());
        for accept in accepts.iter().filter(|_| place.is_manifest) {
            question.push('\n');
            question.push_str(&String::from_utf8_lossy(accept.as_bytes()));
        }
        let who = Who::of_request(headers);
        let id = who.id;
        let ask = async {
            let (registry, place) = (Arc::clone(registry), place.clone());
            let is_digest = hex_of(&place.reference).is_some();
            let upstream = Arc::clone(&registry.upstream);
            let answer = upstream.in_thread(move |_| registry.meta(&place, &accepts, &who)).await;
            let holds = match &answer {
                Ok(_) if is_digest => DIGEST_HOLDS,
                Ok(_) => TAG_HOLDS,
                Err(_) => TROUBLE_HOLDS,
            };
            Fresh { answer, holds, bytes: 4_096 }
        };
        self.metas.get((id, question), ask).await
    }
}

/// A registry by its name, with `http://` before it where it has no TLS; gives its host, too.
fn registry_of(named: &str) -> (String, Arc<Registry>) {
    let (host, at) = registry_at(named);
    (host, Arc::new(Registry::new(&at)))
}

/// Returns the host of a registry by its name, as `oci.registries` has it, and the URL that it answers at.
#[must_use]
pub fn registry_at(named: &str) -> (String, String) {
    let (scheme, host) = match named.strip_prefix("http://") {
        Some(host) => ("http", host),
        None => ("https", named),
    };
    // Docker Hub's own name has no registry behind it.
    let at = if host == "docker.io" { "registry-1.docker.io" } else { host };
    (host.to_string(), format!("{scheme}://{at}"))
}

/// Tokens, by the one who asks and the repository; each until a time.
type Tokens = BTreeMap<([u8; 32], String), (HeaderValue, Instant)>;

/// A registry.
struct Registry {
    upstream: Arc<Upstream>,
    tokens: Mutex<Tokens>,
}

impl Registry {
    fn new(base: &str) -> Self {
        Registry { upstream: Arc::new(Upstream::new(base)), tokens: Mutex::default() }
    }

    /// A manifest or layer, as the agent is asked for it.
    fn asked(&self, place: &Place, meta: &Meta) -> Result<Asked, Trouble> {
        // A tag may lead to another one by now.
        let digest = Place { reference: format!("sha256:{}", meta.hex), ..place.clone() };
        let mut request = self.upstream.request(Method::GET, &digest.path(), meta.token.as_ref())?;
        if let Some(kind) = meta.kind.clone().filter(|_| place.is_manifest) {
            request.headers_mut().insert(header::ACCEPT, kind);
        }
        Ok(Asked {
            shown: format!("{}/{} sha256:{}", place.registry, place.name, meta.hex),
            name: meta.hex.clone(),
            key: format!("sha256:{}", meta.hex),
            size: meta.size,
            request,
        })
    }

    fn token(&self, name: &str, who: &Who) -> Option<HeaderValue> {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tokens.get(&(who.id, name.to_string()));
        known.filter(|(_, until)| Instant::now() < *until).map(|(token, _)| token.clone())
    }

    /// Keeps a token; of very many the others go.
    fn keep_token(&self, name: &str, who: &Who, token: &HeaderValue, lives: Duration) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        tokens.retain(|_, (_, until)| now < *until);
        if tokens.len() >= TOKENS_MAX {
            tokens.clear();
        }
        // One that is about to end may end on its way.
        tokens.insert((who.id, name.to_string()), (token.clone(), now + lives * 4 / 5));
    }

    /// Asks for digest and length, in this thread.
    fn meta(&self, place: &Place, accepts: &[HeaderValue], who: &Who) -> Result<Meta, Trouble> {
        let mut response = self.ask(Method::HEAD, place, accepts, who)?;
        let text = |response: &Answer, name: &HeaderName| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_string)
        };
        let named = hex_of(&place.reference).map(str::to_string);
        let said = text(&response, &CONTENT_DIGEST).as_deref().and_then(hex_of).map(str::to_string);
        let (mut hex, mut size) = (named.clone().or(said), length_of(&response));
        if place.is_manifest && (hex.is_none() || size.is_none()) {
            // Some registries say it only with the manifest.
            response = self.ask(Method::GET, place, accepts, who)?;
            let mut body = Vec::new();
            let mut reader = response.body_mut().as_reader().take(MANIFEST_LEN_MAX);
            reader.read_to_end(&mut body).map_err(|error| not_reached(error.to_string()))?;
            let found = digest(&SHA256, &body);
            hex = Some(found.as_ref().iter().map(|byte| format!("{byte:02x}")).collect());
            size = Some(body.len() as u64);
        }
        let (Some(hex), Some(size)) = (hex, size) else {
            return Err(Trouble::upstream("the registry names neither digest nor length"));
        };
        if place.is_manifest && size > MANIFEST_LEN_MAX {
            return Err(Trouble::upstream(format!("a manifest of {size} bytes is longer than 4 MiB")));
        }
        let kind = response.headers().get(header::CONTENT_TYPE).cloned();
        Ok(Meta { hex, size, kind, token: self.token(&place.name, who) })
    }

    fn ask(
        &self,
        method: Method,
        place: &Place,
        accepts: &[HeaderValue],
        who: &Who,
    ) -> Result<Answer, Trouble> {
        let mut headers = HeaderMap::new();
        for accept in accepts.iter().filter(|_| place.is_manifest) {
            headers.append(header::ACCEPT, accept.clone());
        }
        self.ask_with(method, place, &headers, who)
    }

    /// Asks for a layer's bytes from one on.
    fn ask_from(&self, at: u64, place: &Place, who: &Who) -> Result<Answer, Trouble> {
        let mut headers = HeaderMap::new();
        let range = HeaderValue::from_str(&format!("bytes={at}-")).ok();
        headers.extend(range.filter(|_| at > 0).map(|range| (header::RANGE, range)));
        self.ask_with(Method::GET, place, &headers, who)
    }

    /// Asks for one, with what the registry gives to that one.
    fn ask_with(
        &self,
        method: Method,
        place: &Place,
        headers: &HeaderMap,
        who: &Who,
    ) -> Result<Answer, Trouble> {
        let once = |token: Option<HeaderValue>| {
            let mut request = self.upstream.request(method.clone(), &place.path(), token.as_ref())?;
            for (name, value) in headers {
                request.headers_mut().append(name, value.clone());
            }
            self.upstream.way().ask_on(request).map_err(not_reached)
        };
        let mut response = once(self.token(&place.name, who))?;
        if response.status() == StatusCode::UNAUTHORIZED {
            let challenges = response.headers().get_all(header::WWW_AUTHENTICATE);
            let challenges: Vec<String> =
                challenges.iter().filter_map(|value| Some(value.to_str().ok()?.to_string())).collect();
            if let Some(token) = self.new_token(&place.name, &challenges, who)? {
                response = once(Some(token))?;
            }
        }
        match response.status() {
            status if status.is_success() => Ok(response),
            _ => Err(for_others(refused(&response), who)),
        }
    }

    /// Gets what opens a repository for one, by what the registry asks for: a token from its server of
    /// tokens, or name and password.
    fn new_token(
        &self,
        name: &str,
        challenges: &[String],
        who: &Who,
    ) -> Result<Option<HeaderValue>, Trouble> {
        let of = |scheme: &str| {
            let is_of =
                |said: &&String| said.get(..scheme.len()).is_some_and(|own| own.eq_ignore_ascii_case(scheme));
            challenges.iter().find(is_of)
        };
        if let Some(challenge) = of("Bearer ") {
            return self.token_of_bearer(name, challenge, who);
        }
        let basic = of("Basic").and_then(|_| who.login()?.header());
        if let Some(token) = &basic {
            self.keep_token(name, who, token, TOKEN_MAX);
        }
        Ok(basic)
    }

    fn token_of_bearer(
        &self,
        name: &str,
        challenge: &str,
        who: &Who,
    ) -> Result<Option<HeaderValue>, Trouble> {
        let Some(realm) = parameter(challenge, "realm") else { return Ok(None) };
        if self.upstream.base().starts_with("https:") && !realm.starts_with("https:") {
            return Err(Trouble::upstream("the registry sends on for a token to what is not sealed"));
        }
        let odd = || Trouble::upstream("the registry names no address for tokens");
        let request = token_request(realm, parameter(challenge, "service"), name, who).ok_or_else(odd)?;
        // It is no nearer to this machine than the registry, as a redirect would be. The body of a request is
        // for this server alone.
        let way = self.upstream.way();
        let answer = if request.body().is_empty() { way.ask_on(request) } else { way.ask(&request) };
        let mut response = answer.map_err(not_reached)?;
        if !response.status().is_success() {
            return Ok(None);
        }
        let mut body = Vec::new();
        let mut reader = response.body_mut().as_reader().take(TOKEN_LEN_MAX);
        reader.read_to_end(&mut body).map_err(|error| not_reached(error.to_string()))?;
        let document: Value = serde_json::from_slice(&body).unwrap_or_default();
        let token = document["token"].as_str().or_else(|| document["access_token"].as_str());
        let token = token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
        let lives = Duration::from_secs(document["expires_in"].as_u64().unwrap_or(60)).min(TOKEN_MAX);
        if let Some(token) = &token {
            self.keep_token(name, who, token, lives);
        }
        Ok(token)
    }
}

/// The request for a token that opens a repository: with name and password, or by an identity token in the
/// way of OAuth 2.
fn token_request(
    realm: &str,
    service: Option<&str>,
    name: &str,
    who: &Who,
) -> Option<axum::http::Request<Vec<u8>>> {
    let escaped = |text: &str| {
        percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
    };
    let mut question = format!("scope={}", escaped(&format!("repository:{name}:pull")));
    if let Some(service) = service {
        question.push_str(&format!("&service={}", escaped(service)));
    }
    if let Some(Login::Identity(token)) = who.login() {
        let body = format!(
            "grant_type=refresh_token&client_id=polycast&refresh_token={}&{question}",
            escaped(token)
        );
        let request = axum::http::Request::post(realm);
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        return request.header(header::CONTENT_TYPE, form).body(body.into_bytes()).ok();
    }
    let mark = if realm.contains('?') { '&' } else { '?' };
    let mut request = axum::http::Request::get(format!("{realm}{mark}{question}")).body(Vec::new()).ok()?;
    let own = who.login().and_then(Login::header);
    request.headers_mut().extend(own.map(|own| (header::AUTHORIZATION, own)));
    Some(request)
}

/// Turns a refusal into an absence: a runtime then asks the registry itself.
fn for_others(trouble: Trouble, who: &Who) -> Trouble {
    if !matches!(trouble.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return trouble;
    }
    let why = match who.login() {
        None => {
            "the registry does not give that to all: it needs credentials (docker login, podman login)".into()
        }
        Some(Login::Password(user, _)) => {
            format!("the registry does not give that to the user {}", Printable(user))
        }
        Some(Login::Identity(_)) => "the registry does not give that for the identity token".to_string(),
    };
    Trouble::new(StatusCode::NOT_FOUND, why)
}

/// A parameter of a challenge.
fn parameter<'a>(challenge: &'a str, name: &str) -> Option<&'a str> {
    let at = challenge.find(&format!("{name}=\""))? + name.len() + 2;
    challenge[at..].split('"').next()
}

/// Answers a runtime.
pub(crate) async fn answer(
    State(images): State<Arc<Images>>,
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    request: Request,
) -> Response {
    let asked = format!("{} {}", request.method(), request.uri());
    let knows_nudges = request.version() == Version::HTTP_11;
    let work = images.respond(&visitor, request);
    let answer = if knows_nudges { visitor.while_told(work).await } else { work.await };
    let mut response = answer.unwrap_or_else(|trouble| {
        trouble.log(&asked);
        let said = json!({ "errors": [{ "code": "UNKNOWN", "message": trouble.message }] });
        let mut response = trouble.into_response();
        *response.body_mut() = Body::from(said.to_string());
        response.headers_mut().remove(header::CONTENT_LENGTH);
        response
    });
    response.headers_mut().insert(API_VERSION, HeaderValue::from_static("registry/2.0"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_in_both_forms() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (path, registry, name, is_manifest, reference) in [
            ("/v2/library/debian/manifests/12?ns=docker.io", "docker.io", "library/debian", true, "12"),
            ("/v2/ghcr.io/o/i/manifests/latest", "ghcr.io", "o/i", true, "latest"),
            (
                &format!("/v2/o/i/blobs/{digest}?ns=r.example%3A5000"),
                "r.example:5000",
                "o/i",
                false,
                &*digest,
            ),
            (&format!("/v2/r.example:5000/i/blobs/{digest}"), "r.example:5000", "i", false, &*digest),
        ] {
            let place = Place::parse(&path.parse().unwrap()).unwrap();
            let wanted = Place {
                registry: registry.into(),
                name: name.into(),
                is_manifest,
                reference: reference.into(),
            };
            assert_eq!(place, wanted, "{path}");
        }
        for path in [
            "/v2/o/../manifests/x?ns=docker.io",
            "/v2/o/%2e%2e/manifests/x?ns=docker.io",
            "/v2/o/i/blobs/latest?ns=docker.io",
            "/v2/o/i/blobs/sha256:12?ns=docker.io",
            "/v2/o/i/tags/list?ns=docker.io",
            "/v2/manifests/x?ns=docker.io",
            "/v2/ghcr.io/manifests/x",
            "/v2//manifests/x?ns=docker.io",
            "/hf/o/m",
        ] {
            assert_eq!(Place::parse(&path.parse().unwrap()), None, "{path}");
        }
    }

    #[test]
    fn challenges_name_where_tokens_are() {
        let challenge = "Bearer realm=\"https://auth.example/token\",service=\"r.example\",scope=\"x\"";
        assert_eq!(parameter(challenge, "realm"), Some("https://auth.example/token"));
        assert_eq!(parameter(challenge, "service"), Some("r.example"));
        assert_eq!(parameter(challenge, "error"), None);
    }
}
