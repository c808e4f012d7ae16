//! Answers to clients of the hub.

mod xet;

use crate::answers::{Answers, Fresh, Question};
use crate::counts::Counts;
use crate::door::{Admission, Visitor, asked_range, goes_on};
use crate::files::{Asked, Endpoint, Files};
use crate::place::{About, ApiPlace, FilePlace, Place, Wrong};
use crate::seal::Seal;
use crate::trouble::{ERROR_CODE, Trouble};
use crate::upstream::{Meta, Said, Upstream};
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use polycast_api::settings::HubConfig;
use ring::digest::{SHA256, digest};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// An answer about a commit holds so long for who has asked: then the hub is asked again whether it is still
/// theirs to see.
pub(crate) const COMMIT_HOLDS: Duration = Duration::from_secs(60);
/// The same for a revision by a name, which another commit can get.
pub(crate) const NAME_HOLDS: Duration = Duration::from_secs(10);
/// A failure holds so long: many ask at one moment.
pub(crate) const TROUBLE_HOLDS: Duration = Duration::from_secs(1);
/// The longest question, in bytes.
pub(crate) const QUESTION_LEN_MAX: usize = 4 << 20;

/// Headers of a question that are passed on, besides the token.
const PASSED_UP: [HeaderName; 4] =
    [header::ACCEPT, header::CONTENT_TYPE, header::USER_AGENT, header::IF_NONE_MATCH];
/// Headers of an answer that are not passed on. Those that lead to the servers of Xet are not either.
const HELD_BACK: [HeaderName; 9] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::UPGRADE,
    header::TRAILER,
    header::SET_COOKIE,
    header::STRICT_TRANSPORT_SECURITY,
    header::ALT_SVC,
];

/// A hub as clients on this host see it.
pub(crate) struct Hub {
    upstream: Arc<Upstream>,
    files: Arc<Files>,
    admission: Admission,
    metas: Answers<Result<Meta, Trouble>>,
    answers: Answers<Result<Said, Trouble>>,
    listings: Answers<Result<Arc<xet::Listing>, Trouble>>,
    /// Files that clients get by Xet.
    open: Arc<xet::Open>,
    seal: Seal,
}

impl Hub {
    pub(crate) fn new(config: &HubConfig, agent: &Path, counts: Arc<Counts>) -> io::Result<Self> {
        config.check().map_err(io::Error::other)?;
        let upstream = Arc::new(Upstream::new(config.upstream()));
        Ok(Hub {
            files: Arc::new(Files::new(agent, Endpoint::Hub, counts)),
            upstream,
            admission: Admission {
                allow: config.networks().map_err(io::Error::other)?,
                setting: "hub.allow",
            },
            metas: Answers::new(),
            answers: Answers::new(),
            listings: Answers::new(),
            open: Arc::default(),
            seal: Seal::new().map_err(|_| io::Error::other("the kernel gives no random numbers"))?,
        })
    }

    async fn respond(self: &Arc<Self>, visitor: &Visitor, request: Request) -> Result<Response, Trouble> {
        self.admission.check(visitor.from.ip(), request.headers())?;
        // A body is not shared between threads.
        let (parts, body) = request.into_parts();
        match Place::parse(&parts.uri) {
            Ok(Place::File(place)) => self.file(&place, parts.method, parts.headers).await,
            Ok(Place::Api(place)) => self.api(&place, Request::from_parts(parts, body)).await,
            Ok(Place::XetToken(place)) => self.xet_token(&place, &parts.method, &parts.headers).await,
            Ok(Place::Reconstruction(version, name)) => {
                self.reconstruction((version, &name), &parts.headers).await
            }
            Ok(Place::Xorb) => self.xorb(&parts.uri, &parts.headers).await,
            Err(Wrong::Odd) => Err(Trouble::new(StatusCode::BAD_REQUEST, "no file can have such a path")),
            Err(Wrong::Elsewhere) => {
                let why = "here are files (/hf/ORG/MODEL/resolve/REVISION/FILE) and the API (/hf/api/) of the hub: \
                           for anything else, such as uploads, ask the hub itself";
                Err(Trouble::new(StatusCode::NOT_FOUND, why))
            }
        }
    }

