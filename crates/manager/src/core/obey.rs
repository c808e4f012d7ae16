//! Execution of the machine's orders: one function for each of its outputs.

use super::waits::Waits;
use super::{Inner, readiness, streams};
use crate::convert;
use crate::devices::{self, Step};
use crate::guard::Refused;
use polycast_api::error::Refusal;
pub(super) use polycast_api::manager::manager_message::Message;
use polycast_api::manager::{self as api, path_news};
use polycast_planning::{DeviceCommand, Failure, HostId, PartName, Plan, PlanId};
use polycast_protocol::leases::{
    Denial, Drained, Grant, JoinRefusal, NotMember, Output, PathState, ReleaseReason, RequestKey, Suspect,
};
use polycast_types::Printable;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Instant;

/// Answer that the machine gives at once, to the call that has asked.
#[derive(Debug)]
pub(super) enum Answer {
    /// The number of the session.
    Join(Result<u64, JoinRefusal>),
    /// The leases that are lost.
    Heartbeat(Result<Vec<PlanId>, NotMember>),
    /// Result of taking a part out of use, or back.
    Drained(Result<Drained, String>),
}

/// Arrival times of requests whose paths are being sent to devices (Blast's Table II measures it).
#[derive(Debug, Default)]
pub(super) struct SetUps {
    /// The request that is being handled, and when it came.
    pub(super) asked: Option<(RequestKey, Instant)>,
    /// By plan: a plan's set-up ends, so none stays.
    began: BTreeMap<PlanId, Instant>,
    /// Times that requests have waited.
    pub(super) waits: Waits,
}

impl SetUps {
    /// Devices are told of a request's path; gives since when the request has been there, where it has come
    /// just now.
    fn begins(&mut self, plan: PlanId, request: &RequestKey) -> Option<Instant> {
        let (_, came_at) = self.asked.as_ref().filter(|(asked, _)| asked == request)?;
        self.began.insert(plan, *came_at);
        Some(*came_at)
    }

    /// Returns the steps that devices did for a path, and the time for all of it if the path is ready.
    pub(super) fn ended(&mut self, plan: PlanId, is_ready: bool, mut steps: Vec<Step>) -> Vec<Step> {
        if let Some(came_at) = self.began.remove(&plan).filter(|_| is_ready) {
            let micros = came_at.elapsed().as_micros() as u64;
            steps.push(Step { what: polycast_api::REQUEST_TO_PATH.into(), micros });
        }
        steps
    }
}

/// Names that a line of the audit log has.
const NAMES_MAX: usize = 64;

/// As many of these names as a line of the audit log has.
pub(super) fn some_of<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    names.take(NAMES_MAX).collect()
}

/// A path that was planned anew.
struct Replanned {
    plan_id: PlanId,
    request: RequestKey,
    before: Plan,
    plan: Plan,
    /// Commands that devices kept ready and that stand in the way.
    displaced: Vec<DeviceCommand>,
    /// In a sentence; where only the group has changed there is none.
    why: Option<String>,
}

impl Inner {
    /// Carries out all orders of the machine and of the table of streams.
    pub(super) fn drain(&mut self) {
        loop {
            while let Some(output) = self.machine.poll(self.now()) {
                self.obey(output);
            }
            // What streams ask of the leases is answered by them.
            if let Some(output) = self.streams.poll(self.now()) {
                self.serve_stream(output);
                continue;
            }
            let Some(output) = self.directory.poll(self.now()) else { return };
            self.tell_news(output);
        }
    }

