//! Plans as they are written down.

use core::net::IpAddr;
use polycast_planning::{Channel, Resource};
use polycast_types::Duration;

#[test]
fn addresses_are_written_as_before_and_those_of_ipv6_as_text() {
    for (address, written) in [("239.1.2.3", "[239,1,2,3]"), ("ff15::1", "\"ff15::1\"")] {
        let address: IpAddr = address.parse().unwrap();
        let resource = Resource::MulticastAddress { address, port: 7 };
        let text = format!("{{\"MulticastAddress\":{{\"address\":{written},\"port\":7}}}}");
        assert_eq!(serde_json::to_string(&resource).unwrap(), text);
        assert_eq!(serde_json::from_str::<Resource>(&text).unwrap(), resource);
        let channel = Channel::Multicast { group: (address, 7), rate: None, attempt_interval: Duration(1) };
        let text = serde_json::to_string(&channel).unwrap();
        assert!(text.contains(&format!("\"group\":[{written},7]")), "{text}");
        assert_eq!(serde_json::from_str::<Channel>(&text).unwrap(), channel);
    }
    let short = r#"{"MulticastAddress":{"address":[239,1,2],"port":7}}"#;
    assert!(serde_json::from_str::<Resource>(short).is_err());
}
