//! Glass: passive splitters, which copy whatever light comes in to all their outputs and know no way back,
//! and the mirrors of a circuit switch. Both are rules of the kernel's traffic control that move packets
//! from one interface to others before any other part of the network sees them.

use crate::error::LabError;
use crate::light::Lamp;
use crate::system::Space;
use rtnetlink::packet_route::tc::{
    TcAction, TcActionAttribute, TcActionGeneric, TcActionMirror, TcActionMirrorOption, TcActionOption,
    TcActionType, TcFilterU32Option, TcMirror, TcMirrorActionType, TcU32Key, TcU32Selector,
    TcU32SelectorFlags,
};

/// The lines of `tc` that make a splitter.
pub(crate) fn splitter(input: &str, outputs: &[String]) -> Vec<String> {
    let mut filter = format!("filter add dev {input} parent ffff: protocol all prio 1 u32 match u32 0 0");
    for (number, output) in outputs.iter().enumerate() {
        // The last output may have the packet itself.
        let verb = if number + 1 == outputs.len() { "redirect" } else { "mirror" };
        filter.push_str(&format!(" action mirred egress {verb} dev {output}"));
    }
    vec![format!("qdisc add dev {input} ingress"), filter]
}

/// The line of `tc` that makes an interface able to redirect.
pub(crate) fn entrance(interface: &str) -> String {
    format!("qdisc add dev {interface} ingress")
}

/// The state of one way through a circuit switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Light {
    /// Nothing gets through.
    Dark,
    /// The mirrors are nearly there: about half of the packets get through.
    Partial,
    /// Everything gets through.
    Full,
}

/// The mirrors of a circuit switch: rules of the kernel that move packets from one interface of this
/// namespace to another. They are changed over netlink, which takes a small part of the time that a run of
/// `tc` would.
pub(crate) struct Mirrors {
    netlink: rtnetlink::Handle,
    /// The kernel's numbers of the interfaces, by port.
    interfaces: Vec<u32>,
    /// Tells ports whether they have light.
    lamp: Option<Lamp>,
}

/// The place of the rules: what comes in.
const INGRESS: u32 = 0xffff_0000;
const ALL_PROTOCOLS: u16 = 0x0003;
const IPV4: u16 = 0x0800;

impl Mirrors {
    /// Takes over these interfaces. Needs a tokio runtime around it.
    pub(crate) fn new(names: &[String]) -> Result<Self, LabError> {
        let number = |name: &String| {
            nix::net::if_::if_nametoindex(name.as_str())
                .map_err(|error| LabError::system(format!("find the interface {name}"), error.desc()))
        };
        let interfaces = names.iter().map(number).collect::<Result<_, _>>()?;
        let (connection, netlink, _) =
            rtnetlink::new_connection().map_err(|error| LabError::system("talk to the kernel", error))?;
        tokio::spawn(connection);
        Ok(Mirrors { netlink, interfaces, lamp: None })
    }

    /// From here on ports at the ends of circuits are told of their light.
    pub(crate) fn shine(&mut self, lamp: Lamp) {
        self.lamp = Some(lamp);
    }

    /// Brings the way from one port to another from one state to the next.
    pub(crate) async fn change(&self, from: u32, to: u32, light: Light) -> Result<(), LabError> {
        let moved = self.redirect(from, to, light).await;
        if let Some(lamp) = self.lamp.as_ref().filter(|_| light == Light::Dark || moved.is_ok()) {
            lamp.set_circuit(from, to, light == Light::Full);
        }
        moved
    }

    async fn redirect(&self, from: u32, to: u32, light: Light) -> Result<(), LabError> {
        let (from, to) = (self.interfaces[from as usize], self.interfaces[to as usize]);
        let mut filters = self.netlink.traffic_filter(from as i32);
        let failed = |error: rtnetlink::Error| LabError::system("move the mirrors", error);
        // The kernel expects the protocol in the network's order.
        let add = |filters: &mut rtnetlink::TrafficFilterHandle, priority, protocol: u16| {
            filters.add().parent(INGRESS).priority(priority).protocol(protocol.to_be())
        };
        match light {
            // Without more words all rules are meant.
            Light::Dark => filters.del().parent(INGRESS).execute().await.map_err(failed),
            Light::Full => {
                let rule = add(&mut filters, 1, ALL_PROTOCOLS).redirect(to).map_err(failed)?;
                rule.execute().await.map_err(failed)
            }
            Light::Partial => {
                let rule = add(&mut filters, 2, IPV4).u32(&half(to)).map_err(failed)?;
                rule.execute().await.map_err(failed)
            }
        }
    }
}

/// A rule that redirects about half of the packets: those whose UDP check sum is even, which is as good as
/// a coin and needs no randomness.
fn half(to: u32) -> [TcFilterU32Option; 2] {
    let mut key = TcU32Key::default();
    // The last bit of the four bytes from 24 after the beginning of the IPv4 header.
    (key.mask, key.val, key.off) = (1, 0, 24);
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    selector.nkeys = 1;
    selector.keys = vec![key];
    let mut mirror = TcMirror::default();
    mirror.generic = TcActionGeneric::default();
    mirror.generic.action = TcActionType::Stolen;
    mirror.eaction = TcMirrorActionType::EgressRedir;
    mirror.ifindex = to;
    let mut action = TcAction::default();
    action.attributes = vec![
        TcActionAttribute::Kind(TcActionMirror::KIND.to_string()),
        TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror))]),
    ];
    [TcFilterU32Option::Selector(selector), TcFilterU32Option::Action(vec![action])]
}

/// Applies lines of `tc` in a namespace.
pub(crate) fn apply(space: &Space, lines: &[String]) -> Result<(), LabError> {
    space.batch("tc", lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_splitter_copies_to_all_and_keeps_nothing() {
        let lines = splitter("s0i", &["s0x0".into(), "s0x1".into(), "s0x2".into()]);
        assert_eq!(lines[0], "qdisc add dev s0i ingress");
        assert_eq!((lines[1].matches("mirror").count(), lines[1].matches("redirect").count()), (2, 1));
        assert!(lines[1].ends_with("redirect dev s0x2"), "{}", lines[1]);
    }
}
