//! The mirror of container registries, with a registry that counts what it gives, a manager and agents as
//! processes of their own.

mod common;

use common::cluster::{Cluster, Daemon};
use common::hub::{Heard, ask};
use common::registry::{MANIFEST, Registry, USER};
use common::{Place, noise, polycast};

const QUICK: &str = "silence-ms = 4000\n[objects]\nwindow-ms = 500\nsettle-ms = 300\n";
const LEN: usize = 3_000_001;

fn cluster(registry: &Registry, names: &[&str]) -> Cluster {
    let place = Place::new();
    let settings = format!("[oci]\nlisten = '127.0.0.1:0'\nregistries = ['http://{}']\n", registry.address);
    let settings = place.file("agent.toml", settings.as_bytes());
    let manager = place.file("manager.toml", QUICK.as_bytes());
    let managers = vec![Daemon::manager("127.0.0.1:0", &["--config", &manager])];
    Cluster::of_with(place, managers, names, &["--config", &settings])
}

fn get(cluster: &Cluster, agent: usize, method: &str, path: &str, headers: &[&str]) -> Heard {
    let mirror = cluster.agents[agent].ready["oci"].as_str().expect("the agent says where its mirror is");
    ask(&format!("{mirror}/v2"), method, path, headers)
}

/// Both forms of a path: as containerd and as Podman write it.
fn paths(registry: &Registry, path: &str) -> [String; 2] {
    [format!("/{path}?ns={}", registry.address.replace(':', "%3A")), format!("/{}/{path}", registry.address)]
}

#[test]
fn an_image_is_read_from_its_registry_once_for_all_hosts() {
    let registry = Registry::start(noise(LEN));
    let cluster = cluster(&registry, &["a", "b", "c"]);
    // Runtimes send several lines of what they accept.
    let accept =
        ["Accept: application/vnd.docker.distribution.manifest.v2+json", &format!("Accept: {MANIFEST}")];
    let layers = paths(&registry, &format!("org/image/blobs/{}", registry.layer));
    let tags = paths(&registry, "org/image/manifests/1");
    std::thread::scope(|scope| {
        for agent in 0..3 {
            let (cluster, registry, layers, tags) = (&cluster, &registry, &layers, &tags);
            scope.spawn(move || {
                assert_eq!(get(cluster, agent, "GET", "/", &[]).status, 200);
                let tag = &tags[agent % 2];
                let head = get(cluster, agent, "HEAD", tag, &accept);
                assert_eq!(
                    (head.status, head.header("docker-content-digest")),
                    (200, Some(&*registry.manifest))
                );
                let manifest = get(cluster, agent, "GET", tag, &accept);
                assert_eq!((manifest.status, manifest.header("content-type")), (200, Some(MANIFEST)));
                assert!(String::from_utf8_lossy(&manifest.body).contains(&registry.layer));
                assert_eq!(manifest.header("oci-namespace"), Some(&*registry.address));
                let layer = get(cluster, agent, "GET", &layers[agent % 2], &[]);
                assert!(layer.status == 200 && layer.body == noise(LEN), "{}", layer.status);
                assert_eq!(layer.header("docker-content-digest"), Some(&*registry.layer));
            });
        }
    });
    let manifest_len = format!("{{\"layers\":[{{\"digest\":\"{}\"}}]}}", registry.layer).len();
    {
        // One guard: a second one would wait for the first.
        let given = registry.given();
        assert_eq!(given.bytes, (LEN + manifest_len) as u64, "{:?}", given.asked);
    }
    let part = get(&cluster, 1, "GET", &layers[0], &["Range: bytes=3000000-"]);
    assert_eq!((part.status, part.body.len()), (206, 1));
    let head = get(&cluster, 1, "HEAD", &layers[0], &[]);
    assert_eq!((head.status, head.header("content-length")), (200, Some("3000001")));
    assert_eq!(registry.given().bytes, (LEN + manifest_len) as u64);
}

