//! Objects of S3, and of servers that speak it: requests signed with the caller's keys (version 4 of AWS
//! signatures), where the usual environment and configuration have such.

use super::{Answer, Proxies, Reader, SILENCE, Servers, answered, resumed};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ring::digest::{SHA256, digest};
use ring::hmac::{HMAC_SHA256, Key, sign};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use ureq::http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};

/// The longest page of a list, in bytes: of 1,000 objects with keys of 1,024 bytes each.
const PAGE_LEN_MAX: u64 = 8 << 20;
/// Pages of a list: of 1,000 objects each.
const PAGES_MAX: usize = 1_000;
/// The longest sentence about an error, in bytes.
const SAID_LEN_MAX: u64 = 16 << 10;
const USUAL_REGION: &str = "us-east-1";
/// Characters that a signed path has as they are, and those of a signed question.
const PATH: &AsciiSet = &QUERY.remove(b'/');
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// An object, or the beginning of the keys of several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub bucket: String,
    pub key: String,
}

/// An object in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Listed {
    pub key: String,
    pub etag: String,
    pub bytes: u64,
}

impl Place {
    /// Reads `BUCKET/KEY`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (bucket, key) = text.split_once('/').unwrap_or((text, ""));
        let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if !(3..=63).contains(&bucket.len()) || !bucket.chars().all(is_known) || bucket.contains("..") {
            return Err(format!("'{bucket}' is no name of a bucket: write s3://BUCKET/KEY"));
        }
        Ok(Place { bucket: bucket.into(), key: key.into() })
    }

    /// Returns true if it stands for all objects whose keys begin with it.
    pub(super) fn is_prefix(&self) -> bool {
        self.key.is_empty() || self.key.ends_with('/')
    }
}

/// Keys of an account.
#[derive(Clone, PartialEq, Eq)]
struct Keys {
    id: String,
    secret: String,
    session: Option<String>,
}

/// Account and place of buckets, as the caller's environment and files say.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Account {
    /// Without them requests are not signed: for buckets that all may read.
    keys: Option<Keys>,
    region: String,
    /// A server that is not AWS's own.
    endpoint: Option<String>,
}

