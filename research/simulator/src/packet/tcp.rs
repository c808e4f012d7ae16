//! TCP as far as it shapes traffic: windows, the acknowledgement clock, fast retransmit and time-outs.
//!
//! It carries the control channels, patches and the mesh of push, the transport `tcp`, and background
//! flows (Datacast section 6.2 shares links with such flows). Reno and NewReno's partial acknowledgements
//! (RFC 5681, RFC 6582), CUBIC (RFC 9438) and the time-out of RFC 6298. The stream is counted, not carried.

use core::ops::Range;
use polycast_types::{Duration, RangeSet, Time};

/// Bytes of the IP and TCP headers with time stamps.
pub const SEGMENT_HEADER_LEN: u32 = 52;

/// Growth of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Growth {
    /// A segment a round trip.
    Reno,
    /// A cubic function of the time since the last loss.
    #[default]
    Cubic,
}

/// Settings of one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Bytes of a full segment, headers not counted.
    pub segment_bytes: u32,
    /// Segments that may be out at first.
    pub initial_segments: u32,
    /// The most bytes that may be out: the peer's receive window.
    pub receive_window: u64,
    /// Growth of the window.
    pub growth: Growth,
    /// The shortest time-out.
    pub timeout_min: Duration,
    /// The longest time-out.
    pub timeout_max: Duration,
}

impl Default for TcpConfig {
    fn default() -> Self {
        TcpConfig {
            segment_bytes: 1_448,
            initial_segments: 10,
            receive_window: 4 << 20,
            growth: Growth::Cubic,
            timeout_min: Duration::from_millis(10),
            timeout_max: Duration::from_secs(1),
        }
    }
}

/// The sending end of one direction.
#[derive(Debug)]
pub struct TcpSender {
    config: TcpConfig,
    /// Bytes that the application has written.
    written: u64,
    /// First byte that is not acknowledged, next byte to send, and the end of what was ever sent.
    unacknowledged: u64,
    next: u64,
    highest: u64,
    /// Window and threshold of slow start, in bytes.
    window: u64,
    threshold: u64,
    duplicates: u32,
    /// Recovery lasts until this byte is acknowledged.
    recover: Option<u64>,
    retransmit: bool,
    /// The segment whose round trip is being measured: its end and when it left.
    timed: Option<(u64, Time)>,
    smoothed: Option<Duration>,
    variation: Duration,
    timeout: Duration,
    timeout_at: Option<Time>,
    cubic: Cubic,
    retransmissions: u64,
}

/// State of CUBIC, in segments and seconds: the window at the last loss and the course of growth.
#[derive(Clone, Copy, Debug, Default)]
struct Cubic {
    window_max: f64,
    /// Time at which growth began, the time until the plateau, and its height.
    began: Option<(Time, f64, f64)>,
    /// Window that Reno would have by now, for fairness with it.
    reno: f64,
}

const CUBIC_C: f64 = 0.4;
const CUBIC_BETA: f64 = 0.7;

impl TcpSender {
    /// A sender with nothing written.
    #[must_use]
    pub fn new(config: TcpConfig) -> Self {
        assert!(config.segment_bytes > 0 && config.initial_segments > 0, "a window holds a segment");
        assert!(config.receive_window >= u64::from(config.segment_bytes), "a window holds a segment");
        TcpSender {
            written: 0,
            unacknowledged: 0,
            next: 0,
            highest: 0,
            window: u64::from(config.segment_bytes) * u64::from(config.initial_segments),
            threshold: u64::MAX,
            duplicates: 0,
            recover: None,
            retransmit: false,
            timed: None,
            smoothed: None,
            variation: Duration::ZERO,
            timeout: config.timeout_min.max(Duration::from_millis(200).min(config.timeout_max)),
            timeout_at: None,
            cubic: Cubic::default(),
            retransmissions: 0,
            config,
        }
    }

    /// The application writes so many more bytes.
    pub fn write(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    /// Bytes written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that wait to be sent for the first time.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.written - self.highest
    }