    pub(super) fn obey(&mut self, output: Output) {
        if let Some(input) = streams::heard(&output) {
            let now = self.now();
            self.streams.handle(now, input);
        }
        match output {
            Output::Join { result, .. } => self.answer = Some(Answer::Join(result)),
            Output::Heartbeat { result, .. } => self.answer = Some(Answer::Heartbeat(result)),
            Output::Waiting { request, wait } => {
                self.tell(&request.agent, Message::Waiting(convert::waiting(request.request, wait)));
            }
            Output::Response { request, response: Ok(grant) } => self.respond(&request, grant),
            Output::Response { request, response: Err(denial) } => self.deny(&request, &denial),
            Output::Extended { request, result } => self.extended(&request, result),
            Output::Granted { plan_id, plan, instead_of, waited } => {
                self.set_ups.waits.note(waited.as_secs_f64());
                self.set_up(plan_id, plan, instead_of);
            }
            Output::Again { plan_id, plan } => self.change(Some(plan_id), Vec::new(), plan.commands.to_vec()),
            Output::Forgotten { plan } => self.change(None, plan.commands.to_vec(), Vec::new()),
            Output::Path { plan_id, request, state } => self.path(plan_id, &request, state),
            Output::Replanned { plan_id, request, before, plan, displaced, reason } => {
                self.light_out(plan_id);
                let why = reason.or_else(|| self.networks.failure.as_ref().map(|(words, _)| words.clone()));
                self.replanned(&Replanned { plan_id, request, before, plan, displaced, why });
            }
            Output::Suspected { suspect } => self.suspected(&suspect),
            Output::Acquitted { what } => {
                tracing::info!(part = %part_words(&what), "works again, and is lent as before");
            }
            Output::Drained { part, result } => {
                match &result {
                    Ok(done) => {
                        tracing::info!(%part, moved = done.moved, ended = done.ended, "drained or taken back")
                    }
                    Err(reason) => tracing::info!(%part, reason, "cannot be drained"),
                }
                self.answer = Some(Answer::Drained(result));
            }
            Output::DrainedHost { name, result } => {
                match &result {
                    Ok(_) => tracing::info!(host = %Printable(&name), "drained or taken back"),
                    Err(reason) => tracing::info!(reason, "cannot be drained"),
                }
                self.answer = Some(Answer::Drained(result));
            }
            Output::Released { plan_id, request, plan, reason, kept } => {
                self.light_out(plan_id);
                if !kept && !plan.commands.is_empty() {
                    self.change(None, plan.commands.to_vec(), Vec::new());
                }
                self.readiness.forget(plan_id);
                self.permits.forget(plan_id);
                self.released(plan_id, &request, reason);
            }
            Output::Gone { agent, how } => self.bury(agent, how),
            Output::Ask { question } => {
                if let Some((_, questions)) = &self.external {
                    // Where it is still busy with the last one, this one will be late.
                    let _ = questions.try_send(question);
                }
            }
            Output::External { trouble } => self.say_of_scheduler(trouble),
        }
    }

    /// The external scheduler is followed from now on, or is not any more.
    fn say_of_scheduler(&self, trouble: Option<String>) {
        let address = self.external.as_ref().map_or("", |(address, _)| address);
        match trouble {
            None => tracing::warn!(address, "the external scheduler decides"),
            Some(why) => tracing::warn!(
                address,
                why,
                "the external scheduler is not followed: {} decides, and it is asked again soon",
                self.machine.scheduler()
            ),
        }
    }

    /// A part rests.
    fn suspected(&self, suspect: &Suspect) {
        let rest = suspect.until.since(self.now());
        tracing::warn!(part = %part_words(&suspect.what), times = suspect.times, why = suspect.why,
            rests_s = rest.as_secs_f64(), "is suspected to be dead, and is not lent for a while");
    }

    /// A request has its path.
    fn respond(&mut self, request: &RequestKey, grant: Grant) {
        // Nothing repairs what goes out too early, but the packets of a transfer.
        let is_repaired = request.is_transfer();
        let (plan, waits) = (grant.plan_id, !is_repaired && readiness::has_rules(&grant.plan));
        let set_up = (!grant.plan.commands.is_empty()).then_some(plan);
        self.guard.note("lease", || {
            json!({
                "lease": grant.plan_id.0, "source": request.agent.name, "fabric": grant.plan.fabric.to_string(),
                "bytes": grant.accepted_bytes, "stream": request.is_stream(),
                "receivers": some_of(grant.receiver_names()), "receivers_count": grant.receiver_names().count(),
            })
        });
        let message = match convert::granted(request.request, grant, &self.names()) {
            Ok(granted) => Message::Granted(granted),
            Err(refusal) => Message::Denied(convert::denied(request.request, &refusal)),
        };
        if waits {
            // Devices are told at once, and what they answer makes the path known.
            return self.tell_when_ready(plan, &request.agent, message);
        }
        self.tell(&request.agent, message);
        if let Some(plan) = set_up {
            // What Blast's Table II calls scheduling: from the request to the answer, queue and all.
            let scheduling = self.set_ups.begins(plan, request).map(|came_at| api::Step {
                what: polycast_api::SCHEDULING.into(),
                micros: came_at.elapsed().as_micros() as u64,
            });
            let steps = scheduling.into_iter().collect();
            self.tell_path(plan, request, path_news::State::SettingUp, String::new(), steps);
        }
    }

