//! The manager's choice among the fabrics of a lab, with real namespaces, daemons, switches and devices.
//! `choice/choice.py` measures how good it is.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
mod common;

use common::{Place, noise, polycast};
use polycast_testing::{Need, needs};

/// A lab with three fabrics, whose circuits take their time and are five times as fast as the core.
#[test]
fn the_manager_chooses_the_fabric_by_the_object() {
    let programs = ["ip", "tc", "ovs-vswitchd", "ethtool"].map(Need::Tool);
    if !needs(&[&[Need::Root, Need::Namespaces][..], &programs].concat()) {
        return;
    }
    const SPEC: &str = "blast:racks=3,hosts=1,next=ip-multicast,circuit-ms=200,rate=100mbit,core=20mbit,choose=time,\
                        patience-ms=60000";
    let place = Place::new();
    let cast = |bytes: usize| {
        let file = place.file("object", &noise(bytes));
        let ran = polycast(&["lab", "cast", SPEC, &file, "--json"]);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        let report = ran.json();
        let receivers = report["receivers"].as_array().unwrap();
        assert!(receivers.len() == 2 && receivers.iter().all(|one| one["verified"] == true), "{report}");
        assert!(report["took_s"].as_f64().is_some_and(|took| took > 0.0), "{report}");
        report
    };
    // Which path is taken is its choice; a receiver that is late on a busy machine may be left to catch up by
    // another way.
    let over = |report: &serde_json::Value, fabric: &str| {
        report["fabric"].as_str().unwrap().split('+').next() == Some(fabric)
    };
    // 6 ms and 40 ms at 20 Mbit/s, or 200 ms and 8.4 ms at 95.
    let small = cast(100_000);
    assert!(over(&small, "ip-multicast"), "{small}");
    assert_eq!(small["passed_over"][0]["fabric"], "ocs", "{small}");
    assert_eq!(small["passed_over"][0]["why"], "estimated 208 ms, ip-multicast 46.0 ms", "{small}");
    // 6 ms and 4 s, or 200 ms and 842 ms.
    let large = cast(10_000_000);
    assert!(over(&large, "ocs"), "{large}");
    assert_eq!(large["passed_over"], serde_json::json!([]), "{large}");
    let estimate = large["estimate_s"].as_f64().unwrap();
    assert!((1.04..1.05).contains(&estimate), "{large}");
}
