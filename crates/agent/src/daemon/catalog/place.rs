//! Places of objects: one that stands for bytes that are nowhere any more is given back, and one in which an
//! object comes is waited for.

use super::{Available, Catalog, Inner, Snapshot, State, User, unknown};
use polycast_api::error::{Kind, Refusal};
use polycast_types::ObjectId;
use std::io;

impl Catalog {
    /// Takes out an object that was added, whose bytes have gone, as the caller has seen. Another one that
    /// has come in its place since then stays.
    pub(crate) fn delete_gone(
        &self,
        id: ObjectId,
        user: User,
        gone: &Available,
        remove: impl FnOnce() -> io::Result<bool>,
    ) -> Result<(), Refusal> {
        let check = |inner: &Inner| match inner.objects.get(&id) {
            Some(State::Available { object, .. })
                if object.added_from.is_some()
                    && (&object.added_from, object.since) == (&gone.added_from, gone.since) =>
            {
                Ok(())
            }
            _ => Err(unknown(id)),
        };
        self.delete_if(id, user, check, remove)
    }

    /// Waits while an object is being received, whatever becomes of it.
    ///
    /// # Errors
    /// The agent ends.
    pub(crate) async fn settled(&self, id: ObjectId) -> Result<(), Refusal> {
        let mut changes = self.changes();
        loop {
            // Seen before looking, so that a change in between is not missed.
            if changes.borrow_and_update().is_none() {
                return Err(Refusal::new(Kind::Cancelled, "the agent is shutting down"));
            }
            if !matches!(self.get(id), Some(Snapshot::Receiving { .. })) {
                return Ok(());
            }
            if changes.changed().await.is_err() {
                return Err(unknown(id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::id;
    use super::*;
    use std::sync::Arc;
    use std::time::SystemTime;

    fn added(path: &str) -> Available {
        Available { added_from: Some(path.into()), ..super::super::tests::added() }
    }

    /// Two look at the same number: the second one does not take out what the first has put in its place.
    #[test]
    fn what_has_gone_makes_room_and_what_is_new_stays() {
        let catalog = Arc::new(Catalog::new(3, 2, Vec::new()));
        let gone = added("/old");
        let give_back = || catalog.delete_gone(id(1), User::agent(), &gone, || Ok(false));
        assert_eq!(give_back().unwrap_err().kind, Kind::ObjectUnknown);
        catalog.add(id(1), gone.clone()).unwrap();
        let sending = catalog.begin_send(id(1)).unwrap();
        assert_eq!(give_back().unwrap_err().kind, Kind::ObjectBusy);
        drop(sending);
        give_back().unwrap();
        // One of the same path may be another one, too.
        let later =
            Available { since: SystemTime::now() + std::time::Duration::from_secs(1), ..gone.clone() };
        for new in [added("/new"), later] {
            catalog.add(id(1), new).unwrap();
            give_back().unwrap_err();
            assert!(catalog.is_known(id(1)));
            catalog.delete(id(1), User::agent(), || Ok(false)).unwrap();
        }
        catalog.add(id(1), added("/new")).unwrap();
        catalog.delete(id(1), User::agent(), || Ok(false)).unwrap();
        let receive = catalog.begin_receive(id(1)).unwrap();
        give_back().unwrap_err();
        drop(receive);
    }

    #[tokio::test]
    async fn what_is_being_received_is_waited_for() {
        let catalog = Arc::new(Catalog::new(3, 2, Vec::new()));
        catalog.settled(id(1)).await.unwrap();
        let receive = catalog.begin_receive(id(1)).unwrap();
        let waiting = tokio::spawn({
            let catalog = Arc::clone(&catalog);
            async move { catalog.settled(id(1)).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        receive.fail(Refusal::new(Kind::StoreFull, "the store is full"));
        waiting.await.unwrap().unwrap();
        let _receive = catalog.begin_receive(id(1)).unwrap();
        catalog.close();
        assert_eq!(catalog.settled(id(1)).await.unwrap_err().kind, Kind::Cancelled);
    }
}
