//! Choice of the agent that sends an object to each agent that requests it.

use super::editions::{Change, Copies, Edition};
use super::{Directory, DirectoryOutput, Look, Missed, Wish, WishRefusal};
use crate::leases::AgentKey;
use crate::share::has_room;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use polycast_types::{Duration, ObjectId, Time};

/// State of an object.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub copies: Copies,
    pub wants: BTreeMap<AgentKey, Want>,
    /// Time when the directory decides which agents are served.
    pub look_at: Option<Time>,
    /// The agent that gets it from its origin.
    pub filling: Option<AgentKey>,
    /// Reason why the last agent could not get it from its origin.
    pub fill_failure: Option<String>,
}

/// An agent's wish for an object.
#[derive(Debug)]
pub(super) struct Want {
    /// Wishes are served, and told to fill, in the order in which they came.
    pub number: u64,
    /// Set if the agent has requested it, and not only through a topic.
    pub asked: bool,
    /// Topics for which it is to have it.
    pub topics: BTreeSet<String>,
    pub wish: Wish,
    pub state: WantState,
    pub tries: u32,
    /// Agents that have tried to send it and could not.
    pub tried: BTreeSet<AgentKey>,
    /// Agents whose transfer waited for its path when another one had nothing to send: they have not failed,
    /// and may send it yet.
    pub passed: BTreeSet<AgentKey>,
    /// The one that says it has sent it, last.
    pub sent_by: Option<AgentKey>,
    pub fill_failed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WantState {
    Waiting,
    /// By this serve.
    Served(u64),
    /// It was sent: the agent itself has to say by then that it has it.
    Arriving(Time),
}

/// A transfer that the directory has asked for.
#[derive(Debug)]
pub(super) struct Serve {
    pub holder: AgentKey,
    pub object: ObjectId,
    pub receivers: BTreeSet<AgentKey>,
    pub since: Time,
}

impl Directory {
    pub(super) fn have(
        &mut self,
        now: Time,
        agent: AgentKey,
        object: ObjectId,
        edition: Edition,
        age: Duration,
    ) {
        let entry = self.entries.entry(object).or_default();
        let is_new = !entry.copies.has_any(&agent);
        let own = self.members.get(&agent).map_or(0, |member| member.holds.len());
        if is_new && !has_room(self.holds, own, self.config.holds_max) {
            // Others do not get it from there.
            let why = WishRefusal::Failed("the manager has no room for more objects".to_string());
            self.deny(now, &agent, object, &why);
            return self.tidy(object);
        }
        self.holds += usize::from(is_new);
        let member = self.members.entry(agent.clone()).or_default();
        member.holds.insert(object);
        member.stale_holds.remove(&object);
        let change = entry.copies.put(now, agent.clone(), edition, age, self.config.arrive);
        let is_outdated = !entry.copies.has(&agent);
        self.copies_changed(now, object, change);
        if is_outdated {
            let why = WishRefusal::Failed("it has another object of the same id".to_string());
            self.deny(now, &agent, object, &why);
        }
    }

    pub(super) fn lost(&mut self, now: Time, agent: &AgentKey, object: ObjectId) {
        let Some(entry) = self.entries.get_mut(&object) else { return };
        if let Some(change) = entry.copies.remove(now, agent) {
            self.holds -= 1;
            if let Some(member) = self.members.get_mut(agent) {
                member.holds.remove(&object);
                member.stale_holds.remove(&object);
            }
            self.forget_member(agent);
            self.copies_changed(now, object, Change { outdated: true, ..change });
        }
        self.tidy(object);
    }

    /// Agents have an object that had not, or have it no more.
    fn copies_changed(&mut self, now: Time, object: ObjectId, change: Change) {
        for agent in change.gained {
            self.drop_want(now, &agent, object);
            self.look_soon(now, object, now);
            self.version_arrived(now, &agent, object);
        }
        if change.outdated {
            self.version_lost(now, object);
        }
    }