    /// A request will have no path. Of a stream's the table of streams tells the receivers that were to join.
    fn deny(&mut self, request: &RequestKey, denial: &Denial) {
        if request.is_stream() {
            return;
        }
        self.guard.refuse(
            Refused::Request,
            json!({ "source": request.agent.name, "request": request.request, "reason": denial.to_string() }),
        );
        let denied = convert::denied(request.request, &convert::denial(denial));
        self.tell(&request.agent, Message::Denied(denied));
    }

    fn extended(&mut self, request: &RequestKey, result: Result<Option<Grant>, Denial>) {
        // Nothing repairs what a new source of a group sends too early.
        let is_early = |grant: &&Grant| {
            request.is_group()
                && readiness::has_rules(&grant.plan)
                && self.readiness.is_under_way(grant.plan_id)
        };
        let waits = |grant: &&Grant| self.readiness.has_words(grant.plan_id) || is_early(grant);
        let waits = result.iter().flatten().find(waits).map(|grant| grant.plan_id);
        let answer: Result<_, Refusal> =
            result.map_err(|denial| convert::denial(&denial)).and_then(|grant| {
                grant.map(|grant| convert::granted(request.request, grant, &self.names())).transpose()
            });
        let (granted, denied) = match answer {
            Ok(granted) => (granted, None),
            Err(refusal) => (None, Some(convert::denied(request.request, &refusal))),
        };
        let extended = api::Extended { request_id: request.request, granted, denied };
        match waits {
            // Behind the grant that it changes, or when devices have the change.
            Some(plan) => self.tell_when_ready(plan, &request.agent, Message::Extended(extended)),
            None => self.tell(&request.agent, Message::Extended(extended)),
        }
    }

    /// Devices are told of a new path.
    fn set_up(&mut self, plan_id: PlanId, plan: Plan, instead_of: Vec<DeviceCommand>) {
        if !plan.commands.is_empty() {
            self.change(Some(plan_id), instead_of, plan.commands.to_vec());
        }
        tracing::info!(response = plan_id.0, fabric = %plan.fabric, "granted");
    }

    /// A path's devices hold it, or one of them has failed.
    fn path(&mut self, plan_id: PlanId, request: &RequestKey, state: PathState) {
        tracing::info!(response = plan_id.0, source = %request.agent.name, ?state, "path");
        let (state, reason) = match state {
            PathState::Ready => (path_news::State::Ready, String::new()),
            PathState::Waits { reason } => (path_news::State::Waits, reason),
        };
        self.tell_path(plan_id, request, state, reason, Vec::new());
    }

    /// Devices go over to the new plan, and the source is told what is new to it: nothing but the plan, other
    /// ways over the same trees, or another channel.
    fn replanned(&mut self, what: &Replanned) {
        let Replanned { plan_id, request, before, plan, displaced, why } = what;
        // Another way, or because of a failure: what is said below follows what has been lent. A group that
        // has changed does not.
        if why.is_some() || plan.channel != before.channel {
            self.say_words(*plan_id);
        }
        let old: Vec<_> = before.commands.iter().chain(displaced).cloned().collect();
        let told = devices::messages(&old, &plan.commands);
        if !(old.is_empty() && plan.commands.is_empty()) {
            self.change(Some(*plan_id), old, plan.commands.to_vec());
        }
        tracing::info!(response = plan_id.0, source = %request.agent.name, before = %before.fabric,
            fabric = %plan.fabric, why, "planned anew");
        if plan.channel == before.channel {
            self.tell_replanned(what);
        } else if !self.tell_routes(what) {
            self.tell_channel(what, told);
        }
    }

