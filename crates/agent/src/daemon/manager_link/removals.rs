//! Wishes to remove objects at other agents: ours, which the manager passes on, and theirs, which it passes
//! to us.

use super::{ANSWER_TIMEOUT, ManagerLink};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager as api;
use polycast_api::manager::agent_message::Message as Said;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Longest wait for agents that report that they are removing, however often they do so.
const REMOVING_MOST: Duration = Duration::from_secs(600);
/// Longest wait for a manager that has just started, whatever it reports.
const SETTLING_MOST: Duration = Duration::from_secs(60);
/// Our wishes that wait for answers.
const WISHES_MAX: usize = 64;
/// Answers to one wish that were not read yet.
const ANSWERS_MAX: usize = 65_536;
/// Wishes of others that wait; more are not heard.
const OTHERS_MAX: usize = 256;

/// The wishes that are under way.
#[derive(Default)]
pub(super) struct Removals {
    ours: BTreeMap<u64, mpsc::Sender<api::Removed>>,
    others: Option<mpsc::Sender<api::Remove>>,
    /// The last one of others was not heard.
    is_full: bool,
}

impl Removals {
    /// Another agent wishes objects removed here.
    pub(super) fn wished(&mut self, wish: api::Remove) {
        if self.is_news(wish) {
            tracing::warn!("wishes to remove objects are not heard now: too many wait");
        }
    }

    /// Takes a wish of others; gives whether it is to be said that it is not heard, which is so of the first
    /// of many.
    fn is_news(&mut self, wish: api::Remove) -> bool {
        let is_full = self.others.as_ref().is_none_or(|others| others.try_send(wish).is_err());
        !std::mem::replace(&mut self.is_full, is_full) && is_full
    }

    /// An answer to a wish of ours.
    pub(super) fn answered(&mut self, answer: api::Removed) {
        if let Some(ours) = self.ours.get(&answer.request_id) {
            // The caller that wished it may have gone.
            let _ = ours.try_send(answer);
        }
    }
}

/// Outcome of a removal request.
#[derive(Debug, Default)]
pub(crate) struct Removal {
    /// One answer an agent.
    pub answers: Vec<api::Removed>,
    /// Agents that are not at the manager.
    pub absent: Vec<String>,
    /// Agents that did not answer in time.
    pub silent: Vec<String>,
    /// So long others may still be on their way to the manager.
    settles: Option<Duration>,
}

impl ManagerLink {
    /// The wishes of other agents, from now on.
    pub(crate) fn removals(&self) -> mpsc::Receiver<api::Remove> {
        let (others, wishes) = mpsc::channel(OTHERS_MAX);
        self.table().removals.others = Some(others);
        wishes
    }

    /// Answers a wish of another agent.
    pub(crate) fn removed(&self, answer: api::Removed) {
        self.table().say(Said::Removed(answer));
    }

    /// Has objects removed at agents: those of these names, or all. A manager that has just begun does not
    /// know all of them yet: it is asked again when they have had the time to come.
    ///
    /// # Errors
    /// The manager cannot be reached.
    pub(crate) async fn remove(
        &self,
        agents: Vec<String>,
        all: bool,
        objects: Vec<api::ObjectChoice>,
    ) -> Result<Removal, Refusal> {
        let mut removal = self.remove_now(agents.clone(), all, objects.clone()).await?;
        if let Some(settles) = removal.settles.take().filter(|_| all) {
            tokio::time::sleep(settles.min(SETTLING_MOST)).await;
            let mut answers = std::mem::take(&mut removal.answers);
            removal = self.remove_now(agents, all, objects).await?;
            answers.append(&mut removal.answers);
            removal.answers = answers;
        }
        Ok(removal)
    }

    async fn remove_now(
        &self,
        agents: Vec<String>,
        all: bool,
        objects: Vec<api::ObjectChoice>,
    ) -> Result<Removal, Refusal> {
        let unreachable = || {
            let message = format!("the manager at {} cannot be reached now", self.manager());
            Refusal::new(Kind::ManagerUnreachable, message)
        };
        let request_id = self.fresh_request();
        let (ours, mut answers) = mpsc::channel(ANSWERS_MAX);
        let said = {
            let mut table = self.table();
            if table.removals.ours.len() >= WISHES_MAX {
                return Err(Refusal::new(Kind::Full, "too many removals are under way"));
            }
            let wish = api::Remove { request_id, wished_by: String::new(), agents, all, objects };
            let said = table.say(Said::Remove(wish));
            if said {
                table.removals.ours.insert(request_id, ours);
            }
            said
        };
        // The sentence needs the table too.
        if !said {
            return Err(unreachable());
        }
        let _ours = Ours { link: self, request_id };
        let mut until = Instant::now() + ANSWER_TIMEOUT;
        let last = Instant::now() + REMOVING_MOST;
        let Ok(Some(first)) = timeout_at(until, answers.recv()).await else { return Err(unreachable()) };
        if !first.refused.is_empty() {
            return Err(Refusal::new(Kind::NotAllowed, first.refused));
        }
        let settles = Some(Duration::from_millis(first.settles_ms)).filter(|settles| !settles.is_zero());
        let mut removal = Removal { absent: first.absent, settles, ..Removal::default() };
        let mut left: BTreeSet<String> = first.asked.into_iter().collect();
        while !left.is_empty()
            && let Ok(Some(answer)) = timeout_at(until, answers.recv()).await
        {
            if answer.under_way {
                // To remove thousands of files takes a while. One that was not asked, or has answered, keeps
                // no other waiting.
                if left.contains(&answer.agent) {
                    until = (Instant::now() + ANSWER_TIMEOUT).min(last);
                }
            } else if left.remove(&answer.agent) {
                removal.answers.push(answer);
            }
        }
        removal.silent = left.into_iter().collect();
        Ok(removal)
    }
}

/// A wish of ours, which is forgotten with this value.
struct Ours<'a> {
    link: &'a ManagerLink,
    request_id: u64,
}

impl Drop for Ours<'_> {
    fn drop(&mut self) {
        self.link.table().removals.ours.remove(&self.request_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many wishes of others come, it is said once that there is no room for them.
    #[tokio::test]
    async fn wishes_that_are_not_heard_are_spoken_of_once() {
        let (others, mut wishes) = mpsc::channel(1);
        let mut removals = Removals { others: Some(others), ..Removals::default() };
        let mut said = || removals.is_news(api::Remove::default());
        assert_eq!([said(), said(), said(), said()], [false, true, false, false]);
        wishes.recv().await.unwrap();
        assert_eq!([said(), said(), said()], [false, true, false]);
    }
}
