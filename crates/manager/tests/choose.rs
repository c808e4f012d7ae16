//! Settings of how a fabric is chosen.

use polycast_manager::{Choose, ManagerConfig, WhenBusy};
use polycast_types::Rate;

fn read(text: &str) -> Result<ManagerConfig, String> {
    ManagerConfig::from_toml(text).map_err(|error| error.to_string())
}

#[test]
fn a_fabric_is_chosen_by_time_unless_the_settings_say_otherwise() {
    let usual = ManagerConfig::default();
    assert_eq!((usual.choose, usual.when_busy, usual.link_rate), (Choose::Time, None, None));
    let config = read("choose = 'order'\nwhen-busy = 'wait'\nlink-rate = '25gbit'").unwrap();
    assert_eq!(config.choose, Choose::Order);
    assert_eq!((config.when_busy, config.link_rate), (Some(WhenBusy::Wait), Some(Rate(25_000_000_000))));
    let racks: String = (0..2)
        .map(|rack| {
            format!(
                "[[tor]]\nopenflow = '10.0.0.{rack}:6653'\nfibre-ports = [9]\nhosts = [{{ name = 'h{rack}', port = 1 }}]\n"
            )
        })
        .collect();
    let ocs = "fabrics = ['ocs', 'tcp-chain']\n[ocs]\naddress = '10.0.0.9:3083'\nsplitters = 1\nsplitter-fanout = 2\nrate = '10gbit'\n";
    let config = read(&format!("{ocs}set-up-ms = 175\n{racks}")).unwrap();
    assert_eq!(config.ocs.unwrap().set_up_ms, Some(175));
    assert_eq!(read(&format!("{ocs}{racks}")).unwrap().ocs.unwrap().set_up_ms, None);
}

#[test]
fn wrong_choices_are_named() {
    for (text, said) in [
        ("choose = 'luck'", "unknown variant `luck`, expected `time` or `order`"),
        ("link-rate = '0gbit'", "'0gbit' is not a rate"),
        ("link-rate = 'fast'", "'fast' is not a rate"),
        ("chose = 'time'", "unknown field `chose`"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn shares_of_relays_have_bounds() {
    let of = |shares: u32| {
        let racks: String = (0..2)
            .map(|rack| {
                format!(
                    "[[tor]]\nopenflow = '10.0.0.{rack}:6653'\nsubnet = '10.0.{rack}.0/24'\nfibre-ports = [9]\n\
                     splitter-ports = [7, 8]\nhosts = [{{ name = 'h{rack}', port = 1 }}]\n"
                )
            })
            .collect();
        read(&format!(
            "fabrics = ['shufflecast']\n[shufflecast]\np = 2\nk = 1\nrate = '1gbit'\nshares = {shares}\n{racks}"
        ))
    };
    assert!(of(4_096).is_ok(), "{:?}", of(4_096));
    for shares in [0, 4_097] {
        let error = of(shares).unwrap_err();
        assert!(error.contains("it must be 1 to 4096"), "{error}");
    }
}
