//! Probes of a circuit switch in memory, cabled in one way or another.

use super::*;
use polycast_net::devices::circuits::Plain;
use polycast_topology::SplitterPorts;
use std::cell::{Cell, RefCell};

/// Cabling by ports of the circuit switch, which count from 0 and are called 1 and so on.
#[derive(Clone)]
struct Glass {
    tors: BTreeMap<u32, Place>,
    /// Inputs and outputs of splitters.
    splitters: Vec<(u32, Vec<u32>)>,
    /// Racks' ports whose lasers are off.
    off: BTreeSet<Place>,
    /// Racks' ports that hear nothing.
    deaf: BTreeSet<Place>,
    /// Racks' ports that are up without light.
    forced: BTreeSet<Place>,
}

impl Glass {
    /// Three racks at the ports called 1 to 3, a splitter at 4 with the outputs 5 and 6, and one at 7 with 8
    /// and 9.
    fn right() -> Self {
        let none = BTreeSet::new();
        let tors = (0..3).map(|rack| (rack, (rack, 48))).collect();
        let splitters = vec![(3, vec![4, 5]), (6, vec![7, 8])];
        Glass { tors, splitters, off: none.clone(), deaf: none.clone(), forced: none }
    }

    /// With the cables at the ports of these names swapped.
    fn swapped(a: u32, b: u32) -> Self {
        let (a, b) = (a - 1, b - 1);
        let mut glass = Glass::right();
        let swap = |port: u32| [port, b, a][usize::from(port == a) + 2 * usize::from(port == b)];
        glass.tors = glass.tors.into_iter().map(|(port, place)| (swap(port), place)).collect();
        for (input, outputs) in &mut glass.splitters {
            *input = swap(*input);
            outputs.iter_mut().for_each(|output| *output = swap(*output));
        }
        glass
    }

    fn light(&self, circuits: &BTreeMap<u32, u32>) -> BTreeMap<Place, bool> {
        let mut light: BTreeMap<Place, bool> =
            self.tors.values().map(|place| (*place, self.forced.contains(place))).collect();
        let shines = self.tors.iter().filter(|(_, place)| !self.off.contains(place));
        let mut entered: Vec<u32> = shines.map(|(port, _)| *port).collect();
        while let Some(port) = entered.pop() {
            let Some(to) = circuits.get(&port) else { continue };
            if let Some(place) = self.tors.get(to).filter(|place| !self.deaf.contains(place)) {
                light.insert(*place, true);
            }
            let outputs = self.splitters.iter().filter(|(input, _)| input == to);
            entered.extend(outputs.flat_map(|(_, outputs)| outputs));
        }
        light
    }
}

/// Behaviour of a switch.
#[derive(Clone, Copy, Default)]
struct Manners {
    /// The circuit that is answered too late, counted from 1, and whether it comes about later.
    late: Option<(u32, bool)>,
    /// It says that it has made circuits and does not.
    lies: bool,
    /// It refuses circuits to this port.
    refuses: Option<u32>,
}

struct Bench {
    glass: Glass,
    manners: Manners,
    circuits: RefCell<BTreeMap<u32, u32>>,
    /// Circuits that come about when the switch is asked the next time.
    coming: RefCell<Vec<Circuit>>,
    made: Cell<u32>,
}

impl Optics for &Bench {
    async fn held(&self) -> Result<Vec<Held>, CircuitError> {
        sleep(Duration::from_millis(1)).await;
        let held =
            self.circuits.borrow().iter().map(|(from, to)| Circuit { from: *from, to: *to }.into()).collect();
        for Circuit { from, to } in self.coming.take() {
            self.circuits.borrow_mut().insert(from, to);
        }
        Ok(held)
    }

    async fn enter(&self, circuit: Circuit) -> Result<(), CircuitError> {
        let command = || "ENT-CRS".to_string();
        assert!(!self.circuits.borrow().contains_key(&circuit.from), "{circuit:?} has no free input");
        assert!(
            !self.circuits.borrow().values().any(|to| *to == circuit.to),
            "{circuit:?} has no free output"
        );
        if self.manners.refuses == Some(circuit.to) {
            return Err(CircuitError::Denied {
                command: command(),
                code: "SROF".into(),
                text: "stuck".into(),
            });
        }
        // Long enough for the user to ask for the end meanwhile.
        self.made.set(self.made.get() + 1);
        if !self.manners.lies && self.manners.late.is_none_or(|(late, _)| late != self.made.get()) {
            self.circuits.borrow_mut().insert(circuit.from, circuit.to);
        }
        sleep(Duration::from_millis(25)).await;
        match self.manners.late {
            Some((late, comes)) if late == self.made.get() => {
                self.coming.borrow_mut().extend(comes.then_some(circuit));
                Err(CircuitError::TimedOut { command: command(), millis: 25 })
            }
            _ => Ok(()),
        }
    }