    /// A file, or what there is of it.
    async fn file(
        self: &Arc<Self>,
        place: &FilePlace,
        method: Method,
        headers: HeaderMap,
    ) -> Result<Response, Trouble> {
        if !matches!(method, Method::GET | Method::HEAD) {
            return Err(Trouble::new(StatusCode::METHOD_NOT_ALLOWED, "a file can only be read here"));
        }
        let token = headers.get(header::AUTHORIZATION).cloned();
        let meta = self.meta(place, token.as_ref()).await?;
        if method == Method::HEAD {
            let mut response = Response::new(Body::empty());
            *response.headers_mut() = meta.headers();
            response.headers_mut().extend(self.xet_headers(place, &meta, &headers).await);
            response.headers_mut().insert(header::CONTENT_LENGTH, meta.size.into());
            return Ok(response);
        }
        // In the commit that was told of: a name may lead to another one by now.
        let path = place.at(meta.commit.as_ref().unwrap_or(&place.revision));
        let asked = self.upstream.asked(place, &path, &meta, token.as_ref())?;
        given(&self.files, &meta, &headers, asked).await
    }

    /// Headers of a file, as the hub has told them to the same token.
    async fn meta(&self, place: &FilePlace, token: Option<&HeaderValue>) -> Result<Meta, Trouble> {
        let question = (who(token), place.at(&place.revision));
        let ask = async {
            let answer = self.upstream.meta(place, token).await;
            let holds = if place.is_of_a_commit() { COMMIT_HOLDS } else { NAME_HOLDS };
            let holds = match &answer {
                Err(trouble) if trouble.status != StatusCode::NOT_FOUND => TROUBLE_HOLDS,
                _ => holds,
            };
            Fresh { answer, holds, bytes: 512 }
        };
        self.metas.get(question, ask).await
    }

    /// Passes on a question.
    async fn api(&self, place: &ApiPlace, request: Request) -> Result<Response, Trouble> {
        if place.about == About::Xet {
            let mut trouble = Trouble::new(
                StatusCode::NOT_FOUND,
                "files can only be read here: to bring some to the hub, ask it without HF_ENDPOINT",
            );
            trouble.headers.push((ERROR_CODE, HeaderValue::from_static("EntryNotFound")));
            return Err(trouble);
        }
        let (parts, body) = request.into_parts();
        let own = xet::own(&parts.headers);
        let token = parts.headers.get(header::AUTHORIZATION).cloned();
        let mut asked = self.upstream.request(parts.method.clone(), &place.asked, token.as_ref())?;
        for name in PASSED_UP {
            if let Some(value) = parts.headers.get(&name) {
                asked.headers_mut().insert(name, value.clone());
            }
        }
        let is_kept = parts.method == Method::GET && !parts.headers.contains_key(header::IF_NONE_MATCH);
        let holds = match place.about {
            About::Commit if is_kept => Some(COMMIT_HOLDS),
            About::Name if is_kept => Some(NAME_HOLDS),
            _ => None,
        };
        let Some(holds) = holds else {
            let long = |_| Trouble::new(StatusCode::PAYLOAD_TOO_LARGE, "that question is longer than 4 MiB");
            *asked.body_mut() = to_bytes(body, QUESTION_LEN_MAX).await.map_err(long)?.to_vec();
            return Ok(self.passed(self.upstream.ask(asked).await?, &own).await);
        };
        let said = self.told((who(token.as_ref()), place.asked.clone()), asked, holds).await?;
        Ok(self.passed(said, &own).await)
    }

    /// The hub's answer, asked for now or a short while ago.
    async fn told(
        &self,
        question: Question,
        asked: axum::http::Request<Vec<u8>>,
        holds: Duration,
    ) -> Result<Said, Trouble> {
        let ask = async {
            let answer = self.upstream.ask(asked).await;
            let (holds, bytes) = match &answer {
                Ok(said) if said.status.is_success() => (holds, said.body.len() + 1_024),
                _ => (TROUBLE_HOLDS, 1_024),
            };
            Fresh { answer, holds, bytes }
        };
        self.answers.get(question, ask).await
    }

