//! Groups to which applications of this host send packets themselves, such as by IP multicast. The agent has
//! the path leased and renews it; no packet goes through it, nor through an agent of a member.
//!
//! Groups outlive the agent: a file of the store names them and their paths, and the next run goes on with
//! both, so that the address stays.

mod kept;

use super::manager_link::{GroupPath, GroupWanted};
use super::shared::Shared;
use super::users::User;
use kept::Kept;
use polycast_api::agent::{self as api, ChangeGroupRequest, CreateGroupRequest};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::{self, GroupReport};
use polycast_net::store::check_name;
use polycast_types::{Printable, Rate};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Groups that an agent has at most: a manager lends one agent as many paths unless its settings say more.
const GROUPS_MAX: usize = 64;
/// Members that a group may have.
const MEMBERS_MAX: usize = 65_536;
/// Members of a group that heartbeats name.
const REPORTED_MAX: usize = 256;
/// Pause before a path is asked for again.
const AGAIN: Duration = Duration::from_secs(3);

/// The groups of this host.
pub(super) struct Groups {
    shared: Arc<Shared>,
    table: Mutex<BTreeMap<String, Group>>,
}

/// A group.
#[derive(Clone)]
struct Group {
    kept: Kept,
    /// Set while a path is asked for; of a group that is being made this is the first one.
    asks: bool,
    is_new: bool,
    /// Sentence on what is wrong; empty if nothing is known to be.
    trouble: String,
}

impl Group {
    /// The state of the group in the words of the manager's service.
    fn report(&self, name: &str) -> GroupReport {
        let wished = self.kept.rate_bps;
        let mut report = GroupReport {
            name: name.into(),
            members: self.kept.members.clone(),
            rate_bps: wished,
            trouble: self.trouble.clone(),
            ..GroupReport::default()
        };
        report.further_sources.clone_from(&self.kept.further_sources);
        if let Some(path) = &self.kept.path {
            report.members.clone_from(&path.members);
            report.fabric.clone_from(&path.fabric);
            report.address.clone_from(&path.address);
            report.port = path.port.into();
            report.rate_bps = path.rate_bps.into_iter().chain(wished).min();
        }
        report
    }

    fn wanted(&self, name: &str) -> GroupWanted {
        let Kept { request, members, further_sources, fabric, rate_bps, .. } = self.kept.clone();
        GroupWanted { request, name: name.into(), members, further_sources, fabric, rate: rate_bps.map(Rate) }
    }
}

fn invalid(message: String) -> Refusal {
    Refusal::new(Kind::Invalid, message)
}

/// Checks what a caller says of a new group.
fn check(request: &CreateGroupRequest) -> Result<(), Refusal> {
    let name = &request.name;
    check_name(name)
        .map_err(|why| invalid(format!("'{}' cannot be a group's name: it {why}", Printable(name))))?;
    if request.members.is_empty() {
        return Err(Refusal::new(Kind::NoReceivers, "no member is named"));
    }
    check_hosts("member", &request.members)?;
    check_hosts("source", &request.sources)?;
    if request.rate_bps == Some(0) {
        return Err(invalid("a group's rate cannot be 0".into()));
    }
    super::convert::check_name("a fabric", &request.fabric)
}

/// Checks the names of members, or of sources.
fn check_hosts(what: &str, names: &[String]) -> Result<(), Refusal> {
    if names.len() > MEMBERS_MAX {
        return Err(invalid(format!("{} {what}s are more than {MEMBERS_MAX}", names.len())));
    }
    let mut seen = BTreeSet::new();
    for name in names {
        super::convert::check_name(&format!("a {what}"), name)?;
        if !seen.insert(name) {
            let message = format!("the {what} '{}' is named twice", Printable(name));
            return Err(Refusal::new(Kind::ReceiverTwice, message));
        }
    }
    Ok(())
}

/// The sources of a new group beside this host, which holds its path and so has to be one of them.
fn further_sources(own: &str, sources: Vec<String>) -> Result<Vec<String>, Refusal> {
    if !sources.is_empty() && !sources.iter().any(|source| source == own) {
        let named: Vec<String> = sources.iter().map(|name| format!("'{}'", Printable(name))).collect();
        let message = format!(
            "this host, '{}', is not among the sources {}: make the group on one of them, whose agent then holds its path",
            Printable(own),
            named.join(", ")
        );
        return Err(invalid(message));
    }
    Ok(sources.into_iter().filter(|source| source != own).collect())
}

