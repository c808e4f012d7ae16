//! Keys, certificates and tokens that are wrong: one sentence that says what is wrong and what would be
//! right, and nothing half-started.

mod common;

use common::authority::{Authority, words};
use common::cluster::Daemon;
use common::{Place, polycast};
use polycast_testing::wait_for;
use rcgen::CertificateParams;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Something wrong, the program that is started with it, and what is said of it: what is wrong, and what
/// would be right.
struct Row {
    what: &'static str,
    arguments: Vec<String>,
    says: [&'static str; 2],
}

impl Row {
    fn new<T: AsRef<str>>(what: &'static str, arguments: &[T], says: [&'static str; 2]) -> Self {
        let arguments = arguments.iter().map(|text| text.as_ref().to_string()).collect();
        Row { what, arguments, says }
    }

    /// Runs it to its end: one line is its error.
    fn check(&self) {
        let arguments = words(&self.arguments);
        let ran = wait_for(self.what, || Some(polycast(&arguments)).filter(|ran| !common::was_late(ran)));
        let what = self.what;
        assert_eq!(ran.status, 1, "{what}: {}", ran.stderr);
        let errors: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        let [error] = errors[..] else { panic!("{what}: {}", ran.stderr) };
        for part in self.says {
            assert!(ran.stderr.contains(part), "{what}: '{part}' is not in: {}", ran.stderr);
        }
        assert!(error.contains(self.says[0]), "{what}: {error}");
    }
}

fn key(place: &Place, name: &str) -> String {
    let path = place.path(name);
    assert_eq!(polycast(&["key", "new", &path]).status, 0);
    path
}

/// Returns the arguments that start an agent of this name at a manager, with `more` behind them.
fn agent<T: AsRef<str>>(place: &Place, manager: &str, name: &str, more: &[T]) -> Vec<String> {
    let (store, socket) = (place.path(&format!("store-{name}")), place.path(&format!("{name}.sock")));
    let own =
        ["agent", "--manager", manager, "--name", name, "--interface", "lo", "--store", &store, "--socket"];
    let more = more.iter().map(AsRef::as_ref);
    own.into_iter().chain([socket.as_str()]).chain(more).map(str::to_string).collect()
}

/// Keys that are none, and a policy that is none: a manager does not begin.
fn of_managers(place: &Place, rows: &mut Vec<Row>) {
    let begin =
        |flag: &str, file: &str| ["manager", "--listen", "127.0.0.1:0", flag, file].map(str::to_string);
    let short = place.file("short", b"abc\n");
    fs::set_permissions(&short, Permissions::from_mode(0o600)).unwrap();
    let says = ["it holds 3 characters", "polycast key new"];
    rows.push(Row::new("a key file too short", &begin("--key-file", &short), says));
    let shown = key(place, "shown");
    fs::set_permissions(&shown, Permissions::from_mode(0o644)).unwrap();
    rows.push(Row::new("readable by others", &begin("--key-file", &shown), ["others can read", "chmod 600"]));
    let policy = place.file("policy.toml", b"[[allow]]\nreceivers = ['b']\nobject = ['x']\n");
    let config = place.file("policy-manager.toml", format!("policy = '{policy}'\n").as_bytes());
    let says = ["unknown field `object`", "expected one of `source`, `receivers`, `objects`"];
    rows.push(Row::new("a policy with an unknown key", &begin("--config", &config), says));
}

/// Certificates that no end takes.
fn of_certificates(place: &Place, authority: &Authority, manager: &str, rows: &mut Vec<Row>) {
    let hour = Duration::from_secs(3_600);
    let now = SystemTime::now();
    let mut add = |what, name: &str, files: &[String], says| {
        rows.push(Row::new(what, &agent(place, manager, name, files), says));
    };
    let valid = |name: &str, from: SystemTime, to: SystemTime| {
        let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
        (params.not_before, params.not_after) = (from.into(), to.into());
        params
    };
    let old = authority.issue_with(place, "e", valid("e", now - 3 * hour, now - hour));
    add("an expired certificate", "e", &old, ["it was valid until", "renew it, or set the clock"]);
    let young = authority.issue_with(place, "f", valid("f", now + hour, now + 3 * hour));
    add("a clock an hour off", "f", &young, ["it is valid from", "set the clocks of both machines"]);
    let foreign = Authority::new().issue(place, "g", "g");
    let says = ["was not issued by an authority that this end trusts", "--tls-ca"];
    add("a foreign certificate", "g", &foreign, says);
    let others = authority.issue(place, "h", "x");
    add(
        "a certificate of another name",
        "h",
        &others,
        ["the certificate of 'h' is for 'x'", "start the agent with"],
    );
    let open = authority.issue(place, "i", "i");
    fs::set_permissions(&open[5], Permissions::from_mode(0o644)).unwrap();
    add("a private key readable by others", "i", &open, ["others can read the private key", "chmod 600"]);
    let list = authority.revoke(place, &[7]);
    let revoked =
        [authority.issue_numbered(place, "j", "j", 7), vec!["--tls-crl".into(), list.clone()]].concat();
    add(
        "a revoked certificate",
        "j",
        &revoked,
        ["its authority has revoked it", "give the machine another one"],
    );
    let alone = ["--tls-crl".to_string(), list];
    add("a list of revoked ones alone", "k", &alone, ["required arguments", "--tls-ca"]);
}

#[test]
fn what_is_wrong_about_an_identity_is_said_in_a_sentence() {
    let place = Place::new();
    let mut rows = Vec::new();
    of_managers(&place, &mut rows);
    let (ours, theirs) = (key(&place, "ours"), key(&place, "theirs"));
    let with_key = Daemon::manager("127.0.0.1:0", &["--key-file", &ours]);
    let other = agent(&place, with_key.address(), "a", &["--key-file", &theirs]);
    rows.push(Row::new(
        "the key of another cluster",
        &other,
        ["the other end has another key", "need the same one"],
    ));

    let authority = Authority::new();
    let own = authority.issue(&place, "manager", "manager");
    let with_certificate = Daemon::manager("127.0.0.1:0", &words(&own));
    of_certificates(&place, &authority, with_certificate.address(), &mut rows);

    let folder = place.path("ca");
    let with_tokens = Daemon::manager("127.0.0.1:0", &["--ca", &folder]);
    let made = polycast(&["token", "new", "--name", "b", "--for", "1h", "--ca", &folder, "--json"]).json();
    let token = made["token"].as_str().unwrap();
    let come = |name: &str, identity: &str| {
        agent(&place, with_tokens.address(), name, &["--token", token, "--identity", &place.path(identity)])
    };
    let first = Daemon::start(&words(&come("b", "identity-b")));
    let mut again = come("b", "identity-again");
    let at = again.iter().position(|word| word == "--socket").unwrap() + 1;
    again[at] = place.path("again.sock");
    again[at - 2] = place.path("store-again");
    rows.push(Row::new("a token used twice", &again, ["has been used already", "polycast token new"]));
    // Six letters may be a code that a user has made up: whether it is the offer's is said when there is one.
    let says = ["letters and digits", "such as lusab-babad-gutih"];
    rows.push(Row::new("a code mistyped", &["accept", "lusa?", "--out", &place.path("out")], says));

    // Those who are not let in try for some seconds.
    std::thread::scope(|scope| rows.iter().for_each(|row| drop(scope.spawn(|| row.check()))));
    for name in ["a", "e", "f", "g", "h", "i", "j", "k", "again"] {
        assert!(!Path::new(&place.path(&format!("{name}.sock"))).exists(), "{name} has left its socket");
    }
    drop((with_key, with_certificate, with_tokens, first));
}
