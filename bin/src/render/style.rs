//! Colours, for people who can use them. The text says the same without.

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What a piece of text is, which decides how it looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    Plain,
    /// A title or a name to find.
    Strong,
    /// Less important: thoughts, notes.
    Dim,
    /// Well.
    Good,
    /// Worth a look.
    Warning,
    /// Failed or down.
    Bad,
}

impl Tone {
    /// Returns the SGR parameters (ECMA-48, 8.3.117), or nothing for plain text.
    ///
    /// Only the eight base colours and two weights: every terminal theme maps them to something readable.
    fn sgr(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Strong => Some("1"),
            Self::Dim => Some("2"),
            Self::Good => Some("32"),
            Self::Warning => Some("33"),
            Self::Bad => Some("31"),
        }
    }

    /// Appends `text` in this tone; without colours it is appended as it is.
    pub(super) fn push(self, line: &mut String, text: &str, colours: bool) {
        match self.sgr().filter(|_| colours && !text.is_empty()) {
            Some(sgr) => {
                line.push_str("\u{1b}[");
                line.push_str(sgr);
                line.push('m');
                line.push_str(text);
                line.push_str("\u{1b}[0m");
            }
            None => line.push_str(text),
        }
    }
}