/// Checks that the manager has heard of all hosts: for one that may yet come it would wait.
fn check_known(hosts: &[String], status: &manager::StatusResponse) -> Result<(), Refusal> {
    let known: BTreeSet<&str> =
        status.agents.iter().chain(&status.lost).map(|agent| agent.name.as_str()).collect();
    match hosts.iter().find(|host| !known.contains(host.as_str())) {
        Some(host) => {
            let message = format!("there is no agent '{}'", Printable(host));
            Err(Refusal::new(Kind::ReceiverUnknown, message))
        }
        None => Ok(()),
    }
}

fn taken(name: &str, whose: &str) -> Refusal {
    let message = format!("there is a group '{}' already, made on {whose}", Printable(name));
    Refusal::new(Kind::GroupTaken, message)
}

impl Groups {
    /// The groups of an earlier run; their paths are named to the manager that is joined.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let kept = kept::read(&shared.store).unwrap_or_else(|reason| {
            tracing::warn!(reason, "the groups of an earlier run are not known any more");
            BTreeMap::new()
        });
        for (name, kept) in &kept {
            if let Some(path) = &kept.path {
                shared.link.resume_group(name, path.lease(kept.request));
            }
        }
        let group = |kept| Group { kept, asks: false, is_new: false, trouble: String::new() };
        let table = kept.into_iter().map(|(name, kept)| (name, group(kept))).collect();
        Groups { shared, table: Mutex::new(table) }
    }

    /// Makes a group, and gives it when its path is there.
    pub(super) async fn create(
        self: &Arc<Self>,
        user: User,
        request: CreateGroupRequest,
    ) -> Result<api::Group, Refusal> {
        check(&request)?;
        let CreateGroupRequest { name, members, fabric, rate_bps, sources, .. } = request;
        let further_sources = further_sources(&self.shared.name, sources)?;
        let own = format!("this host, '{}'", self.shared.name);
        if self.lock().contains_key(&name) {
            return Err(taken(&name, &own));
        }
        let status = self.shared.link.manager_status().await?;
        if let Some((source, _)) = reports(&status, &self.shared.name).find(|(_, group)| group.name == name) {
            return Err(taken(&name, &format!("'{}'", Printable(source))));
        }
        check_known(&members, &status)?;
        check_known(&further_sources, &status)?;
        {
            let mut table = self.lock();
            let (count, theirs) =
                (table.len(), table.values().filter(|group| group.kept.uid == user.uid()).count());
            if count >= GROUPS_MAX {
                let message = format!("this agent has {count} groups, which is its limit");
                return Err(Refusal::new(Kind::Full, message));
            }
            if user.is_other() && theirs >= user.share(GROUPS_MAX) {
                return Err(user.too_many(theirs, "groups"));
            }
            if table.contains_key(&name) {
                return Err(taken(&name, &own));
            }
            let request = self.shared.link.group_number();
            let kept =
                Kept { uid: user.uid(), request, members, further_sources, fabric, rate_bps, path: None };
            table.insert(name.clone(), Group { kept, asks: true, is_new: true, trouble: String::new() });
        }
        // It is made, or not, also if the caller goes meanwhile.
        let (groups, asked) = (Arc::clone(self), name.clone());
        let made = tokio::spawn(async move { groups.ask(&asked).await }).await;
        made.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))??;
        tracing::info!(group = %Printable(&name), "made");
        self.shared.link.report().await;
        let report = self.lock().get(&name).map(|group| group.report(&name));
        let ended =
            || Refusal::new(Kind::GroupUnknown, format!("the group '{}' has ended", Printable(&name)));
        Ok(group_of(&self.shared.name, report.ok_or_else(ended)?, None))
    }

    /// Asks for a group's path.
    async fn ask(&self, name: &str) -> Result<(), Refusal> {
        let Some(wanted) = self.lock().get(name).map(|group| group.wanted(name)) else { return Ok(()) };
        let answer = self.shared.link.request_group(&wanted).await;
        let mut table = self.lock();
        let group = table.get_mut(name).filter(|group| group.kept.request == wanted.request);
        match (answer, group) {
            (Ok(path), Some(group)) => {
                (group.asks, group.is_new, group.trouble) = (false, false, String::new());
                group.kept.path = kept::Path::of(&path.lease);
                self.write(&table)
            }
            // It was removed meanwhile.
            (Ok(path), None) => {
                self.shared.link.end_group(wanted.request, path.lease.response_id);
                Ok(())
            }
            (Err(refusal), Some(group)) => {
                if group.is_new {
                    table.remove(name);
                } else {
                    (group.asks, group.trouble) = (false, refusal.message.clone());
                }
                Err(refusal)
            }
            (Err(refusal), None) => Err(refusal),
        }
    }

    /// Takes members and sources into a group of this host, and others out.
    pub(super) async fn change(&self, user: User, change: ChangeGroupRequest) -> Result<api::Group, Refusal> {
        let ChangeGroupRequest { name, add, sources, remove, .. } = change;
        if add.is_empty() && sources.is_empty() && remove.is_empty() {
            return Err(invalid("no host is named to come or to go".into()));
        }
        check_hosts("member", &add)?;
        check_hosts("source", &sources)?;
        check_hosts("host", &remove)?;
        if let Some(both) = remove.iter().find(|name| add.contains(name) || sources.contains(name)) {
            return Err(invalid(format!("'{}' cannot come and go at the same time", Printable(both))));
        }
        let request = self.own(user, &name)?;
        let status = self.shared.link.manager_status().await?;
        check_known(&add, &status)?;
        check_known(&sources, &status)?;
        let extend = manager::Extend {
            request_id: request,
            add: add.clone(),
            remove: remove.clone(),
            further_sources: sources.clone(),
            time_ms: None,
        };
        self.shared.link.change_group(extend).await?;
        {
            let mut table = self.lock();
            let group = table.get_mut(&name).filter(|group| group.kept.request == request);
            let Some(group) = group else {
                let message = format!("the group '{}' has ended", Printable(&name));
                return Err(Refusal::new(Kind::GroupUnknown, message));
            };
            // Another path, if it is ever asked for, leads to these.
            let stays = |name: &String| !remove.contains(name);
            group.kept.members.retain(stays);
            group.kept.members.extend(add);
            group.kept.further_sources.retain(stays);
            group.kept.further_sources.extend(sources);
        }
        self.look();
        self.write(&self.lock())?;
        tracing::info!(group = %Printable(&name), "changed");
        self.shared.link.report().await;
        let report = self.lock().get(&name).map(|group| group.report(&name)).unwrap_or_default();
        Ok(group_of(&self.shared.name, report, None))
    }

    /// The request of a group of this host that has a path.
    fn own(&self, user: User, name: &str) -> Result<u64, Refusal> {
        let table = self.lock();
        let Some(group) = table.get(name) else {
            let message = format!("there is no group '{}' that was made on this host", Printable(name));
            return Err(Refusal::new(Kind::GroupUnknown, message));
        };
        if !user.may_end(Some(group.kept.uid)) {
            let uid = group.kept.uid;
            let whose =
                format!("the group '{name}' is user {uid}'s: root and the agent's user may change it");
            return Err(Refusal::new(Kind::NotAllowed, whose));
        }
        match group.kept.path {
            Some(_) => Ok(group.kept.request),
            None => {
                let message = format!("the group '{}' has no path now: change it later", Printable(name));
                Err(Refusal::new(Kind::Denied, message))
            }
        }
    }

    /// Gives a group back.
    pub(super) async fn remove(&self, user: User, name: &str) -> Result<(), Refusal> {
        if self.take_out(user, name)? {
            self.shared.link.report().await;
            return Ok(());
        }
        let status = self.shared.link.manager_status().await.unwrap_or_default();
        let elsewhere = reports(&status, &self.shared.name).find(|(_, group)| group.name == name);
        let message = match elsewhere {
            Some((source, _)) => {
                format!(
                    "the group '{}' was made on '{}': remove it there",
                    Printable(name),
                    Printable(source)
                )
            }
            None => format!("there is no group '{}'", Printable(name)),
        };
        Err(Refusal::new(Kind::GroupUnknown, message))
    }

    /// Gives a group of this host back; gives whether there was one of the name.
    fn take_out(&self, user: User, name: &str) -> Result<bool, Refusal> {
        let mut table = self.lock();
        let Some(uid) = table.get(name).map(|group| group.kept.uid) else { return Ok(false) };
        if !user.may_end(Some(uid)) {
            let whose =
                format!("the group '{name}' is user {uid}'s: root and the agent's user may remove it");
            return Err(Refusal::new(Kind::NotAllowed, whose));
        }
        if let Some(Group { kept: Kept { request, path: Some(path), .. }, .. }) = table.remove(name) {
            self.shared.link.end_group(request, path.response);
        }
        tracing::info!(group = %Printable(name), "removed");
        self.write(&table)?;
        Ok(true)
    }

    /// The groups of the cluster; without a manager those of this host.
    pub(super) async fn list(&self) -> Vec<api::Group> {
        let status = self.shared.link.manager_status().await.ok();
        let here: Option<BTreeSet<&str>> =
            status.as_ref().map(|status| status.agents.iter().map(|agent| agent.name.as_str()).collect());
        let own = self.reports().into_iter().map(|group| (self.shared.name.clone(), group));
        let others = status.iter().flat_map(|status| reports(status, &self.shared.name));
        let others = others.map(|(source, group)| (source.to_string(), group.clone()));
        let mut groups: Vec<api::Group> =
            own.chain(others).map(|(source, group)| group_of(&source, group, here.as_ref())).collect();
        groups.sort_by(|one, other| (&one.name, &one.source).cmp(&(&other.name, &other.source)));
        groups
    }

    /// The groups of this host for the manager's status, each with its first members: heartbeats say them.
    pub(super) fn account(&self) -> Vec<GroupReport> {
        let mut groups = self.reports();
        for group in &mut groups {
            group.members.truncate(REPORTED_MAX);
            group.further_sources.truncate(REPORTED_MAX);
        }
        groups
    }

    /// The groups of this host.
    fn reports(&self) -> Vec<GroupReport> {
        let table = self.lock();
        table.iter().filter(|(_, group)| !group.is_new).map(|(name, group)| group.report(name)).collect()
    }

    /// The groups of this host, for its status.
    pub(super) fn of_this_host(&self) -> Vec<api::Group> {
        self.reports().into_iter().map(|group| group_of(&self.shared.name, group, None)).collect()
    }

    /// Follows what becomes of the groups' paths until the agent ends.
    pub(super) async fn run(self: Arc<Self>, mut ending: watch::Receiver<bool>) {
        let mut turns = self.shared.link.turns();
        loop {
            let lacks_some = self.look();
            let again = async {
                match lacks_some {
                    true => tokio::time::sleep(AGAIN).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives as long as the link.
                _ = turns.changed() => {}
                () = again => self.ask_again(),
                _ = ending.wait_for(|ends| *ends) => return,
            }
        }
    }

    /// Takes in what has become of the paths; gives whether a group lacks one.
    fn look(&self) -> bool {
        let mut table = self.lock();
        let mut changed = false;
        for (name, group) in table.iter_mut() {
            let Some(path) = &group.kept.path else { continue };
            let Some(GroupPath { lease, steering }) = self.shared.link.group(path.response) else {
                group.trouble = "its path has ended, and another one is asked for".into();
                tracing::warn!(group = %Printable(name), "its path has ended");
                group.kept.path = None;
                changed = true;
                continue;
            };
            for news in steering.take_news() {
                let event = news.event.filter(|_| news.waits != Some(false));
                group.trouble = event.unwrap_or_default();
            }
            let refused = steering.permissions().borrow().clone().and_then(Result::err);
            let now = kept::Path::of(&lease).filter(|_| refused.is_none());
            if group.kept.path != now {
                if now.is_none() {
                    self.shared.link.end_group(group.kept.request, lease.response_id);
                    group.trouble = refused.map(|refusal| refusal.message).unwrap_or_default();
                }
                group.kept.path = now;
                changed = true;
            }
        }
        if changed && let Err(refusal) = self.write(&table) {
            tracing::warn!(%refusal, "the groups are not written down");
        }
        table.values().any(|group| group.kept.path.is_none() && !group.asks)
    }

    /// Asks for the paths of groups that have none.
    fn ask_again(self: &Arc<Self>) {
        for (name, group) in self.lock().iter_mut() {
            if group.kept.path.is_none() && !group.asks {
                group.asks = true;
                let (groups, name) = (Arc::clone(self), name.clone());
                // What the answer is, the group's state says.
                tokio::spawn(async move { groups.ask(&name).await });
            }
        }
    }

    fn write(&self, table: &BTreeMap<String, Group>) -> Result<(), Refusal> {
        let made = table.iter().filter(|(_, group)| !group.is_new);
        let kept = made.map(|(name, group)| (name.clone(), group.kept.clone())).collect();
        kept::write(&self.shared.store, &kept)
            .map_err(|error| Refusal::new(Kind::StoreFull, format!("the group is not written down: {error}")))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Group>> {
        // Nothing here panics between two changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The groups of other agents than this one.
fn reports<'a>(
    status: &'a manager::StatusResponse,
    own: &'a str,
) -> impl Iterator<Item = (&'a str, &'a GroupReport)> {
    let others = status.agents.iter().filter(move |agent| agent.name != own);
    others.flat_map(|agent| {
        let groups = agent.node.iter().flat_map(|node| &node.groups);
        groups.map(|group| (agent.name.as_str(), group))
    })
}

/// A group in the words of the agent's service; `here` are the agents that are connected to the manager.
fn group_of(source: &str, report: GroupReport, here: Option<&BTreeSet<&str>>) -> api::Group {
    let GroupReport { name, members, fabric, address, port, rate_bps, trouble, further_sources } = report;
    let away = |name: &str| here.is_some_and(|here| !here.contains(name));
    let member = |name: String| api::Member { away: away(&name), name };
    let sources = std::iter::once(source.to_string()).chain(further_sources).map(member).collect();
    let members = members.into_iter().map(member).collect();
    api::Group { name, source: source.into(), members, fabric, address, port, rate_bps, trouble, sources }
}
