//! Moments as people write them.

use std::fmt;

/// A moment in universal time, in seconds since 1970; it is written to the minute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Utc(pub u64);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0;
        let (days, of_day) = (seconds / 86_400, seconds % 86_400);
        let (mut year, mut left) = (1970, days);
        while left >= days_of(year) {
            left -= days_of(year);
            year += 1;
        }
        let february = if days_of(year) == 366 { 29 } else { 28 };
        let mut month = 1;
        for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            if left < days {
                break;
            }
            left -= days;
            month += 1;
        }
        let (day, hour, minute) = (left + 1, of_day / 3_600, of_day / 60 % 60);
        write!(f, "{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
    }
}

fn days_of(year: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if is_leap { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (seconds, says) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_709_251_200, "2024-03-01 00:00 UTC"),
            (4_102_444_800, "2100-01-01 00:00 UTC"),
        ] {
            assert_eq!(Utc(seconds).to_string(), says);
        }
    }
}
