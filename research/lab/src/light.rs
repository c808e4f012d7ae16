//! Light at the racks' ports. A port of a rack's switch that no light reaches is down, as behind real optics:
//! the ports that face a circuit switch are dark until a circuit ends there. One that feeds a splitter is
//! always dark, since splitters know no way back. Its laser shines all the same: packets that the switch
//! sends leave the port.
//!
//! Linux calls such a port dormant: it can send, but Linux reports that it is not running, and OpenFlow
//! repeats that.

use crate::error::LabError;
use crate::layout::{self, Layout, OPTICS};
use crate::spec::{Network, Spec};
use crate::system::Space;
use futures_util::{StreamExt as _, TryStreamExt as _};
use nix::sched::{CloneFlags, setns};
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, LinkMode, State};
use rtnetlink::{LinkUnspec, MulticastGroup};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::rc::Rc;
use tokio::sync::Notify;

/// All ways that light can take, but for circuits.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Glass {
    /// The ports of ToRs with fibres, namespace and interface, each with the interface at the other end.
    tors: Vec<(String, String, String)>,
    /// Cables between optics, by either end.
    cables: BTreeMap<String, String>,
    /// Outputs of splitters, by the input.
    splitters: BTreeMap<String, Vec<String>>,
}

impl Glass {
    fn new(spec: &Spec) -> Self {
        let optics = Space::named(OPTICS);
        let (mut tors, mut cables) = (Vec::new(), BTreeMap::new());
        for cable in &Layout::new(spec).cables {
            let (a, b) = (&cable.a, &cable.b);
            match (&a.space, &b.space) {
                (one, other) if *one == optics && *other == optics => {
                    cables.insert(a.interface.clone(), b.interface.clone());
                    cables.insert(b.interface.clone(), a.interface.clone());
                }
                (Space::Named(tor), other) if *other == optics => {
                    tors.push((tor.clone(), a.interface.clone(), b.interface.clone()));
                }
                (one, Space::Named(tor)) if *one == optics => {
                    tors.push((tor.clone(), b.interface.clone(), a.interface.clone()));
                }
                _ => {}
            }
        }
        let (count, fanout) = match spec.network {
            Network::Blast { hybrid, .. } => (hybrid.splitters, hybrid.splitter_fanout),
            Network::Shufflecast { wiring, .. } => (wiring.logical().tors(), wiring.logical().fanout()),
            Network::Bridge { .. } | Network::Datacast { .. } | Network::Orca { .. } => (0, 0),
        };
        let outputs = |splitter| {
            (0..fanout).map(|output| layout::splitter_output(splitter, output)).collect::<Vec<_>>()
        };
        let splitters = (0..count).map(|splitter| (layout::splitter_input(splitter), outputs(splitter)));
        Glass { tors, cables, splitters: splitters.collect() }
    }

    /// Reports for each of the ToRs' ports whether light reaches it; `works` tells which interfaces of the
    /// optics have a carrier.
    fn lit(&self, circuits: &BTreeMap<String, String>, works: impl Fn(&str) -> bool) -> Vec<bool> {
        // Every ToR's laser shines, and so light enters wherever a fibre of one ends.
        let mut entered: Vec<&str> = self.tors.iter().map(|(_, _, near)| near.as_str()).collect();
        let (mut seen, mut left) = (BTreeSet::new(), BTreeSet::new());
        while let Some(at) = entered.pop() {
            if !works(at) || !seen.insert(at) {
                continue;
            }
            let split = self.splitters.get(at).into_iter().flatten();
            for out in split.chain(circuits.get(at)).filter(|out| works(out)) {
                left.insert(out.as_str());
                entered.extend(self.cables.get(out).map(String::as_str));
            }
        }
        self.tors.iter().map(|(_, _, near)| left.contains(near.as_str())).collect()
    }
}

#[derive(Default)]
struct Known {
    /// By the interface where light enters the circuit switch.
    circuits: BTreeMap<String, String>,
    /// The interfaces of the optics that have a carrier.
    working: BTreeSet<String>,
}

