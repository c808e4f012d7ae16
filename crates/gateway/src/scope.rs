//! Answers to clients of ModelScope: the files of its models, by the SHA-256 that it lists. Its other
//! questions are passed on.

use crate::answers::{Answers, Fresh};
use crate::counts::Counts;
use crate::door::{Admission, Visitor};
use crate::files::{Asked, Endpoint, Files};
use crate::hub::{COMMIT_HOLDS, NAME_HOLDS, QUESTION_LEN_MAX, TROUBLE_HOLDS, given, has_to_stay};
use crate::place::{PREFIX_OF_SCOPE, escaped, is_commit, is_name};
use crate::trouble::Trouble;
use crate::upstream::{Digest, Meta, Upstream};
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use polycast_api::settings::HubConfig;
use ring::digest::{Context, SHA256};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Headers of a question that are passed on: two of them say who asks.
const PASSED_UP: [HeaderName; 5] =
    [header::AUTHORIZATION, header::COOKIE, header::ACCEPT, header::CONTENT_TYPE, header::USER_AGENT];

/// A file of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    /// `org/model`.
    model: String,
    revision: String,
    path: String,
}

impl Place {
    /// A file of a model, if the address is one; an error where it leads elsewhere.
    fn parse(uri: &Uri) -> Result<Option<Self>, Trouble> {
        let odd = || Trouble::new(StatusCode::BAD_REQUEST, "no file can have such a path");
        let path = uri.path().strip_prefix(PREFIX_OF_SCOPE).unwrap_or_default();
        let parts: Vec<&str> = path.split('/').collect();
        let ["", "api", "v1", "models", organisation, model, "repo"] = parts[..] else { return Ok(None) };
        let named = |name: &str| {
            let mut pairs =
                uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
            let value = pairs.find(|(known, _)| *known == name)?.1.replace('+', " ");
            Some(percent_decode_str(&value).decode_utf8().ok()?.into_owned())
        };
        let Some(path) = named("FilePath") else { return Ok(None) };
        let revision = named("Revision").unwrap_or_else(|| "master".into());
        let is_odd = |part: &str| {
            matches!(part, "" | "." | "..") || part.contains(|c: char| c.is_control() || c == '\\')
        };
        if path.split('/').any(is_odd)
            || revision.split('/').any(is_odd)
            || !is_name(organisation)
            || !is_name(model)
        {
            return Err(odd());
        }
        Ok(Some(Place { model: format!("{organisation}/{model}"), revision, path }))
    }

    fn base(&self) -> String {
        format!("/api/v1/models/{}/repo", self.model)
    }

    /// The file itself, as ModelScope is asked for it.
    fn file(&self) -> String {
        format!("{}?Revision={}&FilePath={}", self.base(), escaped(&self.revision), escaped(&self.path))
    }

    /// The list of the folder that it is in.
    fn folder(&self) -> String {
        let root = self.path.rsplit_once('/').map(|(folder, _)| format!("&Root={}", escaped(folder)));
        let revision = escaped(&self.revision);
        format!("{}/files?Revision={revision}&Recursive=False{}", self.base(), root.unwrap_or_default())
    }
}

/// Length and SHA-256 of the files of a folder, by their paths; those that it lists none for are left out.
type Listing = Arc<BTreeMap<String, (u64, String)>>;

/// ModelScope as clients on this host see it.
pub(crate) struct Scope {
    upstream: Arc<Upstream>,
    files: Arc<Files>,
    admission: Admission,
    listings: Answers<Result<Listing, Trouble>>,
}

impl Scope {
    pub(crate) fn new(config: &HubConfig, agent: &Path, counts: Arc<Counts>) -> io::Result<Self> {
        config.check().map_err(io::Error::other)?;
        let allow = config.networks().map_err(io::Error::other)?;
        Ok(Scope {
            upstream: Arc::new(Upstream::new(config.modelscope())),
            files: Arc::new(Files::new(agent, Endpoint::Hub, counts)),
            admission: Admission { allow, setting: "hub.allow" },
            listings: Answers::new(),
        })
    }