impl Account {
    pub(super) fn of_environment() -> Result<Self, String> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        Self::of(variable, |path| std::fs::read_to_string(path).ok())
    }

    fn of(
        variable: impl Fn(&str) -> Option<String>,
        read: impl Fn(&Path) -> Option<String>,
    ) -> Result<Self, String> {
        let profile = variable("AWS_PROFILE").unwrap_or_else(|| "default".into());
        let file = |named: &str, usual: &str| {
            let home = || variable("HOME").map(|home| Path::new(&home).join(".aws").join(usual));
            let path = variable(named).map(PathBuf::from).or_else(home)?;
            read(&path)
        };
        let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials").unwrap_or_default();
        let config = file("AWS_CONFIG_FILE", "config").unwrap_or_default();
        let long = format!("profile {profile}");
        let of_profile = section(&config, if profile == "default" { &profile } else { &long });
        let of_keys = [section(&credentials, &profile), of_profile.clone()];
        let of_file = of_keys.into_iter().find_map(|set| keys_of(|name| set.get(name).cloned()));
        let of_environment = keys_of(|name| variable(&name.to_uppercase()));
        let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
        let region = region.or_else(|| of_profile.get("region").cloned());
        let region = region.unwrap_or_else(|| USUAL_REGION.into());
        let is_known = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if !region.chars().all(is_known) {
            return Err("the name of the region is none".into());
        }
        let endpoint = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
        let endpoint = endpoint.or_else(|| of_profile.get("endpoint_url").cloned());
        let endpoint = endpoint.map(|address| address.trim_end_matches('/').to_string());
        Ok(Account { keys: of_environment.or(of_file), region, endpoint })
    }

    /// Name of the server, where it is not AWS's own: other ones have other buckets of the same names.
    pub(super) fn server(&self) -> &str {
        self.endpoint.as_deref().unwrap_or("aws")
    }

    /// The address of a bucket's object, or of the bucket.
    fn address(&self, place: &Place, region: &str) -> String {
        let key = utf8_percent_encode(&place.key, PATH);
        match &self.endpoint {
            Some(endpoint) => format!("{endpoint}/{}/{key}", place.bucket),
            // A point in its name is none in a certificate.
            None if place.bucket.contains('.') => {
                format!("https://s3.{region}.amazonaws.com/{}/{key}", place.bucket)
            }
            None => format!("https://{}.s3.{region}.amazonaws.com/{key}", place.bucket),
        }
    }

    /// Asks for an object; one of another state than `etag` is none.
    pub(super) fn open(self, place: &Place, etag: Option<String>) -> Result<(Option<u64>, Reader), String> {
        let place = place.clone();
        let ask = move |at: u64| {
            let wish = Wish { etag: etag.as_deref(), range: (at > 0).then(|| format!("bytes={at}-")) };
            self.ask(&place, "", &wish)
        };
        resumed::open(ask, false)
    }

    /// The state that an object has now: its first byte is asked for, since the right to list is another one.
    pub(super) fn etag(&self, place: &Place) -> Result<String, String> {
        let first = Wish { etag: None, range: Some("bytes=0-0".into()) };
        let answer = self.ask(place, "", &first)?;
        let etag = answer.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
        let etag = etag.map(|etag| etag.trim_matches('"').to_string());
        etag.filter(|etag| is_etag(etag)).ok_or_else(|| "the server does not say the object's state".into())
    }

    /// The objects whose keys begin like this.
    pub(super) fn list(&self, prefix: &Place) -> Result<Vec<Listed>, String> {
        let bucket = Place { bucket: prefix.bucket.clone(), key: String::new() };
        let (mut listed, mut next) = (Vec::new(), None::<String>);
        for _ in 0..PAGES_MAX {
            let escaped = |text: &str| utf8_percent_encode(text, QUERY).to_string();
            let mut query = String::new();
            if let Some(token) = &next {
                query = format!("continuation-token={}&", escaped(token));
            }
            // In the order in which they are signed.
            write!(query, "encoding-type=url&list-type=2&prefix={}", escaped(&prefix.key))
                .map_err(|error| error.to_string())?;
            let mut body = String::new();
            let response = self.ask(&bucket, &query, &Wish::default())?;
            let mut reader = response.into_body().into_reader().take(PAGE_LEN_MAX);
            reader.read_to_string(&mut body).map_err(|error| error.to_string())?;
            page(&body, &mut listed)?;
            next = tag(&body, "NextContinuationToken").map(unescaped);
            if tag(&body, "IsTruncated") != Some("true") || next.is_none() {
                return Ok(listed);
            }
        }
        Err(format!("there are more than {PAGES_MAX} pages of objects"))
    }

    /// Asks, once more where the bucket is in another region than it was thought to be.
    fn ask(&self, place: &Place, query: &str, wish: &Wish<'_>) -> Result<Answer, String> {
        let mut region = self.region.clone();
        let servers = Servers::new(Proxies::of_environment()).silent_at_most(SILENCE);
        loop {
            let mut address = self.address(place, &region);
            if !query.is_empty() {
                address = format!("{address}?{query}");
            }
            let uri: Uri = address.parse().map_err(|_| "the address of the server is none".to_string())?;
            let mut request =
                Request::get(uri.clone()).body(Vec::new()).map_err(|error| error.to_string())?;
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
            if let Some(keys) = &self.keys {
                *request.headers_mut() = signed(keys, &region, &uri, &time(now))?;
            }
            let state = wish.etag.map(|etag| (header::IF_MATCH, format!("\"{etag}\"")));
            for (name, value) in
                state.into_iter().chain(wish.range.clone().map(|range| (header::RANGE, range)))
            {
                let value = HeaderValue::from_str(&value).map_err(|error| error.to_string())?;
                request.headers_mut().insert(name, value);
            }
            let response = servers.ask(&request)?;
            if response.status().is_success() {
                return Ok(response);
            }
            let named = response.headers().get("x-amz-bucket-region").and_then(|named| named.to_str().ok());
            let named = named.filter(|named| self.endpoint.is_none() && *named != region);
            match named.filter(|_| region == self.region) {
                Some(named) if named.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') => {
                    region = named.to_string();
                }
                _ => return Err(self.refused(response)),
            }
        }
    }

    fn refused(&self, response: Answer) -> String {
        let status = response.status();
        let mut body = String::new();
        let _ = response.into_body().into_reader().take(SAID_LEN_MAX).read_to_string(&mut body);
        let code = tag(&body, "Code").map(|code| format!(" ({})", unescaped(code))).unwrap_or_default();
        let why = match status {
            StatusCode::PRECONDITION_FAILED => "; it has changed since it was listed",
            StatusCode::FORBIDDEN if self.keys.is_none() => {
                "; there are no keys in the environment (AWS_ACCESS_KEY_ID) or in ~/.aws/credentials"
            }
            _ => "",
        };
        format!("{}{code}{why}", answered(status))
    }
}

