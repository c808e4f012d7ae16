//! Managers that stand by and etcd's servers, for users that ask how the managers stand.
//!
//! Each manager keeps a key in etcd that ends with it. The one that leads reads the keys of the others, and
//! asks each server of etcd, so that a cluster with nothing left to take over is seen before its leader dies.

use super::Role;
use crate::store::{Etcd, EtcdServer, Present, Store};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Interval at which a manager shows that it is there, and at which the leader looks.
const SHOW: Duration = Duration::from_secs(2);

/// The managers that stand by and the servers of etcd, at one moment.
#[derive(Clone, Default, Debug)]
pub(crate) struct Standing {
    /// The other managers, by their addresses, with the versions of their programs.
    pub standbys: Vec<Present>,
    /// The servers of etcd, in the order of the settings; empty without etcd, or before the first look.
    pub servers: Vec<EtcdServer>,
}

/// Last look of this manager, if it leads.
#[derive(Default, Debug)]
pub(crate) struct Lookout(Mutex<Standing>);

impl Lookout {
    /// Returns what was seen last.
    pub(crate) fn standing(&self) -> Standing {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn see(&self, standing: Standing) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }
}

/// Shows that the manager at this address is there, and looks at the others while it leads; does not end.
pub(crate) async fn stand<E: Etcd>(
    store: &Store<E>,
    address: &str,
    role: &watch::Receiver<Role>,
    lookout: &Lookout,
) {
    let mut lease = None;
    loop {
        // An etcd that is away or full is named by the manager that cannot lead; here it is tried again.
        lease = store.show(lease, address, env!("CARGO_PKG_VERSION")).await.ok();
        let leads = matches!(&*role.borrow(), Role::Leader(_));
        lookout.see(if leads { look(store, address, lookout.standing()).await } else { Standing::default() });
        tokio::time::sleep(SHOW).await;
    }
}

/// Looks at the others, and at etcd's servers. Where etcd gives no list, the one before it holds.
async fn look<E: Etcd>(store: &Store<E>, own: &str, before: Standing) -> Standing {
    let shown = store.shown().await;
    let standbys = shown.map_or(before.standbys, |mut all| {
        all.retain(|one| one.address != own);
        all
    });
    Standing { standbys, servers: store.ask_servers().await }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ManagerConfig;
    use crate::core::{Around, Core};
    use crate::store::pretended::{Link, Server};
    use std::sync::Arc;

    /// A manager that stands in an etcd until it is dropped.
    struct Manager {
        lookout: Arc<Lookout>,
        link: Link,
        _role: watch::Sender<Role>,
        standing: tokio::task::JoinHandle<()>,
    }

    impl Manager {
        fn stand(server: &Server, address: &'static str, role: Role) -> Self {
            let (link, lookout) = (server.link(), Arc::new(Lookout::default()));
            let (sender, role) = watch::channel(role);
            let (store, seen) = (Store::new(link.clone(), "/polycast"), Arc::clone(&lookout));
            let standing = tokio::spawn(async move { stand(&store, address, &role, &seen).await });
            Manager { lookout, link, _role: sender, standing }
        }

        fn sees(&self) -> Vec<String> {
            self.lookout.standing().standbys.into_iter().map(|one| one.address).collect()
        }
    }

    fn leader() -> Role {
        let config = ManagerConfig::from_toml("").unwrap();
        Role::Leader(Arc::new(Core::new(&config, &Around::default()).unwrap().0))
    }

    #[tokio::test(start_paused = true)]
    async fn the_leader_sees_who_stands_by_until_they_are_gone() {
        let server = Server::new();
        let first = Manager::stand(&server, "one:1", leader());
        let second = Manager::stand(&server, "two:1", Role::Follower(None));
        let third = Manager::stand(&server, "three:1", Role::Leaderless("why".into()));
        // What no manager has written is left out: it has no lease, or is no word.
        server.put("/polycast/managers/four:1", b"0.1.0");
        server.put("/polycast/managers/a b", b"0.1.0");
        tokio::time::sleep(SHOW * 2).await;
        assert_eq!(first.sees(), ["three:1", "two:1"]);
        let standing = first.lookout.standing();
        assert_eq!(standing.standbys[0].version, env!("CARGO_PKG_VERSION"));
        assert_eq!(standing.servers.len(), 1);
        assert_eq!(standing.servers[0].answer, Ok("3.4.0".into()));
        assert!(second.sees().is_empty() && second.lookout.standing().servers.is_empty(), "it does not lead");
        // One ends without a word.
        second.standing.abort();
        tokio::time::sleep(Duration::from_secs(14)).await;
        assert_eq!(first.sees(), ["three:1"]);
        // Etcd is away from the leader for longer than the keys live: what it has seen holds, and etcd is
        // named.
        first.link.set_cut(true);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(first.sees(), ["three:1"]);
        assert!(first.lookout.standing().servers[0].answer.is_err());
        first.link.set_cut(false);
        let fourth = Manager::stand(&server, "two:1", Role::Follower(None));
        tokio::time::sleep(SHOW * 3).await;
        assert_eq!(first.sees(), ["three:1", "two:1"]);
        assert!(server.keys("/polycast/managers/").contains(&"/polycast/managers/one:1".to_string()));
        drop((third, fourth));
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_ends_in_good_order_is_gone_at_once() {
        let server = Server::new();
        let _first = Manager::stand(&server, "one:1", Role::Follower(None));
        let second = Manager::stand(&server, "two:1", Role::Follower(None));
        tokio::time::sleep(SHOW).await;
        second.standing.abort();
        Store::new(server.link(), "/polycast").resign("two:1").await;
        assert_eq!(server.keys("/polycast/managers/"), ["/polycast/managers/one:1"]);
    }
}
