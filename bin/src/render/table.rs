//! Tables: aligned by what a terminal shows, cut to its width, numbers to the right.

use super::style::Tone;
use super::text::{clean, display_width, push_padded, truncate};

/// The narrowest a column is cut to; below this a table wraps rather than says nothing.
const COLUMN_WIDTH_MIN: usize = 8;
/// Spaces between two columns.
const GAP: usize = 2;

/// A column as the table sees it.
pub(super) struct TableColumn {
    /// The heading.
    pub(super) title: &'static str,
    /// Whether it holds numbers.
    pub(super) right: bool,
    /// Whether it may be cut to fit. Ids and numbers may not: half of one is none.
    pub(super) shrinks: bool,
}

/// One cell as the table sees it.
pub(super) struct TableCell {
    /// The text; cleaned here.
    pub(super) text: String,
    /// How it looks.
    pub(super) tone: Tone,
}

/// Lays out a table. `width_max` is the terminal's width, none when nothing needs to be cut.
pub(super) fn layout(
    columns: &[TableColumn],
    rows: &[Vec<TableCell>],
    width_max: Option<usize>,
    colours: bool,
) -> String {
    let texts: Vec<Vec<_>> = rows.iter().map(|row| row.iter().map(|cell| clean(&cell.text)).collect()).collect();
    let mut widths: Vec<usize> = columns.iter().map(|column| display_width(column.title)).collect();
    for row in &texts {
        for (width, text) in widths.iter_mut().zip(row) {
            *width = (*width).max(display_width(text));
        }
    }
    if let Some(width_max) = width_max {
        shrink(&mut widths, columns, width_max);
    }

    let mut out = String::new();
    let heading = columns.iter().map(|column| (column.title, Tone::Dim));
    push_row(&mut out, columns, &widths, heading, colours);
    for (texts, cells) in texts.iter().zip(rows) {
        let line = texts.iter().zip(cells).map(|(text, cell)| (text.as_ref(), cell.tone));
        push_row(&mut out, columns, &widths, line, colours);
    }
    out
}

/// Appends one line. The last column is not filled, so that no line ends in spaces.
fn push_row<'a>(
    out: &mut String,
    columns: &[TableColumn],
    widths: &[usize],
    cells: impl Iterator<Item = (&'a str, Tone)>,
    colours: bool,
) {
    let start = out.len();
    let last = columns.len().saturating_sub(1);
    for (index, ((text, tone), (column, width))) in cells.zip(columns.iter().zip(widths)).enumerate() {
        if index > 0 {
            out.extend(std::iter::repeat_n(' ', GAP));
        }
        let text = truncate(text, *width);
        let width = if index == last && !column.right { 0 } else { *width };
        let mut padded = String::new();
        push_padded(&mut padded, &text, width, column.right);
        tone.push(out, &padded, colours);
    }
    // Without colours an empty last cell leaves the gap before it.
    let kept = out[start..].trim_end_matches(' ').len();
    out.truncate(start + kept);
    out.push('\n');
}

/// Takes columns off the widest column that may be cut, until the table fits or none may be cut further.
fn shrink(widths: &mut [usize], columns: &[TableColumn], width_max: usize) {
    let mut total: usize = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
    while total > width_max {
        let floor = |column: &TableColumn| COLUMN_WIDTH_MIN.max(display_width(column.title));
        let widest = widths
            .iter_mut()
            .zip(columns)
            .filter(|(width, column)| column.shrinks && **width > floor(column))
            .max_by_key(|(width, _)| **width);
        match widest {
            Some((width, _)) => *width -= 1,
            None => return,
        }
        total -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[TableColumn] = &[
        TableColumn { title: "session", right: false, shrinks: false },
        TableColumn { title: "title", right: false, shrinks: true },
        TableColumn { title: "turns", right: true, shrinks: false },
        TableColumn { title: "state", right: false, shrinks: true },
    ];

    fn row(cells: [&str; 4]) -> Vec<TableCell> {
        cells.into_iter().map(|text| TableCell { text: text.to_owned(), tone: Tone::Plain }).collect()
    }

    fn rows() -> Vec<Vec<TableCell>> {
        vec![
            row(["0199a4…71", "fix the flaky test", "15", "idle"]),
            row(["0199a3…c2", "日本語のタイトル", "2", ""]),
            row(["0199a1…0e", "a\nb\u{1b}[31m", "8800", "interrupted"]),
        ]
    }

    #[test]
    fn columns_align_by_what_is_shown() {
        assert_eq!(
            layout(COLUMNS, &rows(), None, false),
            "\
session    title               turns  state
0199a4…71  fix the flaky test     15  idle
0199a3…c2  日本語のタイトル        2
0199a1…0e  a b\u{fffd}[31m             8800  interrupted
"
        );
    }

    #[test]
    fn a_table_fits_its_terminal_and_keeps_ids_and_numbers_whole() {
        let text = layout(COLUMNS, &rows(), Some(40), false);
        assert_eq!(
            text,
            "\
session    title       turns  state
0199a4…71  fix the f…     15  idle
0199a3…c2  日本語の…       2
0199a1…0e  a b\u{fffd}[31m     8800  interrupt…
"
        );
        assert!(text.lines().all(|line| display_width(line) <= 40), "{text}");
    }

    #[test]
    fn colours_change_no_letter() {
        let mut coloured = rows();
        coloured[0][3].tone = Tone::Good;
        let with = layout(COLUMNS, &coloured, None, true);
        assert!(with.contains("\u{1b}[32midle\u{1b}[0m"), "{with:?}");
        let mut without = String::new();
        let mut rest = with.as_str();
        while let Some((before, after)) = rest.split_once("\u{1b}[") {
            without.push_str(before);
            rest = after.split_once('m').unwrap().1;
        }
        without.push_str(rest);
        assert_eq!(without, layout(COLUMNS, &rows(), None, false));
    }
}