    async fn delete(&self, circuit: Circuit) -> Result<(), CircuitError> {
        sleep(Duration::from_millis(1)).await;
        let there = self.circuits.borrow().get(&circuit.from) == Some(&circuit.to);
        if !there {
            let (command, code, text) = ("DLT-CRS".into(), "SROF".into(), "there is no such circuit".into());
            return Err(CircuitError::Denied { command, code, text });
        }
        self.circuits.borrow_mut().remove(&circuit.from);
        Ok(())
    }

    async fn light(&self) -> BTreeMap<Place, bool> {
        sleep(Duration::from_millis(1)).await;
        self.glass.light(&self.circuits.borrow())
    }
}

fn bench(glass: Glass, manners: Manners) -> Bench {
    Bench { glass, manners, circuits: RefCell::default(), coming: RefCell::default(), made: Cell::new(0) }
}

/// Probes by the settings of the right cabling.
async fn probed(bench: &Bench, stop: impl Future<Output = ()>) -> (ProbeFindings, Vec<String>) {
    let splitter = |input, outputs| SplitterPorts { input, outputs, loss_db: None, gain_db: None };
    let splitters = vec![splitter(3, vec![4, 5]), splitter(6, vec![7, 8])];
    let table = PortTable::new(vec![vec![0], vec![1], vec![2]], splitters).unwrap();
    let places = Glass::right().tors;
    let cabling = Cabling { table: &table, dialect: &Plain, places, settle: Duration::from_millis(500) };
    Probe::new(bench, cabling).run(stop).await
}

/// The faults that a probe finds; it leaves nothing behind.
async fn faults(glass: Glass, manners: Manners) -> Vec<String> {
    let bench = bench(glass, manners);
    let (_, faults) = probed(&bench, std::future::pending()).await;
    assert_eq!(*bench.circuits.borrow(), BTreeMap::new(), "it leaves circuits behind");
    faults
}

#[tokio::test(start_paused = true)]
async fn right_cables_have_no_fault() {
    let bench = bench(Glass::right(), Manners::default());
    let (findings, faults) = probed(&bench, std::future::pending()).await;
    assert_eq!(faults, Vec::<String>::new());
    let led: Vec<&str> = findings.ports.iter().filter_map(|port| port.found.as_deref()).collect();
    assert_eq!(led, ["rack 0's port 48", "rack 1's port 48", "rack 2's port 48"]);
    let outputs: Vec<(&str, &str, bool)> =
        findings.outputs.iter().map(|out| (out.input.as_str(), out.output.as_str(), out.lit)).collect();
    assert_eq!(outputs, [("4", "5", true), ("4", "6", true), ("7", "8", true), ("7", "9", true)]);
    assert_eq!((findings.left_alone, bench.circuits.take()), (Vec::new(), BTreeMap::new()));
}

