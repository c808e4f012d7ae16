//! Fail-over to another manager, which goes on where this one ends: changes of the state on their way to be
//! written, and a core that begins with what an earlier leader has written.

use super::{Around, Core, Inner};
use crate::config::ManagerConfig;
use crate::devices::News;
use crate::fabrics;
use polycast_api::manager::ManagerMessage;
use polycast_api::settings::SettingsError;
use polycast_planning::{DeviceCommand, PlanId};
use polycast_protocol::leases::{AgentKey, Drained, Record, RecordKey, SetAside};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::{mpsc, oneshot};

/// Changes of the state that may wait to be written.
const COMMITS_MAX: usize = 16_384;
/// So many hosts are named that settings do not name any more.
const DROPPED_NAMED_MAX: usize = 20;

/// Something that another manager must not learn of before the change of state behind it is written.
#[derive(Debug)]
pub(crate) enum Act {
    /// A message to an agent, in its session of this number.
    Say { agent: AgentKey, session: u64, message: Box<ManagerMessage> },
    /// Devices go from what they hold to something else.
    Change { plan: Option<PlanId>, old: Vec<DeviceCommand>, new: Vec<DeviceCommand> },
    /// An answer to the call of an operator, which fails if this is dropped.
    Answer { call: oneshot::Sender<DrainAnswer>, answer: DrainAnswer },
}

/// Result of taking a part out of use, or back; otherwise why that cannot be.
type DrainAnswer = Result<Drained, String>;

/// Changes of the state that are to be written, and what is to be done then.
#[derive(Debug)]
pub(crate) struct Commit {
    changes: BTreeMap<RecordKey, Option<Record>>,
    pub acts: Vec<Act>,
}

impl Commit {
    /// Returns true if both have at most `most` changes together, given that these are of different records.
    pub(crate) fn fits(&self, later: &Commit, most: usize) -> bool {
        self.changes.len() + later.changes.len() <= most
    }

    /// Adds a later one.
    pub(crate) fn add(&mut self, later: Commit) {
        self.changes.extend(later.changes);
        self.acts.extend(later.acts);
    }

    /// The changes, in the order of their keys.
    pub(crate) fn changes(&self) -> Vec<(RecordKey, Option<Record>)> {
        self.changes.iter().map(|(key, record)| (key.clone(), record.clone())).collect()
    }
}

/// A core that goes on where an earlier leader has ended.
#[derive(Debug)]
pub(crate) struct Restored {
    pub core: Core,
    /// News from its devices, for [`Core::keep_time`].
    pub news: mpsc::Receiver<News>,
    /// Changes that have to be written.
    pub commits: mpsc::Receiver<Commit>,
    /// The records that do not fit with the others, by their keys, and why.
    pub aside: Vec<(String, String)>,
}

/// Changes of the state cannot be written as fast as they come, or not any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Unwritten {
    /// [`COMMITS_MAX`] wait.
    #[error("changes of the state cannot be written as fast as they come")]
    TooMany,
    /// The task that writes them has ended.
    #[error("nothing writes the changes of the state any more")]
    NoWriter,
}

/// Acts that wait until the change behind them is written; a manager that keeps its state to itself has none.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Channel to the writer of changes of the state, if they are written.
    commits: Option<mpsc::Sender<Commit>>,
    /// Acts to be done once the changes are written.
    waiting: Vec<Act>,
}

impl Core {
    /// A core that goes on with the state of an earlier leader, and whose changes have to be written down:
    /// what it says is said by [`Core::perform`] only. With `in_doubt` there may be paths of which nothing
    /// could be read.
    pub(crate) fn restored(
        config: &ManagerConfig,
        around: &Around,
        records: Vec<Record>,
        in_doubt: bool,
    ) -> Result<Restored, SettingsError> {
        // Times in the records are those of the wall clock, which managers have in common.
        let (core, news) = Self::with_records(config, around, &records)?;
        let (sender, commits) = mpsc::channel(COMMITS_MAX);
        let aside = core.with(|inner| inner.restore(config, records, in_doubt, sender));
        let aside = aside.into_iter().map(|record| (record.key.to_string(), record.reason)).collect();
        Ok(Restored { core, news, commits, aside })
    }