    pub(super) fn want(&mut self, now: Time, agent: AgentKey, object: ObjectId, wish: Wish) {
        // Its newest word counts.
        self.lost(now, &agent, object);
        if !self.enter_want(&agent, object) {
            let why = WishRefusal::Full(self.config.wishes_max);
            return self.outputs.push_back(DirectoryOutput::Denied { agent, object, why });
        }
        // In a new session it says again what it asks for.
        let says_again =
            self.members.get_mut(&agent).is_some_and(|member| member.stale_wants.remove(&object));
        let Some(entry) = self.entries.get_mut(&object) else { return };
        if let Some(want) = entry.wants.get_mut(&agent) {
            // Another process there may get it than the one that could not.
            want.fill_failed &= want.wish.can_fill || !wish.can_fill;
            (want.asked, want.wish) = (true, wish);
            if says_again && matches!(want.state, WantState::Arriving(_)) {
                // It has come and gone again, as in a store that is full, or has not come: in any case it is
                // not there, and the one that sent it is asked once more. To blame it would have the origin
                // read beside it.
                (want.state, want.sent_by) = (WantState::Waiting, None);
            }
        }
        if wish.fills && entry.filling.is_none() {
            entry.filling = Some(agent);
        } else if !wish.fills && entry.filling.as_ref() == Some(&agent) {
            // Where an agent has it by now the origin need not be read. In a new session it has not heard the
            // word, and it is decided anew who does. Within one session the words have crossed: told twice,
            // it would read the origin once more when it has failed, beside the next one.
            if !entry.copies.is_empty() || says_again {
                entry.filling = None;
            }
        }
        let window = now + self.config.window;
        self.look_soon(now, object, window);
    }

    /// Makes a wish, or finds the one that is there; gives whether there is one then.
    pub(super) fn enter_want(&mut self, agent: &AgentKey, object: ObjectId) -> bool {
        if self.want_mut(agent, object).is_some() {
            return true;
        }
        if !self.has_room_for_wish(agent) {
            return false;
        }
        let entry = self.entries.entry(object).or_default();
        self.last_wish += 1;
        let want = Want {
            number: self.last_wish,
            asked: false,
            topics: BTreeSet::new(),
            wish: Wish::default(),
            state: WantState::Waiting,
            tries: 0,
            tried: BTreeSet::new(),
            passed: BTreeSet::new(),
            sent_by: None,
            fill_failed: false,
        };
        entry.wants.insert(agent.clone(), want);
        self.wishes += 1;
        self.members.entry(agent.clone()).or_default().wants.insert(object);
        true
    }

    /// Returns true if an agent may request one more object, or one more topic.
    pub(super) fn has_room_for_wish(&self, agent: &AgentKey) -> bool {
        let own = self.members.get(agent).map_or(0, |member| member.wants.len() + member.topics.len());
        has_room(self.wishes, own, self.config.wishes_max)
    }

    pub(super) fn unwant(&mut self, now: Time, agent: &AgentKey, object: ObjectId) {
        let Some(want) = self.want_mut(agent, object) else { return };
        if want.topics.is_empty() {
            return self.drop_want(now, agent, object);
        }
        (want.asked, want.wish) = (false, Wish::default());
        if let Some(member) = self.members.get_mut(agent) {
            member.stale_wants.remove(&object);
        }
        self.end_filling(now, agent, object);
    }

    fn want_mut(&mut self, agent: &AgentKey, object: ObjectId) -> Option<&mut Want> {
        self.entries.get_mut(&object)?.wants.get_mut(agent)
    }

    /// Takes out a wish, whatever has become of it.
    pub(super) fn drop_want(&mut self, now: Time, agent: &AgentKey, object: ObjectId) {
        let Some(entry) = self.entries.get_mut(&object) else { return };
        let Some(want) = entry.wants.remove(agent) else { return };
        self.wishes -= 1;
        if let Some(member) = self.members.get_mut(agent) {
            member.wants.remove(&object);
            member.stale_wants.remove(&object);
        }
        if let WantState::Served(serve) = want.state {
            self.leave_serve(serve, agent);
        }
        self.end_filling(now, agent, object);
        self.forget_member(agent);
        self.tidy(object);
    }

