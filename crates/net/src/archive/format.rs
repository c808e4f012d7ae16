//! The bytes before each entry: GNU tar headers, as written and as read.

use polycast_types::ModificationTime;
use tar::{EntryType, Header};

/// Headers and contents are padded to this many bytes.
pub(super) const BLOCK_LEN: u64 = 512;
/// Two blocks of zeros end a stream.
pub(super) const TRAILER_LEN: u64 = 2 * BLOCK_LEN;
/// No name or time record is longer; a stream that says otherwise is hostile.
pub(super) const RECORD_LEN_MAX: u64 = 64 * 1024;
/// The longest path that the system opens, in bytes.
pub(super) const PATH_LEN_MAX: usize = 4_095;
/// The longest name that fits into a header without a record of its own.
const SHORT_NAME_LEN_MAX: usize = 100;
/// The largest whole number of seconds that a header holds (11 octal digits).
const HEADER_SECONDS_MAX: i64 = (1 << 33) - 1;

/// Kind of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A regular file with this many bytes.
    File { len: u64 },
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Symlink { target: Vec<u8> },
    /// Another name of a file that came before, by that one's path below the tree's root.
    HardLink { target: Vec<u8> },
}

/// Contents of the headers of one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// Path below the tree's root with `/` between components; empty for the root itself.
    pub name: Vec<u8>,
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    pub modified: ModificationTime,
}

/// `len` rounded up to whole blocks.
pub(super) fn padded(len: u64) -> u64 {
    len.next_multiple_of(BLOCK_LEN)
}

impl Entry {
    /// Length of the contents that follow the headers, without padding.
    pub(super) fn content_len(&self) -> u64 {
        match self.kind {
            Kind::File { len } => len,
            Kind::Directory | Kind::Symlink { .. } | Kind::HardLink { .. } => 0,
        }
    }

    /// The entry's headers: long names and odd times first, then the header proper.
    pub(super) fn headers(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(3 * BLOCK_LEN as usize);
        let mut name = if self.name.is_empty() { b".".to_vec() } else { self.name.clone() };
        if self.kind == Kind::Directory {
            name.push(b'/');
        }
        if let Some(record) = time_record(self.modified) {
            push_record(&mut bytes, EntryType::XHeader, b"pax_header", record.as_bytes());
        }
        if name.len() > SHORT_NAME_LEN_MAX {
            push_record(&mut bytes, EntryType::GNULongName, b"././@LongLink", &with_nul(&name));
        }
        let mut header = Header::new_gnu();
        match &self.kind {
            Kind::File { .. } => header.set_entry_type(EntryType::Regular),
            Kind::Directory => header.set_entry_type(EntryType::Directory),
            Kind::Symlink { target } | Kind::HardLink { target } => {
                let symbolic = matches!(self.kind, Kind::Symlink { .. });
                header.set_entry_type(if symbolic { EntryType::Symlink } else { EntryType::Link });
                if target.len() > SHORT_NAME_LEN_MAX {
                    push_record(&mut bytes, EntryType::GNULongLink, b"././@LongLink", &with_nul(target));
                }
                fill(&mut header.as_old_mut().linkname, target);
            }
        }
        fill(&mut header.as_old_mut().name, &name);
        header.set_mode(self.mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(self.content_len());
        header.set_mtime(self.modified.seconds.clamp(0, HEADER_SECONDS_MAX) as u64);
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes
    }
}

/// The PAX record that a time needs which a header cannot hold exactly.
fn time_record(time: ModificationTime) -> Option<String> {
    if time.nanos == 0 && (0..=HEADER_SECONDS_MAX).contains(&time.seconds) {
        return None;
    }
    // Below zero the decimal fraction counts the other way: -1.25 is second -2 and 750 ms.
    let decimal = if time.seconds < 0 && time.nanos > 0 {
        format!("-{}.{:09}", -(time.seconds + 1), 1_000_000_000 - time.nanos)
    } else {
        format!("{}.{:09}", time.seconds, time.nanos)
    };
    let body = format!(" mtime={decimal}\n");
    // A record starts with its own length in decimal, which counts itself.
    let mut len = body.len() + 2;
    if len.to_string().len() > 2 {
        len += 1;
    }
    Some(format!("{len}{body}"))
}

/// The time that a PAX extended header's contents give, if they give one.
///
/// `Err` where the contents are no list of PAX records.
pub(super) fn time_of_records(contents: &[u8]) -> Result<Option<ModificationTime>, &'static str> {
    let mut modified = None;
    let mut rest = contents;
    while !rest.is_empty() {
        let space = rest.iter().position(|b| *b == b' ').ok_or("a PAX record has no length")?;
        let len: usize = std::str::from_utf8(&rest[..space])
            .ok()
            .and_then(|digits| digits.parse().ok())
            .ok_or("a PAX record's length is not a number")?;
        let record = rest.get(space + 1..len).ok_or("a PAX record is shorter than it says")?;
        rest = &rest[len..];
        if !record.ends_with(b"\n") || !record.contains(&b'=') {
            return Err("a PAX record is not KEY=VALUE");
        }
        if let Some(value) = record.strip_prefix(b"mtime=") {
            modified = Some(time_of_decimal(value).ok_or("a modification time is not a number")?);
        }
    }
    Ok(modified)
}