    /// Does what had to wait until a change was written.
    pub(crate) fn perform(&self, acts: Vec<Act>) {
        self.with(|inner| {
            // One that leads no more says nothing.
            if inner.stopped {
                return;
            }
            for act in acts {
                match act {
                    Act::Say { agent, session, message } => inner.post(&agent, Some(session), *message),
                    Act::Change { plan, old, new } => inner.networks.devices.change(plan, &old, &new),
                    // One that has hung up meanwhile is not told.
                    Act::Answer { call, answer } => drop(call.send(answer)),
                }
            }
        });
    }
}

impl Inner {
    /// Begins with what an earlier leader has written.
    fn restore(
        &mut self,
        config: &ManagerConfig,
        records: Vec<Record>,
        in_doubt: bool,
        commits: mpsc::Sender<Commit>,
    ) -> Vec<SetAside> {
        let now = self.now();
        let aside = self.machine.restore(now, records);
        if in_doubt {
            self.machine.await_holders(now);
        }
        self.tell_drained();
        self.name_dropped(config);
        // Devices hold most of this already. What one of them has lost is noticed as with a new path.
        for lease in self.machine.leases() {
            let plan = &lease.grant.plan;
            if !plan.commands.is_empty() {
                self.networks.devices.change(Some(lease.grant.plan_id), &[], &plan.commands);
            }
        }
        let kept: Vec<DeviceCommand> = self.machine.kept_commands().cloned().collect();
        self.networks.devices.change(None, &[], &kept);
        self.outgoing.commits = Some(commits);
        aside
    }

    /// Says which hosts are in use that the settings do not name any more.
    fn name_dropped(&self, config: &ManagerConfig) {
        let named: BTreeSet<&str> = fabrics::host_names(config).collect();
        let known = self.machine.records().into_iter().filter_map(|record| match record {
            Record::Host { name, .. } if !named.contains(name.as_str()) => Some(name),
            _ => None,
        });
        for host in known.take(DROPPED_NAMED_MAX) {
            tracing::warn!(
                host,
                "the settings do not name a host any more that is here or in use: what it has stays, and it gets nothing new"
            );
        }
    }