    /// Takes back the word to an agent to get an object, if it has it: another one gets it.
    fn end_filling(&mut self, now: Time, agent: &AgentKey, object: ObjectId) {
        let Some(entry) = self.entries.get_mut(&object) else { return };
        if entry.filling.as_ref() == Some(agent) {
            entry.filling = None;
            self.look_soon(now, object, now);
        }
    }

    pub(super) fn fill_failed(&mut self, now: Time, agent: &AgentKey, object: ObjectId, reason: String) {
        let Some(entry) = self.entries.get_mut(&object) else { return };
        // It need not be the one that was told to last.
        if let Some(want) = entry.wants.get_mut(agent).filter(|want| want.wish.fills) {
            (want.fill_failed, want.wish.fills) = (true, false);
        }
        if entry.filling.as_ref() != Some(agent) {
            return;
        }
        if let Some(want) = entry.wants.get_mut(agent) {
            want.fill_failed = true;
        }
        entry.fill_failure = Some(reason);
        self.end_filling(now, agent, object);
    }

    /// One that was told to send an object has not begun: another one that has it does, or the receiver gets
    /// it from its origin. Where there is neither, it is waited for: it may have much to send.
    pub(super) fn unserved(&mut self, now: Time, agent: &AgentKey, object: ObjectId, waits: bool) {
        let Some(WantState::Served(serve)) = self.want_mut(agent, object).map(|want| want.state) else {
            return;
        };
        let Some(running) = self.serves.get(&serve) else { return };
        if now < running.since + self.config.begin {
            return;
        }
        let holder = running.holder.clone();
        if waits && !self.has_idle_holder(agent, object, &holder) {
            return;
        }
        if self.pass_over(now, agent, object, holder, waits) {
            self.leave_serve(serve, agent);
            // Those that wait with it say so at about the same time: they stay one transfer.
            let at = if waits { now + self.config.window } else { now };
            self.look_soon(now, object, at);
        }
    }

    /// Returns true if another agent has the object that was not asked yet to send it to this agent, and
    /// sends nothing at present.
    fn has_idle_holder(&self, agent: &AgentKey, object: ObjectId, holder: &AgentKey) -> bool {
        let Some(entry) = self.entries.get(&object) else { return false };
        let Some(want) = entry.wants.get(agent) else { return false };
        let sends = |other: &AgentKey| self.serves.values().any(|serve| serve.holder == *other);
        let asked = |other: &AgentKey| want.tried.contains(other) || want.passed.contains(other);
        entry.copies.holders().any(|other| other != holder && !asked(other) && !sends(other))
    }

    /// An agent has not sent an object to this one, whatever it says, or waits for its path. Gives whether
    /// another one may, or the one that asks gets it from its origin.
    fn pass_over(
        &mut self,
        now: Time,
        agent: &AgentKey,
        object: ObjectId,
        holder: AgentKey,
        waits: bool,
    ) -> bool {
        let is_in_doubt = now < self.in_doubt_until();
        let Some(entry) = self.entries.get_mut(&object) else { return false };
        let Some(want) = entry.wants.get_mut(agent) else { return false };
        let has_other = entry.copies.holders().any(|other| *other != holder && !want.tried.contains(other));
        let asked = if waits { &mut want.passed } else { &mut want.tried };
        asked.insert(holder);
        let can_fill = want.wish.can_fill && !want.fill_failed && !is_in_doubt;
        let fills = !has_other && can_fill && entry.filling.is_none();
        if has_other || fills {
            want.state = WantState::Waiting;
        }
        if fills {
            entry.filling = Some(agent.clone());
            self.outputs.push_back(DirectoryOutput::Fill { agent: agent.clone(), object });
        }
        has_other || fills
    }

    fn leave_serve(&mut self, serve: u64, agent: &AgentKey) {
        let Some(running) = self.serves.get_mut(&serve) else { return };
        running.receivers.remove(agent);
        if running.receivers.is_empty() {
            self.serves.remove(&serve);
        }
    }

    /// A serve has ended because its holder is gone: its receivers get the object from another one.
    pub(super) fn break_off(&mut self, now: Time, serve: u64) {
        let Some(Serve { object, receivers, .. }) = self.serves.remove(&serve) else { return };
        for agent in receivers {
            if let Some(want) = self.want_mut(&agent, object) {
                want.state = WantState::Waiting;
            }
        }
        self.look_soon(now, object, now);
    }

