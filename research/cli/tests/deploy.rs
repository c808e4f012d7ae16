//! The pages of docs/deploy, as they stand: the public daemons with their settings, each box a network
//! namespace.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
mod common;

use polycast_testing::{Need, needs};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a page's commands, and more, in namespaces that end with them; gives what they print.
fn run(page: &str, more: &str) -> Option<String> {
    if !needs(&[Need::Root, Need::Namespaces, Need::Tool("ip"), Need::Tool("unshare"), Need::Tool("bash")]) {
        return None;
    }
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deploy").join(page))
        .unwrap();
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let commands: String = blocks.collect();
    assert!(commands.contains("polycast send"), "{page} has no commands");
    let place = common::Place::new();
    let begin = "set -eu\nmount -t tmpfs tmpfs /run\nmkdir /run/netns\nip link set lo up\n";
    let script = place.file("script", format!("{begin}{commands}{more}").as_bytes());
    // The program under its usual name.
    let programs = place.path("programs");
    fs::create_dir(&programs).unwrap();
    std::os::unix::fs::symlink(common::PROGRAM, Path::new(&programs).join("polycast")).unwrap();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let ran = Command::new("unshare")
        .args([
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "timeout",
            "600",
            "bash",
            &script,
        ])
        .current_dir(place.root())
        .env("PATH", path)
        .env_remove("POLYCAST_LOG")
        .env_remove("POLYCAST_SOCKET")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    let logs = fs::read_dir(place.root()).unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        (path.extension()? == "log")
            .then(|| format!("{}:\n{}", path.display(), fs::read_to_string(&path).unwrap()))
    });
    let logs: String = logs.collect();
    assert!(ran.status.success(), "{page}: {said}\n{wrong}\n{logs}");
    Some(said.into_owned())
}

/// The number behind a word.
fn number(text: &str, word: &str) -> u64 {
    let after = text.split(word).nth(1).unwrap_or_else(|| panic!("no {word} in {text}"));
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|error| panic!("{error}: {word} in {text}"))
}

#[test]
fn label_switches_and_agents_of_racks_are_started_by_hand() {
    let more = r#"
        after=$(ip -n leaf0 -s -j link show north)
        bytes() { echo "$1" | sed 's/.*"tx":{"bytes":\([0-9]*\).*/\1/'; }
        echo "carried=$(($(bytes "$after") - $(bytes "$before")))"
        cat h2.log manager.log > /dev/null
        # A second agent of the rack at a host, one that claims another rack, and a switch of another network are refused.
        sed 's/10.80.0.1:7476/10.80.0.1:7478/' h0.toml > twice.toml
        ip netns exec h0 polycast rack-agent --config twice.toml 2>&1 | sed 's/^/twice: /' || true
        sed 's/server = 0/server = 4/; s/10.80.0.1:7476/10.80.0.3:7476/' h0.toml > foreign.toml
        ip netns exec h2 polycast rack-agent --config foreign.toml > foreign.log 2>&1 &
        sed 's/"north"\]/"north", "office"]/' leaf0.toml > ports.toml
        ip netns exec leaf0 polycast label-switch --config ports.toml 2>&1 | sed 's/^/ports: /' || true
        until grep -q 'claims to be of rack' leaf0.log; do sleep 0.1; done
        grep 'claims to be of rack' leaf0.log | sed 's/^/foreign: /'
    "#;
    let Some(said) = run("orca.md", more) else { return };
    assert!(said.contains(" over orca"), "{said}");
    let carried = number(&said, "carried=");
    // Once, with headers, and not once a receiver or rack. What is lost comes again over TCP, which does not
    // go there.
    assert!(
        (8_000_000..16_000_000).contains(&carried),
        "the leaf sent {carried} bytes up for 8,000,000: {said}"
    );
    for part in [
        "twice: error: ",
        "orca0",
        "foreign: ",
        "an agent claims to be of rack 1",
        "ports: error: ",
        "has 5 ports",
    ] {
        assert!(said.contains(part), "no '{part}' in {said}");
    }
}

#[test]
fn datacast_nodes_are_started_by_hand() {
    let Some(said) = run("datacast.md", "") else { return };
    assert!(said.contains(" over datacast"), "{said}");
}
