//! What a benchmark prints.

use serde::Serialize;

/// One figure beside its baseline and target.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What it is held against, in the same unit; missing where the target is absolute.
    pub baseline: Option<f64>,
    /// Figure by baseline.
    pub ratio: Option<f64>,
    /// The target, in words.
    pub target: String,
    /// Whether the target is met.
    pub holds: bool,
}

impl Row {
    /// A figure that must be at most `most` times its baseline.
    pub fn at_most(name: impl Into<String>, unit: &'static str, value: f64, baseline: f64, most: f64) -> Self {
        let ratio = value / baseline;
        Self {
            name: name.into(),
            value,
            unit,
            baseline: Some(baseline),
            ratio: Some(ratio),
            target: format!("≤ {most} ×"),
            holds: ratio <= most,
        }
    }

    /// A figure that must be at least `least` times its baseline.
    pub fn at_least(name: impl Into<String>, unit: &'static str, value: f64, baseline: f64, least: f64) -> Self {
        let ratio = value / baseline;
        Self {
            name: name.into(),
            value,
            unit,
            baseline: Some(baseline),
            ratio: Some(ratio),
            target: format!("≥ {least} ×"),
            holds: ratio >= least,
        }
    }

    /// A figure with an absolute bound.
    pub fn bounded(name: impl Into<String>, unit: &'static str, value: f64, most: f64) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            baseline: None,
            ratio: None,
            target: format!("≤ {most}"),
            holds: value <= most,
        }
    }
}

/// Prints rows as an aligned table.
pub fn print_table(rows: &[Row]) {
    let head = ["name", "value", "unit", "baseline", "ratio", "target", "holds"].map(str::to_owned);
    let number = |value: f64| if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    let cells = rows.iter().map(|row| {
        [
            row.name.clone(),
            number(row.value),
            row.unit.to_owned(),
            row.baseline.map_or_else(String::new, number),
            row.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            row.target.clone(),
            if row.holds { "yes" } else { "NO" }.to_owned(),
        ]
    });
    let lines: Vec<[String; 7]> = std::iter::once(head).chain(cells).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    for line in &lines {
        let padded = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let pad = " ".repeat(width - cell.chars().count());
            // Numbers to the right, words to the left.
            if matches!(column, 1 | 3 | 4) { format!("{pad}{cell}") } else { format!("{cell}{pad}") }
        });
        println!("{}", padded.collect::<Vec<_>>().join("  ").trim_end());
    }
}