    async fn respond(&self, visitor: &Visitor, request: Request) -> Result<Response, Trouble> {
        self.admission.check(visitor.from.ip(), request.headers())?;
        let (parts, body) = request.into_parts();
        let is_read = matches!(parts.method, Method::GET | Method::HEAD);
        let Some(place) = Place::parse(&parts.uri)?.filter(|_| is_read) else {
            return self.pass_on(Request::from_parts(parts, body)).await;
        };
        let Some(meta) = self.meta(&place, &parts.headers).await? else {
            // Without a digest nothing could be verified here.
            return self.send_on(&parts.uri);
        };
        let asked = Asked {
            shown: format!("{} {}", place.model, place.path),
            name: place.path.rsplit('/').next().unwrap_or_default().to_string(),
            key: meta.key(),
            size: meta.size,
            request: self.asked(Method::GET, &place.file(), &parts.headers)?,
        };
        if parts.method == Method::HEAD {
            let mut response = Response::new(Body::empty());
            *response.headers_mut() = meta.headers();
            response.headers_mut().insert(header::CONTENT_LENGTH, meta.size.into());
            return Ok(response);
        }
        given(&self.files, &meta, &parts.headers, asked).await
    }

    /// Digest and length of a file, as ModelScope lists them to this client.
    async fn meta(&self, place: &Place, headers: &HeaderMap) -> Result<Option<Meta>, Trouble> {
        let ask = async {
            let answer = self.list(place, headers).await;
            let holds = if is_commit(&place.revision) { COMMIT_HOLDS } else { NAME_HOLDS };
            let (holds, bytes) = match &answer {
                Ok(listing) => (holds, listing.keys().map(|path| path.len() + 128).sum()),
                Err(trouble) if trouble.status == StatusCode::NOT_FOUND => (holds, 512),
                Err(_) => (TROUBLE_HOLDS, 512),
            };
            Fresh { answer, holds, bytes }
        };
        let listing = self.listings.get((who(headers), place.folder()), ask).await?;
        Ok(listing.get(&place.path).map(|(size, hex)| Meta {
            digest: Digest::Sha256,
            hex: hex.clone(),
            size: *size,
            commit: None,
            xet: None,
        }))
    }

    async fn list(&self, place: &Place, headers: &HeaderMap) -> Result<Listing, Trouble> {
        let said = self.upstream.ask(self.asked(Method::GET, &place.folder(), headers)?).await?;
        if !said.status.is_success() {
            return Err(said.into_trouble());
        }
        let odd = || Trouble::upstream("ModelScope's list of files is none");
        let document: Value = serde_json::from_slice(&said.body).map_err(|_| odd())?;
        let files = document["Data"]["Files"].as_array().ok_or_else(odd)?;
        let one = |file: &Value| {
            let is_digest = |hex: &&str| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
            let hex = file["Sha256"].as_str().filter(is_digest)?.to_ascii_lowercase();
            Some((file["Path"].as_str()?.to_string(), (file["Size"].as_u64()?, hex)))
        };
        Ok(Arc::new(files.iter().filter_map(one).collect()))
    }