    /// Bytes acknowledged so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.unacknowledged
    }

    /// The congestion window in bytes.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Segments sent again so far.
    #[must_use]
    pub fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    fn segment(&self) -> u64 {
        u64::from(self.config.segment_bytes)
    }

    /// The next segment to send, as a range of bytes; `None` until the next input or `deadline`.
    pub fn poll(&mut self, now: Time) -> Option<Range<u64>> {
        if self.timeout_at.is_some_and(|at| now >= at) {
            self.time_out();
        }
        if core::mem::take(&mut self.retransmit) {
            let end = (self.unacknowledged + self.segment()).min(self.highest);
            self.timed = None;
            self.retransmissions += 1;
            self.timeout_at = Some(now + self.timeout);
            return Some(self.unacknowledged..end);
        }
        let limit = self.unacknowledged + self.window.min(self.config.receive_window);
        let end = (self.next + self.segment()).min(self.written);
        // A full segment or all that is left: no silly small ones because of the window.
        if self.next >= self.written || end > limit {
            return None;
        }
        let range = self.next..end;
        self.next = end;
        if end > self.highest {
            self.highest = end;
            if self.timed.is_none() {
                self.timed = Some((end, now));
            }
        } else {
            self.retransmissions += 1;
        }
        if self.timeout_at.is_none() {
            self.timeout_at = Some(now + self.timeout);
        }
        Some(range)
    }

    /// Returns the time at which `poll` is to be called again if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.timeout_at
    }

    /// The peer has everything before `next`.
    pub fn acknowledge(&mut self, now: Time, next: u64) {
        if next > self.highest || next < self.unacknowledged {
            return;
        }
        if next == self.unacknowledged {
            self.duplicate();
            return;
        }
        let fresh = next - self.unacknowledged;
        self.unacknowledged = next;
        self.next = self.next.max(next);
        self.duplicates = 0;
        if let Some((end, at)) = self.timed
            && next >= end
        {
            self.timed = None;
            self.measured(now.since(at));
        }
        match self.recover {
            Some(recover) if next >= recover => {
                self.recover = None;
                self.window = self.threshold;
            }
            Some(_) => {
                // A partial acknowledgement: the next hole begins here.
                self.retransmit = true;
                self.window = self.window.saturating_sub(fresh).max(self.segment()) + self.segment();
            }
            None => self.grow(now, fresh),
        }
        self.timeout_at = (self.unacknowledged < self.highest).then(|| now + self.timeout);
    }

    fn duplicate(&mut self) {
        if self.unacknowledged == self.highest {
            return;
        }
        self.duplicates += 1;
        if self.recover.is_some() {
            self.window += self.segment();
        } else if self.duplicates == 3 {
            self.lose();
            self.recover = Some(self.highest);
            self.window = self.threshold + 3 * self.segment();
            self.retransmit = true;
        }
    }

    /// A loss: the threshold falls by half, or by CUBIC's factor.
    fn lose(&mut self) {
        let flight = (self.highest - self.unacknowledged).min(self.window);
        let floor = 2 * self.segment();
        self.threshold = match self.config.growth {
            Growth::Reno => (flight / 2).max(floor),
            Growth::Cubic => {
                self.cubic.window_max = self.window as f64 / self.segment() as f64;
                self.cubic.began = None;
                ((flight as f64 * CUBIC_BETA) as u64).max(floor)
            }
        };
    }

    fn time_out(&mut self) {
        if self.unacknowledged == self.highest {
            self.timeout_at = None;
            return;
        }
        self.lose();
        self.window = self.segment();
        self.next = self.unacknowledged;
        self.recover = None;
        self.retransmit = false;
        self.duplicates = 0;
        self.timed = None;
        self.timeout = (self.timeout * 2).min(self.config.timeout_max);
        self.timeout_at = None;
    }

    fn measured(&mut self, span: Duration) {
        let smoothed = match self.smoothed {
            None => {
                self.variation = span / 2;
                span
            }
            Some(old) => {
                let difference = Duration(old.0.abs_diff(span.0));
                self.variation = (self.variation * 3 + difference) / 4;
                (old * 7 + span) / 8
            }
        };
        self.smoothed = Some(smoothed);
        let timeout = smoothed + self.variation * 4;
        self.timeout = timeout.max(self.config.timeout_min).min(self.config.timeout_max);
    }

    fn grow(&mut self, now: Time, fresh: u64) {
        let segment = self.segment();
        if self.window < self.threshold {
            self.window += fresh.min(segment);
            return;
        }
        if self.config.growth == Growth::Reno {
            self.window += (segment * segment / self.window).max(1);
            return;
        }
        let window = self.window as f64 / segment as f64;
        let (began, plateau, height) = *self.cubic.began.get_or_insert_with(|| {
            self.cubic.reno = window;
            let height = self.cubic.window_max.max(window);
            (now, libm::cbrt((height - window) / CUBIC_C), height)
        });
        let round_trip = self.smoothed.unwrap_or(Duration::ZERO).as_secs_f64();
        let t = now.since(began).as_secs_f64() + round_trip - plateau;
        let target = CUBIC_C * t * t * t + height;
        let acknowledged = fresh as f64 / segment as f64;
        let slope = 3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA);
        self.cubic.reno += slope * acknowledged / window;
        let step = if target > window { ((target - window) / window).min(0.5) } else { 0.01 / window };
        let grown = (window + step * acknowledged).max(self.cubic.reno);
        self.window = self.window.max((grown * segment as f64) as u64);
    }
}

/// The receiving end of one direction: acknowledges every segment.
#[derive(Debug, Default)]
pub struct TcpReceiver {
    next: u64,
    ahead: RangeSet,
}

impl TcpReceiver {
    /// Bytes that are there without a gap: also what an acknowledgement says.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Takes in a segment.
    pub fn segment(&mut self, bytes: Range<u64>) {
        if bytes.start > self.next {
            self.ahead.insert(bytes);
            return;
        }
        self.next = self.next.max(bytes.end);
        while let Some(run) = self.ahead.run_at(self.next) {
            self.next = run.end;
        }
        if !self.ahead.is_empty() {
            self.ahead.remove(0..self.next);
        }
    }
}

#[cfg(test)]
mod tests;
