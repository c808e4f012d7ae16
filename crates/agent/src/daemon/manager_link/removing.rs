//! Removal of objects at other agents, through the manager.

use super::{ANSWER_TIMEOUT, ManagerLink};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager as api;
use polycast_api::manager::agent_message::Message as Said;
use std::collections::BTreeSet;
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