    /// The hub's answer, as it is told here: what leads to the hub leads here.
    async fn passed(&self, Said { status, headers, body }: Said, own: &str) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status;
        let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
            kind.to_str().is_ok_and(|kind| kind.to_ascii_lowercase().starts_with("application/json"))
        });
        *response.body_mut() =
            Body::from(if is_json { xet::with_own_names(body, &self.files).await } else { body });
        for (name, value) in &headers {
            if HELD_BACK.contains(name) || name.as_str().starts_with("x-xet-") {
                continue;
            }
            let value = match (name, value.to_str()) {
                (&header::LINK, Ok(text)) if text.contains("xet-auth") => continue,
                (&header::LINK | &header::LOCATION, Ok(text)) => self.here(text, own),
                _ => Some(value.clone()),
            };
            response.headers_mut().extend(value.map(|value| (name.clone(), value)));
        }
        response
    }

    /// An address in a header: one of the hub leads here.
    fn here(&self, text: &str, own: &str) -> Option<HeaderValue> {
        let base = self.upstream.base();
        let place = base.find("://").and_then(|at| base[at + 3..].find('/').map(|len| &base[at + 3 + len..]));
        let text = match text.strip_prefix('/') {
            // Without a host it is the hub's path, below which others may be.
            Some(_) if !text.starts_with("//") => {
                format!("{own}{}", text.strip_prefix(place.unwrap_or("")).unwrap_or(text))
            }
            _ => text.replace(base, own),
        };
        HeaderValue::from_str(&text).ok()
    }
}

/// Answers a client; one that waits hears that it is not forgotten.
pub(crate) async fn answer(
    State(hub): State<Arc<Hub>>,
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    request: Request,
) -> Response {
    let asked = format!("{} {}", request.method(), request.uri().path());
    let knows_nudges = request.version() == Version::HTTP_11;
    let work = hub.respond(&visitor, request);
    let answer = if knows_nudges { visitor.while_told(work).await } else { work.await };
    answer.unwrap_or_else(|trouble| {
        trouble.log(&asked);
        trouble.into_response()
    })
}

/// A file, or the range of it that is asked for.
pub(crate) async fn given(
    files: &Arc<Files>,
    meta: &Meta,
    headers: &HeaderMap,
    asked: Asked,
) -> Result<Response, Trouble> {
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = meta.headers();
    // A client that goes on from the beginning of another file gets all of this one, and begins anew.
    let is_misled = goes_on(headers) && files.was_handed_out_wrongly(&meta.key());
    let part = asked_range(headers, &meta.hex, meta.size)?.filter(|_| !is_misled);
    let is_whole = part.is_none();
    let range = match part {
        Some(range) => {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let value = format!("bytes {}-{}/{}", range.start, range.end - 1, meta.size);
            response.headers_mut().extend(value.parse().map(|value| (header::CONTENT_RANGE, value)));
            range
        }
        None => 0..meta.size,
    };
    response.headers_mut().insert(header::CONTENT_LENGTH, (range.end - range.start).into());
    if !range.is_empty() {
        let mut coming = files.get(asked);
        // Of a range that has come it is not seen later that it was another file's.
        coming.takes_unchecked = is_whole;
        coming.from(range.start).await?;
        *response.body_mut() = coming.body(range);
    }
    Ok(response)
}

/// Returns true if a header of an answer is for this connection alone, or leads clients past here.
pub(crate) fn has_to_stay(name: &HeaderName) -> bool {
    HELD_BACK.contains(name)
}

/// Digest of who asks.
fn who(token: Option<&HeaderValue>) -> [u8; 32] {
    let Some(token) = token else { return [0; 32] };
    digest(&SHA256, token.as_bytes()).as_ref().try_into().unwrap_or([0; 32])
}
