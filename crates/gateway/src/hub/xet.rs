//! The servers of Xet, as clients of the hub find them here: every byte is from the agent's store.
//!
//! A client asks for a token for a revision, with that for the xorbs of a file by the file's name, and gets
//! an address for each. Tokens and addresses hold, sealed, the repository and the token of the client for
//! the hub, so that each question is answered as one for the file itself would be. A file is called as the
//! hub calls it, or by its SHA-256 where the hub has no name.

use super::{COMMIT_HOLDS, Hub, NAME_HOLDS, TROUBLE_HOLDS, who};
use crate::answers::Fresh;
use crate::door::asked_range;
use crate::files::Files;
use crate::place::{FilePlace, PREFIX, RevisionPlace, is_commit};
use crate::trouble::{ERROR_CODE, Trouble};
use crate::upstream::Meta;
use crate::xet::{CHUNK_LEN, Term, Whole, Xorb, is_hash, terms};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use polycast_api::error::plain;
use polycast_net::hash::id_of_key;
use polycast_types::ObjectId;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Clients get files above this length by Xet alone.
const HTTP_LEN_MAX: u64 = 50_000_000_000;
/// Time for which a token is good, as the hub's own are for an hour or so: clients ask for the next one.
const TOKEN_HOLDS: Duration = Duration::from_secs(3_600);
/// A file stays open for so long after it was asked for, and so many do at a time.
const OPEN_FOR: Duration = Duration::from_secs(60);
const OPEN_MAX: usize = 256;
/// Pages of a listing: of 1,000 files each.
const PAGES_MAX: usize = 1_000;

const XET_HASH: HeaderName = HeaderName::from_static("x-xet-hash");
const SERVER: HeaderName = HeaderName::from_static("x-xet-cas-url");
const TOKEN: HeaderName = HeaderName::from_static("x-xet-access-token");
const TOKEN_UNTIL: HeaderName = HeaderName::from_static("x-xet-token-expiration");

/// Paths of files by their names in Xet.
pub(super) type Listing = HashMap<String, String>;

/// Right to ask for a file, or for any one of a revision.
struct Pass {
    repository: String,
    revision: String,
    /// The file's path, and the number of a xorb of it.
    xorb: Option<(String, u64)>,
    token: Option<HeaderValue>,
}

/// Files that clients get by Xet now.
#[derive(Default)]
pub(super) struct Open {
    files: Mutex<HashMap<String, (Arc<Whole>, Instant)>>,
}

