//! An external scheduler (Republic section III-B has schedulers as plug-ins; this one needs no
//! rebuild).
//!
//! It is asked whenever the built-in scheduler would decide, one question at a time: what waits, what is
//! lent, what is free. What it answers in time is carried out if it can be. If it answers nothing in time, or
//! something that cannot be, the built-in scheduler decides, and the other one rests for a while, so that one
//! that is dead costs little. After the rest it is asked again, even where nothing waits: so it is known how
//! it stands.

use super::Leases;
use super::advice::{Advice, AskedLease, AskedRequest, NoAdvice, Question};
use super::words::Output;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::{
    Decision, Draft, Group, Needs, Pending, Refusal, RequestId, Scheduler, decide_as_ruled,
};
use polycast_types::{Duration, Time};

/// Parts of a rest that a scheduler may take to answer: one that never answers delays decisions for a
/// tenth of the time.
const REST: u64 = 9;
/// Bytes of one question, as they are counted here. Libraries of gRPC take messages of 4 MiB unless they are
/// told otherwise.
const QUESTION_BYTES_MAX: usize = 2 << 20;
/// Bytes that a request or lease has in a question beside its names.
const ENTRY_BYTES: usize = 256;
/// Bytes that a name has beside its letters.
const NAME_BYTES: usize = 4;

/// Settings of an external scheduler.
#[derive(Clone, Copy, Debug)]
pub struct ExternalConfig {
    /// Time that it may take to answer; requests wait for it.
    pub deadline: Duration,
}

/// Counts of the questions to the external scheduler, by what became of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Asked {
    /// Answers that were carried out.
    pub followed: u64,
    /// Answers that were late or never came.
    pub late: u64,
    /// Answers that could not be carried out.
    pub wrong: u64,
    /// Questions that could not be asked.
    pub unreached: u64,
}

/// Way in which a question came to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Late,
    Wrong,
    Unreached,
}

/// A question on its way.
#[derive(Debug)]
struct Open {
    number: u64,
    until: Time,
    requests: BTreeSet<RequestId>,
    /// Turn of the network when it was asked: another one tells that something has been lent since.
    turn: u64,
    /// Set once something has changed.
    is_stale: bool,
}

/// State of the external scheduler.
#[derive(Debug)]
struct External {
    config: ExternalConfig,
    /// Number of the last question.
    number: u64,
    open: Option<Open>,
    /// Time until which the built-in scheduler decides alone.
    rests_until: Option<Time>,
    /// Set if it is asked even where nothing waits.
    probes: bool,
    /// Reason why the built-in scheduler decides; none while the other one's answers are followed.
    trouble: Option<String>,
    asked: Asked,
}

/// Scheduler whose turn it is.
enum Turn {
    BuiltIn,
    /// The external one, which has to be asked.
    Ask,
    /// The external one, which has been asked.
    Await,
}

/// The schedulers: the built-in one, and perhaps an external one that decides before it.
#[derive(Debug)]
pub(super) struct Schedulers {
    pub(super) built_in: Box<dyn Scheduler>,
    external: Option<External>,
}

impl Schedulers {
    pub(super) fn new(built_in: Box<dyn Scheduler>) -> Self {
        Schedulers { built_in, external: None }
    }

    fn turn(&mut self) -> Turn {
        match &mut self.external {
            None | Some(External { rests_until: Some(_), .. }) => Turn::BuiltIn,
            Some(External { open: Some(open), .. }) => {
                open.is_stale = true;
                Turn::Await
            }
            Some(External { open: None, .. }) => Turn::Ask,
        }
    }

    /// Returns the time when an answer is late, or a rest is over.
    pub(super) fn deadline(&self) -> Option<Time> {
        let external = self.external.as_ref()?;
        external.rests_until.or(external.open.as_ref().map(|open| open.until))
    }

    pub(super) fn check(&self, next_request: u64) {
        let Some(external) = &self.external else { return };
        let Some(open) = &external.open else { return };
        assert!(external.rests_until.is_none(), "a scheduler that rests is not asked");
        assert_eq!(open.number, external.number, "the last question is the open one");
        assert!(open.requests.iter().all(|id| id.0 < next_request), "it is asked about what never was");
    }
}

/// Room that a question has left.
struct Room(usize);

