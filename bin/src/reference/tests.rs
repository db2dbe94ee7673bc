//! The pages against the book. `HOLDFAST_WRITE_PAGES=1` writes them instead.

use std::path::Path;

use super::pages;

#[test]
fn the_pages_of_the_book_are_what_the_code_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/reference");
    for page in pages() {
        let path = folder.join(page.file);
        if std::env::var_os("HOLDFAST_WRITE_PAGES").is_some() {
            std::fs::write(&path, &page.text).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == page.text, "{} is stale: run `just docs`. It should be:\n{}", path.display(), page.text);
    }
}

#[test]
fn every_kind_method_and_section_is_on_its_page() {
    let pages = pages();
    let text = |file: &str| &pages.iter().find(|page| page.file == file).expect(file).text;
    assert!(
        text("errors.md").contains("| `auth_required` | The agent wants the user to sign in first | -32000 | no | 4 |")
    );
    for method in holdfast_protocol::methods::all() {
        assert!(text("rpc.md").contains(&format!("## `{}`\n", method.name)), "{}", method.name);
    }
    for line in ["## `[agents]`", "## `[permissions]`", "| `idle_timeout_s`?"] {
        assert!(text("config.md").contains(line), "{line}");
    }
}
