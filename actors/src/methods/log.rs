//! `log/…`

use std::time::Duration;

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::methods::log::{LogLine, LogOrder, Query, QueryParams, QueryResult};
use holdfast_stores::log::{self, LogCursor, LogFilter, LogLevel, LogPage, LogQuery};
use serde_json::{Map, Value};

use crate::log::LogMessage;
use crate::methods::MethodContext;
use crate::router::RouterBuilder;

/// How long a query may read. The Log bounds what it reads by itself.
const LIMIT: Duration = Duration::from_secs(30);

/// Lines of a page when none is asked for.
const LINES_DEFAULT: u32 = 100;

/// Lines of a page at most.
const LINES_MAX: u32 = 1_000;

pub(super) fn register(builder: &mut RouterBuilder, context: &MethodContext) {
    let address = context.handles.log.clone();
    builder.on_async::<Query, _, _>(move |_call, params| {
        let address = address.clone();
        async move {
            let query = log_query(params)?;
            let page = address.call(LIMIT, |reply| LogMessage::Query { query, reply }).await??;
            Ok(query_result(page))
        }
    });
}

fn log_query(params: QueryParams) -> Result<LogQuery, WireError> {
    let level = params.level.map(|level| level.parse::<LogLevel>().map_err(|error| invalid(&error, "level")));
    let after = params.cursor.map(|cursor| cursor.parse::<LogCursor>().map_err(|error| invalid(&error, "cursor")));
    let filter = LogFilter {
        from_ms: params.from_ms,
        until_ms: params.until_ms,
        level: level.transpose()?,
        surface: params.surface,
        agent: params.agent,
        session: params.session,
        target: params.target,
        text: params.text,
    };
    let order = match params.order {
        LogOrder::NewestFirst => log::LogOrder::NewestFirst,
        LogOrder::OldestFirst => log::LogOrder::OldestFirst,
    };
    let limit = params.limit.unwrap_or(LINES_DEFAULT).clamp(1, LINES_MAX);
    Ok(LogQuery { filter, order, after: after.transpose()?, limit: limit as usize })
}

fn invalid(error: &dyn std::error::Error, path: &str) -> WireError {
    WireError::new(ErrorKind::InvalidParams, error.to_string()).at_path(path)
}

fn query_result(page: LogPage) -> QueryResult {
    QueryResult {
        lines: page.lines.into_iter().map(log_line).collect(),
        next: page.next.map(|cursor| cursor.to_string()),
        missed: page.missed,
        unreadable: page.unreadable,
    }
}

fn log_line(line: log::LogLine) -> LogLine {
    LogLine {
        seq: line.seq,
        time_ms: line.time_ms,
        level: line.level.name().to_owned(),
        target: line.target,
        message: line.message,
        repeated: line.repeated,
        fields: line.fields,
        facts: facts(&line.facts),
    }
}

/// The facts as the log file has them, absent ones left out.
fn facts(facts: &log::SpanFacts) -> Map<String, Value> {
    match serde_json::to_value(facts) {
        Ok(Value::Object(map)) => map,
        // A struct of strings and numbers is always an object.
        Ok(_) | Err(_) => Map::new(),
    }
}
