//! What is sent to the agent: words, standard input, files.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
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
    /// What of it can go into the prompt itself.
    content: Content,
}

#[derive(Debug, PartialEq, Eq)]
enum Content {
    Text(String),
    /// A picture: its media type, and its bytes in base64.
    Picture(&'static str, String),
    /// Other bytes, or too many: the agent gets the place.
    Elsewhere,
}

/// What an agent takes in a prompt besides text and links, by its answer to `initialize` (ACP, prompt capabilities).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Takes {
    pub(super) embedded: bool,
    pub(super) pictures: bool,
}

impl Takes {
    pub(super) fn of(initialized: &RawValue) -> Self {
        let has = |name| raw::at(initialized.get(), &["agentCapabilities", "promptCapabilities", name]) == Some("true");
        Self { embedded: has("embeddedContext"), pictures: has("image") }
    }
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

    /// Returns the prompt as content blocks: files first, as context, the words last. Text and pictures are put in only
    /// for agents that take them; links are what every agent takes.
    pub(super) fn blocks(&self, takes: Takes) -> Vec<Value> {
        let mut blocks: Vec<Value> = self.files.iter().map(|file| file.block(takes)).collect();
        blocks.extend(self.texts.iter().map(|text| json!({ "type": "text", "text": text })));
        blocks
    }
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
        let content = match media_type(&bytes) {
            _ if !fits => Content::Elsewhere,
            Some(media_type) => Content::Picture(media_type, STANDARD.encode(&bytes)),
            None => String::from_utf8(bytes).map_or(Content::Elsewhere, Content::Text),
        };
        Ok(Self { path, content })
    }

    fn block(&self, takes: Takes) -> Value {
        let uri = file_uri(&self.path);
        match &self.content {
            Content::Picture(media_type, data) if takes.pictures => json!({
                "type": "image", "mimeType": media_type, "data": data, "uri": uri,
            }),
            Content::Text(text) if takes.embedded => json!({
                "type": "resource",
                "resource": { "uri": uri, "mimeType": "text/plain", "text": text },
            }),
            Content::Text(_) | Content::Picture(..) | Content::Elsewhere => {
                let name = self.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
                json!({ "type": "resource_link", "uri": uri, "name": name })
            }
        }
    }
}

/// Tells a picture by its first bytes. Sources: PNG 3rd ed. 5.2, ITU-T T.81 B.1.1.3, GIF89a 17, RFC 9649 2.4.
fn media_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
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
        let blocks = prompt.blocks(Takes { embedded: true, pictures: true });
        assert_eq!(blocks[0]["resource"]["text"], "text");
        assert!(blocks[0]["resource"]["uri"].as_str().unwrap().ends_with("/a%20b.txt"));
        assert_eq!((&blocks[1]["type"], &blocks[1]["name"]), (&json!("resource_link"), &json!("b.bin")));
        assert_eq!(blocks[2], json!({ "type": "text", "text": "look here" }));
        assert_eq!(prompt.blocks(Takes::default())[0]["type"], "resource_link");
        let missing = RunArguments { files: vec![PathBuf::from("/nowhere/x")], ..arguments };
        assert!(Prompt::gather(&missing).is_err());
    }

    #[test]
    fn a_picture_goes_to_an_agent_that_sees_and_a_link_to_one_that_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shot");
        std::fs::write(&path, b"\x89PNG\r\n\x1a\n....").unwrap();
        let file = PromptFile::read(&path).unwrap();
        let block = file.block(Takes { embedded: false, pictures: true });
        assert_eq!((&block["type"], &block["mimeType"]), (&json!("image"), &json!("image/png")));
        assert_eq!(block["data"], "iVBORw0KGgouLi4u");
        assert_eq!(file.block(Takes { embedded: true, pictures: false })["type"], "resource_link");
        assert_eq!(media_type(b"RIFF\0\0\0\0WEBPVP8 "), Some("image/webp"));
        assert_eq!(media_type(b"RIFF\0\0\0\0WAVE"), None);
    }

    #[test]
    fn what_an_agent_takes_is_its_own_to_say() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let takes =
            Takes::of(&raw(r#"{"agentCapabilities":{"promptCapabilities":{"embeddedContext":true,"image":false}}}"#));
        assert_eq!(takes, Takes { embedded: true, pictures: false });
        assert_eq!(Takes::of(&raw(r#"{"agentCapabilities":{}}"#)), Takes::default());
    }
}