impl Room {
    /// Takes the room of an entry with these names, if there is as much.
    fn take<'a>(&mut self, names: impl Iterator<Item = &'a String>, others: usize) -> bool {
        let bytes = ENTRY_BYTES + others + names.map(|name| name.len() + NAME_BYTES).sum::<usize>();
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

fn letters(kinds: &[(String, u64)]) -> usize {
    kinds.iter().map(|(kind, _)| kind.len() + 2 * NAME_BYTES).sum()
}

impl Leases {
    /// The same with an external scheduler, which decides before the built-in one. It is asked at once.
    #[must_use]
    pub fn asking(mut self, now: Time, config: ExternalConfig) -> Self {
        self.schedulers.external = Some(External {
            config,
            number: 0,
            open: None,
            rests_until: Some(now),
            probes: false,
            trouble: Some("it has not answered yet".into()),
            asked: Asked::default(),
        });
        self
    }

    /// Counts of the questions to the external scheduler by their outcomes, if there is one, and the reason
    /// why the built-in one decides, if it does.
    #[must_use]
    pub fn external(&self) -> Option<(Asked, Option<&str>)> {
        let external = self.schedulers.external.as_ref()?;
        Some((external.asked, external.trouble.as_deref()))
    }

    /// Decides about all requests that wait, or has it decided.
    pub(super) fn decide(&mut self, now: Time) {
        match self.schedulers.turn() {
            Turn::BuiltIn => self.decide_built_in(now),
            Turn::Ask => self.ask(now),
            Turn::Await => {}
        }
    }

    /// Ends the wait for an answer, and rests.
    pub(super) fn look_at_external(&mut self, now: Time) {
        let Some(external) = &mut self.schedulers.external else { return };
        if external.rests_until.take_if(|until| *until <= now).is_some() {
            (external.probes, self.undecided) = (true, true);
        }
        if external.open.as_ref().is_some_and(|open| open.until <= now) {
            let within = external.config.deadline.as_millis();
            self.disregard(now, Fault::Late, format!("it has not answered within {within} ms"));
        }
    }

    fn ask(&mut self, now: Time) {
        let mut idle = self.network.idle();
        let (mut asked, mut never) = (Vec::new(), Vec::new());
        let mut room = Room(QUESTION_BYTES_MAX / 2);
        let with_place = self.with_place();
        let mut left_out = 0;
        for (pending, _) in with_place.iter().filter_map(|id| self.pending.get(id)) {
            let needs = match self.fabrics.needs(&mut idle, pending) {
                Ok(needs) => needs,
                Err(refusal) => {
                    never.push((pending.id, refusal));
                    continue;
                }
            };
            let request = self.asked_request(now, pending, needs);
            let kinds = request.needs.as_ref().map_or(0, |needs| letters(&needs.takes));
            if left_out == 0 && room.take(request.receivers.iter().chain([&request.source]), kinds) {
                asked.push(request);
            } else {
                left_out += 1;
            }
        }
        self.deny_all(never);
        let Some(external) = &mut self.schedulers.external else { return };
        if asked.is_empty() && !core::mem::take(&mut external.probes) {
            return;
        }
        (external.number, external.probes) = (external.number + 1, false);
        let (number, deadline) = (external.number, external.config.deadline);
        external.open = Some(Open {
            number,
            until: now + deadline,
            requests: asked.iter().map(|request| request.id).collect(),
            turn: self.network.turn(),
            is_stale: false,
        });
        let (leases, leases_left_out) = self.asked_leases(now);
        let question = Question {
            number,
            deadline,
            requests: asked,
            requests_left_out: left_out,
            leases,
            leases_left_out,
            free: self.fabrics.free(&self.network),
            fabrics: self.fabrics.names().collect(),
        };
        self.outputs.push_back(Output::Ask { question });
    }

    /// Denies what no fabric can ever carry: no scheduler can change that.
    fn deny_all(&mut self, never: Vec<(RequestId, Refusal)>) {
        for (id, refusal) in never {
            let denial = self.refused(refusal);
            self.deny(id, denial);
        }
    }

    fn names_in(&self, group: &Group) -> (String, Vec<String>) {
        let name = |host| self.members.name_of(host).map(String::from);
        let mut receivers: Vec<String> = group.receivers.iter().filter_map(|host| name(*host)).collect();
        receivers.sort_unstable();
        (name(group.source).unwrap_or_default(), receivers)
    }

    fn asked_request(&self, now: Time, pending: &Pending, needs: Option<Needs>) -> AskedRequest {
        let (source, receivers) = self.names_in(&pending.group);
        AskedRequest {
            id: pending.id,
            source,
            receivers,
            object_bytes: pending.object_bytes,
            remaining_bytes: pending.remaining_bytes,
            divisible: pending.divisible,
            waited: now.since(pending.since),
            wish: pending.wish,
            needs,
        }
    }

    /// Paths that are lent, as far as there is room, and the number of the others. Streams take nothing that
    /// is decided about.
    fn asked_leases(&self, now: Time) -> (Vec<AskedLease>, usize) {
        let mut room = Room(QUESTION_BYTES_MAX / 2);
        let (mut leases, mut left_out) = (Vec::new(), 0);
        for lease in self.leases.values().filter(|lease| !lease.key.is_stream()) {
            let grant = &lease.grant;
            let holds = self.fabrics.kinds_of(&grant.plan);
            if left_out > 0
                || !room.take(grant.receiver_names().chain([&lease.key.agent.name]), letters(&holds))
            {
                left_out += 1;
                continue;
            }
            let mut receivers: Vec<String> = grant.receiver_names().cloned().collect();
            receivers.sort_unstable();
            leases.push(AskedLease {
                plan: grant.plan_id,
                source: lease.key.agent.name.clone(),
                receivers,
                bytes: grant.accepted_bytes,
                fabric: grant.plan.fabric,
                holds,
                held: now.since(lease.granted_at),
                left: lease.over_at().map(|at| at.since(now)),
            });
        }
        (leases, left_out)
    }

    /// Takes in the answer to a question, or why there is none. One to another question than the open one is
    /// late, and counts as that already.
    pub(super) fn advised(&mut self, now: Time, number: u64, advice: Result<Advice, NoAdvice>) {
        let Some(external) = &mut self.schedulers.external else { return };
        let Some(open) = external.open.take_if(|open| open.number == number) else { return };
        let advice = match advice {
            Ok(advice) => advice,
            Err(NoAdvice::Unreached(why)) => return self.disregard(now, Fault::Unreached, why),
            Err(NoAdvice::Wrong(why)) => return self.disregard(now, Fault::Wrong, why),
        };
        let is_stale = open.is_stale || open.turn != self.network.turn();
        let pending: Vec<&Pending> =
            open.requests.iter().filter_map(|id| self.pending.get(id)).map(|(pending, _)| pending).collect();
        let draft = Draft::new(&mut self.network).at(now);
        let decided =
            decide_as_ruled(&advice.rulings, &open.requests, &pending, draft, (&self.fabrics, is_stale));
        let decisions = match decided {
            Ok(decisions) => decisions,
            Err(why) => return self.disregard(now, Fault::Wrong, why),
        };
        let waiting = pending.len();
        let moves = |decision: &Decision| !matches!(decision, Decision::Wait { .. });
        if advice.ask_again.is_none() && !decisions.iter().any(moves) && self.is_stuck(now) {
            let why = format!(
                "it leaves {waiting} requests waiting while nothing is lent, and does not say when to ask again"
            );
            return self.disregard(now, Fault::Wrong, why);
        }
        self.undecided |= is_stale;
        self.carry_out(now, decisions);
        self.look_again = self.look_again.into_iter().chain(advice.ask_again.map(|again| now + again)).min();
        let Some(external) = &mut self.schedulers.external else { return };
        external.asked.followed += 1;
        if external.trouble.take().is_some() {
            self.outputs.push_back(Output::External { trouble: None });
        }
    }

    /// Returns true if nothing would ever happen to the requests that wait, although they could be served:
    /// nothing is lent that could come back, and the built-in scheduler would lend something.
    fn is_stuck(&mut self, now: Time) -> bool {
        if self.leases.values().any(|lease| !lease.key.is_stream()) {
            return false;
        }
        let with_place = self.with_place();
        let pending: Vec<&Pending> =
            with_place.iter().filter_map(|id| self.pending.get(id)).map(|(pending, _)| pending).collect();
        let draft = Draft::new(&mut self.network).at(now);
        let decisions = self.schedulers.built_in.decide(now, &pending, draft, &self.fabrics);
        decisions.iter().any(|decision| !matches!(decision, Decision::Wait { .. }))
    }

    /// A question has come to nothing: the built-in scheduler decides for a while.
    fn disregard(&mut self, now: Time, fault: Fault, why: String) {
        let Some(external) = &mut self.schedulers.external else { return };
        match fault {
            Fault::Late => external.asked.late += 1,
            Fault::Wrong => external.asked.wrong += 1,
            Fault::Unreached => external.asked.unreached += 1,
        }
        external.open = None;
        let rest = Duration(external.config.deadline.0.saturating_mul(REST));
        external.rests_until = Some(now + rest);
        self.undecided = true;
        if external.trouble.as_ref() != Some(&why) {
            external.trouble = Some(why.clone());
            self.outputs.push_back(Output::External { trouble: Some(why) });
        }
    }
}
