//! Ways to deliver objects in a data center: time, price, power and load of each, and the one to take.
//!
//! The times are formulas, which docs/planning.md states; a test compares them to the simulator. Prices are
//! those of [`economics`], of parts beside the network that is there already.

use std::fmt::Write as _;

use polycast_planning::economics::{self, Catalogue, RateParts};
use polycast_planning::estimate::{Assumed, Estimator};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{Group, HostId};
use polycast_topology::optics::splitter_loss_db;

/// The most hosts that can be asked about.
pub const HOSTS_MAX: u32 = 1 << 20;
/// The fastest line rate that can be asked about.
pub const GBPS_MAX: u32 = 1_600;
/// The names of all ways, from the one that needs least of the network to the one that needs most.
pub const WAYS: [&str; 7] =
    ["file-server", "ip-multicast", "tcp-chain", "orca", "datacast", "shufflecast", "ocs"];

/// Bytes of a packet that are none of the object: IP, UDP and Polycast's header; the same with a label of 19
/// bytes; TCP with time stamps; Datacast's.
const PUSH_HEADER: f64 = 52.0;
const LABEL_HEADER: f64 = PUSH_HEADER + 28.0;
const TCP_HEADER: f64 = 52.0;
const PULL_HEADER: f64 = 72.0;
/// Time that a mesh of receivers takes, in proportion to the time of one path, and time that each doubling of
/// its members adds: a receiver requests as much as arrives in 10 ms.
const MESH_SHARE: f64 = 1.06;
const MESH_STEP_S: f64 = 0.01;
/// A pull transfer's rate at first, and by how much it grows in a second (Datacast, section 5).
const PULL_FIRST_BPS: f64 = 500e6;
const PULL_GROWTH: f64 = 50e9;
/// A way is as fast as the fastest within this factor, or within so many seconds a day.
const NEAR_FACTOR: f64 = 1.1;
const NEAR_S_A_DAY: f64 = 60.0;

/// A data center, and what it has to deliver.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Hosts.
    pub hosts: u32,
    /// Hosts of a rack; the last rack may have fewer.
    pub hosts_per_rack: u32,
    /// Gbit/s of a host's link, and of each fibre.
    pub gbps: u32,
    /// Bytes of the largest IP packet.
    pub mtu_bytes: u32,
    /// Rate of all hosts of a rack over the rate of its uplinks.
    pub oversubscription: f64,
    /// Groups that transfer at the same time, each with a source and an object of its own.
    pub groups: u32,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Number of transfers a day of each group.
    pub times_a_day: f64,
}

/// A site that cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SiteError {
    /// Too few or too many hosts.
    #[error("{0} hosts make no group: write 2 to {HOSTS_MAX}")]
    Hosts(u32),
    /// Racks without hosts.
    #[error("a rack of no hosts cannot be: write how many hosts a rack has, such as --rack 32")]
    Rack,
    /// A rate that is none.
    #[error("{0} Gbit/s is no line rate: write 1g to {GBPS_MAX}g, such as 100g")]
    Rate(u32),
    /// Packets that are too small or too large.
    #[error("packets of {0} bytes cannot be: write an MTU of 576 to 9216 bytes, such as 1500 or 9000")]
    Mtu(u32),
    /// More groups than hosts allow.
    #[error(
        "{groups} groups cannot be made of {hosts} hosts: each has a source and a receiver, so write 1 to {most}"
    )]
    Groups {
        /// The groups.
        groups: u32,
        /// The hosts.
        hosts: u32,
        /// The most groups.
        most: u32,
    },
    /// Uplinks that are faster than the hosts, or next to nothing.
    #[error("an oversubscription of {0} cannot be: write 1 (uplinks as fast as the hosts together) to 1000")]
    Oversubscription(f64),
    /// No times.
    #[error("{0} times a day cannot be: write 0 to 1000000")]
    Times(f64),
    /// No bytes.
    #[error("an object of no bytes needs no delivery: write a size such as 140GB")]
    Object,
    /// Nothing left to choose from.
    #[error("no way is left that can be built here: leave fewer out of the choice")]
    NoWay,
}

/// Time that a transfer takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Until the receivers have met their source and devices are ready.
    pub set_up_s: f64,
    /// From then on to the last receiver's end.
    pub carrying_s: f64,
}

impl Span {
    /// Both together.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.set_up_s + self.carrying_s
    }
}

