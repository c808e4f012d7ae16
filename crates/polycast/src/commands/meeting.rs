//! Messages of `offer` and `accept` while they look for each other: the machines that are here, all that
//! is heard, and the probable fault where nothing is.

use crate::exit::without_numbers;
use crate::output::{self, Format};
use crate::progress::Progress;
use polycast_agent::transfer::{News, Report, Seekers};
use polycast_net::interface::{self, Interface, Link};
use polycast_types::{Duration, Printable};
use polycast_wire::discovery;
use serde_json::json;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// Nothing for so long, and it is said what is probably wrong.
const HINT_AFTER: std::time::Duration = std::time::Duration::from_secs(3);
/// Receivers and hosts that are named in a line.
const NAMED_MAX: usize = 16;

/// Lists probable faults of this machine's network where no machine hears another.
fn troubles(own: &Interface, all: &[Link]) -> Vec<String> {
    let mut lines = Vec::new();
    let name = &own.name;
    if let Some(link) = all.iter().find(|link| link.name == *name) {
        if !link.is_up || !link.has_carrier {
            lines.push(format!("{link}: nothing gets through there"));
        } else if !link.takes_multicast {
            lines.push(format!("{name} does not carry multicast: polycast accept --from HOST needs none"));
        }
        if link.is_loopback {
            lines.push(format!("{name} reaches this machine only"));
        }
    }
    let others = all.iter().filter(|link| link.name != *name && !link.is_loopback);
    let (usable, unusable): (Vec<_>, Vec<_>) = others.partition(|link| link.is_usable() && link.has_carrier);
    if !usable.is_empty() {
        let names: Vec<String> = usable.iter().map(ToString::to_string).collect();
        let example = &usable[0].name;
        lines.push(format!(
            "only {name} is in use; there is also {}: say --interface {example} if the others are there",
            names.join(", ")
        ));
    }
    for link in unusable.iter().filter(|link| link.is_up || !link.addresses.is_empty()) {
        lines.push(format!("{link}, so it is not used"));
    }
    lines
}

/// Returns those lines for this machine; none where the kernel does not report its links.
fn troubles_here(own: &Interface) -> Vec<String> {
    interface::survey().map(|all| troubles(own, &all)).unwrap_or_default()
}

fn group(own: IpAddr) -> String {
    format!("UDP port {} (group {})", discovery::PORT, discovery::group_for(own))
}

/// The source's side: the receivers that have come, and those that it waits for.
pub(super) struct Gathering {
    /// So many are waited for; `None` where it is for all that come.
    expected: Option<usize>,
    format: Format,
    interface: Interface,
    /// Command to type where multicast does not pass.
    command: String,
    seekers: Arc<Seekers>,
    begun: Instant,
    /// Receivers that were here at the last report.
    here: Vec<String>,
    has_hinted: bool,
    /// Something ran when it was last looked.
    has_run: bool,
    /// Receivers that have the object, where more may come at any time.
    served: Option<BTreeSet<String>>,
}

impl Gathering {
    /// It begins.
    pub(super) fn new(
        expected: Option<usize>,
        format: Format,
        interface: Interface,
        command: String,
        seekers: Arc<Seekers>,
    ) -> Self {
        let (begun, here, has_hinted, has_run) = (Instant::now(), Vec::new(), false, true);
        Gathering {
            expected,
            format,
            interface,
            command,
            seekers,
            begun,
            here,
            has_hinted,
            has_run,
            served: None,
        }
    }

    /// It goes on, and says of each that it has the object.
    #[must_use]
    pub(super) fn serving(mut self, serves: bool) -> Self {
        self.served = serves.then(BTreeSet::new);
        self
    }

    fn name_served(&mut self, report: &Report) {
        let Some(served) = &mut self.served else { return };
        for receiver in report.receivers.iter().filter(|receiver| receiver.verified) {
            if served.insert(receiver.name.clone()) {
                let event = json!({ "event": "served", "name": receiver.name, "count": served.len() });
                let words = format!("{} has it ({} so far)", Printable(&receiver.name), served.len());
                output::event(self.format, &event, || output::say(&words));
            }
        }
    }

