use super::*;

const SMALL: &str = r#"
[network]
topology = "leaf-spine:2,2,2"

[links]
rate = "10gbit"
loss = 0.01

[transfer]
transport = "push"
source = 0
receivers = [1, 3]
bytes = "1M"
"#;

/// Returns the message about a scenario: from reading it, or from running it.
fn said(text: &str) -> String {
    match parse(text) {
        Err(error) => error.to_string(),
        Ok(scenario) => match scenario.run(1) {
            Err(problem) => locate(text, &problem).to_string(),
            Ok(_) => String::from("it runs"),
        },
    }
}

#[test]
fn wrong_lines_are_named() {
    assert_eq!(said(SMALL), "it runs");
    for (from, to, expected) in [
        ("loss = 0.01", "los = 0.01", "line 7: unknown field `los`, expected one of `rate`, `delay`"),
        ("loss = 0.01", "loss = 1.5", "line 7: loss: 1.5 is not a share: write 0 to 1"),
        ("\"10gbit\"", "\"-1gbit\"", "line 6: rate: '-1gbit' is not a rate: write 1gbit"),
        ("\"10gbit\"", "-5", "line 6: rate: invalid value: integer `-5`, expected a rate such as"),
        ("\"10gbit\"", "0", "line 6: rate: invalid value: integer `0`"),
        ("\"10gbit\"", "true", "line 6: rate: invalid type: boolean `true`, expected a rate such as"),
        (
            "[1, 3]",
            "[1, 9]",
            "line 12: transfer.receivers: host 9 is not there: leaf-spine:2,2,2 has hosts 0 to 3",
        ),
        ("[1, 3]", "[1, 0]", "line 12: transfer.receivers: host 0 is the source"),
        ("[1, 3]", "\"some\"", "line 12: receivers: write \"all\" or a list of hosts"),
        ("[1, 3]", "[1, -3]", "line 12: receivers: write \"all\" or a list of hosts"),
        (
            "\"push\"",
            "\"shove\"",
            "line 10: transport: unknown variant `shove`, expected one of `push`, `pull`, `tcp`",
        ),
        ("\"1M\"", "\"1X\"", "line 13: bytes: '1X' is not a size"),
        ("\"1M\"", "\"1000T\"", "line 13: transfer.bytes: 1099511627776000 bytes are "),
        ("\"1M\"", "\"16000000T\"", "line 13: transfer.bytes: "),
        (
            "[links]",
            "[pull]\npayload = 1000\n[links]",
            "line 5: pull: this goes with the transport pull only",
        ),
        (
            "[links]",
            "[push]\nslow = \"wait\"\nslow_after = \"1ms\"\n[links]",
            "line 7: push.slow_after: a source that waits",
        ),
        ("source = 0", "source = 4", "line 11: transfer.source: host 4 is not there"),
        ("source = 0\n", "", "line 9: missing field `source`"),
        ("leaf-spine:2,2,2", "leaf:2", "line 3: network.topology: "),
        (
            "loss = 0.01",
            "loss = 0.01\n[[link]]\nfrom = 4\nto = 4",
            "line 10: link[0].to: a link from node 4 to itself is a loop",
        ),
        (
            "loss = 0.01",
            "loss = 0.01\n[[link]]\nfrom = 0\nto = 1",
            "line 8: link[0]: leaf-spine:2,2,2 has no link from 0 to 1",
        ),
        (
            "[transfer]",
            "[[failure]]\nat = \"1ms\"\n[transfer]",
            "line 9: failure[0]: write `link = [FROM, TO]`",
        ),
        (
            "[transfer]",
            "[[failure]]\nat = \"soon\"\nnode = 1\n[transfer]",
            "line 10: at: 'soon' is not a time",
        ),
        (
            "[transfer]",
            "[transfer]\ntree = [[0, 4], [4, 1], [1, 4]]",
            "line 10: transfer.tree[2]: node 4 is reached already: this would be a loop",
        ),
        ("[network]", "[network", "line 2: "),
    ] {
        let line = said(&SMALL.replacen(from, to, 1));
        assert!(line.starts_with(expected), "{to}: {line}");
        assert!(!line.contains('\n'), "{line}");
    }
}

#[test]
fn keys_of_pull_are_for_pull_and_fit() {
    let pull = SMALL.replace("\"push\"", "\"pull\"").replace("leaf-spine:2,2,2", "bcube:2,2");
    let with = |keys: &str| said(&pull.replacen("[links]", &format!("[pull]\n{keys}\n[links]"), 1));
    let all = "rto = \"5ms\"\nburst = \"12k\"\npending = 100\nreplacement = \"least-recently-used\"\ntrees = 1\nheader = 72";
    assert_eq!(with(all), "it runs");
    for (keys, expected) in [
        ("rto = \"0ms\"", "line 6: pull.rto: it is above zero"),
        ("burst = 100", "line 6: pull.burst: it holds a packet of 1428 bytes at least"),
        ("pending = 0", "line 6: pull.pending: write a number of at least 1"),
        ("store = 4_000_000_000", "line 6: pull.store: every node has such a table"),
        ("replacement = \"random\"", "line 6: replacement: unknown variant `random`"),
        ("trees = 0", "line 6: pull.trees: write a number of at least 1"),
    ] {
        let line = with(keys);
        assert!(line.starts_with(expected), "{keys}: {line}");
    }
    let labels = pull.replace("source = 0", "routing = \"labels\"\nsource = 0");
    assert!(
        said(&labels).contains("transfer.routing: this goes with the transport push only"),
        "{}",
        said(&labels)
    );
}