    pub(super) fn served(
        &mut self,
        now: Time,
        holder: &AgentKey,
        serve: u64,
        outcomes: Vec<(String, Result<(), String>)>,
    ) {
        for (name, outcome) in outcomes {
            let Some(running) = self.serves.get(&serve).filter(|running| running.holder == *holder) else {
                return;
            };
            let object = running.object;
            let Some(agent) = running.receivers.iter().find(|agent| agent.name == name).cloned() else {
                continue;
            };
            self.leave_serve(serve, &agent);
            match outcome {
                Ok(()) => {
                    let until = now + self.config.arrive;
                    if let Some(want) = self.want_mut(&agent, object) {
                        want.state = WantState::Arriving(until);
                        want.sent_by = Some(holder.clone());
                    }
                    self.looks.insert((until, Look::Arrival(object, agent)));
                }
                Err(reason) => self.not_served(now, holder, &agent, object, reason),
            }
        }
    }

    /// A receiver has not got the object: it may be another one's turn to send it.
    fn not_served(
        &mut self,
        now: Time,
        holder: &AgentKey,
        agent: &AgentKey,
        object: ObjectId,
        reason: String,
    ) {
        let tries_max = self.config.tries_max;
        let Some(want) = self.want_mut(agent, object) else { return };
        want.state = WantState::Waiting;
        want.tries += 1;
        want.tried.insert(holder.clone());
        if want.tries >= tries_max {
            return self.deny(now, agent, object, &WishRefusal::Failed(reason));
        }
        let window = now + self.config.window;
        self.look_soon(now, object, window);
    }

    /// Ends a wish that cannot be met.
    fn deny(&mut self, now: Time, agent: &AgentKey, object: ObjectId, why: &WishRefusal) {
        let Some(want) = self.want_mut(agent, object) else { return };
        let (asked, topics) = (want.asked, core::mem::take(&mut want.topics));
        self.drop_want(now, agent, object);
        if asked {
            let (agent, why) = (agent.clone(), why.clone());
            self.outputs.push_back(DirectoryOutput::Denied { agent, object, why });
        }
        for topic in topics {
            self.version_missed(now, agent, &topic, object, Missed::Object(why.clone()));
        }
    }

    /// Looks at an object at this time, or before if that was decided already.
    pub(super) fn look_soon(&mut self, now: Time, object: ObjectId, at: Time) {
        let Some(entry) = self.entries.get_mut(&object) else { return };
        let at = entry.look_at.filter(|planned| *planned >= now).map_or(at, |planned| planned.min(at));
        if let Some(planned) = entry.look_at.replace(at) {
            self.looks.remove(&(planned, Look::Object(object)));
        }
        self.looks.insert((at, Look::Object(object)));
    }

    pub(super) fn look_at_object(&mut self, now: Time, at: Time, object: ObjectId) {
        let Some(entry) = self.entries.get_mut(&object) else { return };
        if entry.look_at == Some(at) {
            entry.look_at = None;
        }
        let waiting = |(agent, want): &(&AgentKey, &Want)| {
            want.state == WantState::Waiting && entry.filling.as_ref() != Some(*agent)
        };
        let mut wanting: Vec<(u64, AgentKey)> =
            entry.wants.iter().filter(waiting).map(|(agent, want)| (want.number, agent.clone())).collect();
        wanting.sort();
        let wanting = wanting.into_iter().map(|(_, agent)| agent);
        let (drained, wanting): (Vec<AgentKey>, Vec<AgentKey>) =
            wanting.partition(|agent| self.drained.contains(&agent.name));
        for agent in drained {
            self.deny(now, &agent, object, &WishRefusal::Draining(agent.name.clone()));
        }
        let Some(entry) = self.entries.get(&object) else { return };
        if wanting.is_empty() {
            return;
        }
        if !entry.copies.is_empty() {
            return self.serve(now, object, wanting);
        }
        if entry.filling.is_some() {
            return;
        }
        let in_doubt_until = self.in_doubt_until();
        if now < in_doubt_until {
            self.held_back.insert(object);
            return self.look_soon(now, object, in_doubt_until);
        }
        self.held_back.remove(&object);
        self.fill(now, object, wanting);
    }

