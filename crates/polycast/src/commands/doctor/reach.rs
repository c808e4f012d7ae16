//! Checks of packets to other hosts: multicast, and long packets.

use super::Check;
use crate::args::DoctorArgs;
use crate::commands::network;
use crate::exit::plain;
use polycast_net::interface::Interface;
use polycast_net::reach::{Answered, Answerer, Asker, Querier, querier};
use polycast_net::udp::DATAGRAM_LEN_MAX;
use polycast_types::Duration;
use polycast_wire::reach::{ASK_LEN_MIN, PORT, numbered};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of times that a question is sent, and time to wait for its answers each time.
const TRIES: u8 = 3;
const WAIT: std::time::Duration = std::time::Duration::from_millis(400);
/// Hosts that are named.
const NAMED_MAX: usize = 8;
/// IPv4 and UDP before the payload.
const HEADERS_LEN: usize = 28;
/// Bytes by which a header of IPv6 is longer.
const LONGER_V6: usize = 20;
/// MTU that Ethernet carries everywhere.
const USUAL_MTU: u32 = 1_500;

/// The way that objects take in this network, as far as it was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Multicast reaches all that have answered.
    Multicast,
    /// It does not reach these.
    MulticastBut(Vec<String>),
    /// It reaches none, for this reason.
    Tcp(&'static str),
    /// No other host has answered.
    Unknown,
}

impl Way {
    /// The way by three facts: multicast comes back here, it reaches others, and these hosts answer only when
    /// they are asked alone.
    fn of(here: bool, others: bool, alone: Vec<String>) -> Self {
        match (here, others, alone.is_empty()) {
            (_, true, true) => Way::Multicast,
            (_, true, false) => Way::MulticastBut(alone),
            (true, false, true) => Way::Unknown,
            (true, false, false) => Way::Tcp(NOTHING_CAME),
            (false, false, _) => Way::Tcp("not even this host hears its own"),
        }
    }

    /// Returns true if a host was seen that multicast does not reach.
    pub(super) fn lacks_multicast(&self) -> bool {
        matches!(self, Way::MulticastBut(_) | Way::Tcp(_))
    }

    /// It in a sentence.
    pub(super) fn text(&self) -> String {
        match self {
            Way::Multicast => {
                "multicast passes between these hosts: Polycast sends each byte once, to all of them".into()
            }
            Way::MulticastBut(names) => format!(
                "multicast passes between these hosts, but not to {}: Polycast sends by multicast, and these get \
                 the object over TCP",
                named(names)
            ),
            Way::Tcp(why) => format!(
                "no multicast passes between these hosts ({why}): Polycast delivers over TCP, from host to host \
                 (tcp-chain), by several connections where each one is limited"
            ),
            Way::Unknown => {
                "no other host has answered, so it is not known whether multicast passes: Polycast tries it, \
                             and goes on over TCP where it does not"
                    .into()
            }
        }
    }
}

/// Looks at how far packets get; gives the way that objects take, and the querier that was heard.
pub(super) fn look(used: &Interface, args: &DoctorArgs, checks: &mut Vec<Check>) -> (Way, Option<Querier>) {
    let asker = match Asker::open(used.address) {
        Ok(asker) => asker,
        Err(error) => {
            let mend = format!(
                "`ip link set {} multicast on`; `ip route add 224.0.0.0/4 dev {}`",
                used.name, used.name
            );
            checks.push(Check::failed(
                "multicast",
                format!("cannot be sent: {}", plain(&error)),
                NO_MULTICAST,
                mend,
            ));
            return (Way::Tcp("this host cannot send any"), None);
        }
    };
    let reached = multicast(used, &asker, checks);
    let mut alone = Vec::new();
    for text in &args.to {
        if one(&asker, used, text, &reached, checks) {
            alone.push(text.clone());
        }
    }
    let heard = match args.querier {
        Some(patience) => look_for_querier(used, patience, checks),
        None => {
            checks.push(Check::skipped("querier", "not waited for; `--querier 130s` as root does so"));
            None
        }
    };
    let others = reached.iter().any(|address| *address != used.address);
    (Way::of(reached.contains(&used.address), others, alone), heard)
}

