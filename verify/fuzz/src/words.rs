//! Values that a fuzzer's bytes stand for: numbers, names, times and frames, as a peer may choose them that
//! keeps to the format and to nothing else.

use arbitrary::Unstructured;
use polycast_types::{AppId, DataId, Duration, Handle, Location, ModificationTime, ObjectId, RangeSet, Time};
use polycast_wire::control::{
    CANDIDATES_MAX, CandidateEnd, Control, End, Fault, Form, Hello, Overlay, SealSecret, Share, Welcome,
};
use std::net::IpAddr;
use std::ops::Range;

/// Says at most so much at one time: a machine that says more goes round in circles.
const OUTPUTS_MAX: usize = 50_000;
/// A run takes at most so many inputs, so that it stays short.
pub const INPUTS_MAX: usize = 500;
/// The transfer that machines are in.
pub const HANDLE: Handle = Handle(7);

/// Faults that receivers report of candidates.
const FAULTS: [Fault; 6] =
    [Fault::Unreachable, Fault::Ended, Fault::Stalled, Fault::NeverGave, Fault::WrongBytes, Fault::Foreign];

/// Names that meet.
const NAMES: [&str; 5] = ["host-0", "host-1", "host-2", "host-3", "host-4"];

/// Reads bytes as choices; behind their end all choices are the first one.
pub struct Words<'a>(Unstructured<'a>);