    /// Tells the source of a plan whose channel has stayed. Without a reason its group has changed, and the
    /// answer to that tells the plan.
    fn tell_replanned(&mut self, what: &Replanned) {
        let Some(reason) = what.why.clone() else { return };
        let news = api::PathNews {
            request_id: what.request.request,
            response_id: what.plan_id.0,
            state: path_news::State::Replanned.into(),
            reason,
            plan: convert::kept_plan(&what.plan),
            steps: Vec::new(),
        };
        self.tell(&what.request.agent, Message::Path(news));
    }

    /// Tells the source which ways have changed, where both plans are over trees; gives whether they are.
    fn tell_routes(&mut self, what: &Replanned) -> bool {
        let Replanned { plan_id, request, before, plan, why, .. } = what;
        let why = why.as_deref();
        // Without a reason, a receiver that is in no tree now was taken out of the group, and not cut off.
        let changes = convert::route_changes(&before.channel, &plan.channel, why.is_some(), &self.names());
        let Some(Ok(changes)) = changes else { return false };
        let reason = why.unwrap_or("the group has changed, or the manager has begun anew").to_string();
        let done = match why {
            Some(_) => format!("{reason}: trees repaired and told, {} ways changed", changes.len()),
            None => format!("{reason}: {} ways told", changes.len()),
        };
        let heard = self.networks.failure.as_ref().map(|(_, heard)| *heard);
        let micros = heard.map_or(0, |heard| heard.elapsed().as_micros() as u64);
        let rerouted = api::Rerouted {
            request_id: request.request,
            response_id: plan_id.0,
            changes,
            reason,
            steps: vec![api::Step { what: done, micros }],
        };
        self.tell(&request.agent, Message::Rerouted(rerouted));
        true
    }

    /// Tells the source of another channel; `told` is how many words to devices that took.
    fn tell_channel(&mut self, what: &Replanned, told: usize) {
        let Replanned { plan_id, request, before, plan, why, .. } = what;
        let why = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        let replanned = api::Replanned {
            request_id: request.request,
            response_id: plan_id.0,
            fabric: plan.fabric.to_string(),
            channel: convert::to_channel(plan, &self.names()).ok(),
            plan: convert::kept_plan(plan),
            reason: if plan.fabric == before.fabric {
                format!("{} goes another way{why}: {told} changes at devices, 1 at the source", plan.fabric)
            } else {
                format!("after a failure {} took over{why}", plan.fabric)
            },
        };
        self.tell(&request.agent, Message::Replanned(replanned));
        if !plan.commands.is_empty() {
            let state = path_news::State::SettingUp;
            self.tell_path(*plan_id, request, state, String::new(), Vec::new());
        }
    }

    fn names(&self) -> impl Fn(HostId) -> Option<String> {
        |host| self.machine.name_of(host).map(str::to_string)
    }

    fn released(&mut self, plan_id: PlanId, request: &RequestKey, reason: ReleaseReason) {
        tracing::info!(response = plan_id.0, source = %request.agent.name, ?reason, "released");
        self.guard.note(
            "lease-end",
            || json!({ "lease": plan_id.0, "source": request.agent.name, "reason": format!("{reason:?}") }),
        );
        let unheard = request.is_stream().then_some("no receiver listens to the stream any more");
        if let Some(reason) = convert::end_reason(reason).or(unheard) {
            let (request_id, response_id) = (request.request, plan_id.0);
            let ended = api::Ended { request_id, response_id, reason: reason.to_string() };
            self.tell(&request.agent, Message::Ended(ended));
        }
    }
}

/// A part by its name, or what else there is to say of it.
pub(crate) fn part_words(what: &Failure) -> String {
    match (PartName::of(what), what) {
        (Some(name), _) => name.to_string(),
        (None, Failure::Resource(resource)) => resource.to_string(),
        (None, other) => format!("{other:?}"),
    }
}
