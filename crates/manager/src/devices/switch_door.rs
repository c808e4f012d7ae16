//! Door for racks' switches that connect to their controller of their own accord, as most do. They are told
//! apart by their datapath ids.

use polycast_net::devices::Remarks;
use polycast_net::devices::openflow::{Link, Switch, SwitchError, SwitchListener, SwitchOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};

/// Maximum number of clients that may shake hands at the same time.
const GREETED_MAX: usize = 64;
/// Maximum number of them from one address: a client that only dawdles leaves places to others.
const OF_ADDRESS_MAX: usize = 32;
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
    /// Log lines about clients that are no switches of ours: any host can be one as often as it likes.
    strangers: Mutex<Remarks>,
}

/// Number of clients that shake hands, by their addresses.
type Shaking = Arc<Mutex<BTreeMap<IpAddr, usize>>>;

/// A place among those of one address, given back when dropped.
#[derive(Debug)]
struct Place {
    shaking: Shaking,
    from: IpAddr,
}

impl Place {
    /// One, if there is one left.
    fn take(shaking: &Shaking, from: IpAddr) -> Option<Self> {
        let mut counts = shaking.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(from).or_insert(0);
        if *count >= OF_ADDRESS_MAX {
            return None;
        }
        *count += 1;
        Some(Place { shaking: Arc::clone(shaking), from })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.shaking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.from);
            }
        }
    }
}

impl SwitchDoor {
    pub(crate) fn new(listen: SocketAddr, options: SwitchOptions, named: BTreeSet<u64>) -> Arc<Self> {
        let (come, arrived, is_open, strangers) = Default::default();
        Arc::new(SwitchDoor { listen, options, named, come, arrived, is_open, strangers })
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
                let dpid = switch.datapath_id();
                self.turn_away(&format!(
                    "it is a switch with the dpid {dpid:#x}, which no [[tor]] names: add it to its rack"
                ));
            }
            Err(error) => self.turn_away(&error.to_string()),
        }
    }

    /// Says that a client is not let in, at most once a second.
    fn turn_away(&self, why: &str) {
        let times = self.strangers.lock().unwrap_or_else(PoisonError::into_inner).count();
        if let Some(times) = times {
            tracing::warn!(why, times, "a client has connected that is no switch of ours");
        }
    }
}

/// Serves as long as there is a holder of the door.
async fn serve(door: Weak<SwitchDoor>, listen: SocketAddr, options: SwitchOptions) {
    let (places, shaking) = (Arc::new(Semaphore::new(GREETED_MAX)), Shaking::default());
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
                    let Some(of_address) = Place::take(&shaking, arrival.address().ip()) else {
                        if let Some(door) = door.upgrade() {
                            door.turn_away("as many shake hands from its address as may at the same time");
                        }
                        continue;
                    };
                    tokio::spawn(async move {
                        let greeted = arrival.shake_hands().await;
                        if let Some(door) = door.upgrade() {
                            door.let_in(greeted);
                        }
                        drop((place, of_address));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The places of others stay free, however many connections come from one address.
    #[test]
    fn one_address_has_no_more_than_half_of_the_places() {
        let shaking = Shaking::default();
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let mut held: Vec<Place> = (0..100).filter_map(|_| Place::take(&shaking, one)).collect();
        assert_eq!((held.len(), GREETED_MAX), (OF_ADDRESS_MAX, 2 * OF_ADDRESS_MAX));
        assert!(Place::take(&shaking, other).is_some());
        held.pop();
        assert!(Place::take(&shaking, one).is_some(), "a place that was given back is taken again");
        drop(held);
        assert!(shaking.lock().unwrap().is_empty(), "nothing is kept of those that have gone");
    }
}
