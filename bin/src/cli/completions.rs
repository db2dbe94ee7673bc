//! Shell completions: a script that asks this program, which knows the commands, and the names and ids that there are.

use std::io;

use clap_complete::env::{CompleteEnv, Shells};

use super::help::command;

/// The variable by which a shell's script asks. It names the shell.
const VARIABLE: &str = "HOLDFAST_COMPLETE";

/// A shell that has completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shell {
    /// Goes to ~/.local/share/bash-completion/completions/holdfast
    Bash,
    /// Goes into rc.elv: eval (holdfast completions elvish | slurp)
    Elvish,
    /// Goes to ~/.config/fish/completions/holdfast.fish
    Fish,
    /// Goes into $PROFILE: holdfast completions powershell | Out-String | Invoke-Expression
    #[value(name = "powershell")]
    PowerShell,
    /// Goes to a directory of $fpath, as _holdfast
    Zsh,
}

impl Shell {
    fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Elvish => "elvish",
            Self::Fish => "fish",
            Self::PowerShell => "powershell",
            Self::Zsh => "zsh",
        }
    }
}

/// Returns the completion script for `shell`.
///
/// # Errors
/// When the shell is not known to the library that writes it.
pub fn completion_script(shell: Shell) -> io::Result<Vec<u8>> {
    let shells = Shells::builtins();
    let completer = shells.completer(shell.name()).ok_or(io::ErrorKind::Unsupported)?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "holdfast", "holdfast", "holdfast", &mut script)?;
    Ok(script)
}

/// Answers a shell that asks, and ends the program then.
pub fn complete() {
    CompleteEnv::with_factory(command).var(VARIABLE).bin("holdfast").complete();
}
