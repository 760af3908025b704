use std::time::Duration;

use super::Invalid;

/// Nanoseconds of each unit; of two that begin alike the longer one first.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    // The micro sign and the Greek letter.
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A duration as Go writes it (`time.ParseDuration`): numbers with units, such as `30s`, `1h30m` or `1.5s`; `0` alone
/// needs no unit. What is less than a nanosecond is cut off.
///
/// # Errors
/// Anything else, and what is negative or longer than 290 years, Go's own limit.
pub fn parse_duration(value: &str) -> Result<Duration, Invalid> {
    let bad =
        || Invalid::new("a duration such as 30s, 1m30s or 2h", "write a number and its unit, such as 30s");
    let mut rest = value.strip_prefix('+').unwrap_or(value);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut nanos = 0;
    loop {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (number, unit) = rest.split_at(end);
        let (name, size) = UNITS.into_iter().find(|(name, _)| unit.starts_with(name)).ok_or_else(bad)?;
        nanos += scaled(number, size).ok_or_else(bad)?;
        rest = unit.get(name.len()..).unwrap_or_default();
        if rest.is_empty() {
            break;
        }
    }
    match u64::try_from(nanos) {
        Ok(nanos) if i64::try_from(nanos).is_ok() => Ok(Duration::from_nanos(nanos)),
        Ok(_) | Err(_) => Err(bad()),
    }
}

/// A decimal number of units of `size`.
fn scaled(number: &str, size: u128) -> Option<u128> {
    /// Digits of an hour's nanoseconds; further ones say nothing, and longer whole parts are past the limit.
    const DIGITS: usize = 19;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && part.is_empty()) || whole.len() > DIGITS {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
    let part = part.get(..part.len().min(DIGITS))?;
    let of_part = digits(part)? * size / 10u128.pow(u32::try_from(part.len()).ok()?);
    Some(digits(whole)? * size + of_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("30s", 30_000_000_000),
            ("2h13m20s", 8_000_000_000_000),
            ("1m0s", 60_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5h", 1_800_000_000_000),
            ("1.s", 1_000_000_000),
            ("100ms", 100_000_000),
            ("10us", 10_000),
            ("10\u{b5}s", 10_000),
            ("10\u{3bc}s", 10_000),
            ("7ns", 7),
            ("+1s", 1_000_000_000),
            ("0.1234567891234567891234567891s", 123_456_789),
            ("2562047h", 9_223_369_200_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused_and_so_is_a_time_before_now() {
        for text in [
            "",
            "30",
            "s",
            ".s",
            "1",
            "-1s",
            "1d",
            "1 s",
            "1s ",
            "1.2.3s",
            "1e3s",
            "2562048h",
            "s1",
            "1s1",
            "99999999999999999999h",
            "\u{661}s",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
