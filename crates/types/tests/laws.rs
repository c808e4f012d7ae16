//! Laws of the words that every crate shares: what is written is read again, sums and products stop at the
//! ends instead of wrapping, and units are those of the tables below.

use polycast_types::{
    AppId, DataId, Duration, Handle, ObjectId, RangeSet, Rate, Time, format_bytes, format_rate, parse_bytes,
};
use proptest::prelude::*;
use std::str::FromStr;

/// UUIDs as RFC 9562 writes them: 8-4-4-4-12 digits, lower case.
#[test]
fn ids_are_written_as_rfc_9562_says() {
    let bytes =
        [0xf8, 0x1d, 0x4f, 0xae, 0x7d, 0xec, 0x11, 0xd0, 0xa7, 0x65, 0x00, 0xa0, 0xc9, 0x1e, 0x6b, 0xf6];
    let text = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
    assert_eq!(AppId(bytes).to_string(), text);
    assert_eq!(format!("{:?}", AppId(bytes)), text);
    for written in [text, "F81D4FAE7DEC11D0A76500A0C91E6BF6"] {
        assert_eq!(written.parse(), Ok(AppId(bytes)), "{written}");
        assert_eq!(format!("{written}/7").parse(), Ok(ObjectId { app: AppId(bytes), data: DataId(7) }));
    }
    assert_eq!(ObjectId { app: AppId(bytes), data: DataId(7) }.to_string(), format!("{text}/7"));
    for wrong in [&text[1..], &format!("{text}0"), "g81d4fae-7dec-11d0-a765-00a0c91e6bf6", ""] {
        assert!(AppId::from_str(wrong).unwrap_err().to_string().contains(wrong), "{wrong}");
    }
}

#[test]
fn handles_are_16_hexadecimal_digits() {
    assert_eq!(Handle(0xab).to_string(), "00000000000000ab");
    assert_eq!(format!("{:?}", Handle(u64::MAX)), "ffffffffffffffff");
}

#[test]
fn spans_have_their_units() {
    assert_eq!(Duration::from_nanos(7), Duration(7));
    assert_eq!(Duration::from_micros(7), Duration(7_000));
    assert_eq!(Duration::from_millis(7), Duration(7_000_000));
    assert_eq!(Duration::from_secs(7), Duration(7_000_000_000));
    assert_eq!((Duration::ZERO, Time::ZERO), (Duration(0), Time(0)));
    assert_eq!(Duration(2_500_000_000).as_secs_f64(), 2.5);
    assert_eq!((Duration(2_999_999).as_millis(), Duration(999_999).as_millis()), (2, 0));
    for (span, text) in [(0, "0ns"), (1_500, "1.5µs"), (2_000_000, "2ms"), (90_000_000_000, "90s")] {
        assert_eq!(Duration(span).to_string(), text);
        assert_eq!(format!("{:?} {:?}", Duration(span), Time(span)), format!("{text} {text}"));
    }
}

#[test]
fn time_stops_at_its_ends() {
    let (last, most) = (Time(u64::MAX), Duration(u64::MAX));
    assert_eq!(last + Duration(1), last);
    assert_eq!(most + Duration(1), most);
    assert_eq!(most * 2, most);
    assert_eq!(Duration(1) - Duration(2), Duration::ZERO);
    assert_eq!(Time(1).since(Time(2)), Duration::ZERO);
    assert_eq!(Duration::from(std::time::Duration::MAX), most);
    let mut at = Time(5);
    at += Duration(3);
    assert_eq!(at, Time(8));
}

