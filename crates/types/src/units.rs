//! Sizes in bytes and rates in bits per second, as people write them (`64M`, `1GiB`, `10gbit`).

use crate::Duration;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// A rate in bits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Rate(pub u64);

/// A text that is not a size or a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a {what}: write {example}")]
pub struct ParseUnitError {
    text: String,
    what: &'static str,
    example: &'static str,
}

impl Rate {
    /// Returns the time that `bytes` take at this rate, rounded up to a nanosecond; `Duration(u64::MAX)` at
    /// rate zero.
    #[must_use]
    pub fn time_for(self, bytes: u64) -> Duration {
        if self.0 == 0 {
            return Duration(u64::MAX);
        }
        let nanos = (u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(self.0));
        Duration(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the number of whole bytes that pass in `span` at this rate.
    #[must_use]
    pub fn bytes_in(self, span: Duration) -> u64 {
        let bytes = u128::from(self.0) * u128::from(span.0) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// Splits `12.5gbit` into the number and the lower-case suffix.
fn split(text: &str) -> Option<(f64, String)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim().to_ascii_lowercase()))
}

/// Reads a size in bytes. `K`, `M`, `G`, `T` and `KiB` … `TiB` are powers of 1024, `KB` … `TB` powers of
/// 1000.
///
/// # Errors
/// The text is not a non-negative number with one of these suffixes, or exceeds 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, ParseUnitError> {
    let wrong =
        || ParseUnitError { text: text.to_string(), what: "size", example: "bytes or 64M, 1GiB, 1.5GB" };
    let (number, suffix) = split(text).ok_or_else(wrong)?;
    let unit: u64 = match suffix.as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    let bytes = number * unit as f64;
    if bytes >= u64::MAX as f64 { Err(wrong()) } else { Ok(bytes as u64) }
}

impl FromStr for Rate {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let wrong =
            || ParseUnitError { text: text.to_string(), what: "rate", example: "1gbit, 10G or 500mbit" };
        let (number, suffix) = split(text).ok_or_else(wrong)?;
        let unit = match suffix.as_str() {
            "" | "bit" | "bps" => 1.0,
            "k" | "kbit" | "kbps" => 1e3,
            "m" | "mbit" | "mbps" => 1e6,
            "g" | "gbit" | "gbps" => 1e9,
            "t" | "tbit" | "tbps" => 1e12,
            _ => return Err(wrong()),
        };
        let bits = number * unit;
        if !(1.0..u64::MAX as f64).contains(&bits) {
            return Err(wrong());
        }
        Ok(Rate(bits as u64))
    }
}

/// Writes a size for people, such as `1.50 GiB`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (unit, name) in units {
        if bytes >= unit {
            return format!("{:.2} {name}", bytes as f64 / unit as f64);
        }
    }
    format!("{bytes} B")
}

/// Writes a rate for people, such as `9.41 Gbit/s`.
#[must_use]
pub fn format_rate(bits_per_second: f64) -> String {
    for (unit, name) in [(1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")] {
        if bits_per_second >= unit {
            return format!("{:.2} {name}", bits_per_second / unit);
        }
    }
    format!("{bits_per_second:.0} bit/s")
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_rate(self.0 as f64))
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("1500", 1500),
            ("64M", 64 << 20),
            ("1GiB", 1 << 30),
            ("1.5GB", 1_500_000_000),
            ("2 kib", 2048),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "1X", "-1", "1e30T", "1..2"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_read_as_people_write_them() {
        for (text, rate) in
            [("1gbit", 1_000_000_000), ("10G", 10_000_000_000), ("2.5gbit", 2_500_000_000), ("800", 800)]
        {
            assert_eq!(text.parse(), Ok(Rate(rate)), "{text}");
        }
        assert!("0".parse::<Rate>().is_err());
        assert!("fast".parse::<Rate>().unwrap_err().to_string().contains("'fast'"));
    }

    #[test]
    fn time_and_bytes_at_a_rate_agree() {
        let rate = Rate(1_000_000_000);
        assert_eq!(rate.time_for(125), Duration(1_000));
        assert_eq!(rate.bytes_in(Duration(1_000)), 125);
        assert_eq!(Rate(0).time_for(1), Duration(u64::MAX));
    }
}