#[test]
fn what_is_not_for_all_or_not_the_image_is_not_here() {
    let registry = Registry::start(noise(LEN));
    let cluster = cluster(&registry, &["a", "b"]);
    let layer = &paths(&registry, &format!("org/image/blobs/{}", registry.layer))[0];
    registry.given().flipped = true;
    let flipped = get(&cluster, 0, "GET", layer, &[]);
    assert!(flipped.status == 502 && flipped.body.len() < 500, "{}", flipped.status);
    registry.given().flipped = false;
    assert!(get(&cluster, 0, "GET", layer, &[]).body == noise(LEN));
    // The same layer, in a repository that the registry keeps to itself, although it is in the store.
    let given = registry.given().bytes;
    let private = &paths(&registry, &format!("org/private/blobs/{}", registry.layer))[0];
    for agent in [0, 1] {
        let heard = get(&cluster, agent, "GET", private, &["Authorization: Bearer mine"]);
        assert!(heard.status == 404 && heard.body.len() < 500, "{heard:?}");
    }
    assert_eq!(registry.given().bytes, given);
    let asked = registry.given().asked.len();
    let manifest = "org/image/manifests/1";
    for (path, headers, status) in [
        (format!("/{manifest}?ns=elsewhere.example"), &[][..], 404),
        (format!("/169.254.169.254/{manifest}"), &[], 404),
        (format!("/{manifest}"), &[], 404),
        (paths(&registry, "org/../image/manifests/1")[0].clone(), &[], 404),
        (paths(&registry, "org/image/blobs/sha256:12")[0].clone(), &[], 404),
        (paths(&registry, "org/image/tags/list")[0].clone(), &[], 404),
        (paths(&registry, manifest)[0].clone(), &["Host: evil.example"], 403),
    ] {
        assert_eq!(get(&cluster, 0, "GET", &path, headers).status, status, "{path}");
    }
    assert_eq!(get(&cluster, 0, "PUT", layer, &[]).status, 405);
    assert_eq!(registry.given().asked.len(), asked, "the registry has heard of none of these");
}

#[test]
fn an_image_is_pulled_into_all_stores_before_a_runtime_asks() {
    let registry = Registry::start(noise(LEN));
    let cluster = cluster(&registry, &["a", "b"]);
    let pull = |tag: &str, more: &[&str]| {
        let image = format!("http://{}/org/image:{tag}", registry.address);
        cluster.at("a", &[&["image", "pull", &image], more].concat())
    };
    let none = pull("2", &["--platform", "linux/arm64"]);
    assert!(none.status != 0 && none.stderr.contains("no image for linux/arm64"), "{}", none.stderr);
    let pulled = pull("2", &["--platform", "linux/riscv64", "--to", "all"]);
    assert_eq!(pulled.status, 0, "{}", pulled.stderr);
    let document = pulled.json();
    let files = document["files"].as_array().unwrap();
    let said: Vec<_> = files.iter().map(|file| (&file["kind"], &file["source"])).collect();
    assert_eq!(format!("{said:?}").matches("origin").count(), 2, "the list was there: {said:?}");
    assert_eq!(files[1]["digest"], *registry.manifest);
    assert_eq!((&files[2]["digest"], &files[2]["bytes"]), (&(&*registry.layer).into(), &LEN.into()));
    // The other host has all of it.
    let given = registry.given().bytes;
    let accept = format!("Accept: {MANIFEST}");
    let manifest = get(&cluster, 1, "GET", &paths(&registry, "org/image/manifests/1")[0], &[&accept]);
    assert_eq!(manifest.status, 200);
    let layer = &paths(&registry, &format!("org/image/blobs/{}", registry.layer))[0];
    assert!(get(&cluster, 1, "GET", layer, &[]).body == noise(LEN));
    assert_eq!(registry.given().bytes, given);
    let again = pull("1", &[]).json();
    assert_eq!(again["files"][1]["source"], "store", "{again}");
    let private = format!("http://{}/org/private:1", registry.address);
    let private = cluster.at("b", &["image", "pull", &private]);
    assert!(private.status != 0 && private.stderr.contains("not give that to all"), "{}", private.stderr);
    for wrong in ["a b", "http://x", "debian@sha256:1"] {
        assert_eq!(cluster.at("b", &["image", "pull", wrong]).status, 1, "{wrong}");
    }
}