/// One way to deliver.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// Its name, one of [`WAYS`].
    pub name: &'static str,
    /// From the request to the last receiver; `None` where it cannot be built.
    pub span: Option<Span>,
    /// Price of its parts beside the network that is there; `None` without prices.
    pub extra_cost_usd: Option<f64>,
    /// Power of these parts.
    pub power_w: Option<f64>,
    /// Number of times that each object crosses from a rack, or from the file server, into the core.
    pub core_copies: f64,
    /// Requirements on the network.
    pub needs: String,
    /// Reason why it cannot be built.
    pub refused: Option<String>,
}

impl Way {
    /// Seconds to the last receiver.
    #[must_use]
    pub fn seconds(&self) -> Option<f64> {
        self.span.map(|span| span.total_s())
    }
}

/// Recommendation for a site.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// All ways, the file server last.
    pub ways: Vec<Way>,
    /// The name of the one to take.
    pub recommended: &'static str,
    /// Reasons for it, in sentences.
    pub why: String,
    /// Receivers of the largest group.
    pub receivers: u32,
    /// Racks.
    pub racks: u32,
    /// Time that the object's bytes alone take on a host's link.
    pub ideal_s: f64,
    /// Set if there are prices at the line rate.
    pub is_priced: bool,
    /// Hours of transfers that each group is spared a day, over the file server.
    pub saved_hours_a_day: f64,
    /// Bytes that the core is spared a day, over the file server.
    pub saved_core_bytes_a_day: f64,
}

impl Advice {
    /// A way by its name.
    #[must_use]
    pub fn way(&self, name: &str) -> Option<&Way> {
        self.ways.iter().find(|way| way.name == name)
    }
}

impl Site {
    /// Compares all ways, and recommends one that `without` does not name.
    ///
    /// # Errors
    /// If there can be no such site, or no way is left.
    pub fn advise(&self, catalogue: &Catalogue, without: &[&str]) -> Result<Advice, SiteError> {
        self.check()?;
        let parts = Parts::of(catalogue, self.gbps);
        let ways = vec![
            self.ip_multicast(),
            self.tcp_chain(),
            self.orca(),
            self.datacast(),
            self.shufflecast(&parts),
            self.ocs(&parts),
            self.file_server(),
        ];
        let choice = self.choose(&ways, without).ok_or(SiteError::NoWay)?;
        let today = ways.last().expect("the file server is the last");
        let span_s = |way: &Way| way.seconds().unwrap_or(f64::INFINITY);
        let saved_s = (span_s(today) - span_s(choice)) * self.times_a_day;
        let copies = (today.core_copies - choice.core_copies) * f64::from(self.groups) * self.times_a_day;
        Ok(Advice {
            recommended: choice.name,
            why: self.why(&ways, choice, without),
            receivers: self.receivers(),
            racks: self.racks(),
            ideal_s: self.object_bytes as f64 * 8.0 / self.rate_bps(),
            is_priced: parts.is_priced,
            saved_hours_a_day: saved_s.max(0.0) / 3_600.0,
            saved_core_bytes_a_day: copies.max(0.0) * self.object_bytes as f64,
            ways,
        })
    }

    fn check(&self) -> Result<(), SiteError> {
        let most = self.hosts / 2;
        if !(2..=HOSTS_MAX).contains(&self.hosts) {
            return Err(SiteError::Hosts(self.hosts));
        }
        if self.hosts_per_rack == 0 {
            return Err(SiteError::Rack);
        }
        if !(1..=GBPS_MAX).contains(&self.gbps) {
            return Err(SiteError::Rate(self.gbps));
        }
        if !(576..=9_216).contains(&self.mtu_bytes) {
            return Err(SiteError::Mtu(self.mtu_bytes));
        }
        if !(1..=most).contains(&self.groups) {
            return Err(SiteError::Groups { groups: self.groups, hosts: self.hosts, most });
        }
        if !(1.0..=1_000.0).contains(&self.oversubscription) {
            return Err(SiteError::Oversubscription(self.oversubscription));
        }
        if !(0.0..=1e6).contains(&self.times_a_day) {
            return Err(SiteError::Times(self.times_a_day));
        }
        if self.object_bytes == 0 { Err(SiteError::Object) } else { Ok(()) }
    }

    /// Racks, the last of which may not be full.
    #[must_use]
    pub fn racks(&self) -> u32 {
        self.hosts.div_ceil(self.hosts_per_rack)
    }

