//! Light through a circuit switch. A rack's port has light only while a circuit ends there, and a source's
//! never has any: splitters know no way back. So a port is judged while a path that is set up leads light to
//! it, and not before the time that a port takes to notice.

use super::health::{Health, Light, LitRack, Verdict};
use crate::devices::Fibre;
use polycast_planning::{DeviceCommand, Failure, Plan, PlanId, RackPort, Resource};
use polycast_topology::PortTable;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Racks that miss the same light say so within this time: what they have in common is known only then.
const GATHERED_FOR: Duration = Duration::from_millis(30);

/// The racks that a plan leads light to by circuits.
pub(crate) fn lit_racks(plan: &Plan) -> Vec<LitRack> {
    let receives = |command: &DeviceCommand| {
        let DeviceCommand::RackRule { rack, from: RackPort::Circuit(uplink), to, .. } = command else {
            return None;
        };
        let hosts = to.iter().filter_map(|port| match port {
            RackPort::Host(host) => Some(*host),
            _ => None,
        });
        Some(LitRack { fibre: (*rack, *uplink), hosts: hosts.collect() })
    };
    plan.commands.iter().filter_map(receives).collect()
}

/// A path that leads light to racks.
#[derive(Debug)]
struct Watched {
    racks: Vec<LitRack>,
    since: Instant,
    /// Since when a rack misses light of which nothing was said yet.
    missed_since: Option<Instant>,
    /// The fibres of which it was said.
    told: BTreeSet<(u32, u32)>,
}

/// Fibres to a circuit switch: each is a resource of its own. A switch that cannot be told anything fails as
/// a device, for those plans that need it.
#[derive(Debug)]
pub(super) struct OfCircuits {
    ports: PortTable,
    /// Meaning of the light at each rack.
    light: Vec<Light>,
    /// Time that a port may take to have light once its circuits are there.
    grace: Duration,
    dark: BTreeSet<(u32, u32)>,
    paths: BTreeMap<PlanId, Watched>,
}

impl OfCircuits {
    pub(super) fn new(ports: PortTable, light: Vec<Light>, grace: Duration) -> Self {
        OfCircuits { ports, light, grace, dark: BTreeSet::new(), paths: BTreeMap::new() }
    }

    fn light_of(&self, rack: u32) -> Light {
        self.light.get(rack as usize).copied().unwrap_or_default()
    }

    fn port(&self, (rack, uplink): (u32, u32)) -> Option<Failure> {
        let port = *self.ports.of_rack(rack).get(uplink as usize)?;
        Some(Failure::Resource(Resource::CircuitPort { port }))
    }

    /// The racks of a path that should have light by now and have none, of whom nothing was said.
    fn missing<'a>(&self, path: &'a Watched) -> Vec<&'a LitRack> {
        let is_missing = |rack: &&LitRack| {
            let is_judged = self.light_of(rack.fibre.0) == Light::WhenLit;
            is_judged && self.dark.contains(&rack.fibre) && !path.told.contains(&rack.fibre)
        };
        path.racks.iter().filter(is_missing).collect()
    }

    fn conclude(&mut self, now: Instant) -> Verdict {
        let mut verdict = Verdict::default();
        let mut words = Vec::new();
        let mut paths = std::mem::take(&mut self.paths);
        for (plan, path) in &mut paths {
            let missing: Vec<LitRack> = self.missing(path).into_iter().cloned().collect();
            if missing.is_empty() || now < path.since + self.grace {
                path.missed_since = None;
                continue;
            }
            let since = *path.missed_since.get_or_insert(now);
            if now < since + GATHERED_FOR {
                continue;
            }
            let racks: Vec<String> = missing.iter().map(|rack| rack.fibre.0.to_string()).collect();
            words.push(format!("a circuit is there and no light comes to rack {}", racks.join(", ")));
            let hosts = missing.iter().flat_map(|rack| &rack.hosts).copied().collect();
            let fibres: Vec<(u32, u32)> = missing.iter().map(|rack| rack.fibre).collect();
            verdict.unlit.push((*plan, hosts));
            path.told.extend(fibres);
            path.missed_since = None;
        }
        self.paths = paths;
        verdict.words = words.join("; ");
        verdict
    }
}

impl Health for OfCircuits {
    fn fibre(&mut self, now: Instant, rack: u32, fibre: Fibre, up: bool) -> Verdict {
        let Fibre::Out(uplink) = fibre else { return Verdict::default() };
        let Some(port) = self.port((rack, uplink)) else { return Verdict::default() };
        let light = self.light_of(rack);
        if light == Light::Ignored {
            return Verdict::default();
        }
        let was_dark = if up { self.dark.remove(&(rack, uplink)) } else { !self.dark.insert((rack, uplink)) };
        let port = vec![port];
        match (light, up) {
            (Light::Expected, false) => {
                let words =
                    format!("rack {rack} has lost the light in its fibre {uplink} to the circuit switch");
                Verdict { failed: port, words, ..Verdict::default() }
            }
            // Light shows that a port works which was suspected not to.
            (_, true) if was_dark => {
                let words =
                    format!("rack {rack} has light again in its fibre {uplink} to the circuit switch");
                for path in self.paths.values_mut() {
                    path.told.remove(&(rack, uplink));
                }
                Verdict { repaired: port, words, ..self.conclude(now) }
            }
            _ => self.conclude(now),
        }
    }

