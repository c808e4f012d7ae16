//! Where the racks' switches come that connect to their controller of their own accord, as most do. They are told apart by
//! their datapath ids.

use polycast_net::devices::openflow::{Link, Switch, SwitchError, SwitchListener, SwitchOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};

/// Those who may shake hands at the same time.
const GREETED_MAX: usize = 64;
/// Pause after a listener has failed.
const AGAIN: Duration = Duration::from_secs(1);

/// The door. It is open from its first use, as long as a rack's switch may come.
#[derive(Debug)]
pub(crate) struct SwitchDoor {
    listen: SocketAddr,
    options: SwitchOptions,
    /// The switches that may come.
    named: BTreeSet<u64>,
    /// Switches that have come and were not taken in yet.
    come: Mutex<BTreeMap<u64, Switch>>,
    arrived: Notify,
    is_open: AtomicBool,
}

impl SwitchDoor {
    pub(crate) fn new(listen: SocketAddr, options: SwitchOptions, named: BTreeSet<u64>) -> Arc<Self> {
        let (come, arrived, is_open) = Default::default();
        Arc::new(SwitchDoor { listen, options, named, come, arrived, is_open })
    }

    /// Opens it if it is not open. Needs a tokio runtime around it.
    pub(crate) fn open(self: &Arc<Self>) {
        if !self.is_open.swap(true, Ordering::Relaxed) {
            tokio::spawn(serve(Arc::downgrade(self), self.listen, self.options.clone()));
        }
    }

    /// The switch of this number, if it has come and is still there.
    pub(crate) fn take(&self, dpid: u64) -> Option<Switch> {
        self.come().remove(&dpid).filter(|switch| *switch.link().borrow() == Link::Up)
    }

    /// Waits until a switch has come.
    pub(crate) async fn arrival(&self) {
        self.arrived.notified().await;
    }

    fn come(&self) -> MutexGuard<'_, BTreeMap<u64, Switch>> {
        self.come.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn let_in(&self, greeted: Result<Switch, SwitchError>) {
        match greeted {
            Ok(switch) if self.named.contains(&switch.datapath_id()) => {
                self.come().insert(switch.datapath_id(), switch);
                self.arrived.notify_waiters();
            }
            Ok(switch) => {
                let dpid = format!("{:#x}", switch.datapath_id());
                tracing::warn!(
                    dpid,
                    "a switch has connected that no [[tor]] names: add its dpid to its rack"
                );
            }
            Err(error) => tracing::warn!(%error, "a client has connected that is no switch of ours"),
        }
    }
}

/// Serves as long as there is a holder of the door.
async fn serve(door: Weak<SwitchDoor>, listen: SocketAddr, options: SwitchOptions) {
    let places = Arc::new(Semaphore::new(GREETED_MAX));
    while door.strong_count() > 0 {
        let listener = match SwitchListener::bind(listen, options.clone()).await {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(%listen, %error, "switches cannot connect: is openflow-listen an address of this machine, and free?");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        while door.strong_count() > 0 {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            match tokio::time::timeout(AGAIN, listener.next()).await {
                Err(_) => {}
                Ok(Ok(arrival)) => {
                    let door = Weak::clone(&door);
                    tokio::spawn(async move {
                        let greeted = arrival.shake_hands().await;
                        if let Some(door) = door.upgrade() {
                            door.let_in(greeted);
                        }
                        drop(place);
                    });
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "a switch cannot be heard");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }
}
