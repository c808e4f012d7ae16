//! Glass: passive splitters, which copy whatever light comes in to all their outputs and know no way back, and the
//! paths of light through a circuit switch. Both are rules of the kernel's `tc` that move packets from one interface
//! to others before any other part of the network sees them.

use crate::error::LabError;
use crate::system::Space;

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

/// The lines of `tc` that bring a way from `from` to `to` from one state to the next.
pub(crate) fn change(from: &str, to: &str, light: Light) -> Vec<String> {
    let redirect = format!("action mirred egress redirect dev {to}");
    let filter = |verb: &str, rest: &str| format!("filter {verb} dev {from} parent ffff: {rest}");
    match light {
        // Without more words all filters are meant.
        Light::Dark => vec![filter("del", "")],
        // The lowest bit of the UDP checksum is as good as a coin, and needs no randomness.
        Light::Partial => {
            vec![filter("add", &format!("protocol ip prio 2 u32 match u16 0 0x0001 at 26 {redirect}"))]
        }
        Light::Full => vec![filter("add", &format!("protocol all prio 1 u32 match u32 0 0 {redirect}"))],
    }
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
