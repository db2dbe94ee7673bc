//! The reference pages of the book, made from the code so that they can't say anything else.
//!
//! A test compares each page with what the code says; `just docs` writes them anew.

mod cli;
mod codes;
mod config;
mod rpc;
mod schema;

#[cfg(test)]
mod tests;

use std::fmt::{Arguments, Write};

/// A page: its file in `docs/src/reference/`, and its text.
#[derive(Debug)]
pub struct Page {
    /// The name of the file.
    pub file: &'static str,
    /// All of it.
    pub text: String,
}

/// Returns every page that is made from the code.
pub fn pages() -> Vec<Page> {
    vec![
        Page { file: "cli.md", text: cli::page() },
        Page { file: "exit-codes.md", text: codes::exit_codes_page() },
        Page { file: "errors.md", text: codes::errors_page() },
        Page { file: "rpc.md", text: rpc::page() },
        Page { file: "config.md", text: config::page() },
    ]
}

/// Returns the comment that keeps people from editing a page by hand.
fn marker(source: &str) -> String {
    format!("<!-- Made from {source}: `just docs` writes it, a test compares it. -->")
}

fn push_line(page: &mut String, line: Arguments<'_>) {
    // Writing to a String can't fail.
    let _ = writeln!(page, "{line}");
}