/// 1 K is 1024 bytes and 1 KB is 1000.
#[test]
fn sizes_have_their_units() {
    let binary = [("", 1u64), ("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30), ("t", 1 << 40)];
    let decimal =
        [("b", 1u64), ("kb", 1_000), ("mb", 1_000_000), ("gb", 1_000_000_000), ("tb", 1_000_000_000_000)];
    for (suffix, unit) in binary.into_iter().chain(decimal) {
        for text in [format!("3{suffix}"), format!(" 3 {} ", suffix.to_uppercase())] {
            assert_eq!(parse_bytes(&text), Ok(3 * unit), "{text}");
        }
    }
    for (suffix, unit) in &binary[1..] {
        assert_eq!(parse_bytes(&format!("0.5{suffix}iB")), Ok(unit / 2), "{suffix}");
    }
    for text in ["3mib3", "3x", "3kbit", "k", "", "-3", "18446744073709551616", "20000000t"] {
        assert!(parse_bytes(text).unwrap_err().to_string().contains(text), "{text}");
    }
}

#[test]
fn rates_have_their_units() {
    let units = [("", 1u64), ("k", 1_000), ("m", 1_000_000), ("g", 1_000_000_000), ("t", 1_000_000_000_000)];
    for (suffix, unit) in units {
        for end in ["", "bit", "bps"] {
            assert_eq!(format!("3{suffix}{end}").parse(), Ok(Rate(3 * unit)), "3{suffix}{end}");
        }
    }
    for text in ["0", "0.5", "3x", "1kib", "18446744073709551616", "20000000t"] {
        assert!(Rate::from_str(text).unwrap_err().to_string().contains(text), "{text}");
    }
    assert_eq!("1".parse(), Ok(Rate(1)));
}

#[test]
fn sizes_and_rates_are_shown_in_the_largest_unit_that_fits() {
    for (bytes, text) in [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.00 KiB"),
        ((1 << 20) - 1, "1024.00 KiB"),
        (1 << 20, "1.00 MiB"),
        (3 << 29, "1.50 GiB"),
        (1 << 30, "1.00 GiB"),
        (5 << 39, "2.50 TiB"),
    ] {
        assert_eq!(format_bytes(bytes), text);
    }
    for (rate, text) in [
        (0, "0 bit/s"),
        (999, "999 bit/s"),
        (1_000, "1.00 kbit/s"),
        (2_500_000, "2.50 Mbit/s"),
        (9_410_000_000, "9.41 Gbit/s"),
        (1_000_000_000_000, "1.00 Tbit/s"),
    ] {
        assert_eq!((format_rate(rate as f64), Rate(rate).to_string()), (text.to_owned(), text.to_owned()));
        assert_eq!(format!("{:?}", Rate(rate)), text);
    }
}

#[test]
fn a_rate_of_nothing_takes_all_time() {
    assert_eq!(Rate(0).time_for(0), Duration(u64::MAX));
    assert_eq!(Rate(0).bytes_in(Duration(u64::MAX)), 0);
    assert_eq!(Rate(1).time_for(u64::MAX), Duration(u64::MAX));
    assert_eq!(Rate(u64::MAX).bytes_in(Duration(u64::MAX)), u64::MAX);
    // 8 bits take 8 s at 1 bit/s.
    assert_eq!(Rate(1).time_for(1), Duration(8_000_000_000));
    assert_eq!(Rate(3).time_for(1), Duration(2_666_666_667), "rounded up");
    assert_eq!(Rate(8).bytes_in(Duration(1_999_999_999)), 1, "rounded down");
}

#[test]
fn sets_of_ranges_are_counted_and_emptied() {
    let mut set: RangeSet = [5..7, 1..2, 9..9].into_iter().collect();
    assert_eq!((set.len(), set.range_count(), set.first(), set.is_empty()), (3, 2, Some(1), false));
    assert_eq!(format!("{set:?}"), "{1..2, 5..7}");
    assert_eq!((set.run_at(6), set.run_at(7), set.run_at(0)), (Some(5..7), None, None));
    assert_eq!(set.iter().rev().collect::<Vec<_>>(), [5..7, 1..2]);
    set.clear();
    assert_eq!((set.len(), set.range_count(), set.first(), set.is_empty()), (0, 0, None, true));
    assert_eq!(set, RangeSet::new());
}

proptest! {
    #[test]
    fn ids_come_back_equal(app: [u8; 16], data: u64) {
        let object = ObjectId { app: AppId(app), data: DataId(data) };
        prop_assert_eq!(object.to_string().parse(), Ok(object));
        prop_assert_eq!(AppId(app).to_string().parse(), Ok(AppId(app)));
    }

    /// Whole numbers below their ends: spans are numbers, and a span of this crate is one of the standard
    /// library.
    #[test]
    fn spans_are_numbers(a in 0u64..1 << 40, b in 0u64..1 << 40, factor in 1u64..1 << 20) {
        prop_assert_eq!(Duration(a) + Duration(b), Duration(a + b));
        prop_assert_eq!(Duration(a + b) - Duration(b), Duration(a));
        prop_assert_eq!(Duration(a) * factor, Duration(a * factor));
        prop_assert_eq!(Duration(a) / factor, Duration(a / factor));
        prop_assert_eq!((Time(a) + Duration(b)).since(Time(a)), Duration(b));
        let standard: std::time::Duration = Duration(a).into();
        prop_assert_eq!(standard.as_nanos(), u128::from(a));
        prop_assert_eq!(Duration::from(standard), Duration(a));
    }

    /// In the time that bytes take, these bytes pass, and not one less nanosecond would do.
    #[test]
    fn bytes_pass_in_the_time_that_they_take(rate in 1u64..1 << 40, bytes in 1u64..1 << 40) {
        let span = Rate(rate).time_for(bytes);
        prop_assume!(span.0 < u64::MAX);
        prop_assert!(Rate(rate).bytes_in(span) >= bytes);
        prop_assert!(Rate(rate).bytes_in(span - Duration(1)) < bytes);
    }

    /// Far from zero and near it, sets of ranges act like sets of numbers.
    #[test]
    fn ranges_act_like_numbers(
        base in prop_oneof![Just(0u64), Just(u64::MAX - 70)],
        steps in proptest::collection::vec((any::<bool>(), 0u64..60, 0u64..9), 0..40),
    ) {
        let mut set = RangeSet::new();
        let mut numbers = std::collections::BTreeSet::new();
        for (add, start, len) in steps {
            let range = base + start..base + start + len;
            if add {
                numbers.extend(range.clone());
                set.insert(range);
            } else {
                numbers.retain(|number| !range.contains(number));
                set.remove(range);
            }
            prop_assert_eq!(set.len(), numbers.len() as u64);
            prop_assert_eq!(set.is_empty(), numbers.is_empty());
            prop_assert_eq!(set.first(), numbers.first().copied());
            let runs = numbers.iter().filter(|number| !numbers.contains(&(*number + 1))).count();
            prop_assert_eq!(set.range_count(), runs);
            for number in base..base + 70 {
                prop_assert_eq!(set.contains(number), numbers.contains(&number));
            }
            prop_assert_eq!(set.iter().collect::<RangeSet>(), set.clone());
            // Gaps are whole: none is empty, and none begins where another ends.
            let gaps = set.gaps(base + 5..base + 50);
            prop_assert!(gaps.iter().all(|gap| !gap.is_empty()));
            prop_assert!(gaps.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
