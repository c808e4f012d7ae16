//! The user that a registry is asked for: all, or one with credentials, as the tools for images keep them.

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::digest::{SHA256, digest};
use serde_json::Value;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest file with credentials, in bytes, and the longest answer of a helper.
const LEN_MAX: u64 = 1 << 20;
/// Time for a helper to answer.
const HELPER_WITHIN: Duration = Duration::from_secs(30);
/// Interval of the looks whether it has.
const HELPER_LOOK: Duration = Duration::from_millis(20);
/// Name of the user by which a helper says that it gives an identity token.
const BY_TOKEN: &str = "<token>";
/// Names of Docker Hub in these files.
const DOCKER_HUB: [&str; 3] = ["index.docker.io", "registry-1.docker.io", "docker.io"];

/// Credentials for a registry.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Login {
    /// Name and password.
    Password(String, String),
    /// A token by which the registry gives others.
    Identity(String),
}

/// The one that a registry is asked for.
#[derive(Clone, Default)]
pub(crate) struct Who {
    /// Without it that is all.
    login: Option<Login>,
    /// A digest of the credentials; zeros for all.
    pub id: [u8; 32],
}

impl Who {
    fn with(login: Option<Login>) -> Self {
        let text = login.as_ref().map(|login| match login {
            Login::Password(user, password) => format!("password\0{user}\0{password}"),
            Login::Identity(token) => format!("identity\0{token}"),
        });
        let id = text.map(|text| digest(&SHA256, text.as_bytes()));
        let id = id.and_then(|id| id.as_ref().try_into().ok()).unwrap_or_default();
        Who { login, id }
    }

    pub(crate) fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }

    /// The user who has sent name and password with a request.
    pub(crate) fn of_request(headers: &HeaderMap) -> Self {
        let said = headers.get(header::AUTHORIZATION).and_then(|said| said.to_str().ok());
        let said = said.and_then(|said| said.split_once(' '));
        let basic = said.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
        Who::with(basic.and_then(|(_, packed)| Login::unpacked(packed.trim())))
    }

    /// The user whose files, or helpers that these name, have credentials for a registry.
    pub(crate) fn of_files(host: &str) -> Result<Self, String> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        for path in places(variable) {
            let Some(document) = read(&path)? else { continue };
            if let Some(login) = in_document(&document, host, ask_helper)? {
                return Ok(Who::with(Some(login)));
            }
        }
        Ok(Who::default())
    }
}

impl Login {
    /// Name and password as they stand in headers and files.
    fn unpacked(packed: &str) -> Option<Self> {
        let text = String::from_utf8(BASE64_STANDARD.decode(packed).ok()?).ok()?;
        let (user, password) = text.split_once(':')?;
        // Tools have written zeros after it.
        let password = password.trim_end_matches('\0');
        (!user.is_empty()).then(|| Login::Password(user.into(), password.into()))
    }