    fn lit(&mut self, now: Instant, plan: PlanId, receivers: Vec<LitRack>) {
        if !receivers.is_empty() {
            let path = Watched { racks: receivers, since: now, missed_since: None, told: BTreeSet::new() };
            self.paths.insert(plan, path);
        }
    }

    fn unlit(&mut self, plan: PlanId) {
        self.paths.remove(&plan);
    }

    fn dark(&self) -> Vec<String> {
        // Of those that nothing lights there is nothing to say.
        let lit: BTreeSet<(u32, u32)> =
            self.paths.values().flat_map(|path| &path.racks).map(|rack| rack.fibre).collect();
        let is_said = |fibre: &&(u32, u32)| lit.contains(fibre) || self.light_of(fibre.0) == Light::Expected;
        let said = self.dark.iter().filter(is_said);
        said.map(|(rack, uplink)| format!("rack {rack}: its fibre {uplink} to the circuit switch")).collect()
    }

    fn next_look(&self) -> Option<Instant> {
        let open = self.paths.values().filter(|path| !self.missing(path).is_empty());
        open.map(|path| path.missed_since.map_or(path.since + self.grace, |since| since + GATHERED_FOR)).min()
    }

    fn look(&mut self, now: Instant) -> Verdict {
        self.conclude(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_planning::HostId;
    use polycast_topology::Hybrid;

    const GRACE: Duration = Duration::from_millis(400);

    fn health(light: Light) -> OfCircuits {
        let hybrid =
            Hybrid { racks: 4, servers_per_rack: 2, ports_per_rack: 1, splitters: 2, splitter_fanout: 4 };
        OfCircuits::new(PortTable::of(&hybrid), vec![light; 4], GRACE)
    }

    fn receivers(racks: &[u32]) -> Vec<LitRack> {
        let of = |rack: &u32| LitRack {
            fibre: (*rack, 0),
            hosts: [HostId(rack * 2), HostId(rack * 2 + 1)].into(),
        };
        racks.iter().map(of).collect()
    }

    #[test]
    fn ports_that_nothing_lights_are_dark_and_not_broken() {
        let (mut health, now) = (health(Light::WhenLit), Instant::now());
        for rack in 0..4 {
            assert_eq!(health.fibre(now, rack, Fibre::Out(0), false), Verdict::default());
        }
        assert_eq!((health.next_look(), health.dark()), (None, vec![]));
        // Rack 0 is the source, which never has light; the others have some before the grace is over.
        health.lit(now, PlanId(1), receivers(&[1, 2]));
        assert_eq!(health.next_look(), Some(now + GRACE));
        for rack in [1, 2] {
            assert_eq!(health.fibre(now + GRACE / 2, rack, Fibre::Out(0), true).unlit, vec![]);
        }
        assert_eq!(health.look(now + GRACE * 2), Verdict::default());
        assert_eq!(health.next_look(), None);
        // They go dark with the circuits.
        health.unlit(PlanId(1));
        for rack in [1, 2] {
            assert_eq!(health.fibre(now + GRACE * 3, rack, Fibre::Out(0), false), Verdict::default());
        }
        assert_eq!(health.look(now + GRACE * 9), Verdict::default());
    }

    #[test]
    fn who_has_no_light_of_a_circuit_misses_it_after_the_grace() {
        let (mut health, now) = (health(Light::WhenLit), Instant::now());
        (0..4).for_each(|rack| drop(health.fibre(now, rack, Fibre::Out(0), false)));
        health.lit(now, PlanId(1), receivers(&[1, 2, 3]));
        health.fibre(now, 1, Fibre::Out(0), true);
        assert_eq!(health.look(now + GRACE), Verdict::default(), "others may miss it too");
        let due = health.next_look().unwrap();
        let verdict = health.look(due);
        let hosts: BTreeSet<HostId> = (4..8).map(HostId).collect();
        assert_eq!((verdict.unlit, verdict.failed), (vec![(PlanId(1), hosts)], vec![]));
        assert_eq!((health.next_look(), health.dark().len()), (None, 2), "that is said once");
        // Another one goes dark later: at once but for the time to hear of more.
        let later = now + GRACE * 5;
        assert_eq!(health.fibre(later, 1, Fibre::Out(0), false), Verdict::default());
        assert_eq!(health.look(later + GATHERED_FOR).unlit, [(PlanId(1), [HostId(2), HostId(3)].into())]);
        let verdict = health.fibre(later, 2, Fibre::Out(0), true);
        assert_eq!(verdict.repaired, [Failure::Resource(Resource::CircuitPort { port: 2 })]);
    }

    #[test]
    fn light_can_be_expected_always_or_mean_nothing() {
        let now = Instant::now();
        let port = vec![Failure::Resource(Resource::CircuitPort { port: 3 })];
        let mut expected = health(Light::Expected);
        assert_eq!(expected.fibre(now, 3, Fibre::Out(0), false).failed, port);
        assert_eq!(expected.fibre(now, 3, Fibre::Out(0), true).repaired, port);
        let mut ignored = health(Light::Ignored);
        ignored.lit(now, PlanId(1), receivers(&[3]));
        assert_eq!(ignored.fibre(now, 3, Fibre::Out(0), false), Verdict::default());
        assert_eq!((ignored.next_look(), ignored.look(now + GRACE * 2)), (None, Verdict::default()));
        // What there is not means nothing.
        assert_eq!(expected.fibre(now, 9, Fibre::Out(0), false), Verdict::default());
        assert_eq!(expected.fibre(now, 0, Fibre::Out(7), false), Verdict::default());
    }
}
