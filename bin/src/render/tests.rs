//! Snapshots of what people and programs read: standard output and standard error together.

use std::sync::mpsc;

use holdfast_protocol::error::{ErrorKind, WireError};
use serde_json::json;

use super::testing::{Sink, shown, surroundings};
use super::*;

const COLUMNS: &[Column] = &[
    Column::whole("session"),
    Column::text("title"),
    Column::number("turns"),
    Column::whole("updated"),
    Column::number("size"),
    Column::whole("state"),
];

fn listing() -> Listing {
    let mut listing = Listing::new(COLUMNS, "no sessions yet");
    for (id, title, turns, updated_ms, size, state) in [
        (
            "0199a471-0000-7000-8000-000000000071",
            "fix the\tflaky test",
            15,
            1_796_068_680_000,
            Some(4096),
            ("idle", Tone::Good),
        ),
        ("0199a3c2-0000-7000-8000-0000000000c2", "日本語", 2, 1_795_974_000_000, None, ("closed", Tone::Dim)),
    ] {
        let cells = vec![
            Cell::Id(id.to_owned()),
            Cell::Text(title.to_owned()),
            Cell::Count(turns),
            Cell::At(updated_ms),
            size.map_or(Cell::Missing, Cell::SizeBytes),
            Cell::State(state.0.to_owned(), state.1),
        ];
        listing.push(cells, &json!({ "session_id": id, "turns": turns })).unwrap();
    }
    listing
}

#[test]
fn a_table_is_short_and_local() {
    assert_eq!(
        shown(Format::Table, ColorChoice::Auto, surroundings(None), |renderer| renderer
            .listing(&listing())
            .map(|()| Exit::Ok)),
        "\
session    title               turns  updated            size  state
0199a4…71  fix the flaky test     15  2 min ago        4.1 KB  idle
0199a3…c2  日本語                  2  yesterday 18:40       –  closed
--- stderr
--- exit 0
"
    );
}

#[test]
fn programs_get_everything_exactly() {
    assert_eq!(
        shown(Format::Tsv, ColorChoice::Always, surroundings(None), |renderer| renderer
            .listing(&listing())
            .map(|()| Exit::Ok)),
        "\
session\ttitle\tturns\tupdated\tsize\tstate
0199a471-0000-7000-8000-000000000071\tfix the\\tflaky test\t15\t2026-11-30T19:58:00Z\t4096\tidle
0199a3c2-0000-7000-8000-0000000000c2\t日本語\t2\t2026-11-29T17:40:00Z\t\tclosed
--- stderr
--- exit 0
"
    );
    assert_eq!(
        shown(Format::Jsonl, ColorChoice::Auto, surroundings(None), |renderer| renderer
            .listing(&listing())
            .map(|()| Exit::Ok)),
        "\
{\"session_id\":\"0199a471-0000-7000-8000-000000000071\",\"turns\":15}
{\"session_id\":\"0199a3c2-0000-7000-8000-0000000000c2\",\"turns\":2}
--- stderr
--- exit 0
"
    );
    let json = shown(Format::Json, ColorChoice::Auto, surroundings(None), |renderer| {
        renderer.listing(&listing()).map(|()| Exit::Ok)
    });
    let document: serde_json::Value = serde_json::from_str(json.split("--- stderr").next().unwrap()).unwrap();
    assert_eq!(document[1]["turns"], 2);
}

#[test]
fn an_empty_listing_is_an_answer_for_programs_and_a_note_for_people() {
    let empty = || Listing::new(COLUMNS, "no sessions yet");
    assert_eq!(
        shown(Format::Table, ColorChoice::Auto, surroundings(None), |renderer| renderer
            .listing(&empty())
            .map(|()| Exit::Ok)),
        "--- stderr\nno sessions yet\n--- exit 0\n"
    );
    assert_eq!(
        shown(Format::Json, ColorChoice::Auto, surroundings(None), |renderer| renderer
            .listing(&empty())
            .map(|()| Exit::Ok)),
        "[]\n--- stderr\n--- exit 0\n"
    );
}

#[test]
fn colours_follow_the_terminal_the_environment_and_the_choice() {
    let line = |colour, surroundings| {
        shown(Format::Table, colour, surroundings, |renderer| {
            renderer.toned_line(&[("up", Tone::Good)]).map(|()| Exit::Ok)
        })
    };
    let coloured = "\u{1b}[32mup\u{1b}[0m\n--- stderr\n--- exit 0\n";
    let plain = "up\n--- stderr\n--- exit 0\n";
    assert_eq!(line(ColorChoice::Auto, surroundings(Some(80))), coloured);
    assert_eq!(line(ColorChoice::Auto, surroundings(None)), plain);
    assert_eq!(line(ColorChoice::Auto, Surroundings { plain: true, ..surroundings(Some(80)) }), plain);
    assert_eq!(line(ColorChoice::Never, surroundings(Some(80))), plain);
    assert_eq!(line(ColorChoice::Always, Surroundings { plain: true, ..surroundings(None) }), coloured);
}

#[test]
fn a_failure_says_what_where_and_what_next() {
    let error = || {
        WireError::new(ErrorKind::ConfigInvalid, "config.toml line 31: found `=`\n31 | port = = 7420\n   |        ^")
            .with_remedy("holdfast status")
    };
    assert_eq!(
        shown(Format::Table, ColorChoice::Auto, surroundings(None), |_| Err(error().into())),
        "\
--- stderr
error: config.toml line 31: found `=`
  31 | port = = 7420
     |        ^
hint: holdfast status
--- exit 1
"
    );
    let hostile = || WireError::new(ErrorKind::AgentFailed, "agent said \u{1b}[2J");
    assert_eq!(
        shown(Format::Table, ColorChoice::Auto, surroundings(None), |_| Err(hostile().into())),
        "--- stderr\nerror: agent said \u{fffd}[2J\n--- exit 1\n"
    );
}

#[test]
fn a_closed_pipe_ends_a_command_without_a_word() {
    let (out, out_read) = mpsc::channel();
    let (err, err_read) = mpsc::channel();
    let mut renderer =
        Renderer::new(Box::new(Sink(out)), Box::new(Sink(err)), Format::Json, ColorChoice::Auto, surroundings(None));
    drop(out_read);
    let failure = renderer.listing(&listing()).unwrap_err();
    assert_eq!(renderer.failure(&failure), Exit::Ok);
    drop(renderer);
    assert_eq!(err_read.iter().count(), 0);
}

#[test]
fn a_record_is_facts_for_people_and_whole_for_programs() {
    let facts = [
        ("session", Cell::Text("0199a3c2".to_owned())),
        ("title", Cell::Missing),
        ("updated", Cell::At(1_796_068_680_000)),
    ];
    let record = json!({ "session_id": "0199a3c2" });
    let show = |format| {
        shown(format, ColorChoice::Auto, surroundings(None), |renderer| {
            renderer.record(&facts, &record).map(|()| Exit::Ok)
        })
    };
    assert_eq!(show(Format::Table), "session  0199a3c2\nupdated  2 min ago\n--- stderr\n--- exit 0\n");
    assert_eq!(show(Format::Jsonl), "{\"session_id\":\"0199a3c2\"}\n--- stderr\n--- exit 0\n");
    assert_eq!(
        show(Format::Tsv),
        "session\t0199a3c2\ntitle\t\nupdated\t2026-11-30T19:58:00Z\n--- stderr\n--- exit 0\n"
    );
}