    fn members(&self) -> u32 {
        self.hosts.div_ceil(self.groups)
    }

    fn receivers(&self) -> u32 {
        self.members() - 1
    }

    /// Racks that a group has members in: groups are spread over all racks.
    fn racks_of_a_group(&self) -> u32 {
        self.racks().min(self.members())
    }

    fn rate_bps(&self) -> f64 {
        f64::from(self.gbps) * 1e9
    }

    /// Bits of an object with the headers of its packets.
    fn bits(&self, header: f64) -> f64 {
        let mtu = f64::from(self.mtu_bytes);
        self.object_bytes as f64 * 8.0 * mtu / (mtu - header)
    }

    /// Returns the time that receivers take to meet their source, as the manager estimates it.
    fn session_s(&self) -> f64 {
        let receivers = (1..=self.receivers()).map(HostId).collect();
        let group = Group::of_one(HostId(0), receivers);
        Estimator::default().least(None, TcpChain::NAME, &group).as_secs_f64()
    }

    /// Returns the time that `copies` of an object take over the uplinks of one rack.
    fn uplinks_s(&self, copies: f64, header: f64) -> f64 {
        let uplinks_bps = self.rate_bps() * f64::from(self.hosts_per_rack) / self.oversubscription;
        self.bits(header) * copies / uplinks_bps
    }

    /// Returns the time of one copy in each rack: on the host's link, or where all groups come into a rack.
    fn one_copy_s(&self, header: f64) -> f64 {
        let host_s = self.bits(header) / self.rate_bps();
        if self.racks() == 1 {
            return host_s;
        }
        let groups = u64::from(self.groups) * u64::from(self.racks_of_a_group());
        let into_a_rack = groups.div_ceil(self.racks().into()) as f64;
        host_s.max(self.uplinks_s(into_a_rack, header))
    }

    /// Copies of each object that multicast brings into the core.
    fn one_copy(&self) -> f64 {
        if self.racks_of_a_group() > 1 { 1.0 } else { 0.0 }
    }

    fn free(&self, name: &'static str, span: Span, core_copies: f64, needs: &str) -> Way {
        Way {
            name,
            span: Some(span),
            extra_cost_usd: Some(0.0),
            power_w: Some(0.0),
            core_copies,
            needs: needs.into(),
            refused: None,
        }
    }

    fn ip_multicast(&self) -> Way {
        let span = Span { set_up_s: self.session_s(), carrying_s: self.one_copy_s(PUSH_HEADER) };
        self.free("ip-multicast", span, self.one_copy(), "multicast between racks, an IGMP querier")
    }

    fn tcp_chain(&self) -> Way {
        // A receiver takes its bytes from members anywhere: of the others so many are in other racks.
        let members = f64::from(self.members());
        let in_its_rack = members / f64::from(self.racks_of_a_group());
        let elsewhere = ((members - in_its_rack) / (members - 1.0)).clamp(0.0, 1.0);
        let copies = f64::from(self.receivers()) * elsewhere;
        let host_s = self.bits(TCP_HEADER) / self.rate_bps();
        let into_a_rack = self.uplinks_s(f64::from(self.hosts_per_rack) * elsewhere, TCP_HEADER);
        let carrying_s = MESH_SHARE * host_s.max(into_a_rack) + MESH_STEP_S * members.log2().ceil();
        let span = Span { set_up_s: self.session_s(), carrying_s };
        self.free("tcp-chain", span, copies, "nothing")
    }

    fn orca(&self) -> Way {
        let rules_s = Assumed::default().rules.as_secs_f64();
        let span =
            Span { set_up_s: self.session_s().max(rules_s), carrying_s: self.one_copy_s(LABEL_HEADER) };
        self.free("orca", span, self.one_copy(), "label switches: Linux or P4; an agent a rack")
    }

    fn datacast(&self) -> Way {
        let span = Span { set_up_s: self.session_s(), carrying_s: self.pulled_s() };
        self.free("datacast", span, self.one_copy(), "switches that cache, on Linux")
    }

    /// Returns the time that one tree takes by pull: its rate grows from the first one to that of the link.
    fn pulled_s(&self) -> f64 {
        let full_s = self.one_copy_s(PULL_HEADER);
        let bits = self.bits(PULL_HEADER);
        let most = bits / full_s;
        let first = PULL_FIRST_BPS.min(most);
        let growing_s = (most - first) / PULL_GROWTH;
        let grown_bits = (first + most) / 2.0 * growing_s;
        if bits >= grown_bits {
            return growing_s + (bits - grown_bits) / most;
        }
        let root = (first * first + 2.0 * PULL_GROWTH * bits).sqrt();
        (root - first) / PULL_GROWTH
    }