impl Hub {
    /// A token for a client, if the hub lets it see the repository.
    pub(super) async fn xet_token(
        &self,
        place: &RevisionPlace,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Response, Trouble> {
        if method != Method::GET {
            return Err(Trouble::new(StatusCode::METHOD_NOT_ALLOWED, "a token can only be asked for"));
        }
        let token = headers.get(header::AUTHORIZATION).cloned();
        self.listing(place, token.as_ref()).await?;
        let (repository, revision) = (place.repository(), place.revision.clone());
        let until = unix_now() + TOKEN_HOLDS.as_secs();
        let pass = self.sealed(&Pass { repository, revision, xorb: None, token }, until)?;
        let server = format!("{}/cas", own(headers));
        let document = json!({ "casUrl": server, "accessToken": pass, "exp": until });
        let mut response = json_of(&document);
        for (name, value) in [(SERVER, server), (TOKEN, pass), (TOKEN_UNTIL, until.to_string())] {
            response.headers_mut().extend(HeaderValue::from_str(&value).map(|value| (name, value)));
        }
        Ok(response)
    }

    /// The xorbs of a file, or of a range of it, once it is here as a whole.
    pub(super) async fn reconstruction(
        &self,
        (version, name): (u8, &str),
        headers: &HeaderMap,
    ) -> Result<Response, Trouble> {
        let shown = headers.get(header::AUTHORIZATION).and_then(|shown| shown.to_str().ok());
        let pass = shown.and_then(|shown| self.opened(shown.strip_prefix("Bearer ")?));
        let wrong =
            || Trouble::new(StatusCode::UNAUTHORIZED, "that token of Xet is none of this server, or old");
        let pass = pass.filter(|pass| pass.xorb.is_none()).ok_or_else(wrong)?;
        let place = RevisionPlace::of_repository(&pass.repository, &pass.revision);
        let listing = self.listing(&place, pass.token.as_ref()).await?;
        let Some(path) = listing.get(&name.to_ascii_lowercase()) else {
            let mut trouble =
                Trouble::new(StatusCode::NOT_FOUND, "no file of that revision has that name of Xet");
            trouble.headers.push((ERROR_CODE, HeaderValue::from_static("EntryNotFound")));
            return Err(trouble);
        };
        let (repository, revision, path) = (pass.repository.clone(), pass.revision.clone(), path.clone());
        let file = FilePlace { repository, revision, path };
        let (meta, whole) = self.whole(&file, pass.token.as_ref()).await?;
        let range = asked_range(headers, "", meta.size)?.unwrap_or(0..meta.size);
        let terms = terms(&range, meta.size);
        let numbers =
            terms.first().map_or(0, |term| term.number)..terms.last().map_or(0, |term| term.number + 1);
        let names = whole.names(numbers).await.map_err(|error| unread(&error))?;
        let until = unix_now() + TOKEN_HOLDS.as_secs();
        let mut rows = Rows::default();
        for (term, name) in terms.into_iter().zip(names) {
            let mut pass = Pass { xorb: Some((file.path.clone(), term.number)), ..pass.clone() };
            // In the commit that was told of: a name may lead to another one by then.
            pass.revision = meta.commit.clone().unwrap_or(pass.revision);
            let pass = self.sealed(&pass, until)?;
            rows.add(term, &name, format!("{}/cas/xorbs/{name}?pass={pass}", own(headers)));
        }
        Ok(json_of(&rows.document(version, range.start % CHUNK_LEN)))
    }

    /// Bytes of a xorb.
    pub(super) async fn xorb(&self, uri: &Uri, headers: &HeaderMap) -> Result<Response, Trouble> {
        let pass = uri.query().and_then(|query| self.opened(query.strip_prefix("pass=")?));
        let wrong =
            || Trouble::new(StatusCode::FORBIDDEN, "that address of a xorb is none of this server, or old");
        let Some(Pass { repository, revision, xorb: Some((path, number)), token }) = pass else {
            return Err(wrong());
        };
        let file = FilePlace { repository, revision, path };
        let (meta, whole) = self.whole(&file, token.as_ref()).await?;
        let xorb = Xorb::of(number, meta.size).ok_or_else(wrong)?;
        let len = xorb.packed_len();
        let part = asked_range(headers, "", len)?;
        let mut response = Response::new(Body::empty());
        if let Some(part) = &part {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let value = format!("bytes {}-{}/{len}", part.start, part.end - 1);
            response.headers_mut().extend(value.parse().map(|value| (header::CONTENT_RANGE, value)));
        }
        let range = part.unwrap_or(0..len);
        let bytes = HeaderValue::from_static("application/octet-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, bytes);
        response.headers_mut().insert(header::CONTENT_LENGTH, (range.end - range.start).into());
        *response.body_mut() = whole.body(xorb, range);
        Ok(response)
    }

    /// A file that a client may have, when it is here as a whole.
    async fn whole(
        &self,
        place: &FilePlace,
        token: Option<&HeaderValue>,
    ) -> Result<(Meta, Arc<Whole>), Trouble> {
        let meta = self.meta(place, token).await?;
        let key = meta.key();
        if let Some(whole) = self.open.get(&key) {
            return Ok((meta, whole));
        }
        let path = place.at(meta.commit.as_ref().unwrap_or(&place.revision));
        let coming = self.files.get(self.upstream.asked(place, &path, &meta, token)?);
        let whole = Arc::new(Whole::new(coming.whole().await?, meta.size));
        Ok((meta, self.open.keep(key, whole)))
    }

    /// Files of a revision, as the hub lists them to the same token.
    async fn listing(
        &self,
        place: &RevisionPlace,
        token: Option<&HeaderValue>,
    ) -> Result<Arc<Listing>, Trouble> {
        let question = (who(token), place.tree());
        let ask = async {
            let answer = self.list(place, token).await;
            let holds = match &answer {
                Err(trouble) if trouble.status != StatusCode::NOT_FOUND => TROUBLE_HOLDS,
                _ => holds(place),
            };
            let bytes = answer.as_ref().map_or(1_024, |listing| 1_024 + 256 * listing.len());
            Fresh { answer: answer.map(Arc::new), holds, bytes }
        };
        self.listings.get(question, ask).await
    }

    async fn list(&self, place: &RevisionPlace, token: Option<&HeaderValue>) -> Result<Listing, Trouble> {
        let (mut next, mut listing) = (Some(place.tree()), Listing::new());
        for _ in 0..PAGES_MAX {
            let Some(page) = next else { return Ok(listing) };
            let request = self.upstream.request(Method::GET, &page, token)?;
            // A client that has a list of its own has asked the same.
            let said = self.told((who(token), page), request, holds(place)).await?;
            if !said.status.is_success() {
                return Err(said.into_trouble());
            }
            let listed: Value = serde_json::from_slice(&said.body).unwrap_or_default();
            let entries =
                listed.as_array().ok_or_else(|| Trouble::upstream("the hub's list of files is none"))?;
            for entry in entries {
                let Some((sha256, _)) = large(entry.as_object()) else { continue };
                let name = named(entry.as_object()).unwrap_or(sha256);
                listing
                    .extend(entry["path"].as_str().map(|path| (name.to_ascii_lowercase(), path.to_string())));
            }
            next = self.upstream.next_page(&said.headers);
        }
        Err(Trouble::upstream(format!("the hub's list of files has more than {PAGES_MAX} pages")))
    }

    /// Headers by which a client gets a file by Xet, if it can.
    pub(super) async fn xet_headers(&self, place: &FilePlace, meta: &Meta, asked: &HeaderMap) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let Some(sha256) = meta.sha256().filter(|_| meta.size > 0) else { return headers };
        if meta.size <= HTTP_LEN_MAX && !self.files.has(&id_of_key("sha256", sha256)).await {
            return headers;
        }
        let revision =
            RevisionPlace::of_repository(&place.repository, meta.commit.as_ref().unwrap_or(&place.revision));
        let route = format!("<{}{}>; rel=\"xet-auth\"", own(asked), revision.token_path());
        let name = meta.xet.as_deref().unwrap_or(sha256);
        for (header, value) in [(XET_HASH, name), (header::LINK, &route)] {
            headers.extend(HeaderValue::from_str(value).map(|value| (header, value)));
        }
        headers
    }

    fn sealed(&self, pass: &Pass, until: u64) -> Result<String, Trouble> {
        let broken = || Trouble::new(StatusCode::BAD_REQUEST, "that token for the hub cannot be passed on");
        let token = pass.token.as_ref().map(|token| token.to_str()).transpose().map_err(|_| broken())?;
        let (path, number) =
            pass.xorb.as_ref().map_or((None, None), |(path, number)| (Some(path), Some(number)));
        let text = json!([until, pass.repository, pass.revision, path, number, token]).to_string();
        self.seal.close(&text).map_err(|_| broken())
    }

    fn opened(&self, sealed: &str) -> Option<Pass> {
        let text = self.seal.open(sealed)?;
        let parts: [Value; 6] = serde_json::from_str::<Vec<Value>>(&text).ok()?.try_into().ok()?;
        let [until, repository, revision, path, number, token] = &parts;
        if until.as_u64()? < unix_now() {
            return None;
        }
        let mut token = token.as_str().map(HeaderValue::from_str).transpose().ok()?;
        token.iter_mut().for_each(|token| token.set_sensitive(true));
        Some(Pass {
            repository: repository.as_str()?.to_string(),
            revision: revision.as_str()?.to_string(),
            xorb: path.as_str().map(str::to_string).zip(number.as_u64()),
            token,
        })
    }
}

impl Clone for Pass {
    fn clone(&self) -> Self {
        let Pass { repository, revision, xorb, token } = self;
        Pass {
            repository: repository.clone(),
            revision: revision.clone(),
            xorb: xorb.clone(),
            token: token.clone(),
        }
    }
}

impl Open {
    fn get(&self, key: &str) -> Option<Arc<Whole>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let (whole, last) = files.get_mut(key)?;
        *last = Instant::now();
        Some(Arc::clone(whole))
    }

