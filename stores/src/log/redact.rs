//! Takes secrets out of text and fields before they reach the log. Pure functions.
//!
//! Two nets: **names** (whatever follows `password=`, `"token":`, `--api-key`, `Authorization:`, `export X_KEY=`) and
//! **shapes** (values that say by themselves what they are: `sk-…`, `Bearer …`, `AKIA…`, age secret keys, private key
//! blocks, passwords in URLs). Types keep secrets out of log calls in the first place; this is the net below, so when in
//! doubt it takes out too much.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

/// What stands in the place of a secret.
pub const MARK: &str = "[redacted]";

/// Prefixes that make a token a secret, with the fewest characters that must follow.
///
/// Sources: the issuers' published token formats (GitHub, GitLab, Slack, AWS, Google, Hugging Face, npm, Stripe, age).
/// `hdf_` and `zc_` are the tokens of this daemon and of the installs it imports.
const PREFIXES: &[(&str, usize)] = &[
    ("sk-", 12),
    ("sk_live_", 8),
    ("sk_test_", 8),
    ("rk_live_", 8),
    ("hdf_", 8),
    ("zc_", 8),
    ("ghp_", 16),
    ("gho_", 16),
    ("ghu_", 16),
    ("ghs_", 16),
    ("ghr_", 16),
    ("github_pat_", 16),
    ("glpat-", 16),
    ("AKIA", 16),
    ("ASIA", 16),
    ("AIza", 30),
    ("AGE-SECRET-KEY-", 16),
    ("xoxb-", 10),
    ("xoxp-", 10),
    ("xoxa-", 10),
    ("xoxs-", 10),
    ("xapp-", 10),
    ("hf_", 16),
    ("npm_", 20),
];

/// Returns `text` without its secrets; the very same text when it has none.
pub fn redact_text(text: &str) -> Cow<'_, str> {
    let found = find_secrets(text);
    if found.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    let mut from = 0;
    for range in found {
        clean.push_str(&text[from..range.start]);
        clean.push_str(MARK);
        from = range.end;
    }
    clean.push_str(&text[from..]);
    Cow::Owned(clean)
}

/// Returns the value of the field `name` without its secrets, nested values included.
///
/// A value under a secret's name goes whole, whatever its type; only booleans and nulls stay (`token: null`).
pub fn redact_value(name: &str, value: Value) -> Value {
    match value {
        Value::Null | Value::Bool(_) => value,
        Value::String(text) if is_pairing_code(name, &text) => MARK.into(),
        _ if is_secret_name(name) => MARK.into(),
        Value::Number(_) => value,
        Value::String(text) => match redact_text(&text) {
            Cow::Borrowed(_) => Value::String(text),
            Cow::Owned(clean) => Value::String(clean),
        },
        Value::Array(items) => items.into_iter().map(|item| redact_value(name, item)).collect(),
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| {
                let value = redact_value(&key, value);
                (redact_text(&key).into_owned(), value)
            })
            .collect(),
    }
}

/// Says whether a field of this name holds a secret.
///
/// Names are taken apart into words (`x-api-key`, `apiKey`, `API_KEY`), because `output_tokens` and `session_key` are no
/// secrets while `access_token` and `signing_key` are.
pub fn is_secret_name(name: &str) -> bool {
    let words = words(name);
    let Some(last) = words.last().map(String::as_str) else { return false };
    // What the last word says about a secret without being one: `token_count`, `secret_name`, `password_file`.
    const ABOUT: &[&str] = &[
        "name", "names", "id", "ids", "count", "path", "file", "len", "length", "bytes", "kind", "type", "ttl", "ms",
        "expires", "expired", "set", "present", "label", "scope", "scopes", "ref", "limit", "used", "budget",
    ];
    if words.len() > 1 && ABOUT.contains(&last) {
        return false;
    }
    const ANYWHERE: &[&str] = &[
        "secret",
        "secrets",
        "password",
        "passwords",
        "passwd",
        "passphrase",
        "authorization",
        "cookie",
        "cookies",
        "apikey",
        "credential",
        "credentials",
        "otp",
        "bearer",
        "jwt",
    ];
    if words.iter().any(|word| ANYWHERE.contains(&word.as_str())) {
        return true;
    }
    if last == "token" || last == "pwd" {
        return true;
    }
    // A list of tokens under its own name; counts of tokens have a word before (`input_tokens`) or are plain numbers.
    const KEYS: &[&str] =
        &["api", "private", "secret", "access", "signing", "encryption", "master", "auth", "ssh", "age", "host"];
    let pair = |first: &str, second: &str| match second {
        "key" | "keys" => KEYS.contains(&first),
        "code" | "codes" => ["pairing", "pair", "auth", "verification", "device"].contains(&first),
        "token" => true,
        "tokens" => ["access", "refresh", "paired", "auth", "bearer"].contains(&first),
        _ => false,
    };
    if words.windows(2).any(|two| pair(&two[0], &two[1])) {
        return true;
    }
    // Environment style: DEMO_KEY, OPENAI_KEY.
    last == "key"
        && name.len() > 4
        && name.bytes().all(|byte| byte.is_ascii_uppercase() || b"_0123456789".contains(&byte))
}

