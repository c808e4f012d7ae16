//! The end of a certificate's validity. The library that checks certificates tells it only of those that have
//! expired.

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const SHORT_TIME: u8 = 0x17;
const LONG_TIME: u8 = 0x18;

/// Returns the last second, since 1970, at which a certificate is valid; `None` for what is none.
pub(super) fn ends_unix_s(certificate: &[u8]) -> Option<u64> {
    let (certificate, _) = of(SEQUENCE, certificate)?;
    let (mut signed, _) = of(SEQUENCE, certificate)?;
    if signed.first() == Some(&VERSION) {
        signed = item(signed)?.2;
    }
    // The number, the method of the signature, and the issuer.
    for _ in 0..3 {
        signed = item(signed)?.2;
    }
    let (validity, _) = of(SEQUENCE, signed)?;
    let (tag, moment, _) = item(item(validity)?.2)?;
    time(tag, moment)
}

/// The first item of these: its tag, what is in it, and what follows.
fn item(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    // A length of 128 and more comes in so many bytes of its own.
    let (len, rest) = match first {
        ..0x80 => (usize::from(first), rest),
        _ => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let len = digits
                .iter()
                .try_fold(0_usize, |len, digit| len.checked_mul(256)?.checked_add((*digit).into()));
            (len?, rest)
        }
    };
    let (inside, rest) = rest.split_at_checked(len)?;
    Some((tag, inside, rest))
}

/// The same of an item that has to have this tag.
fn of(wanted: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    item(bytes).filter(|(tag, ..)| *tag == wanted).map(|(_, inside, rest)| (inside, rest))
}

/// `YYMMDDHHMMSSZ`, of the years from 1950 to 2049, or `YYYYMMDDHHMMSSZ`; before 1970 it is the first second.
fn time(tag: u8, text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = text.split_at_checked(match tag {
        SHORT_TIME => 2,
        LONG_TIME => 4,
        _ => return None,
    })?;
    let year: u64 = year.parse().ok()?;
    let year = match tag {
        SHORT_TIME if year < 50 => 2_000 + year,
        SHORT_TIME => 1_900 + year,
        _ => year,
    };
    let parts: Vec<u64> =
        (0..5).map(|at| rest.get(2 * at..2 * at + 2)?.parse().ok()).collect::<Option<_>>()?;
    let [month, day, hour, minute, second] = parts[..] else { return None };
    if rest.len() != 10 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March end with the leap day.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let since_1970 = days.checked_sub(super::date::DAYS_BEFORE_1970);
    Some(since_1970.map_or(0, |days| (days * 24 + hour) * 3_600 + minute * 60 + second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Utc;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    #[test]
    fn the_end_is_that_of_the_certificate() {
        let key = KeyPair::generate().unwrap();
        for (year, month, day) in [(2030, 2, 28), (2028, 2, 29), (2049, 12, 31), (2050, 1, 1), (4096, 3, 1)] {
            let mut params = CertificateParams::new(["gpu-1".to_string()]).unwrap();
            params.not_after = date_time_ymd(year, month, day);
            let made = params.self_signed(&key).unwrap();
            let ends = ends_unix_s(made.der()).unwrap();
            assert_eq!(Utc(ends).to_string(), format!("{year}-{month:02}-{day:02} 00:00 UTC"));
            // What is cut off says nothing.
            for len in 0..made.der().len() {
                assert!(ends_unix_s(&made.der()[..len]).is_none(), "{len} bytes");
            }
        }
        for text in ["", "Z", "991301000000Z", "9901010000Z", "990100000000Z", "99010100000000Z"] {
            assert_eq!(time(SHORT_TIME, text.as_bytes()), None, "{text}");
        }
        assert_eq!(time(SHORT_TIME, b"700101000001Z"), Some(1));
        assert_eq!(time(LONG_TIME, b"19691231235959Z"), Some(0));
    }
}
