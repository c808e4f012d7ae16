//! Reports of devices about themselves and the networks behind them, and what follows from them.

use super::Inner;
use super::obey::Message;
use crate::devices::{DeviceId, Devices, Look, News, SetUpError, Step};
use crate::fabrics::{Health, Verdict, lit_racks};
use polycast_api::manager as api;
use polycast_planning::{DeviceCommand, PlanId};
use polycast_protocol::leases::{Input, RequestKey};
use std::collections::BTreeMap;
use std::time::Instant;

/// The devices, and what is known of the networks that they make up.
#[derive(Debug)]
pub(super) struct Networks {
    pub(super) devices: Devices,
    /// Draw conclusions from what devices say, one for each fabric that has such a network.
    pub(super) health: Vec<Box<dyn Health>>,
    /// Commands that devices keep all the time.
    pub(super) standing: Vec<DeviceCommand>,
    /// Last failure or recovery, in a sentence, and the time when it was reported.
    pub(super) failure: Option<(String, Instant)>,
    /// The devices that have been spoken with, and why they cannot be reached, if they cannot.
    pub(super) reached: BTreeMap<DeviceId, Option<String>>,
}

impl Networks {
    /// Returns the time of the next check if nothing is reported.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.health.iter().filter_map(|health| health.next_look()).min()
    }

    /// Notes which devices have done what a path needs.
    fn note_devices(&mut self, commands: &[DeviceCommand], result: &Result<(), SetUpError>) {
        match result {
            Ok(()) => {
                self.reached.extend(commands.iter().map(|command| (DeviceId::of(command), None)));
            }
            Err(SetUpError(failures)) => {
                self.reached.extend(failures.iter().map(|(id, error)| (*id, Some(error.to_string()))));
            }
        }
    }

    /// All devices: name, how they stand, and why they cannot be reached.
    pub(super) fn devices_now(&self) -> Vec<(String, &'static str, String)> {
        let of = |id: DeviceId| match self.reached.get(&id) {
            None => (id.to_string(), "unknown", String::new()),
            Some(None) => (id.to_string(), "reached", String::new()),
            Some(Some(error)) => (id.to_string(), "not reached", error.clone()),
        };
        self.devices.ids().map(of).collect()
    }

    /// Asks the switches of racks whose ports have to be known before anything is concluded.
    fn ask(&mut self, now: Instant) {
        for (network, health) in self.health.iter_mut().enumerate() {
            if let Some((number, racks)) = health.question(now) {
                self.devices.look(racks, Look { network, number });
            }
        }
    }

    fn verdicts(&mut self, ask: impl FnMut(&mut Box<dyn Health>) -> Verdict) -> Vec<Verdict> {
        self.health.iter_mut().map(ask).collect()
    }
}

impl Inner {
    /// Concludes what only time tells.
    pub(super) fn look_at_health(&mut self) {
        let now = Instant::now();
        if self.networks.next_look().is_some_and(|at| at <= now) {
            let verdicts = self.networks.verdicts(|health| health.look(now));
            self.judge(verdicts, now);
            self.networks.ask(now);
        }
    }

