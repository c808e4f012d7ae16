//! The course of a run as CSV: a row for each receiver and each link at every sample.

use polycast_simulator::packet::scenario::Sample;
use polycast_types::Time;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The most rows of a file: with some 40 bytes each it has 4 GB then.
const ROWS_MAX: u64 = 100_000_000;

/// Writes samples as they come. The first error ends it; [`Series::end`] says it.
pub(super) struct Series<W: Write> {
    out: W,
    failed: Option<io::Error>,
    before: Time,
    /// The bytes of each row at the sample before: of a receiver of a transfer, or of a link by its ends.
    bytes: BTreeMap<(u32, u32, bool), u64>,
    rows: u64,
}

impl<W: Write> Series<W> {
    /// Begins with the heads of the columns.
    pub(super) fn new(mut out: W) -> Self {
        let failed = writeln!(out, "time_s,kind,from,to,bytes,rate_bps,queue_bytes,drops,transfer").err();
        Series { out, failed, before: Time::ZERO, bytes: BTreeMap::new(), rows: 0 }
    }

    /// Adds a sample.
    pub(super) fn add(&mut self, sample: &Sample) {
        if self.failed.is_none() {
            self.failed = self.write(sample).err();
        }
        self.before = sample.at;
    }

    /// Ends the series; returns an error if not all was written.
    pub(super) fn end(mut self) -> io::Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    fn write(&mut self, sample: &Sample) -> io::Result<()> {
        let passed_s = sample.at.since(self.before).as_secs_f64();
        let at_s = sample.at.since(Time::ZERO).as_secs_f64();
        self.rows += (sample.receivers.len() + sample.links.len()) as u64;
        if self.rows > ROWS_MAX {
            let sentence = format!("it would have more than {ROWS_MAX} rows: choose a longer --interval");
            return Err(io::Error::other(sentence));
        }
        let mut rate_of = |key, bytes: u64| {
            let before = self.bytes.insert(key, bytes).unwrap_or(0);
            // A receiver that crashes loses what it had not stored.
            let bits = bytes.saturating_sub(before) as f64 * 8.0;
            if passed_s > 0.0 { (bits / passed_s).round() } else { 0.0 }
        };
        for receiver in &sample.receivers {
            let rate_bps = rate_of((receiver.id, receiver.transfer, false), receiver.bytes);
            let (id, bytes, transfer) = (receiver.id, receiver.bytes, receiver.transfer);
            writeln!(self.out, "{at_s},receiver,{id},,{bytes},{rate_bps},,,{transfer}")?;
        }
        for link in &sample.links {
            let rate_bps = rate_of((link.from, link.to, true), link.bytes);
            let (from, to, bytes) = (link.from, link.to, link.bytes);
            let (queue_bytes, drops) = (link.queue_bytes, link.drops);
            writeln!(self.out, "{at_s},link,{from},{to},{bytes},{rate_bps},{queue_bytes},{drops},")?;
        }
        Ok(())
    }
}