/// It was listened for as long as three short and three long questions take.
const NOTHING_CAME: &str = "this one joined, and nothing came in 2.4 s";
const NO_MULTICAST: &str = "everything goes from receiver to receiver over TCP, and `accept` needs --from";

/// Asks all, and says which hosts answered to short and to long questions; gives the addresses of those that
/// did.
fn multicast(used: &Interface, asker: &Asker, checks: &mut Vec<Check>) -> BTreeSet<IpAddr> {
    let own = Answerer::open(used.address, &network::machine_name());
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if let Ok(own) = &own {
            scope.spawn(|| own.run(&|| ends.load(Ordering::Relaxed), &mut |_, _| {}));
        }
        let short = ask(asker, None, ASK_LEN_MIN);
        let long = ask(asker, None, len_max(used));
        ends.store(true, Ordering::Relaxed);
        match (short, long) {
            (Ok(short), Ok(long)) => {
                judge(used, &short, &long, checks);
                short.keys().map(|from| from.ip()).collect()
            }
            (Err(error), _) | (_, Err(error)) => {
                let mend = match used.address {
                    IpAddr::V4(_) => format!("ip route add 224.0.0.0/4 dev {}", used.name),
                    IpAddr::V6(_) => {
                        format!("ip -6 route add multicast ff00::/8 dev {} table local", used.name)
                    }
                };
                checks.push(Check::failed(
                    "multicast",
                    format!("cannot be sent: {}", plain(&error)),
                    NO_MULTICAST,
                    mend,
                ));
                BTreeSet::new()
            }
        }
    })
}

/// The longest payload that the interface takes in one packet.
fn len_max(used: &Interface) -> usize {
    let longer = if used.address.is_ipv6() { LONGER_V6 } else { 0 };
    (used.mtu as usize).saturating_sub(HEADERS_LEN + longer).clamp(ASK_LEN_MIN, DATAGRAM_LEN_MAX)
}

fn judge(
    used: &Interface,
    short: &BTreeMap<SocketAddr, Answered>,
    long: &BTreeMap<SocketAddr, Answered>,
    checks: &mut Vec<Check>,
) {
    let here = short.keys().any(|from| from.ip() == used.address);
    let others = |found: &BTreeMap<SocketAddr, Answered>| -> Vec<String> {
        let others = found.values().filter(|answer| answer.from.ip() != used.address);
        others.map(|answer| format!("{} ({})", answer.name, answer.from.ip())).collect()
    };
    let (reached, reached_long) = (others(short), others(long));
    if reached.is_empty() {
        checks.push(if here {
            Check::warning(
                "multicast",
                "it comes back to this host; no other host answers",
                "unknown: it is not seen whether it gets through the network",
                "run `polycast doctor --listen` on another machine, or an agent; if one runs: let UDP in there, and \
                 look whether the switch floods or has a querier",
            )
        } else {
            Check::failed(
                "multicast",
                "not even this host hears its own",
                NO_MULTICAST,
                format!("{}, \
                 or name another interface than {}", let_in(used.address), used.name),
            )
        });
        return;
    }
    checks.push(Check::ok("multicast", format!("reaches {}", named(&reached))));
    let lost: Vec<String> = reached.iter().filter(|name| !reached_long.contains(name)).cloned().collect();
    checks.push(if lost.is_empty() {
        Check::ok("packets", format!("of {} bytes get through to all of them", used.mtu))
    } else {
        let name = &used.name;
        Check::failed(
            "packets",
            format!("of {} bytes do not get through to {}", used.mtu, named(&lost)),
            "these receivers get everything over TCP",
            format!("the same MTU at all hosts and switches; here: `ip link set {name} mtu {USUAL_MTU}`"),
        )
    });
}

/// The remedy where packets to groups of this family are kept out.
fn let_in(own: IpAddr) -> String {
    let (net, family) = if own.is_ipv4() { ("239.255.0.0/16", "ip") } else { ("ff15::/16", "ip6") };
    format!("let UDP to {net} in (nft add rule inet filter input {family} daddr {net} accept)")
}

fn named(names: &[String]) -> String {
    let mut text = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    if let Some(more) = names.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        text += &format!(" and {more} more");
    }
    text
}

