//! The pages of exit codes and of errors.

use holdfast_protocol::error::ErrorKind;

use super::{marker, push_line};
use crate::render::Exit;

/// Returns the page of exit codes.
pub(super) fn exit_codes_page() -> String {
    let mut page = format!(
        "# Exit codes\n\n{}\n\nNumbers are never given a new meaning.\n\n| code | meaning |\n| ---: | --- |\n",
        marker("bin/src/render/exit.rs")
    );
    for (exit, meaning) in Exit::ALL {
        push_line(&mut page, format_args!("| {} | {meaning} |", exit.code()));
    }
    page.push_str(
        "\n`holdfast run` ends with the turn's stop reason: 0 when the agent ended its turn, 4 when it refused, 130 when the \
         turn was cancelled, 1 when it failed. A reader that closes the pipe (`| head`) ends a command with 0 and without a \
         word.\n",
    );
    page
}

/// Returns the page of errors: each kind with its meaning, from the schema that the wire uses.
pub(super) fn errors_page() -> String {
    let mut page = format!(
        "# Errors\n\n{}\n\n\
         An error of the socket is a JSON-RPC error object whose `data` is `{{ kind, message, remedy?, retryable, path? }}`. \
         Kinds are stable; messages may improve. `retryable` means that the same request may succeed later without any \
         change; after `timeout` and `interrupted`, whose outcome is unknown, repeat it with the same idempotency key.\n\n\
         | kind | means | code | retryable | exit code |\n| --- | --- | ---: | --- | ---: |\n",
        marker("protocol/src/error.rs")
    );
    let schema = schemars::schema_for!(ErrorKind).to_value();
    for variant in schema["oneOf"].as_array().into_iter().flatten() {
        let Ok(kind) = serde_json::from_value::<ErrorKind>(variant["const"].clone()) else { continue };
        let meaning = variant["description"].as_str().unwrap_or_default().trim_end_matches('.');
        let retryable = if kind.retryable() { "yes" } else { "no" };
        let exit = Exit::of_kind(kind).code();
        push_line(
            &mut page,
            format_args!("| `{}` | {meaning} | {} | {retryable} | {exit} |", kind.name(), kind.code()),
        );
    }
    page
}
