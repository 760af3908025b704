//! Figures and how they are printed.

use serde::Serialize;

/// One measured number.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub bench: &'static str,
    pub metric: String,
    pub value: f64,
    pub unit: &'static str,
    /// What it must be at most or at least, as `ok` judges; `None` for a trend.
    pub bar: Option<f64>,
    pub ok: bool,
}

impl Figure {
    /// A number that must not be above `bar`.
    pub fn at_most(
        bench: &'static str,
        metric: impl Into<String>,
        value: f64,
        unit: &'static str,
        bar: f64,
    ) -> Self {
        Self { bench, metric: metric.into(), value, unit, bar: Some(bar), ok: value <= bar }
    }

    /// A number that must not be below `bar`.
    pub fn at_least(
        bench: &'static str,
        metric: impl Into<String>,
        value: f64,
        unit: &'static str,
        bar: f64,
    ) -> Self {
        Self { bench, metric: metric.into(), value, unit, bar: Some(bar), ok: value >= bar }
    }

    /// A number without a bar.
    pub fn trend(bench: &'static str, metric: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { bench, metric: metric.into(), value, unit, bar: None, ok: true }
    }
}

/// One aligned line a figure.
pub fn table(figures: &[Figure]) -> String {
    let mut rows = vec![["bench", "metric", "value", "unit", "bar", ""].map(str::to_owned)];
    for Figure { bench, metric, value, unit, bar, ok } in figures {
        let bar_text = bar.map_or_else(|| "-".to_owned(), number);
        let verdict = if bar.is_none() {
            ""
        } else if *ok {
            "ok"
        } else {
            "MISSED"
        };
        rows.push([
            (*bench).to_owned(),
            metric.clone(),
            number(*value),
            (*unit).to_owned(),
            bar_text,
            verdict.to_owned(),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut text = String::new();
    for [bench, metric, value, unit, bar, verdict] in &rows {
        let [b, m, v, u, r, _] = widths;
        text.push_str(
            format!("{bench:b$}  {metric:m$}  {value:>v$}  {unit:u$}  {bar:>r$}  {verdict}").trim_end(),
        );
        text.push('\n');
    }
    text
}

/// Three digits after the point for small numbers, none for large ones.
fn number(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

/// The `q` quantile (0 to 1) of `samples`; 0 of none.
pub fn quantile(samples: &[u64], q: f64) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * q).round() as usize).copied().unwrap_or(0)
}

pub fn median(samples: &[u64]) -> f64 {
    quantile(samples, 0.5) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        assert_eq!(quantile(&[3, 1, 2], 0.5), 2);
        assert_eq!(quantile(&[3, 1, 2], 1.0), 3);
        assert_eq!(quantile(&[], 0.5), 0);
    }

    #[test]
    fn a_bar_is_judged_and_shown() {
        let figures = [
            Figure::at_most("connect", "ratio", 1.04, "x", 1.05),
            Figure::at_most("connect", "hit", 1300.0, "ns", 1200.0),
            Figure::trend("memory", "maps", 1.0, "MiB"),
        ];
        let text = table(&figures);
        assert!(text.contains("1.040  x     1.050  ok"), "{text}");
        assert!(text.contains("MISSED"), "{text}");
    }
}
