//! The endpoint for clients of ModelScope, with a ModelScope that counts what it is asked, a manager and
//! agents as processes of their own.

mod common;

use common::cluster::{Cluster, Daemon};
use common::hub::{Heard, ask};
use common::scope::{FakeScope, TOKEN};
use common::{Place, noise};

const QUICK: &str = "silence-ms = 4000\n[objects]\nwindow-ms = 500\nsettle-ms = 300\n";
const LEN: usize = 3_000_001;
const FILE: &str = "/api/v1/models/org/m/repo?Revision=master&FilePath=weights%2Fmodel.bin";

fn cluster(scope: &FakeScope, names: &[&str]) -> Cluster {
    let place = Place::new();
    let settings = format!("[hub]\nlisten = '127.0.0.1:0'\nmodelscope = '{}'\n", scope.address);
    let settings = place.file("agent.toml", settings.as_bytes());
    let manager = place.file("manager.toml", QUICK.as_bytes());
    let managers = vec![Daemon::manager("127.0.0.1:0", &["--config", &manager])];
    Cluster::of_with(place, managers, names, &["--config", &settings])
}

fn get(cluster: &Cluster, agent: usize, path: &str, headers: &[&str]) -> Heard {
    let hub = cluster.agents[agent].ready["hub"].as_str().expect("the agent says where its endpoint is");
    ask(&format!("{}/ms", hub.strip_suffix("/hf").unwrap()), "GET", path, headers)
}

#[test]
fn a_model_is_read_once_for_all_hosts_and_what_is_not_listed_reaches_none() {
    let scope = FakeScope::start(noise(LEN));
    let cluster = cluster(&scope, &["a", "b", "c"]);
    std::thread::scope(|threads| {
        for agent in 0..3 {
            let cluster = &cluster;
            threads.spawn(move || {
                let heard = get(cluster, agent, FILE, &[]);
                assert!(heard.status == 200 && heard.body == noise(LEN), "{}", heard.status);
            });
        }
    });
    assert_eq!(scope.state().bytes, LEN as u64, "1.00 x");
    let part = get(&cluster, 1, FILE, &["Range: bytes=1000000-1999999"]);
    assert!(part.status == 206 && part.body == noise(LEN)[1_000_000..2_000_000], "{}", part.status);
    assert_eq!(scope.state().bytes, LEN as u64);
    // Other questions are passed on, and what has no digest is not given here.
    assert_eq!(get(&cluster, 0, "/api/v1/models/org/m", &[]).body, b"{\"Code\":200}");
    for path in [FILE.replace("model.bin", "plain.txt"), FILE.replace("models", "datasets")] {
        let sent_on = get(&cluster, 0, &path, &[]);
        assert_eq!(
            (sent_on.status, sent_on.header("location")),
            (307, Some(&*format!("{}{path}", scope.address)))
        );
    }
    for (path, headers, status) in [
        (FILE.replace("weights", ".."), &[][..], 400),
        ("/pages".into(), &[], 404),
        (FILE.into(), &["Host: evil.example"], 403),
    ] {
        assert_eq!(get(&cluster, 0, &path, headers).status, status, "{path}");
    }
    let wrong = FakeScope::start(noise(LEN + 1));
    wrong.state().flipped = true;
    let others = self::cluster(&wrong, &["a", "b"]);
    for agent in [0, 1] {
        let heard = get(&others, agent, FILE, &[]);
        assert!(
            heard.body != noise(LEN + 1) && heard.body.len() <= LEN,
            "{} {}",
            heard.status,
            heard.body.len()
        );
    }
}

#[test]
fn a_private_model_is_for_those_whom_modelscope_lets_see_it() {
    let scope = FakeScope::start(noise(LEN));
    scope.state().is_private = true;
    let cluster = cluster(&scope, &["a", "b"]);
    for agent in [0, 1] {
        for (headers, status) in
            [(&[TOKEN][..], 200), (&[], 404), (&["Authorization: Bearer wrong"], 404), (&[TOKEN], 200)]
        {
            let heard = get(&cluster, agent, FILE, headers);
            assert!(
                heard.status == status && (status == 404 || heard.body == noise(LEN)),
                "{}",
                heard.status
            );
        }
    }
    assert_eq!(scope.state().bytes, LEN as u64);
}