    /// Keeps a file open until no client has asked for it for a while.
    fn keep(self: &Arc<Self>, key: String, whole: Arc<Whole>) -> Arc<Whole> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((whole, _)) = files.get(&key) {
            return Arc::clone(whole);
        }
        if files.len() >= OPEN_MAX {
            let oldest = files.iter().min_by_key(|(_, (_, last))| *last).map(|(key, _)| key.clone());
            oldest.map(|key| files.remove(&key));
        }
        files.insert(key.clone(), (Arc::clone(&whole), Instant::now()));
        let open = Arc::clone(self);
        tokio::spawn(async move {
            let mut pause = OPEN_FOR;
            while !pause.is_zero() {
                tokio::time::sleep(pause).await;
                let mut files = open.files.lock().unwrap_or_else(PoisonError::into_inner);
                let Some((_, last)) = files.get(&key) else { return };
                pause = OPEN_FOR.saturating_sub(last.elapsed());
                if pause.is_zero() {
                    files.remove(&key);
                }
            }
        });
        whole
    }
}

/// Rows of an answer about a file.
#[derive(Default)]
struct Rows {
    terms: Vec<Value>,
    /// By the names of xorbs: equal ones are one.
    xorbs: BTreeMap<String, (Term, String)>,
}

impl Rows {
    fn add(&mut self, term: Term, name: &str, address: String) {
        self.terms.push(json!({ "hash": name, "unpacked_length": term.len, "range": row(&term.chunks) }));
        let (known, _) = self.xorbs.entry(name.to_string()).or_insert_with(|| (term.clone(), address));
        known.chunks = known.chunks.start.min(term.chunks.start)..known.chunks.end.max(term.chunks.end);
        known.packed = known.packed.start.min(term.packed.start)..known.packed.end.max(term.packed.end);
    }