#[tokio::test(start_paused = true)]
async fn swapped_cables_are_both_named() {
    let leads = |port: u32, rack: u32, said: &str| {
        format!(
            "port {port} of the circuit switch leads to rack {rack}'s port 48, and {said}: swap the cables, or mend the setting"
        )
    };
    let found = faults(Glass::swapped(2, 3), Manners::default()).await;
    let racks = "ocs.rack-ports says rack";
    assert_eq!(
        found,
        [leads(2, 2, &format!("{racks} 1's port 48")), leads(3, 1, &format!("{racks} 2's port 48"))]
    );
    // A rack's cable is where a splitter's output should be, or its input, and the other way round.
    for (port, what) in [(5, "output 0 of splitter 0"), (7, "the input of splitter 1")] {
        let found = faults(Glass::swapped(3, port), Manners::default()).await;
        assert!(found.contains(&leads(port, 2, &format!("ocs.splitters says {what}"))), "{found:#?}");
        let dark = "no light comes from port 3 of the circuit switch to any rack, and ocs.rack-ports says rack 2's port 48";
        assert!(found.iter().any(|fault| fault.starts_with(dark)), "{found:#?}");
    }
    // Two splitters have an output, or the input, of the other one.
    let found = faults(Glass::swapped(6, 9), Manners::default()).await;
    let light = |output, input| {
        format!(
            "the light at port {output} of the circuit switch is what goes into a splitter at port {input}"
        )
    };
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].starts_with(&light(6, 7)) && found[1].starts_with(&light(9, 4)), "{found:#?}");
    assert_eq!(faults(Glass::swapped(4, 7), Manners::default()).await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn what_is_dark_is_named_by_its_end() {
    let with = |change: fn(&mut Glass)| {
        let mut glass = Glass::right();
        change(&mut glass);
        glass
    };
    let one = async |glass| match &faults(glass, Manners::default()).await[..] {
        [fault] => fault.clone(),
        more => panic!("{more:#?}"),
    };
    let off = one(with(|glass| {
        glass.off.insert((1, 48));
    }))
    .await;
    assert!(off.starts_with("no light enters the circuit switch at port 2, where rack 1's port 48"), "{off}");
    let deaf = one(with(|glass| {
        glass.deaf.insert((1, 48));
    }))
    .await;
    assert!(deaf.starts_with("no light comes from port 2 of the circuit switch to any rack"), "{deaf}");
    let broken = one(with(|glass| glass.splitters[0].1[1] = 99)).await;
    assert!(
        broken.starts_with(
            "light that leaves the circuit switch at port 4 for splitter 0 does not come back at port 6"
        ),
        "{broken}"
    );
    let all = one(with(|glass| glass.off = glass.tors.values().copied().collect())).await;
    assert!(all.starts_with("no circuit between two racks' ports has lit any port"), "{all}");
    // A port that is always up tells nothing, and says so; the others are looked at.
    let bench = bench(
        with(|glass| {
            glass.forced.insert((0, 48));
        }),
        Manners::default(),
    );
    let (findings, faults) = probed(&bench, std::future::pending()).await;
    assert_eq!((faults, findings.ports.len()), (Vec::new(), 2));
    assert!(findings.left_alone[0].starts_with("rack 0's port 48 is left alone: it is up"), "{findings:?}");
}

#[tokio::test(start_paused = true)]
async fn circuits_of_others_are_left_alone() {
    let bench = bench(Glass::right(), Manners::default());
    bench.circuits.borrow_mut().extend([(0, 7), (20, 21)]);
    let (findings, faults) = probed(&bench, std::future::pending()).await;
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(findings.left_alone, ["circuit 1,8 is there, so ports 1 and 8 are left alone"]);
    let ports: Vec<&str> = findings.ports.iter().map(|port| port.port.as_str()).collect();
    assert_eq!((ports, findings.outputs.len()), (vec!["2", "3"], 3));
    assert_eq!(bench.circuits.take(), [(0, 7), (20, 21)].into());
}

#[tokio::test(start_paused = true)]
async fn a_switch_that_misbehaves_ends_the_probe_and_keeps_no_circuit() {
    // Answered too late: it comes about afterwards, or never.
    for comes in [true, false] {
        let late = faults(Glass::right(), Manners { late: Some((3, comes)), ..Manners::default() }).await;
        assert!(late.len() == 1 && late[0].contains("did not answer ENT-CRS within 25 ms"), "{late:?}");
    }
    let lies = faults(Glass::right(), Manners { lies: true, ..Manners::default() }).await;
    assert!(
        lies.len() == 1 && lies[0].ends_with("said that it has made circuit 3,1, and does not list it"),
        "{lies:?}"
    );
    let refused = faults(Glass::right(), Manners { refuses: Some(1), ..Manners::default() }).await;
    assert_eq!(refused, ["the circuit switch refuses circuit 1,2: stuck (SROF)"]);
}

/// Wherever it is interrupted.
#[tokio::test(start_paused = true)]
async fn an_interrupted_probe_takes_down_what_it_has_made() {
    for millis in (0..600).step_by(7) {
        let bench = bench(Glass::right(), Manners::default());
        let (_, faults) = probed(&bench, sleep(Duration::from_millis(millis))).await;
        assert_eq!(bench.circuits.take(), BTreeMap::new(), "after {millis} ms");
        assert!(faults.iter().all(|fault| fault.starts_with("the probe was interrupted")), "{faults:?}");
    }
}
