//! The `tracing` layer: reads what spans and events say and hands events to their tree's route.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, Write};

use holdfast_stores::log::{LogEvent, LogLevel, SpanFacts, redact};
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::LookupSpan;

use super::route::{LogRouter, TreeId};

/// The most text one event carries to its Log, in bytes. What the log keeps of it is less (see `stores::log::line`).
pub(crate) const EVENT_BYTES_MAX: usize = 8 * 1024;

/// Routes events. Made by [`LogRouter::layer`].
pub(crate) struct LogLayer {
    pub(crate) router: LogRouter,
}

/// Lets through what some tree may log. Each tree's own levels decide after that.
pub(crate) struct LevelGate {
    pub(crate) router: LogRouter,
}

impl LevelGate {
    fn passes(&self, metadata: &Metadata<'_>) -> bool {
        // Spans say whose an event is, so those up to INFO are kept whatever is logged.
        (metadata.is_span() && *metadata.level() <= tracing::Level::INFO)
            || *metadata.level() <= self.router.most_verbose()
    }
}

impl<S> Filter<S> for LevelGate {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.passes(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.passes(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.router.most_verbose().max(LevelFilter::INFO))
    }
}

/// What a span and those around it say.
#[derive(Clone, Default)]
struct Mark {
    tree: Option<TreeId>,
    facts: SpanFacts,
}

impl<S> Layer<S> for LogLayer
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let inherited = span.parent().and_then(|parent| parent.extensions().get::<Mark>().cloned());
        let mut mark = inherited.unwrap_or_default();
        attributes.record(&mut MarkVisitor(&mut mark));
        span.extensions_mut().insert(mark);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(mark) = span.extensions_mut().get_mut::<Mark>() {
            values.record(&mut MarkVisitor(mark));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mark = context.event_span(event).and_then(|span| span.extensions().get::<Mark>().cloned());
        let mark = mark.unwrap_or_default();
        let Some(route) = self.router.route(mark.tree) else { return };
        let metadata = event.metadata();
        let level = log_level(*metadata.level());
        if !route.levels.enabled(metadata.target(), level) {
            return;
        }
        let mut visitor = EventVisitor { mark, message: String::new(), fields: Vec::new(), left: EVENT_BYTES_MAX };
        event.record(&mut visitor);
        route.send(LogEvent {
            time_ms: route.clock.now_ms(),
            level,
            target: Cow::Borrowed(metadata.target()),
            facts: visitor.mark.facts,
            message: visitor.message,
            fields: visitor.fields,
        });
    }
}

fn log_level(level: tracing::Level) -> LogLevel {
    match level {
        tracing::Level::ERROR => LogLevel::Error,
        tracing::Level::WARN => LogLevel::Warn,
        tracing::Level::INFO => LogLevel::Info,
        tracing::Level::DEBUG => LogLevel::Debug,
        tracing::Level::TRACE => LogLevel::Trace,
    }
}

impl Mark {
    /// Takes a field that is about whose the event is. `false`: it is another field.
    fn take_text(&mut self, name: &str, text: impl FnOnce() -> String) -> bool {
        let fact = match name {
            "surface" => &mut self.facts.surface,
            "agent" | "agent_id" => &mut self.facts.agent,
            "session" | "session_id" => &mut self.facts.session,
            "task" | "task_id" => &mut self.facts.task,
            "trace_id" => &mut self.facts.trace_id,
            "span_id" => &mut self.facts.span_id,
            _ => return false,
        };
        *fact = Some(text());
        true
    }

    fn take_number(&mut self, name: &str, number: u64) -> bool {
        match name {
            "tree" => self.tree = Some(TreeId(number)),
            "generation" => self.facts.generation = Some(number),
            _ => return false,
        }
        true
    }
}

struct MarkVisitor<'span>(&'span mut Mark);

impl Visit for MarkVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.take_text(field.name(), || bounded_debug(value, 256));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.take_text(field.name(), || bounded(value, 256).to_owned());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if !self.0.take_number(field.name(), value) {
            self.record_debug(field, &value);
        }
    }
}

struct EventVisitor {
    mark: Mark,
    message: String,
    fields: Vec<(Cow<'static, str>, Value)>,
    /// How much text may still be taken, in bytes.
    left: usize,
}

impl EventVisitor {
    fn push(&mut self, field: &Field, value: Value) {
        // `tracing` allows 32 fields an event, so their number needs no bound here.
        self.fields.push((Cow::Borrowed(field.name()), value));
    }

    fn push_text(&mut self, field: &Field, text: String) {
        self.left = self.left.saturating_sub(text.len());
        if field.name() == "message" {
            self.message = text;
        } else {
            self.push(field, Value::String(text));
        }
    }
}

impl Visit for EventVisitor {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if !self.mark.take_text(field.name(), || bounded_debug(value, 256)) {
            let text = bounded_debug(value, self.left);
            self.push_text(field, text);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if !self.mark.take_text(field.name(), || bounded(value, 256).to_owned()) {
            let text = bounded(value, self.left).to_owned();
            self.push_text(field, text);
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if !self.mark.take_number(field.name(), value) {
            self.push(field, value.into());
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut chain = Bounded { text: String::new(), left: self.left };
        let mut next = Some(value);
        let mut between = "";
        while let Some(error) = next {
            if write!(chain, "{between}{error}").is_err() {
                break;
            }
            between = ": ";
            next = error.source();
        }
        self.push_text(field, chain.finish());
    }
}

/// Formats at most `limit` bytes of `value` and stops it there: a huge value costs no more than that.
fn bounded_debug(value: &dyn fmt::Debug, limit: usize) -> String {
    let mut text = Bounded { text: String::new(), left: limit };
    // An error only says that the limit was reached.
    let _full = write!(text, "{value:?}");
    text.finish()
}

struct Bounded {
    text: String,
    left: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if more.len() <= self.left {
            self.text.push_str(more);
            self.left -= more.len();
            return Ok(());
        }
        self.text.push_str(bounded(more, self.left));
        self.left = 0;
        Err(fmt::Error)
    }
}

impl Bounded {
    fn finish(mut self) -> String {
        if self.left == 0 {
            let end = whole_words(&self.text).len();
            self.text.truncate(end);
        }
        self.text
    }
}

/// Returns at most `limit` bytes of `text`.
fn bounded(text: &str, limit: usize) -> &str {
    if text.len() <= limit {
        return text;
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    whole_words(&text[..end])
}

/// Drops a last word that may have been cut: half a secret is not recognised as one.
fn whole_words(text: &str) -> &str {
    match text.rfind(char::is_whitespace) {
        Some(end) if text.len() - end <= 1024 => &text[..end],
        _ => text,
    }
}

/// Stderr, with secrets taken out of each line.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        io::stderr().write_all(redact::redact_text(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
