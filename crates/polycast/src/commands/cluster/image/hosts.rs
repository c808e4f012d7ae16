//! `polycast image hosts`: tells containerd of the mirror on this host, in a `hosts.toml` for each registry.
//! What others have written there stays.

use crate::args::cluster::image::HostsArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_agent::daemon::AgentConfig;
use polycast_types::Printable;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

/// Lines around what this command has written in a file.
const BEGIN: &str = "# polycast image hosts: begin\n";
const END: &str = "# polycast image hosts: end\n";
const FILE: &str = "hosts.toml";

/// Runs `polycast image hosts`.
pub(super) fn run(args: &HostsArgs, format: Format) -> Result<Exit, Failure> {
    let (mirror, mut registries) = match &args.config {
        Some(path) => wanted(path)?,
        None => (String::new(), BTreeMap::new()),
    };
    // A registry that is no longer in the settings keeps nothing either.
    for folder in folders(&args.into).map_err(|error| Failure::path("read", &args.into, &error))? {
        registries.entry(folder).or_insert(None);
    }
    let mut changed = Vec::new();
    for (registry, server) in registries {
        let path = args.into.join(registry).join(FILE);
        if settle(&path, server.as_deref(), &mirror)? {
            changed.push(path.display().to_string());
        }
    }
    let text = match (&changed[..], args.undo) {
        ([], _) => "nothing had to be changed".to_string(),
        (all, true) => format!("taken out of {}", all.join(", ")),
        (all, false) => format!("containerd asks {mirror} first, by {}", all.join(", ")),
    };
    output::result(format, &json!({ "changed": changed }), &Printable(&text).to_string())?;
    Ok(Exit::Done)
}

/// The mirror's address, and the registries that it stands in for, each with its own.
fn wanted(config: &Path) -> Result<(String, BTreeMap<String, Option<String>>), Failure> {
    let settings = AgentConfig::load(config).map_err(|error| Failure::input(error.to_string()))?;
    let Some(oci) = settings.oci else {
        let why = format!("{} has no section [oci]: this agent is no mirror", config.display());
        return Err(Failure::input(why).hint("write it as docs/howto/images.md has it"));
    };
    oci.check().map_err(|error| Failure::input(error.to_string()))?;
    let registries = oci.registries.iter().map(|named| {
        let (host, server) = polycast_gateway::registry_at(named);
        (host, Some(server))
    });
    Ok((mirror_at(oci.listen)?, registries.collect()))
}

/// The mirror as containerd on this host reaches it.
fn mirror_at(listen: SocketAddr) -> Result<String, Failure> {
    let host = match listen.ip() {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST,
        IpAddr::V4(address) => address,
        // containerd#10055.
        IpAddr::V6(_) => {
            let why = format!("oci.listen is {listen}, and containerd takes no IPv6 address in {FILE}");
            return Err(Failure::input(why).hint("let the mirror listen on an IPv4 address"));
        }
    };
    match listen.port() {
        0 => Err(Failure::input(format!("oci.listen is {listen}: the file has to name a port"))),
        port => Ok(format!("http://{host}:{port}")),
    }
}

/// The registries that there are folders of.
fn folders(into: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(into) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

/// Makes one file what it has to be; gives whether that took a change.
fn settle(path: &Path, server: Option<&str>, mirror: &str) -> Result<bool, Failure> {
    let failed = |doing: &'static str| move |error: io::Error| Failure::path(doing, path, &error);
    let before = match fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
        Err(error) => return Err(failed("read")(error)),
    };
    let others = without(before.as_deref().unwrap_or_default()).to_string();
    let after = match server {
        Some(server) => Some(with(&others, server, mirror)),
        None if others.is_empty() => None,
        None => Some(others),
    };
    if after == before {
        return Ok(false);
    }
    let Some(after) = after else {
        fs::remove_file(path).map_err(failed("remove"))?;
        // Where others have put something there, it stays.
        let _ = path.parent().map(fs::remove_dir);
        return Ok(true);
    };
    if let Err(error) = after.parse::<toml::Table>() {
        let why = format!(
            "cannot write {}: with the mirror in it, it is no TOML: {}",
            path.display(),
            error.message()
        );
        return Err(Failure::input(why).hint("mend the file, or take out what it says of this mirror"));
    }
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed("write"))?;
    // containerd reads it at any time.
    let part = path.with_extension("part");
    fs::write(&part, after).and_then(|()| fs::rename(&part, path)).map_err(failed("write"))?;
    Ok(true)
}

/// The text without what this command has written.
fn without(text: &str) -> String {
    let parts = text.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    parts.map_or_else(|| text.to_string(), |(head, tail)| format!("{head}{tail}"))
}

/// The text with the mirror before all other hosts: containerd asks them in this order.
fn with(others: &str, server: &str, mirror: &str) -> String {
    let mut block = String::from(BEGIN);
    if others.is_empty() {
        block += &format!("server = \"{server}\"\n");
    }
    block += &format!(
        "[host.\"{mirror}\"]\n  capabilities = [\"pull\", \"resolve\"]\n  dial_timeout = \"1s\"\n{END}"
    );
    let mut lines = others.split_inclusive('\n');
    let mut head: String = lines.by_ref().take_while(|line| !line.trim_start().starts_with('[')).collect();
    let tail = &others[head.len()..];
    if !head.is_empty() && !head.ends_with('\n') {
        head.push('\n');
    }
    format!("{head}{block}{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_written_stays_and_comes_after_the_mirror() {
        let (server, mirror) = ("https://ghcr.io", "http://127.0.0.1:7482");
        let others = "server = \"https://other\"\n\n[host.\"https://near\"]\n  capabilities = [\"pull\"]\n";
        for text in ["", others, "[host.\"https://near\"]\n", "server = \"https://other\"\n"] {
            let made = with(text, server, mirror);
            let table: toml::Table = made.parse().unwrap();
            let own = if text.contains("server") { "https://other" } else { server };
            let named = table.get("server").and_then(toml::Value::as_str);
            assert_eq!(named.unwrap_or(server), own, "{made}");
            assert!(made.find(mirror) < made.find("https://near").or(Some(usize::MAX)), "{made}");
            assert_eq!(with(&without(&made), server, mirror), made, "twice is once");
            assert_eq!(without(&made), text);
        }
        assert_eq!(
            without("# polycast image hosts: begin\nand no end"),
            "# polycast image hosts: begin\nand no end"
        );
    }

    #[test]
    fn a_mirror_has_an_address_that_containerd_takes() {
        let at = |listen: &str| mirror_at(listen.parse().unwrap()).map_err(|failure| failure.message);
        assert_eq!(at("0.0.0.0:7482").unwrap(), "http://127.0.0.1:7482");
        assert!(at("[::1]:7482").unwrap_err().contains("IPv6"));
        assert!(at("127.0.0.1:0").unwrap_err().contains("a port"));
    }
}