/// Tells the ToRs' ports whether they have light.
#[derive(Clone)]
pub(crate) struct Lamp {
    known: Rc<RefCell<Known>>,
    changed: Rc<Notify>,
}

impl Lamp {
    /// From here on ports have light where light is. Has to be called in the namespace of the optics, with a
    /// tokio runtime and a local set around it.
    pub(crate) async fn light(spec: &Spec) -> Result<Self, LabError> {
        let glass = Glass::new(spec);
        let failed = |error: std::io::Error| LabError::system("watch the optics", error);
        let (connection, handle, mut news) =
            rtnetlink::new_multicast_connection(&[MulticastGroup::Link]).map_err(failed)?;
        tokio::spawn(connection);
        let lamp = Lamp { known: Rc::default(), changed: Rc::default() };
        let mut links = handle.link().get().execute();
        while let Some(link) =
            links.try_next().await.map_err(|error| LabError::system("list the optics", error))?
        {
            lamp.hear(&link);
        }
        let mut ports = Vec::new();
        for (tor, interface, _) in &glass.tors {
            ports.push(Port::open(tor, interface).await?);
        }
        let mut shown = vec![None; ports.len()];
        lamp.show(&glass, &ports, &mut shown).await;
        let (listener, shower) = (lamp.clone(), lamp.clone());
        tokio::task::spawn_local(async move {
            // The handle keeps the connection.
            let _handle = handle;
            while let Some((message, _)) = news.next().await {
                if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) = message.payload {
                    listener.hear(&link);
                }
            }
        });
        tokio::task::spawn_local(async move {
            loop {
                shower.changed.notified().await;
                shower.show(&glass, &ports, &mut shown).await;
            }
        });
        Ok(lamp)
    }

    /// A circuit is there, or is not any more.
    pub(crate) fn set_circuit(&self, from: u32, to: u32, is_there: bool) {
        let (from, to) = (layout::ocs_port(from), layout::ocs_port(to));
        let mut known = self.known.borrow_mut();
        if is_there {
            known.circuits.insert(from, to);
        } else if known.circuits.get(&from) == Some(&to) {
            known.circuits.remove(&from);
        }
        self.changed.notify_one();
    }

    fn hear(&self, link: &LinkMessage) {
        let name = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name),
            _ => None,
        });
        let Some(name) = name else { return };
        let works = link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp);
        let working = &mut self.known.borrow_mut().working;
        let has_changed = if works { working.insert(name.clone()) } else { working.remove(name) };
        if has_changed {
            self.changed.notify_one();
        }
    }

    /// Tells the ports that have changed.
    async fn show(&self, glass: &Glass, ports: &[Port], shown: &mut [Option<(bool, bool)>]) {
        let (lit, working): (Vec<bool>, Vec<bool>) = {
            let known = self.known.borrow();
            let works = |name: &str| known.working.contains(name);
            let lit = glass.lit(&known.circuits, works);
            (lit, glass.tors.iter().map(|(_, _, near)| works(near)).collect())
        };
        for (((port, shown), lit), works) in ports.iter().zip(shown).zip(lit).zip(working) {
            // A port whose cable was cut and is whole again has forgotten what it was told.
            if *shown != Some((lit, works)) {
                *shown = Some((lit, works));
                port.set(lit).await;
            }
        }
    }
}

/// A port of a ToR, in the ToR's namespace.
struct Port {
    handle: rtnetlink::Handle,
    index: u32,
}