    /// The header by which a server knows the user, where there is a password.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let Login::Password(user, password) = self else { return None };
        let packed = BASE64_STANDARD.encode(format!("{user}:{password}"));
        let mut value = HeaderValue::from_str(&format!("Basic {packed}")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// The files that may have credentials: one that is named is the only one.
fn places(variable: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    if let Some(path) = variable("REGISTRY_AUTH_FILE") {
        return vec![path.into()];
    }
    let docker = variable("DOCKER_CONFIG").map(PathBuf::from);
    let docker = docker.or_else(|| Some(Path::new(&variable("HOME")?).join(".docker")));
    let podman = variable("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("containers/auth.json"));
    let config = variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.or_else(|| Some(Path::new(&variable("HOME")?).join(".config")));
    let kept = config.map(|folder| folder.join("containers/auth.json"));
    podman.into_iter().chain(kept).chain(docker.map(|folder| folder.join("config.json"))).collect()
}

fn read(path: &Path) -> Result<Option<Value>, String> {
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(LEN_MAX).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(format!("cannot read {}: {}", path.display(), polycast_api::error::plain(&error)));
        }
        Ok(_) => {}
    }
    let document = serde_json::from_str(&text);
    document
        .map(Some)
        .map_err(|_| format!("{} is no JSON: it is to have credentials of registries", path.display()))
}

/// Name of a registry as these files have it, without what tools write around it.
fn plain_name(text: &str) -> &str {
    let text = text.split_once("://").map_or(text, |(_, rest)| rest);
    let host = text.split('/').next().unwrap_or_default();
    if DOCKER_HUB.contains(&host) { "docker.io" } else { host }
}

/// The credentials for a registry in a document, or from the helper that it names for it.
fn in_document(
    document: &Value,
    host: &str,
    ask: impl Fn(&str, &str) -> Result<Option<Login>, String>,
) -> Result<Option<Login>, String> {
    let host = plain_name(host);
    let of_host = |object: &Value| {
        let object = object.as_object()?;
        object.iter().find(|(name, _)| plain_name(name) == host).map(|(_, value)| value.clone())
    };
    // Helpers know Docker Hub by its first address.
    let server = if host == "docker.io" { "https://index.docker.io/v1/" } else { host };
    let helper = of_host(&document["credHelpers"]).unwrap_or_else(|| document["credsStore"].clone());
    if let Some(helper) = helper.as_str().filter(|helper| !helper.is_empty())
        && let Some(login) = ask(helper, server)?
    {
        return Ok(Some(login));
    }
    let Some(entry) = of_host(&document["auths"]) else { return Ok(None) };
    let text = |name: &str| entry[name].as_str().filter(|text| !text.is_empty());
    if let Some(token) = text("identitytoken") {
        return Ok(Some(Login::Identity(token.into())));
    }
    if let Some(packed) = text("auth") {
        let odd = || format!("the credentials for {host} in auths are no base64 of USER:PASSWORD");
        return Login::unpacked(packed).map(Some).ok_or_else(odd);
    }
    let both = text("username").zip(text("password"));
    Ok(both.map(|(user, password)| Login::Password(user.into(), password.into())))
}

/// Asks `docker-credential-NAME get`.
fn ask_helper(name: &str, server: &str) -> Result<Option<Login>, String> {
    let program = format!("docker-credential-{name}");
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
        return Err(format!("'{name}' is no name of a credential helper"));
    }
    let failed =
        |why: &str| format!("the credential helper {program} gives no credentials for {server}: {why}");
    let child = Command::new(&program).arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| failed(&polycast_api::error::plain(&error)))?;
    if let Some(mut input) = child.stdin.take() {
        // One that reads nothing may have an answer all the same.
        let _ = input.write_all(server.as_bytes());
    }
    let output = child.stdout.take();
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        output.map(|output| output.take(LEN_MAX).read_to_string(&mut text));
        text
    });
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < HELPER_WITHIN => std::thread::sleep(HELPER_LOOK),
            _ => {
                let _ = child.kill().and_then(|()| child.wait());
                return Err(failed(&format!("it has not answered within {} s", HELPER_WITHIN.as_secs())));
            }
        }
    };
    let text = reading.join().unwrap_or_default();
    if !status.success() {
        // Every helper says it with these words where it has none.
        let has_none = text.contains("credentials not found");
        let said: String = text.trim().chars().take(200).collect();
        let said = if said.is_empty() { status.to_string() } else { said };
        return if has_none { Ok(None) } else { Err(failed(&said)) };
    }
    let document: Value = serde_json::from_str(&text).map_err(|_| failed("its answer is no JSON"))?;
    let text = |name: &str| document[name].as_str().filter(|text| !text.is_empty());
    Ok(match (text("Username"), text("Secret")) {
        (Some(BY_TOKEN), Some(token)) => Some(Login::Identity(token.into())),
        (Some(user), Some(password)) => Some(Login::Password(user.into(), password.into())),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn none(_: &str, _: &str) -> Result<Option<Login>, String> {
        Ok(None)
    }

    fn password(user: &str, password: &str) -> Login {
        Login::Password(user.into(), password.into())
    }

    #[test]
    fn credentials_are_those_of_the_registry_alone() {
        let packed = BASE64_STANDARD.encode("me:pass:word");
        let document = json!({ "auths": {
            "https://index.docker.io/v1/": { "auth": packed },
            "ghcr.io": { "username": "a", "password": "b" },
            "r.example:5000": { "identitytoken": "t" },
            "bad.example": { "auth": "*" },
            "empty.example": {},
        } });
        let of = |host: &str| in_document(&document, host, none);
        for name in ["docker.io", "registry-1.docker.io"] {
            assert!(of(name) == Ok(Some(password("me", "pass:word"))));
        }
        assert!(of("ghcr.io") == Ok(Some(password("a", "b"))));
        assert!(of("r.example:5000") == Ok(Some(Login::Identity("t".into()))));
        for name in ["r.example", "evil.example", "empty.example", "hcr.io"] {
            assert!(of(name) == Ok(None), "{name}");
        }
        let said = of("bad.example").map(|_| ()).unwrap_err();
        assert!(said.contains("no base64"), "{said}");
    }

    #[test]
    fn helpers_are_asked_for_their_registries() {
        let document = json!({ "credHelpers": { "a.example": "of-a" }, "credsStore": "all", "auths": {
            "b.example": { "username": "x", "password": "y" } } });
        let ask = |name: &str, server: &str| match name {
            "of-a" => Ok(Some(password("a", server))),
            "all" if server.contains("docker") => Ok(Some(password("all", server))),
            _ => Ok(None),
        };
        let of = |host: &str| in_document(&document, host, ask);
        assert!(of("a.example") == Ok(Some(password("a", "a.example"))));
        assert!(of("docker.io") == Ok(Some(password("all", "https://index.docker.io/v1/"))));
        assert!(of("b.example") == Ok(Some(password("x", "y"))));
        let said = ask_helper("none-of-that-name", "r").map(|_| ()).unwrap_err();
        assert!(said.contains("docker-credential-none-of-that-name gives no credentials for r"), "{said}");
        assert!(ask_helper("../x", "r").is_err());
    }

    #[test]
    fn files_are_looked_for_where_tools_keep_them() {
        let of = |set: &[(&str, &str)]| {
            let get =
                |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
            places(get).iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of(&[("REGISTRY_AUTH_FILE", "/a"), ("HOME", "/h")]), ["/a"]);
        let usual = ["/h/.config/containers/auth.json", "/h/.docker/config.json"];
        assert_eq!(of(&[("HOME", "/h")]), usual);
        let set = [("HOME", "/h"), ("DOCKER_CONFIG", "/d"), ("XDG_RUNTIME_DIR", "/r")];
        assert_eq!(of(&set), ["/r/containers/auth.json", usual[0], "/d/config.json"]);
    }

    #[test]
    fn a_request_says_its_user_by_name_and_password_alone() {
        let of = |said: &'static str| {
            Who::of_request(&HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(said))]))
        };
        // me:secret
        assert!(of("Basic bWU6c2VjcmV0").login() == Some(&password("me", "secret")));
        for said in ["Bearer bWU6c2VjcmV0", "Basic *", "Basic", "Basic OnNlY3JldA=="] {
            assert!(of(said).login().is_none() && of(said).id == [0; 32], "{said}");
        }
        assert_ne!(of("Basic bWU6c2VjcmV0").id, of("basic bWU6c2VjcmV1").id);
    }
}
