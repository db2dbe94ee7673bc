//! What is sent to the agent: words, standard input, files.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use holdfast_protocol::raw;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::cli::RunArguments;
use crate::commands::rpc::read_standard_input;
use crate::render::{Exit, Failure};

/// The longest file whose text goes into the prompt, in bytes; of longer ones the agent gets the place only. A quarter of
/// what one frame to the daemon may hold, since several can be given and text grows as JSON.
const EMBED_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// What is asked, before the agent's abilities are known.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    /// What was piped in, then the words.
    texts: Vec<String>,
    files: Vec<PromptFile>,
}

#[derive(Debug, PartialEq, Eq)]
struct PromptFile {
    path: PathBuf,
    /// Missing where it is no text, or too much.
    text: Option<String>,
}

impl Prompt {
    /// Takes the prompt from the arguments, else from standard input.
    ///
    /// # Errors
    /// A usage failure when there is nothing to ask, or a file can't be read.
    pub(super) fn gather(arguments: &RunArguments) -> Result<Self, Failure> {
        let is_input = |word: &&String| word.as_str() == "-";
        let words: Vec<&str> = arguments.prompt.iter().filter(|word| !is_input(word)).map(String::as_str).collect();
        let reads =
            arguments.prompt.iter().any(|word| is_input(&word)) || (words.is_empty() && !io::stdin().is_terminal());
        let input = if reads { read_standard_input()? } else { String::new() };
        let files = arguments.files.iter().map(|path| PromptFile::read(path)).collect::<Result<Vec<_>, _>>()?;
        let texts: Vec<String> = [input.trim_end_matches('\n').to_owned(), words.join(" ")]
            .into_iter()
            .filter(|text| !text.trim().is_empty())
            .collect();
        if texts.is_empty() && files.is_empty() {
            return Err(Failure::new(Exit::Usage, "there is nothing to ask")
                .hint("holdfast run demo \"hello\"   ·   git diff | holdfast run demo"));
        }
        Ok(Self { texts, files })
    }

    /// Returns the prompt as content blocks: files first, as context, the words last. Text of files is embedded only for
    /// agents that take it; links are what every agent takes (ACP, prompt capabilities).
    pub(super) fn blocks(&self, embeds: bool) -> Vec<Value> {
        let mut blocks: Vec<Value> = self.files.iter().map(|file| file.block(embeds)).collect();
        blocks.extend(self.texts.iter().map(|text| json!({ "type": "text", "text": text })));
        blocks
    }
}

/// Says whether an agent takes embedded resources, from its answer to `initialize`.
pub(super) fn takes_embedded(initialized: &RawValue) -> bool {
    raw::at(initialized.get(), &["agentCapabilities", "promptCapabilities", "embeddedContext"]) == Some("true")
}

impl PromptFile {
    fn read(path: &Path) -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::new(Exit::Usage, format!("could not read {}: {error}", path.display()));
        let path = path.canonicalize().map_err(failed)?;
        let mut file = File::open(&path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.by_ref().take(EMBED_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        let fits = u64::try_from(bytes.len()).is_ok_and(|length| length <= EMBED_MAX_BYTES);
        Ok(Self { path, text: fits.then(|| String::from_utf8(bytes).ok()).flatten() })
    }

    fn block(&self, embeds: bool) -> Value {
        let uri = file_uri(&self.path);
        match &self.text {
            Some(text) if embeds => json!({
                "type": "resource",
                "resource": { "uri": uri, "mimeType": "text/plain", "text": text },
            }),
            _ => {
                let name = self.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
                json!({ "type": "resource_link", "uri": uri, "name": name })
            }
        }
    }
}

/// Returns a `file:` URI. Bytes that RFC 3986 does not reserve or allow in a path are written as `%XX`.
fn file_uri(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut uri = "file://".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(char::from(*byte)),
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_first_and_are_embedded_where_the_agent_takes_it() {
        let directory = tempfile::tempdir().unwrap();
        let text_path = directory.path().join("a b.txt");
        std::fs::write(&text_path, "text").unwrap();
        let binary_path = directory.path().join("b.bin");
        std::fs::write(&binary_path, [0xff, 0xfe]).unwrap();
        let arguments = RunArguments {
            agent: "demo".to_owned(),
            prompt: vec!["look".to_owned(), "here".to_owned()],
            session: None,
            resume: false,
            files: vec![text_path, binary_path],
            cwd: None,
            no_wait: false,
        };
        let prompt = Prompt::gather(&arguments).unwrap();
        let blocks = prompt.blocks(true);
        assert_eq!(blocks[0]["resource"]["text"], "text");
        assert!(blocks[0]["resource"]["uri"].as_str().unwrap().ends_with("/a%20b.txt"));
        assert_eq!((&blocks[1]["type"], &blocks[1]["name"]), (&json!("resource_link"), &json!("b.bin")));
        assert_eq!(blocks[2], json!({ "type": "text", "text": "look here" }));
        assert_eq!(prompt.blocks(false)[0]["type"], "resource_link");
        let missing = RunArguments { files: vec![PathBuf::from("/nowhere/x")], ..arguments };
        assert!(Prompt::gather(&missing).is_err());
    }

    #[test]
    fn embedding_is_asked_for_by_the_agent() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        assert!(takes_embedded(&raw(r#"{"agentCapabilities":{"promptCapabilities":{"embeddedContext":true}}}"#)));
        assert!(!takes_embedded(&raw(r#"{"agentCapabilities":{}}"#)));
    }
}