    /// In the form of the second version, or of the first.
    fn document(self, version: u8, offset: u64) -> Value {
        let fetched = |(name, (term, address)): (String, (Term, String))| {
            let bytes = row(&(term.packed.start..term.packed.end - 1));
            let row = match version {
                1 => json!({ "range": row(&term.chunks), "url": address, "url_range": bytes }),
                _ => json!({ "url": address, "ranges": [{ "chunks": row(&term.chunks), "bytes": bytes }] }),
            };
            (name, json!([row]))
        };
        let xorbs: Map<String, Value> = self.xorbs.into_iter().map(fetched).collect();
        let called = if version == 1 { "fetch_info" } else { "xorbs" };
        json!({ "offset_into_first_range": offset, "terms": self.terms, called: xorbs })
    }
}

fn row(range: &Range<u64>) -> Value {
    json!({ "start": range.start, "end": range.end })
}

/// A document in which files have names of Xet where this endpoint gives them by Xet: those that are here as
/// a whole, and those that clients take in no other way.
pub(super) async fn with_own_names(body: Bytes, files: &Files) -> Bytes {
    let has = |name: &[u8]| body.windows(name.len()).any(|part| part == name);
    if !has(b"\"xetHash\"") && !has(b"\"lfs\"") {
        return body;
    }
    let Ok(mut document) = serde_json::from_slice::<Value>(&body) else { return body };
    rename(&mut document, &files.all().await);
    document.to_string().into()
}

