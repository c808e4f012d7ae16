//! Options and values that many commands share.

use clap::Args as Arguments;
use polycast_types::{Duration, ParseUnitError, Rate};

/// What becomes of a receiver that is slower than the others.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlowChoice {
    /// All go as fast as the slowest
    Wait,
    /// It is given up, and the report says why
    Drop,
    /// The others go on, and it catches up at its own pace
    CatchUp,
}

/// Which network.
#[derive(Arguments, Debug)]
pub(crate) struct NetworkArgs {
    /// Network interface, by name or address [default: the one of the default route]
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
}

/// A rate with its unit: a bare number would be bits a second.
pub fn rate_with_unit(text: &str) -> Result<Rate, String> {
    let rate: Rate = text.parse().map_err(|error: ParseUnitError| error.to_string())?;
    match text.trim().bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        true => Err(format!("'{text}' has no unit: write {text}mbit or {text}gbit")),
        false => Ok(rate),
    }
}

/// Reads `500ms`, `30s`, `2m`, `1h`, or a number of seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write a time, such as 500ms, 30s, 2m or 1h".to_string();
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| wrong())?;
    let unit_nanos = match text[end..].trim() {
        "ms" => 1e6,
        "" | "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        _ => return Err(wrong()),
    };
    let nanos = number * unit_nanos;
    // A thousand years is no time that anyone means.
    if (1.0..3e19).contains(&nanos) && nanos < u64::MAX as f64 {
        Ok(Duration(nanos as u64))
    } else {
        Err("it must be more than nothing, and less than centuries".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, nanos) in
            [("500ms", 500_000_000), ("30", 30_000_000_000), ("1.5s", 1_500_000_000), ("2m", 120_000_000_000)]
        {
            assert_eq!(duration(text), Ok(Duration(nanos)), "{text}");
        }
        for text in ["", "s", "0", "-1s", "1y", "1e99h", "99999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