impl Port {
    async fn open(tor: &str, interface: &str) -> Result<Self, LabError> {
        let failed = |reason: String| LabError::system(format!("reach {interface} of {tor}"), reason);
        let open = |path: &str| File::open(path).map_err(|error| failed(error.to_string()));
        let (ours, theirs) = (open("/proc/thread-self/ns/net")?, open(&format!("/run/netns/{tor}"))?);
        // A socket belongs to the namespace where it was made, wherever its thread goes.
        setns(&theirs, CloneFlags::CLONE_NEWNET).map_err(|error| failed(error.to_string()))?;
        let connection = rtnetlink::new_connection();
        setns(&ours, CloneFlags::CLONE_NEWNET).map_err(|error| failed(error.to_string()))?;
        let (connection, handle, _) = connection.map_err(|error| failed(error.to_string()))?;
        tokio::spawn(connection);
        let mut found = handle.link().get().match_name(interface.to_string()).execute();
        let link = found.try_next().await.map_err(|error| failed(error.to_string()))?;
        let index = link.ok_or_else(|| failed("it is not there".into()))?.header.index;
        Ok(Port { handle, index })
    }

    async fn set(&self, lit: bool) {
        let state = if lit { State::Up } else { State::Dormant };
        let change = LinkUnspec::new_with_index(self.index)
            .append_extra_attribute(LinkAttribute::Mode(LinkMode::Dormant))
            .append_extra_attribute(LinkAttribute::OperState(state));
        if let Err(error) = self.handle.link().set(change.build()).execute().await {
            // A lab that ends takes its ports away one after the other.
            tracing::debug!(%error, "a port cannot be told of its light");
        }
    }
}

/// Keeps the light of a lab whose optics have no device of their own, until the process ends. Calls `ready`
/// when all ports know whether they have light.
///
/// # Errors
/// A port cannot be reached.
pub fn run(spec: &Spec, ready: impl FnOnce()) -> Result<(), LabError> {
    let failed = |error: std::io::Error| LabError::system("keep the light", error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let _lamp = Lamp::light(spec).await?;
        ready();
        std::future::pending().await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lit(glass: &Glass, circuits: &[(u32, u32)], broken: &[&str]) -> Vec<String> {
        let name = |port: u32| layout::ocs_port(port);
        let circuits = circuits.iter().map(|(from, to)| (name(*from), name(*to))).collect();
        let lit = glass.lit(&circuits, |interface| !broken.contains(&interface));
        let tors = glass.tors.iter().zip(lit).filter(|(_, lit)| *lit);
        tors.map(|((tor, interface, _), _)| format!("{tor} {interface}")).collect()
    }

    #[test]
    fn light_follows_circuits_and_splitters_and_does_not_come_back() {
        let glass = Glass::new(&"blast:racks=4,hosts=1,fanout=2,splitters=2".parse().unwrap());
        assert_eq!(lit(&glass, &[], &[]), Vec::<String>::new());
        // Rack 0 is at port 0; splitter 0 has its input at port 4 and its outputs at 5 and 6, splitter 1 at
        // 7, 8 and 9.
        let cascade = [(0, 4), (5, 1), (6, 7), (8, 2), (9, 3)];
        let port = |rack: u32| format!("tor{rack} {}", layout::fibre_port(rack, 0));
        assert_eq!(lit(&glass, &cascade, &[]), [port(1), port(2), port(3)]);
        assert_eq!(lit(&glass, &cascade[..2], &[]), [port(1)]);
        // Without its second splitter, and without the source's fibre.
        let second = layout::splitter_input(1);
        assert_eq!(lit(&glass, &cascade, &[&second]), [port(1)]);
        assert_eq!(lit(&glass, &cascade, &[&layout::ocs_port(0)]), Vec::<String>::new());
        // A circle of circuits ends somewhere.
        assert_eq!(lit(&glass, &[(5, 4), (6, 1)], &[]), Vec::<String>::new());
    }

    #[test]
    fn a_port_that_feeds_a_splitter_never_has_light() {
        let spec: Spec = "shufflecast:2,2,hosts=1".parse().unwrap();
        let glass = Glass::new(&spec);
        let all = lit(&glass, &[], &[]);
        assert_eq!(all.len(), 16, "two fibres come into each of eight racks");
        assert!(!all.iter().any(|port| port.ends_with(&layout::fibre_port(0, 0))), "{all:?}");
        let less = lit(&glass, &[], &[&layout::splitter_input(3)]);
        assert_eq!(less.len(), 14, "its two children miss the light of a dead splitter");
    }
}
