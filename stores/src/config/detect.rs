//! Finds agents installed on this machine: programs on `PATH` that are known to speak the Agent Client Protocol.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use holdfast_protocol::ids::{AgentAlias, InvalidId};

use super::edit::NewAgent;

/// An agent known by its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownAgent {
    /// The name it is given.
    pub alias: &'static str,
    /// What people call it.
    pub title: &'static str,
    /// The program that speaks the protocol.
    pub program: &'static str,
    /// What makes it speak it.
    pub arguments: &'static [&'static str],
    /// A program that needs an adapter, and how to install that.
    pub adapter_of: Option<(&'static str, &'static str)>,
}

const fn known(
    alias: &'static str,
    title: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
) -> KnownAgent {
    KnownAgent { alias, title, program, arguments, adapter_of: None }
}

/// All known agents. Where two programs serve one alias, the first found is taken. Sources: the agents' own documentation and
/// the protocol's list of agents (agentclientprotocol.com).
pub const KNOWN_AGENTS: &[KnownAgent] = &[
    KnownAgent {
        adapter_of: Some(("claude", "npm install -g @agentclientprotocol/claude-agent-acp")),
        ..known("claude", "Claude Code", "claude-agent-acp", &[])
    },
    known("claude", "Claude Code", "claude-code-acp", &[]),
    KnownAgent {
        adapter_of: Some(("codex", "npm install -g @agentclientprotocol/codex-acp")),
        ..known("codex", "Codex", "codex-acp", &[])
    },
    known("gemini", "Gemini CLI", "gemini", &["--acp"]),
    known("opencode", "OpenCode", "opencode", &["acp"]),
    known("qwen", "Qwen Code", "qwen", &["--acp"]),
    KnownAgent { adapter_of: Some(("pi", "npm install -g pi-acp")), ..known("pi", "Pi", "pi-acp", &[]) },
    known("goose", "Goose", "goose", &["acp"]),
    known("cursor", "Cursor", "cursor-agent", &["acp"]),
    known("copilot", "GitHub Copilot", "copilot", &["--acp"]),
    known("kimi", "Kimi CLI", "kimi", &["--acp"]),
    known("auggie", "Augment", "auggie", &["--acp"]),
    known("vibe", "Mistral Vibe", "vibe-acp", &[]),
];

/// An agent found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedAgent {
    /// Which.
    pub known: KnownAgent,
    /// Where its program is.
    pub path: PathBuf,
    /// Variables it needs here.
    pub env: BTreeMap<String, String>,
}

/// An agent found that needs an adapter which is not installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingAdapter {
    /// Which.
    pub known: KnownAgent,
    /// The command that installs the adapter.
    pub install: &'static str,
}

/// What was found, in the order of [`KNOWN_AGENTS`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detection {
    /// Ready to be added.
    pub agents: Vec<DetectedAgent>,
    /// One step away.
    pub missing_adapters: Vec<MissingAdapter>,
}

impl DetectedAgent {
    /// Returns what is to be added to the configuration. The program is named as on `PATH`, so that an update which moves it
    /// breaks nothing.
    ///
    /// # Errors
    /// [`InvalidId`] never happens for [`KNOWN_AGENTS`], which is tested.
    pub fn to_new_agent(&self) -> Result<NewAgent, InvalidId> {
        let alias: AgentAlias = self.known.alias.parse()?;
        let words = std::iter::once(self.known.program).chain(self.known.arguments.iter().copied());
        Ok(NewAgent { alias, command: words.map(str::to_owned).collect(), env: self.env.clone() })
    }
}

/// Looks through `search_path` (the value of `PATH`) for known agents. Starts nothing.
///
/// `superuser` says whether the daemon runs as root, which one of them refuses without a variable.
pub fn detect(search_path: &OsStr, superuser: bool) -> Detection {
    let directories: Vec<PathBuf> = std::env::split_paths(search_path).filter(|path| path.is_absolute()).collect();
    let mut detection = Detection::default();
    for known in KNOWN_AGENTS {
        let taken = |alias| detection.agents.iter().any(|agent| agent.known.alias == alias);
        if taken(known.alias) {
            continue;
        }
        if let Some(path) = find(&directories, known.program) {
            let env = match known.alias {
                // Claude Code refuses to work without asking as root, unless told that it is in a sandbox.
                "claude" if superuser => BTreeMap::from([("IS_SANDBOX".to_owned(), "1".to_owned())]),
                _ => BTreeMap::new(),
            };
            detection.missing_adapters.retain(|missing| missing.known.alias != known.alias);
            detection.agents.push(DetectedAgent { known: *known, path, env });
        } else if let Some((program, install)) = known.adapter_of
            && find(&directories, program).is_some()
        {
            detection.missing_adapters.push(MissingAdapter { known: *known, install });
        }
    }
    detection
}

/// Returns the first executable file of this name.
fn find(directories: &[PathBuf], program: &str) -> Option<PathBuf> {
    directories.iter().map(|directory| directory.join(program)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn install(directory: &Path, program: &str, mode: u32) {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join(program), "").unwrap();
        fs::set_permissions(directory.join(program), Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn executables_on_the_path_are_found_in_its_order() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("a"), directory.path().join("b"));
        install(&first, "opencode", 0o755);
        install(&second, "opencode", 0o755);
        install(&second, "claude-code-acp", 0o755);
        install(&second, "claude", 0o755);
        install(&second, "codex", 0o755);
        install(&first, "gemini", 0o644);
        fs::create_dir(first.join("qwen")).unwrap();
        let path = std::env::join_paths([first.clone(), PathBuf::from("relative"), second.clone()]).unwrap();
        let detection = detect(&path, true);
        let found: Vec<(&str, PathBuf)> =
            detection.agents.iter().map(|agent| (agent.known.alias, agent.path.clone())).collect();
        assert_eq!(found, [("claude", second.join("claude-code-acp")), ("opencode", first.join("opencode"))]);
        let new = detection.agents[0].to_new_agent().unwrap();
        assert_eq!(new.command, ["claude-code-acp"]);
        assert_eq!(new.env.get("IS_SANDBOX").map(String::as_str), Some("1"));
        assert_eq!(detection.agents[1].to_new_agent().unwrap().command, ["opencode", "acp"]);
        let missing: Vec<&str> = detection.missing_adapters.iter().map(|missing| missing.known.alias).collect();
        assert_eq!(missing, ["codex"]);
        assert_eq!(detect(OsStr::new(""), false), Detection::default());
    }

    #[test]
    fn every_known_agent_has_a_legal_alias() {
        for known in KNOWN_AGENTS {
            let agent = DetectedAgent { known: *known, path: PathBuf::new(), env: BTreeMap::new() };
            agent.to_new_agent().unwrap();
        }
    }
}