    /// Has one that has the object send it to these: one that sends nothing of it yet, or one that does and
    /// adds them.
    fn serve(&mut self, now: Time, object: ObjectId, receivers: Vec<AgentKey>) {
        let Some(entry) = self.entries.get_mut(&object) else { return };
        let running = |holder: &AgentKey| {
            self.serves.values().any(|serve| serve.holder == *holder && serve.object == object)
        };
        let tried = |holder: &AgentKey| {
            let wants = receivers.iter().filter_map(|agent| entry.wants.get(agent));
            wants.filter(|want| want.tried.contains(holder)).count()
        };
        let passed = |holder: &AgentKey| {
            let wants = receivers.iter().filter_map(|agent| entry.wants.get(agent));
            wants.filter(|want| want.passed.contains(holder)).count()
        };
        let all_serves = |holder: &AgentKey| self.serves.values().filter(|s| s.holder == *holder).count();
        let drained = |holder: &AgentKey| self.drained.contains(&holder.name);
        let best = entry.copies.holders().min_by_key(|holder| {
            (
                tried(holder),
                drained(holder),
                passed(holder),
                running(holder),
                all_serves(holder),
                (*holder).clone(),
            )
        });
        let Some(holder) = best.cloned() else { return };
        // Each has a number of its own: of those whose word was lost, the holder does not know the number.
        self.last_serve += 1;
        let serve = self.last_serve;
        for agent in &receivers {
            if let Some(want) = entry.wants.get_mut(agent) {
                want.state = WantState::Served(serve);
            }
        }
        let all = receivers.iter().cloned().collect();
        self.serves.insert(serve, Serve { holder: holder.clone(), object, receivers: all, since: now });
        let receivers = receivers.into_iter().map(|agent| agent.name).collect();
        self.outputs.push_back(DirectoryOutput::Serve { holder, serve, object, receivers });
    }

    /// Has the first that can get the object from its origin; where none can, those who do not wait are told.
    fn fill(&mut self, now: Time, object: ObjectId, wanting: Vec<AgentKey>) {
        let Some(entry) = self.entries.get_mut(&object) else { return };
        let can = |agent: &&AgentKey| {
            entry.wants.get(*agent).is_some_and(|want| want.wish.can_fill && !want.fill_failed)
        };
        // One that counted as dead and was not may be at it still.
        let fills = |agent: &&AgentKey| entry.wants.get(*agent).is_some_and(|want| want.wish.fills);
        if let Some(agent) = wanting.iter().find(fills).cloned() {
            entry.filling = Some(agent);
            return;
        }
        if let Some(agent) = wanting.iter().find(can).cloned() {
            entry.filling = Some(agent.clone());
            return self.outputs.push_back(DirectoryOutput::Fill { agent, object });
        }
        let why = entry.fill_failure.take().map_or(WishRefusal::Nobody, WishRefusal::Origin);
        for agent in wanting {
            let Some(want) = self.want_mut(&agent, object) else { continue };
            if !want.wish.waits || want.fill_failed {
                self.deny(now, &agent, object, &why);
            }
        }
    }

    pub(super) fn look_for_arrival(&mut self, now: Time, object: ObjectId, agent: &AgentKey) {
        if let Some(want) = self.want_mut(agent, object)
            && let WantState::Arriving(until) = want.state
            && until <= now
        {
            want.state = WantState::Waiting;
            if let Some(holder) = want.sent_by.take() {
                self.pass_over(now, agent, object, holder, false);
            }
            self.look_soon(now, object, now);
        }
    }

    /// An object of which nothing is known takes no place.
    pub(super) fn tidy(&mut self, object: ObjectId) {
        let Some(entry) = self.entries.get(&object) else { return };
        if entry.copies.is_empty() && entry.wants.is_empty() {
            if let Some(at) = entry.look_at {
                self.looks.remove(&(at, Look::Object(object)));
            }
            self.entries.remove(&object);
            self.held_back.remove(&object);
        }
    }
}
