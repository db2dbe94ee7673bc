//! `log/query` on the wire.

use std::path::Path;
use std::str::FromStr;

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::methods::log::{LogLine as WireLine, LogOrder as WireOrder, Query, QueryParams, QueryResult};
use holdfast_stores::log::{LogCursor, LogFilter, LogLevel, LogLine, LogOrder, LogPage, LogQuery, LogReader};
use serde_json::{Map, Value};

use super::error::LogsError;
use super::message::LogMessage;
use crate::address::Address;
use crate::router::RouterBuilder;

/// Lines of a page that asks for no number.
const PAGE_LINES_DEFAULT: u32 = 100;
/// Lines of a page at most: some 16 MiB if each line is as long as lines get, and far less in practice.
const PAGE_LINES_MAX: u32 = 1_000;

/// Registers the methods that the Log answers.
pub fn register(router: &mut RouterBuilder, log: Address<LogMessage>) {
    router.on::<Query>(move |_call, params, reply| match query(params) {
        Ok(query) => {
            let reply = reply.map(|page: Result<LogPage, LogsError>| page.map(result).map_err(WireError::from));
            log.post(reply, |reply| LogMessage::Query { query, reply });
        }
        Err(error) => reply.send(Err(error)),
    });
}

/// Registers the methods that only read, on the log in `directory`, which nobody writes now.
pub fn register_at_rest(router: &mut RouterBuilder, directory: &Path) {
    let reader = LogReader::new(directory);
    router.on_async::<Query, _, _>(move |_call, params| {
        let reader = reader.clone();
        async move {
            let query = query(params)?;
            let read = tokio::task::spawn_blocking(move || reader.query(&query)).await;
            match read {
                Ok(page) => page.map(result).map_err(|error| LogsError::from(error).into()),
                Err(died) => Err(LogsError::Reader { reason: died.to_string() }.into()),
            }
        }
    });
}

fn query(params: QueryParams) -> Result<LogQuery, WireError> {
    let level = params
        .level
        .as_deref()
        .map(LogLevel::from_str)
        .transpose()
        .map_err(|error| WireError::new(ErrorKind::InvalidParams, error.to_string()).at_path("level"))?;
    let after = params
        .cursor
        .as_deref()
        .map(LogCursor::from_str)
        .transpose()
        .map_err(|error| WireError::from(LogsError::from(error)).at_path("cursor"))?;
    Ok(LogQuery {
        filter: LogFilter {
            from_ms: params.from_ms,
            until_ms: params.until_ms,
            level,
            surface: params.surface,
            agent: params.agent,
            session: params.session,
            target: params.target,
            text: params.text,
        },
        order: match params.order {
            WireOrder::NewestFirst => LogOrder::NewestFirst,
            WireOrder::OldestFirst => LogOrder::OldestFirst,
        },
        after,
        // Lossless: the bound is a thousand.
        limit: params.limit.unwrap_or(PAGE_LINES_DEFAULT).clamp(1, PAGE_LINES_MAX) as usize,
    })
}

fn result(page: LogPage) -> QueryResult {
    QueryResult {
        lines: page.lines.into_iter().map(line).collect(),
        next: page.next.map(|cursor| cursor.to_string()),
        missed: page.missed,
        unreadable: page.unreadable,
    }
}

fn line(line: LogLine) -> WireLine {
    let mut facts = Map::new();
    let told = line.facts;
    for (name, fact) in [
        ("surface", told.surface),
        ("agent", told.agent),
        ("session", told.session),
        ("task", told.task),
        ("trace_id", told.trace_id),
        ("span_id", told.span_id),
    ] {
        if let Some(fact) = fact {
            facts.insert(name.to_owned(), Value::String(fact));
        }
    }
    if let Some(generation) = told.generation {
        facts.insert("generation".to_owned(), generation.into());
    }
    WireLine {
        seq: line.seq,
        time_ms: line.time_ms,
        level: line.level.name().to_owned(),
        target: line.target,
        message: line.message,
        repeated: line.repeated,
        fields: line.fields,
        facts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_params_are_named() {
        let path = |params| query(params).unwrap_err().path.unwrap();
        assert_eq!(path(QueryParams { level: Some("loud".to_owned()), ..QueryParams::default() }), "level");
        assert_eq!(path(QueryParams { cursor: Some("x".to_owned()), ..QueryParams::default() }), "cursor");
        let most = query(QueryParams { limit: Some(u32::MAX), ..QueryParams::default() }).unwrap();
        assert_eq!(most.limit, 1_000);
    }

    #[test]
    fn a_line_reads_the_same_on_the_wire_and_in_the_file() {
        let text = r#"{"seq":3,"time_ms":1,"level":"warn","target":"t","surface":"cron","agent":"a","session":"s",
            "task":"k","generation":2,"trace_id":"x","span_id":"y","message":"m","repeated":4,"fields":{"n":1}}"#;
        let stored: LogLine = serde_json::from_str(text).unwrap();
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(line(stored)).unwrap(), expected);
    }
}