    fn file_server(&self) -> Way {
        let downloads = f64::from(self.hosts - self.groups);
        let server_s = self.bits(TCP_HEADER) * downloads / self.rate_bps();
        // In one rack nothing goes over uplinks.
        let into_a_rack = match self.racks() {
            1 => 0.0,
            _ => self.uplinks_s(f64::from(self.hosts_per_rack), TCP_HEADER),
        };
        let span = Span { set_up_s: 0.0, carrying_s: server_s.max(into_a_rack) };
        let copies = if self.racks() > 1 { downloads / f64::from(self.groups) } else { 0.0 };
        self.free("file-server", span, copies, "nothing")
    }

    fn shufflecast(&self, parts: &Parts) -> Way {
        let name = "shufflecast";
        if let Some(refused) = self.one_rack(name) {
            return refused;
        }
        let Some(network) = economics::instance(self.racks()) else {
            return refused(name, format!("no Shufflecast has {} racks", self.racks()));
        };
        let (p, k) = (network.fanout(), network.columns());
        let each = economics::deployment_cost_per_tor_usd(&parts.catalogue, &network, self.gbps);
        let each_usd = match each {
            Ok(each_usd) => each_usd,
            Err(error) => return refused(name, error.to_string()),
        };
        // p trees are free of each other; more of them share the relays.
        let sharing = (f64::from(self.groups) / f64::from(p)).max(1.0);
        let rules_s = Assumed::default().rules.as_secs_f64();
        let span = Span {
            set_up_s: self.session_s().max(rules_s),
            carrying_s: sharing * self.bits(PUSH_HEADER) / self.rate_bps(),
        };
        let ports = f64::from(network.tors()) * f64::from(p);
        let power_w = ports * (parts.rate.port_power_w + parts.rate.transceiver_power_w);
        Way {
            name,
            span: Some(span),
            extra_cost_usd: parts.is_priced.then_some(each_usd * f64::from(network.tors())),
            power_w: parts.is_priced.then_some(power_w),
            core_copies: 0.0,
            needs: format!("{p} free ports a ToR, 1:{p} splitters ({p},{k}){}", parts.lacking()),
            refused: None,
        }
    }

    fn ocs(&self, parts: &Parts) -> Way {
        let name = "ocs";
        if let Some(refused) = self.one_rack(name) {
            return refused;
        }
        // As many groups at a time as the circuit switch has ports for; the others wait their turn.
        let of =
            |groups: u32| economics::blast_of(&parts.catalogue, self.racks_of_a_group(), self.gbps, groups);
        let first = match of(1) {
            Ok(first) => first,
            Err(error) => return refused(name, error.to_string()),
        };
        let fitting =
            (2..=self.groups.min(economics::CIRCUIT_PORTS)).rev().find_map(|n| Some((n, of(n).ok()?)));
        let (at_a_time, bill) = fitting.unwrap_or((1, first));
        let turns = f64::from(self.groups.div_ceil(at_a_time));
        let circuits_s = Assumed::default().circuits.as_secs_f64();
        let each_s = self.bits(PUSH_HEADER) / self.rate_bps();
        let set_up_s = self.session_s().max(circuits_s) + (turns - 1.0) * circuits_s;
        let fibres = if at_a_time == 1 { "a fibre".into() } else { format!("{at_a_time} fibres") };
        let in_turn = if turns > 1.0 { format!(", {turns:.0} turns") } else { String::new() };
        Way {
            name,
            span: Some(Span { set_up_s, carrying_s: turns * each_s }),
            extra_cost_usd: parts.is_priced.then_some(bill.cost_usd),
            power_w: parts.is_priced.then_some(bill.power_w),
            core_copies: 0.0,
            needs: format!("a circuit switch, {fibres} a rack{in_turn}{}", parts.lacking()),
            refused: None,
        }
    }

    fn one_rack(&self, name: &'static str) -> Option<Way> {
        let is_one = self.racks_of_a_group() < 2;
        is_one.then(|| refused(name, "there is one rack, and fibres join racks".into()))
    }

