//! A listing: typed cells for people, the whole record for programs.

use serde::Serialize;
use serde_json::value::RawValue;

use super::exit::Exit;
use super::failure::Failure;
use super::short_id::shorten;
use super::style::Tone;
use super::table::{TableCell, TableColumn};
use super::time;

/// A value in a listing. Each format writes it in its own way: short for people, exact for programs.
#[derive(Debug, Clone)]
pub enum Cell {
    /// Nothing is known or nothing applies.
    Missing,
    /// Free text.
    Text(String),
    /// An id, shortened in tables to what is unique in its column.
    Id(String),
    /// A state. The word says it; the tone only helps to find it.
    State(String, Tone),
    /// A number.
    Count(u64),
    /// A size in bytes.
    SizeBytes(u64),
    /// How long something took, in microseconds.
    DurationMicros(u64),
    /// An instant, UTC milliseconds.
    At(i64),
}

/// A column of a listing. Titles are the stable names of `--format tsv`.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// The heading.
    pub title: &'static str,
    /// What the cells hold, which decides alignment and whether the column may be cut.
    kind: ColumnKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnKind {
    Text,
    Whole,
    Number,
    Note,
}

impl Column {
    /// A column of free text, cut where the terminal is too narrow.
    pub const fn text(title: &'static str) -> Self {
        Self { title, kind: ColumnKind::Text }
    }

    /// A column that is never cut: ids, names to copy, states, instants.
    pub const fn whole(title: &'static str) -> Self {
        Self { title, kind: ColumnKind::Whole }
    }

    /// A column of free text that tables leave out where no row has any.
    pub const fn note(title: &'static str) -> Self {
        Self { title, kind: ColumnKind::Note }
    }

    /// A column of numbers, aligned to the right and never cut.
    pub const fn number(title: &'static str) -> Self {
        Self { title, kind: ColumnKind::Number }
    }
}

/// A list of records of one kind.
#[derive(Debug)]
pub struct Listing {
    columns: &'static [Column],
    rows: Vec<Vec<Cell>>,
    records: Vec<Box<RawValue>>,
    empty: String,
}

impl Listing {
    /// Makes an empty listing. `empty` is what a person is told when nothing was added ("no sessions yet").
    pub fn new(columns: &'static [Column], empty: &str) -> Self {
        Self { columns, rows: Vec::new(), records: Vec::new(), empty: empty.to_owned() }
    }

    /// Adds a record: its cells in the order of the columns, and all of it for `--json`.
    ///
    /// # Errors
    /// A failure when the record can't be written as JSON.
    pub fn push(&mut self, cells: Vec<Cell>, record: &impl Serialize) -> Result<(), Failure> {
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        let record = serde_json::value::to_raw_value(record)
            .map_err(|error| Failure::new(Exit::Failed, format!("could not write a record as JSON: {error}")))?;
        self.rows.push(cells);
        self.records.push(record);
        Ok(())
    }

    /// Says whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the records in full.
    pub(super) fn records(&self) -> &[Box<RawValue>] {
        &self.records
    }

    /// Returns what to say when there are no records.
    pub(super) fn empty_note(&self) -> &str {
        &self.empty
    }

    /// Returns columns and cells as a table shows them.
    pub(super) fn to_table(&self, human: &Human<'_>) -> (Vec<TableColumn>, Vec<Vec<TableCell>>) {
        let noted = |index: usize| self.rows.iter().any(|row| !matches!(row.get(index), None | Some(Cell::Missing)));
        let shown: Vec<(usize, &Column)> = self
            .columns
            .iter()
            .enumerate()
            .filter(|(index, column)| column.kind != ColumnKind::Note || noted(*index))
            .collect();
        let columns = shown
            .iter()
            .map(|(_, column)| TableColumn {
                title: column.title,
                right: column.kind == ColumnKind::Number,
                shrinks: matches!(column.kind, ColumnKind::Text | ColumnKind::Note),
            })
            .collect();
        let cell = |row: &[Cell], (index, column): &(usize, &Column)| match row.get(*index) {
            None | Some(Cell::Missing) if column.kind == ColumnKind::Note => {
                TableCell { text: String::new(), tone: Tone::Plain }
            }
            None => human.cell(&Cell::Missing),
            Some(cell) => human.cell(cell),
        };
        let mut rows: Vec<Vec<TableCell>> =
            self.rows.iter().map(|row| shown.iter().map(|place| cell(row, place)).collect()).collect();
        for (place, (index, _)) in shown.iter().enumerate() {
            self.shorten_column(*index, place, &mut rows);
        }
        (columns, rows)
    }

    /// Replaces the ids of the column `index`, shown at `place`, by their short forms.
    fn shorten_column(&self, index: usize, place: usize, rows: &mut [Vec<TableCell>]) {
        let (places, ids): (Vec<usize>, Vec<&str>) = self
            .rows
            .iter()
            .enumerate()
            .filter_map(|(row, cells)| match cells.get(index) {
                Some(Cell::Id(id)) => Some((row, id.as_str())),
                _ => None,
            })
            .unzip();
        for (row, short) in places.into_iter().zip(shorten(&ids)) {
            if let Some(cell) = rows.get_mut(row).and_then(|cells| cells.get_mut(place)) {
                cell.text = short;
            }
        }
    }

    /// Returns the listing as tab separated values: a line of titles, then exact values.
    ///
    /// In values, `\` is written `\\`, a tab `\t`, a line feed `\n`, a carriage return `\r`; missing is empty.
    pub(super) fn to_tsv(&self) -> String {
        let mut out = self.columns.iter().map(|column| column.title).collect::<Vec<_>>().join("\t");
        out.push('\n');
        for row in &self.rows {
            out.push_str(&row.iter().map(exact).collect::<Vec<_>>().join("\t"));
            out.push('\n');
        }
        out
    }
}

/// What a table needs to know about its reader.
pub(super) struct Human<'a> {
    /// The present, UTC milliseconds.
    pub(super) now_ms: i64,
    /// The reader's time zone.
    pub(super) zone: &'a jiff::tz::TimeZone,
}

impl Human<'_> {
    /// Returns a cell as people read it.
    pub(super) fn cell(&self, cell: &Cell) -> TableCell {
        let (text, tone) = match cell {
            Cell::Missing => ("–".to_owned(), Tone::Dim),
            Cell::Text(text) | Cell::Id(text) => (text.clone(), Tone::Plain),
            Cell::State(text, tone) => (text.clone(), *tone),
            Cell::Count(count) => (count.to_string(), Tone::Plain),
            Cell::SizeBytes(size_bytes) => (super::quantity::size(*size_bytes), Tone::Plain),
            Cell::DurationMicros(micros) => {
                (super::quantity::duration(std::time::Duration::from_micros(*micros)), Tone::Plain)
            }
            Cell::At(at_ms) => (time::near(*at_ms, self.now_ms, self.zone), Tone::Plain),
        };
        TableCell { text, tone }
    }
}

/// Returns a cell exactly, for programs.
pub(super) fn exact(cell: &Cell) -> String {
    match cell {
        Cell::Missing => String::new(),
        Cell::Text(text) | Cell::Id(text) | Cell::State(text, _) => {
            text.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r")
        }
        Cell::Count(number) | Cell::SizeBytes(number) | Cell::DurationMicros(number) => number.to_string(),
        Cell::At(at_ms) => time::utc(*at_ms),
    }
}