fn rename(value: &mut Value, here: &HashSet<ObjectId>) {
    match value {
        Value::Object(fields) => {
            let is_here = |sha256: &str| here.contains(&id_of_key("sha256", sha256));
            let given = large(Some(fields)).filter(|(sha256, size)| *size > HTTP_LEN_MAX || is_here(sha256));
            let name = given.map(|(sha256, _)| named(Some(fields)).unwrap_or(sha256).to_string());
            fields.remove("xetHash");
            fields.values_mut().for_each(|value| rename(value, here));
            fields.extend(name.map(|name| ("xetHash".to_string(), Value::from(name))));
        }
        Value::Array(entries) => entries.iter_mut().for_each(|entry| rename(entry, here)),
        _ => {}
    }
}

/// SHA-256 and length of a file that the hub lists with them.
fn large(entry: Option<&Map<String, Value>>) -> Option<(&str, u64)> {
    let lfs = entry?.get("lfs")?;
    let sha256 = lfs.get("oid")?.as_str().filter(|hex| is_hash(hex))?;
    Some((sha256, lfs.get("size")?.as_u64().filter(|size| *size > 0)?))
}

/// The name that the hub gives a file.
fn named(entry: Option<&Map<String, Value>>) -> Option<&str> {
    entry?.get("xetHash")?.as_str().filter(|hex| is_hash(hex))
}

fn holds(place: &RevisionPlace) -> Duration {
    if is_commit(&place.revision) { COMMIT_HOLDS } else { NAME_HOLDS }
}

/// This endpoint's address, as the client has called it.
pub(super) fn own(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    format!("http://{host}{PREFIX}")
}

fn json_of(document: &Value) -> Response {
    let mut response = Response::new(Body::from(document.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn unread(error: &std::io::Error) -> Trouble {
    let why = format!("the file cannot be read from the store: {}", plain(error));
    Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, why)
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_names_where_they_are_given() {
        let (here, away, long) = ("ab".repeat(32), "cd".repeat(32), "ef".repeat(32));
        let ids = HashSet::from([id_of_key("sha256", &here)]);
        let entry = |oid: &str, size: u64, name: Option<&str>| {
            let mut entry = json!({ "path": "a", "lfs": { "oid": oid, "size": size } });
            entry.as_object_mut().unwrap().extend(name.map(|name| ("xetHash".into(), name.into())));
            entry
        };
        let hub = "12".repeat(32);
        let mut tree = json!([
            entry(&here, 7, Some(&hub)),
            entry(&here, 7, None),
            entry(&away, 7, Some(&hub)),
            entry(&long, HTTP_LEN_MAX + 1, Some(&hub)),
            entry(&long, HTTP_LEN_MAX + 1, Some("odd")),
            entry(&long, HTTP_LEN_MAX, Some(&hub)),
            { "path": "small", "xetHash": hub, "more": [{ "xetHash": hub }] },
        ]);
        rename(&mut tree, &ids);
        let names: Vec<_> = tree.as_array().unwrap().iter().map(|entry| entry["xetHash"].as_str()).collect();
        assert_eq!(names, [Some(&*hub), Some(&here), None, Some(&hub), Some(&long), None, None]);
        assert_eq!(tree[6]["more"][0], json!({}));
    }

    #[test]
    fn equal_xorbs_are_fetched_once_and_hold_what_all_terms_need() {
        let size = 3 * crate::xet::XORB_LEN;
        let all = terms(&(70_000..size), size);
        let mut rows = Rows::default();
        all.into_iter().for_each(|term| rows.add(term, "same", "http://a".into()));
        let document = rows.document(2, 70_000 % CHUNK_LEN);
        assert_eq!(document["terms"].as_array().map(Vec::len), Some(3));
        let ranges = json!([{ "chunks": { "start": 0, "end": 256 }, "bytes": { "start": 0, "end": 256 * 65_544 - 1 } }]);
        assert_eq!(document["xorbs"]["same"], json!([{ "url": "http://a", "ranges": ranges }]));
    }
}
