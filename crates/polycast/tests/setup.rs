//! `polycast setup` below a folder: the files that it writes, and those that it leaves alone. The tests of
//! packaging run it under systemd.

mod common;

use common::{Place, polycast};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn files_are_written_once_and_others_stay() {
    let place = Place::new();
    let root = place.path("root");
    fs::create_dir(&root).unwrap();
    let at = |path: &str| format!("{root}/{path}");
    let setup = |words: &[&str]| polycast(&[&["setup"], words, &["--root", &root, "--json"]].concat());
    let manager = setup(&["manager"]);
    assert_eq!(manager.status, 0, "{}", manager.stderr);
    assert_eq!((&manager.json()["started"], &manager.json()["joined"]), (&false.into(), &().into()));
    let settings = fs::read_to_string(at("etc/polycast/manager.toml")).unwrap();
    assert!(settings.contains("listen = \"0.0.0.0:7400\"") && settings.contains("key-file"), "{settings}");
    let key = at("etc/polycast/cluster.key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let unit = fs::read_to_string(at("etc/systemd/system/polycast-manager.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/local/bin/polycast manager"), "{unit}");
    assert_eq!(fs::metadata(at("usr/local/bin/polycast")).unwrap().permissions().mode() & 0o777, 0o755);

    let first = fs::read(&key).unwrap();
    let again = setup(&["manager"]);
    assert_eq!(again.status, 0, "{}", again.stderr);
    assert!(fs::read(&key).unwrap() == first, "the key stays");
    assert!(!again.stdout.contains("wrote"), "{}", again.stdout);
    let other = setup(&["manager", "--http", "127.0.0.1:7480"]);
    assert!(other.status == 1 && other.stderr.contains("with other settings"), "{}", other.stderr);
    assert_eq!(setup(&["manager", "--http", "127.0.0.1:7480", "--force"]).status, 0);
    assert_eq!(fs::read_to_string(at("etc/polycast/manager.toml.old")).unwrap(), settings);

    // What is wrong is said before anything is written.
    for (words, said) in [
        (&["agent", "--manager", "nonsense", "--key-file", &key][..], "nonsense"),
        (&["agent", "--manager", "10.0.0.1:7400"], "--key-file"),
        (&["agent", "--manager", "10.0.0.1:7400", "--key-file", &key, "--store-max", "much"], "much"),
    ] {
        let refused = setup(words);
        assert!(refused.status == 1 && refused.stderr.contains(said), "{said}: {}", refused.stderr);
    }
    assert!(!fs::exists(at("etc/polycast/agent.toml")).unwrap());
    // A path with quotes stays what it is.
    let agent = ["agent", "--manager", "10.0.0.1:7400", "--key-file", &key, "--store", "/dev/shm/a\"b"];
    assert_eq!(setup(&agent).status, 0);
    let settings = fs::read_to_string(at("etc/polycast/agent.toml")).unwrap();
    assert!(settings.contains(r#"store = "/dev/shm/a\"b""#), "{settings}");
}