    /// Says what has changed, until the transfer runs.
    pub(super) fn turn(&mut self, report: &Report, progress: &Progress) {
        // No receiver's clock runs before the start.
        if report.receivers.iter().any(|receiver| receiver.seconds > 0.0 || receiver.verified) {
            let runs = report.receivers.iter().any(|receiver| !receiver.verified && receiver.error.is_none());
            self.name_served(report);
            // The end of what ran is shown, and then that more may come.
            if runs || std::mem::replace(&mut self.has_run, false) {
                progress.delivery(report);
            }
            self.has_run |= runs;
            if let Some(served) = self.served.as_ref().filter(|_| !runs) {
                let count = output::counted(served.len(), "receiver");
                progress.state(&format!("{count} served; waiting for more, until Ctrl-C"));
            }
            return;
        }
        let here: Vec<String> =
            report.receivers.iter().filter(|r| r.error.is_none()).map(|r| r.name.clone()).collect();
        let words = self.who_is_here(&here);
        if here != self.here {
            self.here.clone_from(&here);
            let event = json!({ "event": "receivers", "here": here, "expected": self.expected });
            output::event(self.format, &event, || progress.quietly(&words));
        }
        progress.state(&words);
        if self.begun.elapsed() >= HINT_AFTER
            && here.len() < self.expected.unwrap_or(1)
            && !std::mem::replace(&mut self.has_hinted, true)
        {
            self.hint();
        }
    }

    fn who_is_here(&self, here: &[String]) -> String {
        who_is_here(here, self.expected)
    }

    fn hint(&self) {
        let mut seekers: Vec<String> = self.seekers.addresses().iter().map(ToString::to_string).collect();
        seekers.truncate(NAMED_MAX);
        if !self.here.is_empty() {
            output::say(&format!("after 3 s {}", self.who_is_here(&self.here)));
            return;
        }
        let interface = &self.interface;
        let mut lines = vec![match seekers.is_empty() {
            true => {
                format!("no machine has asked for an offer on {} ({}) yet", interface.name, interface.address)
            }
            false => format!(
                "{} asks for offers and has not come: it asks for another one, or a firewall keeps it from this machine; \
                try there: {}",
                seekers.join(", "),
                self.command
            ),
        }];
        lines.extend(troubles_here(interface));
        if seekers.is_empty() {
            lines.push(format!(
                "if polycast accept runs there: a firewall may drop {}, or the network carries no multicast; then type \
                 there: {}",
                group(interface.address),
                self.command
            ));
        }
        output::say(&lines.join("\n  "));
    }
}

fn who_is_here(here: &[String], expected: Option<usize>) -> String {
    let mut named: Vec<String> =
        here.iter().take(NAMED_MAX).map(|name| Printable(name).to_string()).collect();
    if here.len() > NAMED_MAX {
        named.push("..".into());
    }
    let of = expected.map_or_else(String::new, |expected| format!(" of {expected}"));
    match (here.len(), expected) {
        (0, None) => "waiting for receivers, until Ctrl-C".to_string(),
        (0, Some(expected)) => format!("none of {expected} is here"),
        (1, _) => format!("1{of} is here: {}", named.join(", ")),
        (count, _) => format!("{count}{of} are here: {}", named.join(", ")),
    }
}

/// The receiver's side: what it notices while it looks for an offer.
pub(super) struct Search<'a> {
    own: &'a Interface,
    from: Option<&'a str>,
    /// Set once the probable faults were reported: that is done once.
    has_hinted: bool,
}

impl<'a> Search<'a> {
    /// It begins, from this interface, by multicast or at this host.
    pub(super) fn new(own: &'a Interface, from: Option<&'a str>) -> Self {
        Search { own, from, has_hinted: false }
    }

    /// Says what is new.
    pub(super) fn say(&mut self, news: &News) {
        match news {
            News::Passed(offer, unfit) => output::say(&format!("not taken: {offer}: {unfit}")),
            News::Away(address, why) => {
                output::say(&format!("{address} offers nothing yet: {}", without_numbers(why.clone())));
            }
            News::Mute(why) => output::say(&format!(
                "offers cannot be asked for by multicast from {} ({}): those that announce themselves are heard; if none is, add \
                 --from HOST to this command",
                self.own.name,
                without_numbers(why.clone())
            )),
            News::Searching { span, heard } => {
                let mut lines = silence(*span, *heard, self.own, self.from);
                if std::mem::replace(&mut self.has_hinted, true) {
                    lines.truncate(1);
                }
                output::say(&lines.join("\n  "));
            }
        }
    }
}