/// State and part of an object that are asked for.
#[derive(Default)]
struct Wish<'a> {
    etag: Option<&'a str>,
    range: Option<String>,
}

/// Returns true if this can be the name of an object's state.
fn is_etag(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// Keys by the names that they have in files.
fn keys_of(named: impl Fn(&str) -> Option<String>) -> Option<Keys> {
    let (id, secret) = (named("aws_access_key_id")?, named("aws_secret_access_key")?);
    Some(Keys { id, secret, session: named("aws_session_token") })
}

/// The values of a section of a configuration.
fn section(text: &str, name: &str) -> BTreeMap<String, String> {
    let mut is_in = false;
    let mut values = BTreeMap::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with(['#', ';'])) {
        if let Some(head) = line.trim().strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_in = head.trim() == name;
        } else if let Some((name, value)) = line.split_once('=').filter(|_| is_in) {
            values.insert(name.trim().to_ascii_lowercase(), value.trim().to_string());
        }
    }
    values
}

/// The objects of a page.
fn page(text: &str, listed: &mut Vec<Listed>) -> Result<(), String> {
    if !text.contains("<ListBucketResult") {
        return Err("the server's list of objects is none".into());
    }
    for entry in text.split("<Contents>").skip(1) {
        let odd = || "the server's list names an object without key, state or length".to_string();
        let (key, etag) = (tag(entry, "Key").ok_or_else(odd)?, tag(entry, "ETag").ok_or_else(odd)?);
        let key = key.replace('+', " ");
        let key = percent_decode_str(&key).decode_utf8().map_err(|_| "a key is no UTF-8")?.into_owned();
        let etag = unescaped(etag).trim_matches('"').to_string();
        let bytes = tag(entry, "Size").and_then(|size| size.parse().ok());
        let bytes = bytes.filter(|_| is_etag(&etag)).ok_or_else(odd)?;
        listed.push(Listed { key, etag, bytes });
    }
    Ok(())
}

/// The text in an element that has no others in it.
fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let begin = text.find(&format!("<{name}>"))? + name.len() + 2;
    Some(&text[begin..begin + text[begin..].find('<')?])
}

fn unescaped(text: &str) -> String {
    let marks =
        [("&quot;", "\""), ("&#34;", "\""), ("&lt;", "<"), ("&gt;", ">"), ("&apos;", "'"), ("&amp;", "&")];
    marks.iter().fold(text.to_string(), |text, (mark, letter)| text.replace(mark, letter))
}