/// Files of a registry are fetched like those of a web server, and by their digests.
#[test]
fn files_of_a_registry_are_fetched_once_and_are_those_of_their_digests() {
    let registry = Registry::start(noise(LEN));
    let cluster = cluster(&registry, &["a", "b"]);
    let address = format!("oci://{}/org/image", registry.address);
    let fetch = |agent: &str, what: &str, out: &str| {
        cluster.at(agent, &["fetch", what, "--out", &cluster.place.path(out), "--timeout", "30s"])
    };
    registry.given().flipped = true;
    let wrong = fetch("a", &format!("{address}:1"), "wrong");
    assert!(wrong.status != 0 && wrong.stderr.contains("SHA-256"), "{}", wrong.stderr);
    registry.given().flipped = false;
    // One layer is one file; its name is that of the repository where the manifest has none.
    let one = fetch("a", &format!("{address}@{}", registry.manifest), "one");
    assert_eq!(one.status, 0, "{}", one.stderr);
    assert!(std::fs::read(cluster.place.path("one")).unwrap() == noise(LEN));
    assert_eq!((&one.json()["key"], &one.json()["filled"]), (&registry.layer.as_str().into(), &true.into()));
    let layers = |registry: &Registry| {
        registry.given().asked.iter().filter(|line| line.starts_with("GET /store/")).count()
    };
    let before = layers(&registry);
    // Several are a directory, and what an agent has already is not asked for.
    let several = fetch("b", &format!("{address}:3"), "several");
    assert_eq!(several.status, 0, "{}", several.stderr);
    let folder = std::path::PathBuf::from(cluster.place.path("several"));
    assert!(std::fs::read(folder.join("weights/model.bin")).unwrap() == noise(LEN));
    assert!(std::fs::read_to_string(folder.join("config.json")).unwrap().contains(&registry.layer));
    let files = several.json()["files"].clone();
    assert_eq!((&files[0]["filled"], &files[1]["filled"]), (&false.into(), &true.into()), "{files}");
    assert_eq!(layers(&registry), before + 1);
    for (what, says) in [
        (format!("{address}:none"), "404"),
        ("oci://org/image:1".into(), "oci://REGISTRY/REPOSITORY:TAG"),
        (format!("oci://{}/org/private:1", registry.address), "does not give that to all"),
    ] {
        let refused = fetch("a", &what, "refused");
        assert!(refused.status != 0 && refused.stderr.contains(says), "{what}: {}", refused.stderr);
    }
    let key = format!("sha256:{}", "0".repeat(64));
    let from = cluster
        .at("a", &["fetch", &key, "--from", &format!("{address}:3"), "--out", &cluster.place.path("x")]);
    assert!(from.status != 0 && from.stderr.contains("a key is that of one file"), "{}", from.stderr);
}