    /// Takes in what devices say.
    pub(super) fn hear(&mut self, news: News) {
        tracing::debug!(?news, "a device says");
        let now = Instant::now();
        match news {
            News::SetUp { plan, result, steps } => {
                let steps = self.set_ups.ended(plan, result.is_ok(), steps);
                self.tell_steps(plan, steps);
                let lease = self.machine.leases().find(|lease| lease.grant.plan_id == plan);
                let commands = lease.map(|lease| lease.grant.plan.commands.clone()).unwrap_or_default();
                self.networks.note_devices(&commands, &result);
                if result.is_ok() {
                    self.light_up(plan, now);
                }
                let result = result.map_err(|error| error.to_string());
                self.answered(plan);
                self.apply(Input::SetUp { plan, result });
            }
            News::Advised { number, advice } => self.apply(Input::Advised { number, advice }),
            News::Found { commands } => {
                self.networks.reached.insert(DeviceId::CircuitSwitch, None);
                self.apply(Input::Found { commands });
            }
            News::Fibre { rack, fibre, up } => {
                let verdicts = self.networks.verdicts(|health| health.fibre(now, rack, fibre, up));
                self.judge(verdicts, now);
            }
            News::Link { ends, up } => {
                let verdicts = self.networks.verdicts(|health| health.link(ends, up));
                self.judge(verdicts, now);
            }
            News::Switch { rack, up } => {
                let why = (!up).then(|| "it does not answer".to_string());
                self.networks.reached.insert(DeviceId::Tor(rack), why);
                if !up {
                    tracing::warn!(rack, "the switch of a rack cannot be reached");
                }
                let verdicts = self.networks.verdicts(|health| health.switch(now, rack, up));
                self.judge(verdicts, now);
            }
            News::Looked(Look { network, number }) => {
                let health = self.networks.health.get_mut(network).expect("a network has asked");
                let verdict = health.answered(now, number);
                self.judge(vec![verdict], now);
            }
            News::Links { words, heard } => {
                let verdicts = self.networks.verdicts(|health| health.links(&words));
                self.judge(verdicts, heard);
            }
        }
    }

    /// Tells a path's source what devices did for it, and how long that took.
    fn tell_steps(&mut self, plan: PlanId, steps: Vec<Step>) {
        let Some(request) = self.machine.leases().find(|lease| lease.grant.plan_id == plan) else { return };
        let request = request.key.clone();
        let steps =
            steps.into_iter().map(|step| api::Step { what: step.what, micros: step.micros }).collect();
        self.tell_path(plan, &request, api::path_news::State::Steps, String::new(), steps);
    }

    /// Tells a path's source how it stands.
    pub(super) fn tell_path(
        &mut self,
        plan: PlanId,
        request: &RequestKey,
        state: api::path_news::State,
        reason: String,
        steps: Vec<api::Step>,
    ) {
        let (request_id, response_id, state) = (request.request, plan.0, state.into());
        let news = api::PathNews { request_id, response_id, state, reason, steps, plan: Vec::new() };
        self.tell(&request.agent, Message::Path(news));
    }

    /// The devices of a path hold it: light should come to its receivers' racks.
    fn light_up(&mut self, plan: PlanId, now: Instant) {
        let Some(lease) = self.machine.leases().find(|lease| lease.grant.plan_id == plan) else { return };
        let racks = lit_racks(&lease.grant.plan);
        if !racks.is_empty() {
            self.networks.health.iter_mut().for_each(|health| health.lit(now, plan, racks.clone()));
        }
    }

    /// Devices hold a path no more, or another one in its place.
    pub(super) fn light_out(&mut self, plan: PlanId) {
        self.networks.health.iter_mut().for_each(|health| health.unlit(plan));
    }

    /// Devices keep what is always needed as the network is now.
    pub(super) fn keep_standing(&mut self) {
        let standing = self.machine.standing_commands();
        if standing != self.networks.standing {
            let before = std::mem::replace(&mut self.networks.standing, standing.clone());
            self.change(None, before, standing);
        }
    }

    /// Acts on what has failed and what works again.
    fn judge(&mut self, verdicts: Vec<Verdict>, heard: Instant) {
        for verdict in verdicts {
            if verdict.is_empty() {
                continue;
            }
            let Verdict { failed, repaired, words, unlit } = verdict;
            tracing::warn!("{words}");
            self.networks.failure = Some((words, heard));
            if !repaired.is_empty() {
                self.apply(Input::Repaired { failures: repaired });
            }
            if !failed.is_empty() {
                self.apply(Input::Failed { failures: failed });
            }
            for (plan, receivers) in unlit {
                self.apply(Input::Unlit { plan, receivers });
            }
            self.networks.failure = None;
            self.keep_standing();
        }
    }
}
