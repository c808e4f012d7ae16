//! Progress of an agent's transfers of an object, shown while a command waits for them.

use super::connect;
use crate::args::cluster::LocalArgs;
use crate::progress::{Arrived, Progress};
use polycast_api::agent::Transfer;
use polycast_api::agent::transfer::Direction;
use polycast_api::report::Report;
use polycast_types::ObjectId;
use std::time::Duration;

/// The agent is asked so often.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Does `work`, and shows meanwhile how far the object is on its way; `name` is what people call it.
pub(super) async fn shown<T>(
    local: &LocalArgs,
    (id, name): (ObjectId, &str),
    progress: &Progress,
    work: impl Future<Output = T>,
) -> T {
    tokio::select! {
        outcome = work => outcome,
        () = ask(local, id, name, progress) => unreachable!("it goes on until the work is done"),
    }
}

/// Asks again and again. What the agent does not answer is not shown; the work itself says what is wrong.
pub(super) async fn ask(local: &LocalArgs, id: ObjectId, name: &str, progress: &Progress) {
    let mut turns = tokio::time::interval(ASK_EVERY);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first comes at once, when nothing has begun yet.
    turns.tick().await;
    let Ok(client) = connect(local).await else { return std::future::pending().await };
    loop {
        turns.tick().await;
        let Ok(status) = client.status().await else { continue };
        // Of several the one that is least far: what is waited for is all of them.
        let mut all = status.transfers.into_iter().filter(|transfer| is_of(transfer, id));
        if let Some(transfer) = all.by_ref().min_by_key(|transfer| transfer.bytes) {
            show(transfer, name, progress);
        }
    }
}

fn is_of(transfer: &Transfer, id: ObjectId) -> bool {
    transfer.data_id == id.data.0 && transfer.app_id == id.app.0
}

fn show(transfer: Transfer, name: &str, progress: &Progress) {
    if transfer.direction() == Direction::Receiving {
        let waiting = format!("waiting for {name} to begin");
        let Transfer { bytes, spared_bytes, length: total, .. } = transfer;
        return progress.reception(Arrived { bytes, spared_bytes, total }, &waiting, "being stored");
    }
    if let Some(Ok(report)) = transfer.report.map(Report::try_from) {
        progress.delivery(&report);
    }
}