fn silence(span: Duration, heard: bool, own: &Interface, from: Option<&str>) -> Vec<String> {
    let seconds = span.0 / 1_000_000_000;
    let Interface { name, address, .. } = own;
    if heard {
        return vec![format!(
            "after {seconds} s there is no offer on {name} ({address}) for this machine; still looking"
        )];
    }
    let mut lines = Vec::new();
    match from {
        Some(from) => {
            lines.push(format!(
                "after {seconds} s there is no offer at {from}; still trying from {name} ({address})"
            ));
            lines.push("it may not have begun, have another port (polycast offer prints it), or be behind a firewall".into());
        }
        None => {
            lines.push(format!("after {seconds} s no offer was heard on {name} ({address}); still looking"));
            lines.extend(troubles_here(own));
            lines.push(format!(
                "if polycast offer runs: a firewall may drop {}, or the network carries no multicast; then add \
                 --from HOST to this command",
                group(*address)
            ));
        }
    }
    lines
}

/// Returns a hint on what to check where multicast was to carry the object, and TCP had to.
pub(super) fn fallback_hint(report: &Report, interface: &Interface, udp_port: u16) -> Option<String> {
    let chained: Vec<String> = report
        .receivers
        .iter()
        // Where the receiver was the reason, the report says so.
        .filter(|receiver| receiver.verified && receiver.fabric == "tcp-chain" && receiver.reason.is_none())
        .map(|receiver| Printable(&receiver.name).to_string())
        .take(NAMED_MAX)
        .collect();
    // Where the path was lost for a reason, the report has it.
    (!chained.is_empty() && report.path_lost.is_none()).then(|| {
        format!(
            "multicast did not reach {} within a second, so TCP carried the object there: a firewall may drop UDP port \
             {udp_port}, a switch may lack an IGMP querier, or take no packets of {} bytes (the MTU of {})",
            chained.join(", "),
            interface.mtu,
            interface.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, address: Option<IpAddr>) -> Link {
        Link {
            name: name.into(),
            addresses: address.into_iter().collect(),
            is_up: true,
            has_carrier: true,
            takes_multicast: true,
            is_loopback: false,
        }
    }

    #[test]
    fn what_is_wrong_here_is_named() {
        let own = Interface { name: "eth0".into(), address: IpAddr::from([10, 0, 0, 1]), mtu: 1_500 };
        let eth0 = link("eth0", Some(own.address));
        assert!(troubles(&own, std::slice::from_ref(&eth0)).is_empty());
        let dark = Link { has_carrier: false, ..eth0.clone() };
        let deaf = Link { takes_multicast: false, ..eth0.clone() };
        let second = link("eth1", Some(IpAddr::from([10, 1, 0, 1])));
        for (all, words) in [
            (vec![dark], "eth0 has no link"),
            (vec![deaf], "eth0 does not carry multicast"),
            (vec![eth0.clone(), second], "eth1 (10.1.0.1): say --interface eth1"),
            (vec![eth0.clone(), link("eth2", None)], "eth2 has no address, so it is not used"),
        ] {
            let lines = troubles(&own, &all);
            assert!(lines.len() == 1 && lines[0].contains(words), "{lines:?}");
        }
    }

    #[test]
    fn those_who_are_here_are_counted_and_named() {
        assert_eq!(who_is_here(&[], Some(3)), "none of 3 is here");
        assert_eq!(who_is_here(&["uxr1".into(), "uxr3".into()], Some(3)), "2 of 3 are here: uxr1, uxr3");
        let many: Vec<String> = (0..20).map(|at| format!("r{at}")).collect();
        assert!(who_is_here(&many, Some(40)).ends_with("r15, .."));
        assert_eq!(who_is_here(&["a".into()], None), "1 is here: a");
        assert_eq!(who_is_here(&[], None), "waiting for receivers, until Ctrl-C");
    }
}