/// The registry is asked in the way that it says, with the credentials that tools for images keep.
#[test]
fn a_registry_is_asked_as_the_user_whom_the_files_of_tools_name() {
    let registry = Registry::start(noise(LEN));
    let cluster = cluster(&registry, &["a", "b"]);
    let config = |name: &str, text: String| {
        let path = cluster.place.file(&format!("{name}/config.json"), text.as_bytes());
        std::path::Path::new(&path).parent().unwrap().display().to_string()
    };
    let entry = |entry: &str| format!("{{\"auths\":{{\"http://{}/v2/\":{{{entry}}}}}}}", registry.address);
    let mine = config("mine", entry(&format!("\"auth\":\"{USER}\"")));
    let identity = config("identity", entry("\"identitytoken\":\"identity\""));
    let wrong = config("wrong", entry("\"auth\":\"bWU6d3Jvbmc=\""));
    let none = config("none", "{}".into());
    let helped = config("helped", "{\"credsStore\":\"of-test\"}".into());
    let programs = cluster.place.path("programs");
    let script = "#!/bin/sh\nread server\necho '{\"Username\":\"me\",\"Secret\":\"secret\"}'\n";
    let helper = cluster.place.file("programs/docker-credential-of-test", script.as_bytes());
    std::fs::set_permissions(&helper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let run = |agent: &str, folder: &str, words: &[&str]| {
        let socket = common::cluster::socket(&cluster.place, agent);
        let mut command = common::command(&[words, &["--socket", &socket, "--json"]].concat());
        command.env("DOCKER_CONFIG", folder).env("PATH", &path).env("HOME", "/nonexistent");
        command.env_remove("REGISTRY_AUTH_FILE").env_remove("XDG_RUNTIME_DIR");
        common::end(command.spawn().unwrap())
    };
    let image = format!("http://{}/org/private:1", registry.address);
    let manifest_len = format!("{{\"layers\":[{{\"digest\":\"{}\"}}]}}", registry.layer).len();
    let all = (LEN + manifest_len) as u64;
    for is_basic in [false, true] {
        registry.given().is_basic = is_basic;
        for (folder, says) in [(&none, "does not give that to all"), (&wrong, "give that to the user me")] {
            let refused = run("b", folder, &["image", "pull", &image]);
            let says = if is_basic || folder == &none { says } else { "give that to the user me" };
            assert!(refused.status == 1 && refused.stderr.contains(says), "{}", refused.stderr);
            assert!(!refused.stderr.contains("wrong"), "{}", refused.stderr);
        }
        let pulled = run("a", &mine, &["image", "pull", &image, "--to", "all"]);
        assert_eq!(pulled.status, 0, "{}", pulled.stderr);
        let (given, asked) = {
            let state = registry.given();
            (state.bytes, state.asked.clone())
        };
        assert_eq!(given, all, "{asked:?}");
    }
    registry.given().is_basic = false;
    for folder in [&identity, &helped] {
        let pulled = run("b", folder, &["image", "pull", &image]);
        assert_eq!(pulled.status, 0, "{}", pulled.stderr);
    }
    let out = cluster.place.path("fetched");
    let address = format!("oci://{}/org/private:1", registry.address);
    let refused = run("b", &none, &["fetch", &address, "--out", &out]);
    assert!(
        refused.status == 1 && refused.stderr.contains("does not give that to all"),
        "{}",
        refused.stderr
    );
    let fetched = run("b", &mine, &["fetch", &address, "--out", &out]);
    assert!(fetched.status == 0 && std::fs::read(out).unwrap() == noise(LEN), "{}", fetched.stderr);
    // A fetch reads the manifest itself.
    let given = registry.given().bytes;
    assert_eq!(given, all + manifest_len as u64, "1.00 x");
}

/// An image that the registry gives to some users is given to these alone, as often as it is asked for, even
/// if it is in the store.
#[test]
fn a_mirror_gives_a_users_image_to_none_else() {
    let registry = Registry::start(noise(LEN));
    let cluster = cluster(&registry, &["a", "b"]);
    // At the mirror one who sends a name and a password by itself is answered as the registry answers that.
    let layer = &paths(&registry, &format!("org/private/blobs/{}", registry.layer))[0];
    let tag = &paths(&registry, "org/private/manifests/1")[0];
    let accept = format!("Accept: {MANIFEST}");
    let (right, wrong) = (format!("Authorization: Basic {USER}"), "Authorization: Basic bWU6d3Jvbmc=");
    for agent in [0, 1] {
        for (user, status) in [(None, 404), (Some(right.as_str()), 200), (Some(wrong), 404), (None, 404)] {
            let headers: Vec<&str> = user.into_iter().chain([accept.as_str()]).collect();
            assert_eq!(get(&cluster, agent, "GET", tag, &headers).status, status, "{user:?}");
            let heard = get(&cluster, agent, "GET", layer, &headers);
            assert!(
                heard.status == status && (status == 404 || heard.body == noise(LEN)),
                "{user:?} {}",
                heard.status
            );
        }
    }
    let layers = registry.given().asked.iter().filter(|line| line.starts_with("GET /store/")).count();
    assert_eq!(layers, 1, "1.00 x");
}

#[test]
fn containerd_is_told_of_the_mirror_and_what_others_wrote_stays() {
    let place = Place::new();
    let settings = |registries: &str| {
        let text = format!(
            "manager = '10.0.0.1:7400'\n[oci]\nlisten = '127.0.0.1:7482'\nregistries = {registries}\n"
        );
        place.file("agent.toml", text.as_bytes())
    };
    let folder = place.path("certs.d");
    let at = |registry: &str| format!("{folder}/{registry}/hosts.toml");
    let hosts =
        |words: &[&str]| polycast(&[&["image", "hosts", "--into", &folder, "--json"], words].concat());
    let read = |registry: &str| std::fs::read_to_string(at(registry));
    let config = settings("['docker.io', 'ghcr.io', 'http://10.0.0.5:5000']");
    // One that an operator has written: another mirror stays, behind ours.
    let others =
        "server = \"https://ghcr.io\"\n\n[host.\"https://near.example\"]\n  capabilities = [\"pull\"]\n";
    std::fs::create_dir_all(format!("{folder}/ghcr.io")).unwrap();
    std::fs::write(at("ghcr.io"), others).unwrap();
    let told = hosts(&["--config", &config]);
    assert_eq!((told.status, told.json()["changed"].as_array().unwrap().len()), (0, 3), "{}", told.stderr);
    let docker: toml::Table = read("docker.io").unwrap().parse().unwrap();
    assert_eq!(docker["server"].as_str(), Some("https://registry-1.docker.io"));
    assert_eq!(docker["host"]["http://127.0.0.1:7482"]["dial_timeout"].as_str(), Some("1s"));
    assert!(read("10.0.0.5:5000").unwrap().contains("server = \"http://10.0.0.5:5000\""));
    let both = read("ghcr.io").unwrap();
    assert!(both.find("127.0.0.1:7482").unwrap() < both.find("near.example").unwrap(), "{both}");
    assert_eq!(hosts(&["--config", &config]).json()["changed"], serde_json::json!([]), "twice is once");
    // A registry that is no longer one of the mirror's.
    let config = settings("['ghcr.io']");
    assert_eq!(hosts(&["--config", &config]).json()["changed"].as_array().unwrap().len(), 2);
    assert!(read("docker.io").is_err() && read("ghcr.io").unwrap() == both);
    // What would make a file that containerd does not read is not written.
    std::fs::write(at("ghcr.io"), "[host.\"http://127.0.0.1:7482\"]\n").unwrap();
    let refused = hosts(&["--config", &config]);
    assert!(
        refused.status == 1 && refused.stdout.contains("it is no TOML: duplicate key"),
        "{}",
        refused.stdout
    );
    std::fs::write(at("ghcr.io"), &both).unwrap();
    assert_eq!(hosts(&["--undo"]).status, 0);
    assert_eq!(read("ghcr.io").unwrap(), others);
    let none = place.file("none.toml", b"manager = '10.0.0.1:7400'\n");
    let refused = hosts(&["--config", &none]);
    assert!(refused.status == 1 && refused.stdout.contains("has no section [oci]"), "{}", refused.stdout);
}