/// Headers of a signed request at a time, `20130524T000000Z`. The question has its parts in order.
fn signed(keys: &Keys, region: &str, uri: &Uri, time: &str) -> Result<HeaderMap, String> {
    let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let port =
        uri.port_u16().filter(|port| *port != usual).map(|port| format!(":{port}")).unwrap_or_default();
    let host = format!("{}{port}", uri.host().unwrap_or_default());
    let mut lines = vec![("host", &*host), ("x-amz-content-sha256", EMPTY_SHA256), ("x-amz-date", time)];
    lines.extend(keys.session.iter().map(|session| ("x-amz-security-token", session.as_str())));
    let names = lines.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let texts: String = lines.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let asked =
        format!("GET\n{}\n{}\n{texts}\n{names}\n{EMPTY_SHA256}", uri.path(), uri.query().unwrap_or(""));
    let day = &time[..8];
    let scope = format!("{day}/{region}/s3/aws4_request");
    let text =
        format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(digest(&SHA256, asked.as_bytes()).as_ref()));
    let first = Key::new(HMAC_SHA256, format!("AWS4{}", keys.secret).as_bytes());
    let key = [region, "s3", "aws4_request"].iter().fold(sign(&first, day.as_bytes()), |key, part| {
        sign(&Key::new(HMAC_SHA256, key.as_ref()), part.as_bytes())
    });
    let signature = hex(sign(&Key::new(HMAC_SHA256, key.as_ref()), text.as_bytes()).as_ref());
    let id = &keys.id;
    let own = format!("AWS4-HMAC-SHA256 Credential={id}/{scope},SignedHeaders={names},Signature={signature}");
    let mut headers = HeaderMap::new();
    for (name, value) in lines.into_iter().skip(1).chain([("authorization", own.as_str())]) {
        let mut value = HeaderValue::from_str(value).map_err(|_| "a key has characters that no key has")?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A time in seconds since 1970, as signatures have it.
fn time(unix_s: u64) -> String {
    let (mut days, second) = (unix_s / 86_400, unix_s % 86_400);
    let mut year = 1970;
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}{month:02}{:02}T{hour:02}{minute:02}{:02}Z", days + 1, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Account {
        let get = |list: &[(&str, &str)], name: &str| {
            list.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        };
        Account::of(|name| get(variables, name), |path| get(files, path.to_str().unwrap()))
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// Signatures of AWS's own description of signatures.
    #[test]
    fn signatures_are_those_of_the_description() {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_string();
        let keys = Keys { id: "AKIAIOSFODNN7EXAMPLE".into(), secret, session: None };
        for (question, signature) in [
            ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
            ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ] {
            let uri = format!("https://examplebucket.s3.amazonaws.com/?{question}").parse().unwrap();
            let headers = signed(&keys, "us-east-1", &uri, "20130524T000000Z").unwrap();
            let own = headers["authorization"].to_str().unwrap();
            assert!(own.ends_with(&format!("Signature={signature}")), "{question}: {own}");
        }
        for (unix_s, text) in [
            (0, "19700101T000000Z"),
            (1_369_353_600, "20130524T000000Z"),
            (1_709_251_199, "20240229T235959Z"),
            (1_709_251_200, "20240301T000000Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(time(unix_s), text);
        }
    }

    #[test]
    fn the_environment_goes_before_files() {
        let files = [
            (
                "/h/.aws/credentials",
                "[default]\naws_access_key_id = a\naws_secret_access_key=b\n[x]\n# no\naws_access_key_id=c\naws_secret_access_key=d\naws_session_token=e\n",
            ),
            (
                "/h/.aws/config",
                "[default]\nregion = eu-north-1\n[profile x]\nregion=ap-south-1\nendpoint_url = http://s:9/\n",
            ),
        ];
        let usual = account(&[("HOME", "/h")], &files);
        assert_eq!(usual.keys.as_ref().map(|keys| &*keys.id), Some("a"));
        assert_eq!((&*usual.region, usual.server()), ("eu-north-1", "aws"));
        let other = account(&[("HOME", "/h"), ("AWS_PROFILE", "x")], &files);
        assert_eq!(other.keys.as_ref().and_then(|keys| keys.session.as_deref()), Some("e"));
        assert_eq!((&*other.region, other.server()), ("ap-south-1", "http://s:9"));
        let set = [
            ("HOME", "/h"),
            ("AWS_ACCESS_KEY_ID", "f"),
            ("AWS_SECRET_ACCESS_KEY", "g"),
            ("AWS_REGION", "eu-west-1"),
            ("AWS_ENDPOINT_URL_S3", "https://minio.example:9000/"),
        ];
        let set = account(&set, &files);
        assert_eq!(set.keys.as_ref().map(|keys| (&*keys.id, keys.session.is_none())), Some(("f", true)));
        let place = Place::parse("bucket/a b/c+d.bin").unwrap();
        assert_eq!(set.address(&place, "eu-west-1"), "https://minio.example:9000/bucket/a%20b/c%2Bd.bin");
        let none = account(&[], &[]);
        assert!(none.keys.is_none() && none.region == USUAL_REGION);
        assert_eq!(none.address(&place, "x-1"), "https://bucket.s3.x-1.amazonaws.com/a%20b/c%2Bd.bin");
        let with_point = Place::parse("a.b.c/k").unwrap();
        assert_eq!(none.address(&with_point, "x-1"), "https://s3.x-1.amazonaws.com/a.b.c/k");
        for wrong in ["", "a", "/k", "b ad/k", "a..b/k"] {
            Place::parse(wrong).unwrap_err();
        }
    }

    #[test]
    fn lists_are_read() {
        let text = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
            <IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken>\
            <Contents><Key>m/a+b%2Bc%26.bin</Key><ETag>&quot;0ab-2&quot;</ETag><Size>7</Size></Contents>\
            <Contents><Key>m/</Key><ETag>\"d\"</ETag><Size>0</Size></Contents></ListBucketResult>";
        let mut listed = Vec::new();
        page(text, &mut listed).unwrap();
        assert_eq!(listed[0], Listed { key: "m/a b+c&.bin".into(), etag: "0ab-2".into(), bytes: 7 });
        assert_eq!((listed.len(), &*listed[1].key), (2, "m/"));
        assert_eq!(tag(text, "NextContinuationToken").map(unescaped).as_deref(), Some("a&b"));
        page("<html>", &mut listed).unwrap_err();
        page("<ListBucketResult><Contents><Key>a</Key></Contents>", &mut listed).unwrap_err();
    }
}