#[test]
fn several_transfers_are_read_and_their_keys_named() {
    let second = "[[transfer]]\ntransport = \"tcp\"\nsource = 1\nreceivers = \"all\"\nbytes = 1000\n";
    let two = format!("{}{second}", SMALL.replace("[transfer]", "[[transfer]]"));
    assert_eq!(said(&two), "it runs");
    for (from, to, expected) in [
        ("receivers = \"all\"", "receivers = [1]", "line 17: transfer[1].receivers: host 1 is the source"),
        ("bytes = 1000", "byte = 1000", "line 18: unknown field `byte`"),
        (
            "\"tcp\"",
            "\"pull\"",
            "line 15: transfer[1].transport: with pull every node is a caching forwarder",
        ),
        (
            "source = 1",
            "tree = [[0, 1]]\nsource = 1",
            "line 16: transfer[1].tree: this goes with the transport push only",
        ),
        (
            "bytes = 1000\n",
            "bytes = 1000\n[transfer.push]\n",
            "line 19: transfer[1].push: this goes with the transport push only",
        ),
        ("[[transfer]]", "[transfer]", "line "),
    ] {
        let line = said(&two.replacen(from, to, 1));
        assert!(line.starts_with(expected), "{to}: {line}");
        assert!(!line.contains('\n'), "{line}");
    }
    let own = SMALL.replace("bytes = \"1M\"", "bytes = \"1M\"\n[transfer.push]\nfragment = 70000");
    assert!(said(&own).starts_with("line 15: transfer.push.fragment: a fragment holds"), "{}", said(&own));
    let unused = SMALL.replace("bytes = \"1M\"", "bytes = \"1M\"\n[transfer.push]\n[push]\nwindow = \"2M\"");
    assert!(said(&unused).contains("push: every transfer by push has its own settings"), "{}", said(&unused));
    let none = SMALL.replace("[transfer]", "[transfer_]");
    assert!(said(&none).contains("transfer"), "{}", said(&none));
}

#[test]
fn a_manager_has_the_keys_of_its_transport() {
    let with =
        |text: &str, keys: &str| said(&text.replacen("[links]", &format!("[manager]\n{keys}\n[links]"), 1));
    let pull = SMALL.replace("\"push\"", "\"pull\"").replace("leaf-spine:2,2,2", "bcube:2,2");
    assert_eq!(with(SMALL, "probe = \"1ms\"\ncarrier = false\ncontrol_delay = \"1ms\""), "it runs");
    assert_eq!(with(&pull, "greeting = \"1ms\"\ndamping = \"3s\""), "it runs");
    for (text, keys, expected) in [
        (SMALL, "greeting = \"1ms\"", "line 6: manager.greeting: only nodes of pull greet"),
        (SMALL, "damping = \"1ms\"", "line 6: manager.damping: switches that probe say a change at once"),
        (SMALL, "probe = 0", "line 6: manager.probe: it is 10us at least"),
        (&pull, "probe = \"1ms\"", "line 6: manager.probe: nodes of pull greet each other"),
        (&pull, "period = \"1ms\"", "line 6: unknown field `period`"),
    ] {
        let line = with(text, keys);
        assert!(line.starts_with(expected), "{keys}: {line}");
    }
}

#[test]
fn the_sample_scenarios_run_as_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (scenario, _) = load(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let report =
            scenario.run(scenario.seed).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(report.finished_at.is_some(), "{}: {:?}", path.display(), report.receivers);
        assert_eq!(report.breaches, Vec::<String>::new());
        assert_eq!(report, scenario.run(scenario.seed).unwrap(), "{}", path.display());
        count += 1;
    }
    assert!(count >= 4);
}

#[test]
fn every_key_is_in_the_documentation() {
    let page = include_str!("../../../../docs/simulation.md");
    let source = include_str!("../scenario.rs");
    let mut inside = false;
    for line in source.lines() {
        inside = (inside || (line.starts_with("struct ") && line.ends_with('{'))) && !line.starts_with('}');
        let field = line.strip_prefix("    ").and_then(|line| line.split_once(": ")).map(|(name, _)| name);
        if let Some(name) =
            field.filter(|name| inside && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        {
            assert!(
                page.contains(&format!("`{name}`")) || page.contains(&format!("[{name}]")),
                "{name} is not explained"
            );
        }
    }
}

#[test]
fn a_hundred_thousand_hosts_fit() {
    let text = SMALL.replace("leaf-spine:2,2,2", "clos:40,50,20,50,4").replace("[1, 3]", "[1, 99_999]");
    let report = parse(&text).unwrap().run(1).unwrap();
    assert!(report.finished_at.is_some());
}