impl<'a> Words<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Words(Unstructured::new(bytes))
    }

    /// Returns true if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.int_in_range(0..=limit.max(1) - 1).unwrap_or(0)
    }

    /// Yes or no.
    pub fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Small, about as large as `near`, as large as there are, or anything.
    pub fn number(&mut self, near: u64) -> u64 {
        match self.below(8) {
            0..=3 => self.below(near.saturating_mul(2).saturating_add(2)),
            4 => near.saturating_add(self.below(3)).saturating_sub(1),
            5 => u64::MAX - self.below(3),
            6 => 1 << self.below(64),
            _ => self.0.arbitrary().unwrap_or(0),
        }
    }

    /// The same, shorter.
    pub fn small(&mut self, near: u32) -> u32 {
        match self.below(8) {
            0..=5 => self.below(u64::from(near).saturating_add(2)) as u32,
            6 => u32::MAX - self.below(3) as u32,
            _ => self.0.arbitrary().unwrap_or(0),
        }
    }

    /// At most so many bytes, behind their count.
    pub fn bytes(&mut self, len_max: u16) -> &'a [u8] {
        let len = usize::from(self.0.arbitrary::<u16>().unwrap_or(0) % len_max.saturating_add(1).max(1));
        self.0.bytes(len.min(self.0.len())).unwrap_or(&[])
    }

    /// An array of bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        self.0.arbitrary().unwrap_or([0; N])
    }

    /// An address of either family.
    pub fn address(&mut self) -> IpAddr {
        match self.flip() {
            true => IpAddr::from(self.array::<4>()),
            false => IpAddr::from(self.array::<16>()).to_canonical(),
        }
    }

    /// A text: mostly short, at times as long as the wire takes.
    pub fn text(&mut self) -> String {
        let text = String::from_utf8_lossy(self.bytes(40)).into_owned();
        match self.below(8) {
            7 => "é".repeat(32_767 - self.below(40) as usize),
            6 => text.repeat(1_700).chars().take(16_000).collect(),
            _ => text,
        }
    }

    /// A name: mostly one of a few.
    pub fn name(&mut self) -> String {
        match self.below(16) {
            0 => self.text(),
            1 => "all".to_string(),
            n => NAMES[n as usize % NAMES.len()].to_string(),
        }
    }

    /// A name that fits into a frame.
    pub fn short_name(&mut self) -> String {
        let name = self.name();
        if name.len() > 255 { "long".to_string() } else { name }
    }

    /// A few names.
    pub fn names(&mut self) -> Vec<String> {
        (0..self.below(4)).map(|_| self.name()).collect()
    }

    /// Ranges as the wire takes them: rising, not empty, apart from each other.
    pub fn ranges(&mut self, near: u64) -> Vec<Range<u64>> {
        let mut ends: Vec<u64> = (0..2 * self.below(6)).map(|_| self.number(near)).collect();
        ends.sort_unstable();
        ends.dedup();
        ends.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// The same as a set.
    pub fn range_set(&mut self, near: u64) -> RangeSet {
        self.ranges(near).into_iter().collect()
    }

    /// Numbers that rise.
    pub fn members(&mut self, near: u32) -> Vec<u32> {
        let mut members: Vec<u32> = (0..self.below(6)).map(|_| self.small(near)).collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    /// A time: none, short, long or without end.
    pub fn span(&mut self) -> Duration {
        match self.below(8) {
            0 => Duration::ZERO,
            1..=3 => Duration(self.below(2_000_000)),
            4 | 5 => Duration(self.below(700_000_000)),
            6 => Duration(self.below(40_000_000_000)),
            _ => Duration(self.number(1 << 52)),
        }
    }

    /// Lets time go on: mostly a little, at times for years.
    pub fn pass(&mut self, now: &mut Time) {
        let span = self.span();
        // 36 years are enough for every clock.
        *now = Time((*now + span).0.min(1 << 60));
    }

    /// A frame as it comes from a connection: any bytes behind a length that fits.
    fn any_frame(&mut self) -> Vec<u8> {
        let body = self.bytes(300);
        [&(body.len() as u32).to_be_bytes(), body].concat()
    }

    /// A frame that a receiver sends, about an object of `near` fragments.
    pub fn frame_to_source(&mut self, near: u64, peers: u32) -> Vec<u8> {
        let name;
        let control = match self.below(16) {
            0 | 1 => return self.any_frame(),
            2 => Control::Have(self.ranges(near)),
            3 => Control::IntlSeq { position: self.number(near) },
            4..=6 => self.progress(near),
            7 | 8 => Control::PtchReq(self.ranges(near)),
            9 => Control::RackReq(self.ranges(near)),
            10 => Control::Rack(self.members(peers)),
            11 if self.flip() => Control::Overlay(Overlay::Lacks(self.ranges(near))),
            11 => {
                let (address, port) = (self.address(), self.small(9) as u16);
                let why = FAULTS[self.below(FAULTS.len() as u64) as usize];
                Control::Overlay(Overlay::Fault { address, port, why })
            }
            12 => Control::DataRcvd { patched_bytes: self.number(near), proof: self.array() },
            13 => Control::Stalled { tree: self.small(4) as u8 },
            14 => Control::Alive,
            _ => {
                name = self.text();
                Control::Refuse(&name)
            }
        };
        emitted(&control)
    }

    /// Draws the progress that a receiver reports.
    pub fn progress(&mut self, near: u64) -> Control<'static> {
        Control::Progress {
            position: self.number(near),
            received: self.number(near),
            lost: self.number(near),
            verified_bytes: self.number(near.saturating_mul(1_000)),
            arrived_ns: self.number(1 << 30),
            waited_ns: self.number(1 << 20),
        }
    }

    /// A frame that a source sends, about an object of `near` fragments.
    pub fn frame_to_receiver(&mut self, near: u64) -> Vec<u8> {
        let (text, payload);
        let control = match self.below(20) {
            0 | 1 => return self.any_frame(),
            2 => {
                text = self.short_name();
                Control::Welcome(self.welcome(&text, near))
            }
            3 if self.flip() => Control::Hashes {
                first: self.number(near),
                hashes: vec![self.array(); 1 + self.below(3) as usize],
            },
            3 => Control::Sums {
                first: self.number(near),
                sums: vec![self.number(near); 1 + self.below(3) as usize],
            },
            4 if self.flip() => Control::Seal(SealSecret(self.array())),
            4 => Control::Root(self.array()),
            5 => {
                payload = self.bytes(100);
                Control::PtchData { sn: self.number(near), payload }
            }
            6 | 7 => Control::DataFnsd { position: self.number(near) },
            8 | 9 => {
                text = self.short_name();
                Control::Overlay(self.candidates(&text))
            }
            10 => Control::Finished,
            11 => Control::Alive,
            12 => Control::Channel {
                channel: (self.address(), self.small(9) as u16),
                outer_len: 4 * self.below(3) as u8,
            },
            13 | 14 => Control::Gather { own: self.small(4), members: self.members(4) },
            15 | 16 => Control::Speaker {
                member: self.small(4),
                address: self.address(),
                port: self.small(2) as u16,
                name: None,
            },
            17 => {
                let (block_bytes, credits) = (1 + self.below(9), 1 + self.below(9) as u32);
                Control::Trees { count: 1, block_bytes, credits, retry_ms: 0, overtaken: 3, progress_ms: 100 }
            }
            18 => Control::Stalled { tree: self.small(4) as u8 },
            _ => {
                text = self.text();
                Control::Refuse(&text)
            }
        };
        emitted(&control)
    }

    fn candidates<'n>(&mut self, name: &'n str) -> Overlay<'n> {
        let mut ends: Vec<CandidateEnd<'n>> = Vec::new();
        for _ in 0..self.below(CANDIDATES_MAX as u64 + 1) {
            let (address, port) = (self.address(), self.small(9) as u16);
            // None is named twice.
            if !ends.iter().any(|known| (known.end.address, known.end.port) == (address, port)) {
                let end = End { address, port, name: self.flip().then_some(name) };
                ends.push(CandidateEnd { end, share: self.share() });
            }
        }
        Overlay::Candidates { entry: self.number(9), is_behind_head: self.flip(), ends }
    }

    /// Draws the groups that may be requested somewhere.
    pub fn share(&mut self) -> Share {
        let [of, at, by] = [3, 2, 2].map(|near| self.small(near) as u16);
        Share::new(of, at, by).unwrap_or(Share::ALL)
    }

    /// Draws a zone and a rack.
    pub fn location(&mut self) -> Location {
        let names = ["", "a", "b"];
        Location::of([names[self.below(3) as usize], names[self.below(3) as usize]])
    }

    fn welcome<'n>(&mut self, name: &'n str, near: u64) -> Welcome<'n> {
        Welcome {
            object: self.object(),
            form: if self.flip() { Form::Directory } else { Form::Set },
            mode: self.below(0o1000) as u16,
            name,
            object_len: self.number(near) % (1 << 50),
            fragment_len: 1 + self.small(9_000) % 65_535,
            group_len: 1 << (16 + self.below(5)),
            channel: (self.address(), self.small(9) as u16),
            outer_len: 4 * self.below(3) as u8,
            stall_ns: self.number(1 << 30),
            salt: self.array(),
            modified: self
                .flip()
                .then(|| ModificationTime { seconds: self.number(near).cast_signed(), nanos: 999_999_999 }),
            data_len: self.flip().then_some(0),
        }
    }

    /// An object's name.
    pub fn object(&mut self) -> ObjectId {
        ObjectId { app: AppId::default(), data: DataId(self.number(4)) }
    }

    /// Draws a receiver's first message.
    pub fn hello<'n>(&mut self, name: &'n str) -> Hello<'n> {
        let handle = if self.below(8) == 0 { Handle(self.number(7)) } else { HANDLE };
        let location = if self.below(8) == 0 { ["zone", "rack"] } else { ["", ""] };
        let (window_bytes, serve_port) = (self.number(1 << 20), self.small(9) as u16);
        Hello { handle, name, window_bytes, serve_port, location }
    }
}

/// A frame as the other end gets it.
///
/// # Panics
/// It cannot be written, or is read as something else.
pub fn emitted(control: &Control<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    control.emit(&mut frame);
    match (Control::parse(&frame), control) {
        // Reasons are cut where they are too long.
        (Ok(Control::Refuse(read)), Control::Refuse(reason)) => {
            assert!(reason.starts_with(read), "{read} of {reason}")
        }
        (read, _) => assert_eq!(read.as_ref(), Ok(control)),
    }
    frame
}

/// Handles bytes as a driver does: they are passed on if they are a frame.
pub fn hear(frame: &[u8], heard: impl FnOnce(&Control<'_>)) {
    if let Ok(control) = Control::parse(frame) {
        heard(&control);
    }
}

/// Takes what a machine has to say at one time, which comes to an end.
pub fn drain<M, O>(
    machine: &mut M,
    mut poll: impl FnMut(&mut M) -> Option<O>,
    mut judge: impl FnMut(&mut M, O),
) {
    for _ in 0..OUTPUTS_MAX {
        let Some(output) = poll(machine) else { return };
        judge(machine, output);
    }
    panic!("it never comes to an end");
}
