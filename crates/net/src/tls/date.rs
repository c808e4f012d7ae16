//! Moments as people write them.

use std::fmt;

/// Days of 400 years, and those from the first of March of the year 0 to 1970.
const DAYS_OF_AGE: u64 = 146_097;
pub(super) const DAYS_BEFORE_1970: u64 = 719_468;

/// A moment in universal time, in seconds since 1970; it is written to the minute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Utc(pub u64);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, of_day) = (self.0 / 86_400, self.0 % 86_400);
        // In one step for each moment that a number can say. Years begin in March here, so that a leap day is
        // the last of its year, and 400 of them have the same days again.
        let (ages, of_age) =
            ((days + DAYS_BEFORE_1970) / DAYS_OF_AGE, (days + DAYS_BEFORE_1970) % DAYS_OF_AGE);
        let of_years = (of_age - of_age / 1_460 + of_age / 36_524 - of_age / 146_096) / 365;
        let of_year = of_age - (365 * of_years + of_years / 4 - of_years / 100);
        let since_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * since_march + 2) / 5 + 1;
        let month = if since_march < 10 { since_march + 3 } else { since_march - 9 };
        let year = 400 * ages + of_years + u64::from(month <= 2);
        write!(f, "{year}-{month:02}-{day:02} {:02}:{:02} UTC", of_day / 3_600, of_day / 60 % 60)
    }
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
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (1_740_787_200, "2025-03-01 00:00 UTC"),
            (4_102_444_800, "2100-01-01 00:00 UTC"),
            // What another machine can say.
            (u64::MAX, "584554051223-11-09 07:00 UTC"),
        ] {
            assert_eq!(Utc(seconds).to_string(), says);
        }
    }
}