fn time_of_decimal(text: &[u8]) -> Option<ModificationTime> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('\n')?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let magnitude = whole.strip_prefix('-').unwrap_or(whole);
    if magnitude.is_empty() || !all_digits(magnitude) || !all_digits(fraction) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let nanos: u32 = format!("{:0<9.9}", fraction).parse().ok()?;
    if whole.starts_with('-') && nanos > 0 {
        return Some(ModificationTime { seconds: seconds.checked_sub(1)?, nanos: 1_000_000_000 - nanos });
    }
    Some(ModificationTime { seconds, nanos })
}

/// Appends a header of the kind that says something about the next one, with its contents.
fn push_record(bytes: &mut Vec<u8>, kind: EntryType, name: &[u8], contents: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    fill(&mut header.as_old_mut().name, name);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(contents.len() as u64);
    header.set_cksum();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(contents);
    bytes.resize(bytes.len().next_multiple_of(BLOCK_LEN as usize), 0);
}

fn with_nul(name: &[u8]) -> Vec<u8> {
    let mut bytes = name.to_vec();
    bytes.push(0);
    bytes
}

/// Copies as much of `bytes` as fits.
fn fill(field: &mut [u8], bytes: &[u8]) {
    let len = bytes.len().min(field.len());
    field[..len].copy_from_slice(&bytes[..len]);
}

/// Returns true if a header's checksum is the sum of its bytes.
pub(super) fn checksum_fits(header: &Header) -> bool {
    let bytes = header.as_bytes();
    let sum: u32 =
        bytes.iter().enumerate().map(|(i, b)| if (148..156).contains(&i) { 32 } else { u32::from(*b) }).sum();
    header.cksum().is_ok_and(|said| said == sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn times_round_trip(seconds in -20_000_000_000i64..20_000_000_000, nanos in 0u32..1_000_000_000) {
            let time = ModificationTime { seconds, nanos };
            let read = match time_record(time) {
                Some(record) => {
                    let len: usize = record.split(' ').next().unwrap().parse().unwrap();
                    prop_assert_eq!(len, record.len());
                    time_of_records(record.as_bytes()).unwrap().unwrap()
                }
                None => ModificationTime { seconds, nanos: 0 },
            };
            prop_assert_eq!(read, time);
        }

        #[test]
        fn records_never_panic(contents in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = time_of_records(&contents);
        }
    }

    #[test]
    fn times_are_read_as_other_tools_write_them() {
        for (record, seconds, nanos) in [
            ("14 mtime=1.25\n", 1, 250_000_000),
            ("11 mtime=7\n", 7, 0),
            ("14 mtime=-1.5\n", -2, 500_000_000),
            ("25 mtime=1.1234567891234\n", 1, 123_456_789),
        ] {
            let time = time_of_records(record.as_bytes()).unwrap().unwrap();
            assert_eq!(time, ModificationTime { seconds, nanos }, "{record}");
        }
        assert!(time_of_records(b"99 mtime=1\n").is_err());
        assert!(time_of_records(b"mtime").is_err());
        assert_eq!(time_of_records(b"9 path=x\n"), Ok(None));
    }
}
