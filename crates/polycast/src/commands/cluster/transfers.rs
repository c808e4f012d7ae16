//! `polycast transfers`: what the local agent sends and receives, a line each.

use super::{connect, runtime, waiting_text};
use crate::args::cluster::LocalArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::progress;
use polycast_api::agent::transfer::Direction;
use polycast_api::agent::{StatusResponse, Transfer};
use polycast_api::client::AgentClient;
use polycast_api::convert::object_id;
use polycast_api::documents;
use polycast_api::report::ReceiverReport;
use polycast_types::{ObjectId, Printable, format_bytes};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// A rate takes two looks, so far apart: receivers say how far they are in steps of some 100 ms, so that over
/// a quarter of a second a link of 200 Mbit/s was said to give 136 to 229.
const BETWEEN: Duration = Duration::from_secs(1);

/// `polycast transfers`
pub(super) fn run(local: &LocalArgs, format: Format) -> Result<Exit, Failure> {
    let (_, rows) = runtime()?.block_on(async {
        let client = connect(local).await?;
        Seen::default().twice(&client).await
    })?;
    let documents: Vec<Value> = rows.iter().map(Row::document).collect();
    let lines: Vec<String> = rows.iter().map(ToString::to_string).collect();
    let text = if lines.is_empty() { "no transfers".to_string() } else { lines.join("\n") };
    output::result(format, &documents, &text)?;
    Ok(Exit::Done)
}

/// Observations of an agent's transfers, which give their rates.
#[derive(Default)]
pub(super) struct Seen {
    paces: BTreeMap<(ObjectId, bool), progress::Pace>,
}

impl Seen {
    /// Looks once more, after a while where anything runs: so that there are rates.
    pub(super) async fn twice(mut self, client: &AgentClient) -> Result<(StatusResponse, Vec<Row>), Failure> {
        let first = self.look(client).await?;
        if first.1.is_empty() {
            return Ok(first);
        }
        tokio::time::sleep(BETWEEN).await;
        self.look(client).await
    }

    /// Looks at what runs.
    pub(super) async fn look(&mut self, client: &AgentClient) -> Result<(StatusResponse, Vec<Row>), Failure> {
        let status = client.status().await?;
        let objects = match status.transfers.is_empty() {
            true => Vec::new(),
            false => client.list(None).await?,
        };
        let names: BTreeMap<ObjectId, &str> =
            objects.iter().filter_map(|object| Some((object.id().ok()?, object.name.as_str()))).collect();
        let (now, mut paces) = (Instant::now(), BTreeMap::new());
        let mut rows = Vec::new();
        for transfer in &status.transfers {
            let Ok(id) = object_id(&transfer.app_id, transfer.data_id) else { continue };
            let key = (id, transfer.direction() == Direction::Sending);
            let mut pace = self.paces.remove(&key).unwrap_or_default();
            let mut row = Row::of(id, names.get(&id).copied(), transfer);
            pace.note(now, row.came_bytes());
            row.rate_bps = pace.rate_bps();
            rows.push(row);
            paces.insert(key, pace);
        }
        // What has ended is forgotten.
        self.paces = paces;
        Ok((status, rows))
    }
}

/// A transfer.
pub(super) struct Row {
    id: ObjectId,
    name: Option<String>,
    transfer: Transfer,
    receivers: Vec<ReceiverReport>,
    rate_bps: Option<f64>,
}

impl Row {
    fn of(id: ObjectId, name: Option<&str>, transfer: &Transfer) -> Self {
        let receivers = documents::receivers_of(transfer);
        Row { id, name: name.map(str::to_string), transfer: transfer.clone(), receivers, rate_bps: None }
    }

    /// Returns the number of bytes that came over the network: to the slowest receiver, when sending.
    fn came_bytes(&self) -> u64 {
        if self.transfer.direction() == Direction::Receiving {
            return self.transfer.bytes.saturating_sub(self.transfer.spared_bytes);
        }
        documents::slowest(&self.receivers).map_or(0, |receiver| receiver.came_bytes)
    }

    fn document(&self) -> Value {
        documents::transfer(&self.transfer, self.name.as_deref(), &self.receivers, self.rate_bps)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (transfer, length) = (&self.transfer, self.transfer.length);
        let name = self.name.clone().unwrap_or_else(|| format!("object {}", self.id));
        write!(f, "{:<9}  {}", documents::direction(transfer), Printable(&name))?;
        if let Some(waiting) = &transfer.waiting {
            let how = waiting_text(waiting).unwrap_or_else(|| "the manager has not answered yet".into());
            return write!(f, "  {how}");
        }
        if let Some(percent) = documents::percent_of(transfer.bytes, length) {
            write!(f, "  {percent}% of {}", format_bytes(length))?;
        }
        if let Some(rate_bps) = self.rate_bps {
            write!(f, "  {}", progress::rate_or_wait(rate_bps))?;
        }
        if !self.receivers.is_empty() {
            write!(f, "  {}", progress::receivers(&self.receivers, length, usize::MAX))?;
        }
        match &transfer.granted {
            Some(granted) => write!(f, "  over {}", Printable(&granted.fabric)),
            None => Ok(()),
        }
    }
}