/// A pairing code is only recognisable by its field: `code` is as often an exit status or an error's name.
fn is_pairing_code(name: &str, value: &str) -> bool {
    let name = name.to_ascii_lowercase();
    if name != "code" && name != "pin" {
        return false;
    }
    // Ours are eight characters of base 32; imported installs have six digits.
    let ours = value.bytes().filter(|byte| !b"- ".contains(byte)).count() == 8
        && value.bytes().all(|byte| byte.is_ascii_uppercase() || b"234567- ".contains(&byte));
    ours || (value.len() == 6 && value.bytes().all(|byte| byte.is_ascii_digit()))
}

fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut previous_lower = false;
    let mut fresh = true;
    for character in name.chars() {
        if !character.is_ascii_alphanumeric() {
            fresh = true;
            previous_lower = false;
            continue;
        }
        if fresh || (character.is_ascii_uppercase() && previous_lower) {
            words.push(String::new());
            fresh = false;
        }
        if let Some(word) = words.last_mut() {
            word.push(character.to_ascii_lowercase());
        }
        previous_lower = character.is_ascii_lowercase();
    }
    words
}

/// Returns the ranges of `text` that are secrets: in order, apart from each other, at character boundaries.
fn find_secrets(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut position = 0;
    while position < bytes.len() {
        let byte = bytes[position];
        let long = match byte {
            b'-' if bytes[position..].starts_with(b"-----BEGIN ") => private_key_block(text, position),
            b':' if bytes[position..].starts_with(b"://") => url_password(bytes, position + 3),
            _ => None,
        };
        if let Some(range) = long {
            position = range.end;
            found.push(range);
            continue;
        }
        if !byte.is_ascii_alphanumeric() || !starts_word(bytes, position) {
            position += 1;
            continue;
        }
        let range = shaped_secret(text, position).or_else(|| bearer(bytes, position)).or_else(|| named(text, position));
        match range {
            Some(range) if range.end > range.start => {
                position = range.end;
                found.push(range);
            }
            _ => position += 1,
        }
    }
    found
}

/// A word starts where no letter or digit comes before, or where what comes before is an escape (`\n`, `%20`).
fn starts_word(bytes: &[u8], position: usize) -> bool {
    let before = |back: usize| position.checked_sub(back).map(|index| bytes[index]);
    match before(1) {
        None => true,
        Some(byte) if !byte.is_ascii_alphanumeric() => true,
        Some(byte) => {
            (byte.is_ascii_alphabetic() && before(2) == Some(b'\\'))
                || (byte.is_ascii_hexdigit() && before(3) == Some(b'%'))
        }
    }
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.+/=~".contains(&byte)
}

/// Returns the end of the token that starts at `position`; the full stop that ends a sentence is not part of it.
fn token_end(bytes: &[u8], position: usize) -> usize {
    let mut end = position;
    while end < bytes.len() && is_token_byte(bytes[end]) {
        end += 1;
    }
    while end > position && bytes[end - 1] == b'.' {
        end -= 1;
    }
    end
}

fn shaped_secret(text: &str, position: usize) -> Option<Range<usize>> {
    let rest = &text.as_bytes()[position..];
    let end = || token_end(text.as_bytes(), position);
    for (prefix, least) in PREFIXES {
        if rest[0] == prefix.as_bytes()[0] && rest.starts_with(prefix.as_bytes()) {
            let end = end();
            let tail = &text[position + prefix.len()..end];
            // `sk-learn` is a library, `sk-…` with digits or of some length is a key.
            let telling = tail.bytes().any(|byte| byte.is_ascii_digit()) || tail.len() >= 20;
            return (tail.len() >= *least && telling).then_some(position..end);
        }
    }
    if rest.starts_with(b"eyJ") {
        // A JSON Web Token: three dotted parts, the first two JSON in base64url.
        let end = end();
        let token = &text[position..end];
        if token.len() >= 32 && token.matches('.').count() >= 2 {
            return Some(position..end);
        }
    }
    None
}

/// `Bearer x`, `Basic x`, also with an encoded space.
fn bearer(bytes: &[u8], position: usize) -> Option<Range<usize>> {
    let rest = &bytes[position..];
    let word = [&b"bearer"[..], b"basic"]
        .into_iter()
        .find(|word| rest.len() > word.len() && rest[..word.len()].eq_ignore_ascii_case(word))?;
    let mut start = position + word.len();
    let gap = start;
    loop {
        if bytes.get(start) == Some(&b' ') {
            start += 1;
        } else if bytes[start..].starts_with(b"%20") {
            start += 3;
        } else {
            break;
        }
    }
    if start == gap {
        return None;
    }
    let end = token_end(bytes, start);
    let token = &bytes[start..end];
    // "bearer authentication" is prose; a credential has digits, or length.
    let telling = token.iter().any(|byte| byte.is_ascii_digit() || b"_=+/".contains(byte)) || token.len() >= 24;
    (token.len() >= 6 && telling).then_some(start..end)
}