    /// A question to ModelScope as this client.
    fn asked(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<axum::http::Request<Vec<u8>>, Trouble> {
        let mut request = self.upstream.request(method, path, None)?;
        for name in PASSED_UP {
            for value in headers.get_all(&name) {
                let mut value = value.clone();
                value.set_sensitive(matches!(name, header::AUTHORIZATION | header::COOKIE));
                request.headers_mut().append(&name, value);
            }
        }
        Ok(request)
    }

    async fn pass_on(&self, request: Request) -> Result<Response, Trouble> {
        let (parts, body) = request.into_parts();
        if !matches!(parts.method, Method::GET | Method::HEAD | Method::POST) {
            return Err(Trouble::new(StatusCode::METHOD_NOT_ALLOWED, "models can only be read here"));
        }
        let asked = parts.uri.path_and_query().map_or("", |asked| asked.as_str());
        let path = asked
            .strip_prefix(PREFIX_OF_SCOPE)
            .filter(|path| path.starts_with("/api/") || path.starts_with("/openapi/"));
        let elsewhere = || Trouble::new(StatusCode::NOT_FOUND, "here is the API of ModelScope (/ms/api/)");
        // Files of data sets and archives are large, and no list names their digests.
        if parts.uri.path().contains("/archive/")
            || parts.uri.query().is_some_and(|query| query.contains("FilePath="))
        {
            return self.send_on(&parts.uri);
        }
        let mut question = self.asked(parts.method, path.ok_or_else(elsewhere)?, &parts.headers)?;
        let long = |_| Trouble::new(StatusCode::PAYLOAD_TOO_LARGE, "that question is longer than 4 MiB");
        *question.body_mut() = to_bytes(body, QUESTION_LEN_MAX).await.map_err(long)?.to_vec();
        let said = self.upstream.ask(question).await?;
        let mut response = Response::new(Body::from(said.body));
        *response.status_mut() = said.status;
        let passed = said.headers.iter().filter(|(name, _)| !has_to_stay(name));
        response.headers_mut().extend(passed.map(|(name, value)| (name.clone(), value.clone())));
        Ok(response)
    }

    /// Has the client ask ModelScope itself.
    fn send_on(&self, uri: &Uri) -> Result<Response, Trouble> {
        let asked = uri.path_and_query().map_or("", |asked| asked.as_str());
        let path = asked.strip_prefix(PREFIX_OF_SCOPE).unwrap_or_default();
        let to = HeaderValue::from_str(&format!("{}{path}", self.upstream.base()));
        let to = to.map_err(|_| Trouble::new(StatusCode::BAD_REQUEST, "that path is no address"))?;
        Ok((StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response())
    }
}

/// Digest of who asks.
fn who(headers: &HeaderMap) -> [u8; 32] {
    let said = [header::AUTHORIZATION, header::COOKIE];
    let mut context = Context::new(&SHA256);
    let mut is_known = false;
    for value in said.iter().flat_map(|name| headers.get_all(name)) {
        is_known = true;
        context.update(&(value.len() as u64).to_be_bytes());
        context.update(value.as_bytes());
    }
    let digest = context.finish();
    if is_known { digest.as_ref().try_into().unwrap_or([0; 32]) } else { [0; 32] }
}

/// Answers a client; one that waits hears that it is not forgotten.
pub(crate) async fn answer(
    State(scope): State<Arc<Scope>>,
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    request: Request,
) -> Response {
    let asked = format!("{} {}", request.method(), request.uri().path());
    let knows_nudges = request.version() == Version::HTTP_11;
    let work = scope.respond(&visitor, request);
    let answer = if knows_nudges { visitor.while_told(work).await } else { work.await };
    answer.unwrap_or_else(|trouble| {
        trouble.log(&asked);
        trouble.into_response()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_models_are_known_and_lead_nowhere_else() {
        let of = |path: &str| Place::parse(&path.parse().unwrap());
        let known =
            of("/ms/api/v1/models/o/m/repo?Revision=master&FilePath=a+b%2Fc%2B.bin").unwrap().unwrap();
        assert_eq!((&*known.model, &*known.revision, &*known.path), ("o/m", "master", "a b/c+.bin"));
        assert_eq!(known.file(), "/api/v1/models/o/m/repo?Revision=master&FilePath=a%20b%2Fc%2B.bin");
        assert_eq!(
            known.folder(),
            "/api/v1/models/o/m/repo/files?Revision=master&Recursive=False&Root=a%20b"
        );
        for path in [
            "/ms/api/v1/models/o/m/repo/files?Revision=master",
            "/ms/api/v1/models/o/m/repo",
            "/ms/api/v1/datasets/o/m/repo?FilePath=a",
            "/ms/api/v1/models/o/m",
        ] {
            assert_eq!(of(path).unwrap(), None, "{path}");
        }
        for path in [
            "/ms/api/v1/models/o/m/repo?FilePath=..%2Fa",
            "/ms/api/v1/models/o/m/repo?FilePath=",
            "/ms/api/v1/models/o/m/repo?FilePath=a%00",
            "/ms/api/v1/models/o/m/repo?FilePath=a&Revision=..%2Fx",
            "/ms/api/v1/models/o/%2e%2e/repo?FilePath=a",
        ] {
            assert_eq!(of(path).unwrap_err().status, StatusCode::BAD_REQUEST, "{path}");
        }
    }

    #[test]
    fn who_asks_is_known_by_all_that_proves_it() {
        let of = |lines: &[(HeaderName, &'static str)]| {
            who(&lines.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect())
        };
        let (cookie, token) = ((header::COOKIE, "m_session_id=a"), (header::AUTHORIZATION, "Bearer a"));
        let all = [
            of(&[]),
            of(std::slice::from_ref(&cookie)),
            of(std::slice::from_ref(&token)),
            of(&[cookie, token]),
        ];
        assert_eq!(all[0], [0; 32]);
        assert_eq!(std::collections::BTreeSet::from(all).len(), 4);
    }
}
