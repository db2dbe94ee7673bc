//! The one renderer of the command line: tables, JSON, colours, hints, times, sizes, short ids, exit codes.
//!
//! Commands hand it data and never print by themselves. standard output is the answer, standard error the
//! conversation. Meaning never rests on colour, and a reader that closed its pipe ends a command without a word.

mod exit;
mod failure;
mod listing;
mod output;
mod quantity;
mod short_id;
mod style;
mod table;
mod text;
mod time;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use exit::Exit;
pub use failure::{Failure, Fault};
pub use listing::{Cell, Column, Listing};
pub use output::{Format, Renderer, Surroundings};
pub use quantity::{count_short, duration, size};
pub use short_id::{ResolveError, resolve, shorten};
pub use style::{ColorChoice, Tone};
pub use text::{clean, display_width};
pub use time::{duration_words, exact_local, near, utc};