/// `name = value` in its many spellings, when the name is a secret's.
fn named(text: &str, position: usize) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let mut name_end = position;
    while name_end < bytes.len() && (bytes[name_end].is_ascii_alphanumeric() || b"_-".contains(&bytes[name_end])) {
        name_end += 1;
    }
    // A longer run is looked at again from each of its words.
    if name_end - position > 128 {
        return None;
    }
    let name = &text[position..name_end];
    let code = name.eq_ignore_ascii_case("code") || name.eq_ignore_ascii_case("pin");
    let as_option = position >= 2 && &bytes[position - 2..position] == b"--";

    // The quote that closes the name, as often escaped as its JSON was put into JSON.
    let mut at = skip(bytes, name_end, b"\\\"'`]");
    let spaces_from = at;
    at = skip(bytes, at, b" \t");
    let separator = at;
    let colon = match bytes.get(at) {
        Some(b'=') => {
            at = skip(bytes, at, b"=>");
            false
        }
        Some(b':') => {
            at += 1;
            true
        }
        Some(b'%') if bytes[at..].starts_with(b"%3D") || bytes[at..].starts_with(b"%3d") => {
            at += 3;
            false
        }
        _ if as_option && separator > spaces_from => false,
        _ => return None,
    };
    // Asked only now: most words have no value behind them.
    if !code && !is_secret_name(name) {
        return None;
    }
    at = skip(bytes, at, b" \t");
    if bytes[at..].starts_with(b"Some(") {
        at += 5;
    }
    let prose = colon && at > separator + 1 && name_end == separator;
    let (start, end) = value_range(bytes, at, name)?;
    let value = &text[start..end];
    if value.is_empty() || value.starts_with(MARK) || ["null", "None", "true", "false"].contains(&value) {
        return None;
    }
    if code {
        return is_pairing_code(name, value).then_some(start..end);
    }
    // "invalid token: expected a comma" is about a parser.
    if prose && name.eq_ignore_ascii_case("token") {
        let telling = value.bytes().any(|byte| byte.is_ascii_digit()) || value.len() >= 16;
        return (value.len() >= 6 && telling).then_some(start..end);
    }
    Some(start..end)
}

fn skip(bytes: &[u8], mut at: usize, set: &[u8]) -> usize {
    while at < bytes.len() && set.contains(&bytes[at]) {
        at += 1;
    }
    at
}

/// Returns where the value that starts at `at` begins and ends, its quotes left outside.
fn value_range(bytes: &[u8], at: usize, name: &str) -> Option<(usize, usize)> {
    let escaped = skip(bytes, at, b"\\");
    let quote = *bytes.get(escaped)?;
    if b"\"'`".contains(&quote) {
        let start = escaped + 1;
        let depth = escaped - at;
        let mut end = start;
        let mut backslashes = 0;
        while end < bytes.len() {
            // Inside escaped quotes the closing one is escaped as deep as the opening one, an inner one deeper. Inside
            // plain quotes a backslash escapes, and two are a backslash.
            let closes = if depth == 0 { backslashes % 2 == 0 || quote == b'\'' } else { backslashes <= depth };
            if bytes[end] == quote && closes {
                end -= if depth == 0 { 0 } else { backslashes };
                break;
            }
            backslashes = if bytes[end] == b'\\' { backslashes + 1 } else { 0 };
            end += 1;
        }
        return Some((start, end.max(start)));
    }
    // Header values hold spaces and semicolons: they end with their line, or with the string that holds them.
    let words = words(name);
    let header = words.iter().any(|word| ["authorization", "cookie", "cookies"].contains(&word.as_str()));
    let stops: &[u8] = if header { b"\r\n\"'`" } else { b" \t\r\n\"'`,;&)}]<>" };
    let mut end = at;
    while end < bytes.len() && !stops.contains(&bytes[end]) {
        end += 1;
    }
    Some((at, end))
}

/// The password of `scheme://user:password@host`.
fn url_password(bytes: &[u8], start: usize) -> Option<Range<usize>> {
    let mut colon = None;
    for (offset, byte) in bytes[start..].iter().enumerate() {
        let at = start + offset;
        match byte {
            b'@' => {
                let from: usize = colon?;
                return (at > from + 1).then_some(from + 1..at);
            }
            b':' if colon.is_none() => colon = Some(at),
            b'/' | b'?' | b'#' | b'"' | b'\'' | b'<' | b'>' => return None,
            byte if byte.is_ascii_whitespace() => return None,
            _ => {}
        }
    }
    None
}

/// A PEM private key, to its end or, when it was cut, to the end of the text.
fn private_key_block(text: &str, position: usize) -> Option<Range<usize>> {
    let head_end = text[position + 11..].find("-----")? + position + 11;
    if !text[position..head_end].ends_with("PRIVATE KEY") {
        return None;
    }
    let end = match text[head_end + 5..].find("-----END ") {
        None => text.len(),
        Some(offset) => {
            let tail = head_end + 5 + offset + 9;
            text[tail..].find("-----").map_or(text.len(), |offset| tail + offset + 5)
        }
    };
    Some(position..end)
}

#[cfg(test)]
mod tests;