    /// The cheapest of those that are as fast as the fastest; of these the one that needs least, which is the
    /// first in [`WAYS`].
    fn choose<'a>(&self, ways: &'a [Way], without: &[&str]) -> Option<&'a Way> {
        let usable =
            || ways.iter().filter(|way| !without.contains(&way.name)).filter(|way| way.span.is_some());
        let fastest_s = usable().filter_map(Way::seconds).fold(f64::INFINITY, f64::min);
        let is_near = |way: &&Way| {
            let more_s = way.seconds().unwrap_or(f64::INFINITY) - fastest_s;
            // A minute is a reason not to buy, and none to go on as before.
            let spares_little = more_s * self.times_a_day <= NEAR_S_A_DAY && way.name != "file-server";
            more_s <= (NEAR_FACTOR - 1.0) * fastest_s || spares_little
        };
        let place = |way: &Way| WAYS.iter().position(|name| *name == way.name);
        // Nothing is chosen for its price that has none.
        let usd = |way: &Way| way.extra_cost_usd.unwrap_or(f64::INFINITY);
        usable()
            .filter(is_near)
            .min_by(|one, other| usd(one).total_cmp(&usd(other)).then(place(one).cmp(&place(other))))
    }

    fn why(&self, ways: &[Way], choice: &Way, without: &[&str]) -> String {
        let total_s = |way: &Way| way.seconds().unwrap_or(f64::INFINITY);
        let today_s = ways.last().map_or(f64::INFINITY, total_s);
        let mut why = match choice.name {
            "file-server" => "No other way is faster by more than a tenth".to_string(),
            _ => format!(
                "The last receiver has it in {} of the file server's time",
                part(total_s(choice) / today_s)
            ),
        };
        why += &match choice.extra_cost_usd {
            Some(0.0) => ", and it costs nothing extra.".to_string(),
            Some(usd) => format!(", for {usd:.0} USD."),
            None => ", at a price that takes --parts to say.".to_string(),
        };
        let mut others: Vec<&Way> = ways.iter().filter(|way| !without.contains(&way.name)).collect();
        others.sort_by(|one, other| total_s(one).total_cmp(&total_s(other)));
        let Some(fastest) = others.first().filter(|way| total_s(way) < total_s(choice)) else { return why };
        let spared_s = (total_s(choice) - total_s(fastest)) * self.times_a_day;
        let price = match fastest.extra_cost_usd {
            Some(0.0) => String::new(),
            Some(usd) => format!(" for {usd:.0} USD"),
            None => " at a price that takes --parts to say".to_string(),
        };
        let _ =
            write!(why, " The fastest, {}, saves {} s more a day{price}.", fastest.name, digits(spared_s));
        why
    }
}

fn refused(name: &'static str, why: String) -> Way {
    Way {
        name,
        span: None,
        extra_cost_usd: None,
        power_w: None,
        core_copies: 0.0,
        needs: String::new(),
        refused: Some(why),
    }
}

/// A share in words.
fn part(share: f64) -> String {
    match share {
        0.0..0.1 => format!("1/{:.0}", 1.0 / share),
        0.1..1.0 => format!("{:.0} %", share * 100.0),
        more => format!("{more:.1} times"),
    }
}

/// A number with the digits that count.
fn digits(value: f64) -> String {
    if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// The parts at a line rate; without prices, what a tree takes is counted with the light of the catalogue's
/// best transceiver.
struct Parts {
    catalogue: Catalogue,
    rate: RateParts,
    is_priced: bool,
}

impl Parts {
    fn of(catalogue: &Catalogue, gbps: u32) -> Self {
        let mut catalogue = catalogue.clone();
        if let Ok(rate) = catalogue.rate(gbps) {
            return Parts { rate: *rate, catalogue, is_priced: true };
        }
        let budgets = catalogue.rates.iter().map(|rate| rate.transceiver_budget_db);
        let rate = RateParts {
            gbps,
            port_power_w: 0.0,
            port_cost_usd: 0.0,
            transceiver_power_w: 0.0,
            transceiver_cost_usd: 0.0,
            transceiver_budget_db: budgets.fold(splitter_loss_db(economics::FANOUT_MAX), f64::max),
        };
        catalogue.rates.push(rate);
        Parts { catalogue, rate, is_priced: false }
    }

    /// Returns the note that prices need a parts file; empty where there are prices.
    fn lacking(&self) -> &'static str {
        if self.is_priced { "" } else { "; light and prices: --parts FILE" }
    }
}

#[cfg(test)]
mod tests;