/// The hosts that answer to a question of this length.
fn ask(asker: &Asker, to: Option<SocketAddr>, len: usize) -> std::io::Result<BTreeMap<SocketAddr, Answered>> {
    let mut found = BTreeMap::new();
    let question = uuid::Uuid::new_v4().as_u64_pair().0;
    for attempt in 0..TRIES {
        let number = numbered(question, attempt);
        asker.ask(to, number, len.max(ASK_LEN_MIN))?;
        while let Some(answer) = asker.answer(number, WAIT) {
            found.insert(answer.from, answer);
            if to.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

/// One host that the user has named; gives whether multicast alone does not reach it.
fn one(
    asker: &Asker,
    used: &Interface,
    text: &str,
    reached: &BTreeSet<IpAddr>,
    checks: &mut Vec<Check>,
) -> bool {
    let is_of_family = |address: &SocketAddr| address.is_ipv4() == used.address.is_ipv4();
    let found = network::addresses_at(text, PORT).unwrap_or_default();
    let Some(address) = found.into_iter().find(is_of_family) else {
        let mend = "write HOST or HOST:PORT, such as 10.0.0.2 or [fd00::2]";
        checks.push(Check::failed(
            "host",
            format!("{text} has no address of the family of {}", used.address),
            "it cannot be reached",
            mend,
        ));
        return false;
    };
    let lens = [ASK_LEN_MIN, len_max(used)];
    let got: Vec<bool> =
        lens.iter().map(|len| ask(asker, Some(address), *len).is_ok_and(|found| !found.is_empty())).collect();
    checks.push(match got[..] {
        [true, _] if !reached.contains(&address.ip()) => Check::failed(
            "host",
            format!("{text} answers when it is asked alone, and multicast does not reach it"),
            "it gets everything over TCP, and `accept` there needs --from",
            "let UDP to groups in there; in the switch: a querier, or no IGMP snooping",
        ),
        [true, true] => Check::ok("host", format!("{text} answers, also to packets of {} bytes", used.mtu)),
        [true, _] => Check::failed(
            "host",
            format!("{text} answers, but packets of {} bytes do not get through", used.mtu),
            "transfers to it fall back to TCP or stall",
            format!("the same MTU on the whole way; here: `ip link set {} mtu {USUAL_MTU}`", used.name),
        ),
        _ => Check::failed(
            "host",
            format!("{text} does not answer"),
            "nothing can be sent to it",
            format!("run `polycast doctor --listen` or an agent there, and let UDP port {PORT} in"),
        ),
    });
    got[0] && !reached.contains(&address.ip())
}

fn look_for_querier(used: &Interface, patience: Duration, checks: &mut Vec<Check>) -> Option<Querier> {
    let (protocol, option) = match used.address {
        IpAddr::V4(_) => ("IGMP", ""),
        IpAddr::V6(_) => ("MLD", ", which takes a link-local address of br0"),
    };
    let heard = querier(used.address, std::time::Duration::from_nanos(patience.0));
    checks.push(match &heard {
        Ok(Some(Querier { from, version })) => {
            Check::ok("querier", format!("{from} asks which hosts are in which group, by {protocol}v{version}"))
        }
        Ok(None) => Check::warning(
            "querier",
            format!("no router or switch has asked which hosts are in which group for {} s", patience.0 / 1_000_000_000),
            match used.address {
                IpAddr::V4(_) => "a switch that snoops on IGMP stops multicast after some minutes",
                IpAddr::V6(_) => "a switch that snoops on MLD stops multicast after some minutes",
            },
            format!(
                "switch a querier on in the switch (a Linux bridge: `ip link set br0 type bridge mcast_querier 1`{option}), \
                 or its snooping off"
            ),
        ),
        Err(error) => Check::skipped("querier", format!("cannot be looked for: {}: it takes root", plain(error))),
    });
    heard.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_is_said_in_a_sentence() {
        let alone = || vec!["gpu3".to_string()];
        for (here, others, alone, words) in [
            (true, true, Vec::new(), "sends each byte once"),
            (true, true, alone(), "but not to gpu3"),
            (true, false, alone(), "no multicast passes"),
            (false, false, Vec::new(), "(not even this host hears its own): Polycast delivers over TCP"),
            (true, false, Vec::new(), "not known"),
        ] {
            let text = Way::of(here, others, alone).text();
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