    /// Hands changes of the state over to be written, with what is to be said then.
    pub(super) fn flush(&mut self) -> Result<(), Unwritten> {
        let Some(commits) = &self.outgoing.commits else { return Ok(()) };
        let (changes, acts) = (self.machine.changes(), std::mem::take(&mut self.outgoing.waiting));
        if changes.is_empty() && acts.is_empty() {
            return Ok(());
        }
        let commit = Commit { changes: changes.into_iter().collect(), acts };
        commits.try_send(commit).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Unwritten::TooMany,
            mpsc::error::TrySendError::Closed(_) => Unwritten::NoWriter,
        })
    }

    /// Brings devices from one state to another, at once or when what is behind it is written.
    pub(super) fn change(&mut self, plan: Option<PlanId>, old: Vec<DeviceCommand>, new: Vec<DeviceCommand>) {
        if let Some(plan) = plan {
            self.readiness.begins(plan);
        }
        if self.outgoing.commits.is_none() {
            self.networks.devices.change(plan, &old, &new);
        } else {
            self.outgoing.waiting.push(Act::Change { plan, old, new });
        }
    }

    /// Answers the call of an operator, at once or when what is behind the answer is written.
    pub(super) fn answer_drain(&mut self, call: oneshot::Sender<DrainAnswer>, answer: DrainAnswer) {
        if self.outgoing.commits.is_none() {
            // One that has hung up meanwhile is not told.
            drop(call.send(answer));
        } else {
            self.outgoing.waiting.push(Act::Answer { call, answer });
        }
    }

    /// Says something to an agent, at once or when what is behind it is written. One that has no session now
    /// asks again when it has one.
    pub(super) fn tell(&mut self, agent: &AgentKey, message: super::obey::Message) {
        let message = ManagerMessage { message: Some(message) };
        if self.outgoing.commits.is_none() {
            self.post(agent, None, message);
        } else if let Some(session) = self.seats.number_of(agent) {
            self.outgoing.waiting.push(Act::Say {
                agent: agent.clone(),
                session,
                message: Box::new(message),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_api::error::{Kind, Refusal};
    use polycast_api::manager::Joined;
    use polycast_protocol::leases::{Join, Presence};
    use std::sync::Arc;
    use std::time::Duration;

    fn join(core: &Arc<Core>, name: &str) -> Result<(super::super::Seat, Messages), Refusal> {
        let (outbox, messages) = mpsc::channel(8);
        let agent = AgentKey { name: name.into(), incarnation: 1 };
        let from = std::net::Ipv4Addr::LOCALHOST.into();
        let join = Join { agent, address: ([10, 0, 0, 1].into(), 1), from, leases: Vec::new() };
        Ok((core.join(join, outbox, super::super::obey::Message::Joined(Joined::default()))?, messages))
    }

    type Messages = mpsc::Receiver<Result<ManagerMessage, tonic::Status>>;

    #[tokio::test]
    async fn a_core_whose_changes_are_not_written_ends_and_says_so() {
        let settings = "[etcd]\nendpoints = ['127.0.0.1:1']\nadvertise = '127.0.0.1:2'";
        let config = ManagerConfig::from_toml(settings).unwrap();
        let restored = Core::restored(&config, &Around::default(), Vec::new(), false).unwrap();
        let (core, mut commits) = (Arc::new(restored.core), restored.commits);
        let (_seat, mut messages) = join(&core, "a").unwrap();
        assert!(messages.recv().await.unwrap().is_ok(), "it has joined");
        assert!(!commits.recv().await.unwrap().changes().is_empty(), "there is a member");
        drop(commits);
        // What follows from this cannot be written: the core must not go on as if it were.
        let _late = join(&core, "b");
        tokio::time::timeout(polycast_testing::HANG, core.stopped()).await.expect("it ends");
        assert!(messages.recv().await.is_none(), "its sessions end");
        assert_eq!(join(&core, "c").unwrap_err().kind, Kind::ManagerUnreachable);
    }

    #[tokio::test]
    async fn an_agent_whose_session_is_lost_can_come_back() {
        let (core, _news) = Core::new(&ManagerConfig::default(), &Around::default()).unwrap();
        let core = Arc::new(core);
        let is_here = || {
            let agents = core.snapshot().agents;
            agents.iter().any(|(_, member)| matches!(member.presence, Presence::Here { .. }))
        };
        let (seat, _messages) = join(&core, "a").unwrap();
        assert!(is_here());
        drop(seat);
        assert!(!is_here() && core.snapshot().agents.len() == 1, "it may come back");
        let (first, _messages) = join(&core, "a").unwrap();
        assert!(is_here());
        // A seat that another session has taken leaves nothing behind.
        let (_second, _messages) = join(&core, "a").unwrap();
        drop(first);
        assert!(is_here(), "the second session is there");
    }

    /// An agent that was a member of the manager before and does not come to this one is dead.
    #[tokio::test(start_paused = true)]
    async fn members_of_the_leader_before_are_waited_for() {
        let config = ManagerConfig::default();
        let agent = AgentKey { name: "a".into(), incarnation: 1 };
        let member =
            Record::Member { agent, host: polycast_planning::HostId(0), address: ([10, 0, 0, 1].into(), 1) };
        let restored = Core::restored(&config, &Around::default(), vec![member], false).unwrap();
        assert_eq!(restored.core.snapshot().agents.len(), 1);
        let patience = config.patience() + Duration::from_millis(1);
        tokio::time::advance(patience).await;
        restored.core.with(super::super::Inner::drain);
        let snapshot = restored.core.snapshot();
        assert!(snapshot.agents.is_empty() && snapshot.lost.len() == 1, "{snapshot:?}");
    }

    /// A process that was stopped has heard no agent, and takes none for dead because of that.
    #[tokio::test(start_paused = true)]
    async fn a_manager_that_was_stopped_takes_no_agent_for_dead() {
        let (core, _news) = Core::new(&ManagerConfig::default(), &Around::default()).unwrap();
        let core = Arc::new(core);
        let (_seat, _messages) = join(&core, "a").unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        core.with(super::super::Inner::drain);
        assert_eq!(core.snapshot().agents.len(), 1);
        // From then on it counts.
        tokio::time::advance(Duration::from_millis(4_100)).await;
        core.with(super::super::Inner::drain);
        assert_eq!(core.snapshot().agents.len(), 0);
    }

    /// The same where the first thing that it does is to see that a session has broken.
    #[tokio::test(start_paused = true)]
    async fn a_session_that_breaks_while_a_manager_is_stopped_costs_no_agent() {
        let (core, _news) = Core::new(&ManagerConfig::default(), &Around::default()).unwrap();
        let core = Arc::new(core);
        let (_stays, _messages) = join(&core, "a").unwrap();
        let (seat, _messages_of_b) = join(&core, "b").unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        drop(seat);
        core.with(super::super::Inner::drain);
        let here: Vec<String> = core.snapshot().agents.into_iter().map(|(name, _)| name).collect();
        assert_eq!(here, ["a", "b"], "one is there, and the other may come back");
    }
}
