/// Seconds since 1970 of an RFC 3339 time, as Kubernetes writes them (`2026-11-30T02:15:46Z`); fractions are cut.
pub fn parse(text: &str) -> Option<i64> {
    let (date, rest) = text.split_at_checked(10)?;
    let time = rest.strip_prefix(['T', 't'])?;
    let (time, zone) = time.split_at_checked(8)?;
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let in_range = (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !in_range {
        return None;
    }
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some(seconds - offset(zone)?)
}

/// The RFC 3339 time of seconds since 1970, as Kubernetes writes them.
pub fn write(seconds: i64) -> String {
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // The year is at most this one, for no year has fewer days.
    let mut year = 1970 + days.div_euclid(365) + i64::from(days < 0);
    while days_since_1970(year, 1, 1) > days {
        year -= 1;
    }
    let mut day = days - days_since_1970(year, 1, 1) + 1;
    let mut month = 1;
    while day > days_in_month(year, month) {
        day -= days_in_month(year, month);
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Three numbers of fixed width: the first is a year if the separator is that of a date.
fn numbers(text: &str, separator: char) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut out = [0; 3];
    for number in &mut out {
        let part = parts.next()?;
        if !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(out)
}

/// `Z` or `+hh:mm`, after an optional fraction: seconds east of UTC.
fn offset(zone: &str) -> Option<i64> {
    let zone = match zone.strip_prefix('.') {
        Some(fraction) => {
            let rest = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            (rest.len() < fraction.len()).then_some(rest)?
        }
        None => zone,
    };
    if zone == "Z" || zone == "z" {
        return Some(0);
    }
    let (sign, rest) = zone.split_at_checked(1)?;
    let (hours, minutes) = rest.split_once(':')?;
    let two =
        |s: &str| (s.len() == 2 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse::<i64>().ok())?;
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    let seconds = (hours < 24 && minutes < 60).then_some(hours * 3600 + minutes * 60)?;
    match sign {
        "+" => Some(seconds),
        "-" => Some(-seconds),
        _ => None,
    }
}

const fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

const fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days of the proleptic Gregorian calendar.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let before = year - 1;
    let leap_days = before / 4 - before / 100 + before / 400;
    let months: i64 = (1..month).map(|m| days_in_month(year, m)).sum();
    // 719,162 days lie before 1 January 1970, counted from 1 January of the year 1.
    before * 365 + leap_days + months + day - 1 - 719_162
}

#[cfg(test)]
mod tests {
    use super::{parse, write};

    #[test]
    fn times_are_seconds_since_1970() {
        assert_eq!(parse("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse("2000-03-01T00:00:00Z"), Some(951_868_800));
        assert_eq!(parse("2026-11-30T02:15:46Z"), Some(1_796_004_946));
        assert_eq!(parse("2026-11-30T04:15:46.123456+02:00"), Some(1_796_004_946));
    }

    #[test]
    fn a_time_that_is_written_is_read_as_the_same() {
        assert_eq!(write(0), "1970-01-01T00:00:00Z");
        assert_eq!(write(1_796_004_946), "2026-11-30T02:15:46Z");
        assert_eq!(write(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(write(951_782_400), "2000-02-29T00:00:00Z");
        for seconds in (-2_000_000_000..7_000_000_000).step_by(40_009_999) {
            assert_eq!(parse(&write(seconds)), Some(seconds));
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "yesterday",
            "2026-11-30",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-11-30T24:00:00Z",
            "2026-11-30T02:15:46",
            "2026-11-30T02:15:46.Z",
            "2026-11-30T02:15:46+2:00",
            "2026-+1-30T02:15:46Z",
            "2026-11-30T02:15:46é",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
