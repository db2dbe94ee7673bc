//! `holdfast lease …`.

use holdfast_protocol::ids::LeaseId;
use holdfast_protocol::methods::lease::{
    CheckOutcome, CheckResult, LeaseDetail, LeaseRow, LeaseState, List, ListParams, Reap, ReapParams, ReapResult, Show,
    ShowParams, Verdict, Verification, Verify, VerifyParams,
};

use super::{Asked, Place, answers, connect};
use crate::cli::{LeaseArguments, LeaseListArguments, LeaseReapArguments};
use crate::render::{Cell, Column, Exit, Failure, Format, Listing, Renderer, ResolveError, Tone, resolve};

/// Leases asked for at a time.
const PAGE_LEN: u32 = 200;

const LIST_COLUMNS: &[Column] = &[
    Column::whole("lease"),
    Column::whole("agent"),
    Column::whole("session"),
    Column::number("pid"),
    Column::whole("started"),
    Column::whole("state"),
    Column::note("note"),
];

const CHECK_COLUMNS: &[Column] = &[Column::whole("check"), Column::whole("outcome"), Column::text("found")];

const REAP_COLUMNS: &[Column] = &[Column::whole("lease"), Column::whole("outcome"), Column::note("note")];

pub(super) fn list(arguments: &LeaseListArguments, place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let params = ListParams { agent: arguments.agent.clone(), unfinished: arguments.open, ..ListParams::default() };
    let rows = list_rows(&mut answers(place, renderer)?, params, arguments.limit)?;
    show_list(&rows, renderer)?;
    Ok(Exit::Ok)
}

fn show_list(rows: &[LeaseRow], renderer: &mut Renderer) -> Result<(), Failure> {
    let mut listing = Listing::new(LIST_COLUMNS, "no leases; each agent process that the daemon starts has one");
    for row in rows {
        let cells = vec![
            Cell::Id(row.lease_id.to_string()),
            Cell::Text(row.agent.clone()),
            row.session_id.map_or(Cell::Missing, |id| Cell::Id(id.to_string())),
            row.root_pid.map_or(Cell::Missing, |pid| Cell::Text(pid.to_string())),
            Cell::At(row.started_at_ms),
            state(row.state),
            note(row).map_or(Cell::Missing, Cell::Text),
        ];
        listing.push(cells, row)?;
    }
    renderer.listing(&listing)
}

fn state(state: LeaseState) -> Cell {
    let (word, tone) = match state {
        LeaseState::Starting => ("starting", Tone::Warning),
        LeaseState::Open => ("open", Tone::Good),
        LeaseState::Closing => ("closing", Tone::Warning),
        LeaseState::Closed => ("closed", Tone::Dim),
        LeaseState::Lost => ("lost", Tone::Bad),
    };
    Cell::State(word.to_owned(), tone)
}

/// What went wrong, else how it ended where that is not how things should end.
fn note(row: &LeaseRow) -> Option<String> {
    match (&row.last_error, row.exit_code, row.exit_signal) {
        (Some(error), _, _) => Some(error.clone()),
        (None, _, Some(signal)) => Some(format!("ended by signal {signal}")),
        (None, Some(code), None) if code != 0 => Some(format!("exit status {code}")),
        (None, _, None) => None,
    }
}

pub(super) fn show(arguments: &LeaseArguments, place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let mut answers = answers(place, renderer)?;
    let lease_id = find(&mut answers, &arguments.lease)?;
    let detail = answers.call::<Show>(&ShowParams { lease_id })?;
    show_detail(&detail, renderer)?;
    Ok(Exit::Ok)
}

fn show_detail(detail: &LeaseDetail, renderer: &mut Renderer) -> Result<(), Failure> {
    let row = &detail.row;
    let text = |value: Option<String>| value.map_or(Cell::Missing, Cell::Text);
    let number = |value: Option<u64>| value.map_or(Cell::Missing, Cell::Count);
    let facts = [
        // Whole: this is the place to copy it from.
        ("lease", Cell::Text(row.lease_id.to_string())),
        ("agent", Cell::Text(row.agent.clone())),
        ("session", text(row.session_id.map(|id| id.to_string()))),
        ("state", state(row.state)),
        ("since", Cell::At(row.state_changed_at_ms)),
        ("started", Cell::At(row.started_at_ms)),
        ("exit status", text(row.exit_code.map(|code| code.to_string()))),
        ("ended by signal", text(row.exit_signal.map(|signal| signal.to_string()))),
        ("last error", text(row.last_error.clone())),
        ("wrapper pid", text(row.root_pid.map(|pid| pid.to_string()))),
        ("start ticks", number(detail.root_start_ticks)),
        ("pidfd inode", number(detail.root_pidfd_inode)),
        ("process group", text(detail.process_group_id.map(|group| group.to_string()))),
        ("cgroup", text(detail.cgroup.clone())),
        ("wrapper", Cell::Text(detail.wrapper.clone())),
        ("command hash", Cell::Text(detail.command_hash.clone())),
        ("boot", Cell::Text(detail.boot_id.clone())),
        ("instance", Cell::Text(detail.instance_id.to_string())),
    ];
    renderer.record(&facts, detail)
}

/// Exits 0 when the tree is ours, or gone as it should be: an answer, not a failure. What can't be told fails.
pub(super) fn verify(arguments: &LeaseArguments, place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let mut connection = connect(place)?;
    let lease_id = find(&mut connection, &arguments.lease)?;
    let verification = connection.call::<Verify>(&VerifyParams { lease_id })?;
    show_verification(&verification, renderer)?;
    Ok(if verification.verdict == Verdict::Unclear { Exit::Refused } else { Exit::Ok })
}

fn show_verification(verification: &Verification, renderer: &mut Renderer) -> Result<(), Failure> {
    if matches!(renderer.format(), Format::Json | Format::Jsonl) {
        return renderer.value(verification);
    }
    let mut listing = Listing::new(CHECK_COLUMNS, "no process was recorded for this lease");
    for check in &verification.checks {
        listing.push(check_cells(check), check)?;
    }
    renderer.listing(&listing)?;
    if renderer.is_for_programs() {
        return Ok(());
    }
    let (word, tone, meaning) = match verification.verdict {
        Verdict::Owned => ("owned", Tone::Good, "this tree is ours: closing the lease ends it"),
        Verdict::Gone => ("gone", Tone::Dim, "the wrapper has ended"),
        Verdict::Foreign => ("foreign", Tone::Bad, "what lives there is not this lease's and is never signalled"),
        Verdict::Unclear => ("unclear", Tone::Warning, "nothing is signalled until every check can be made"),
        Verdict::Unrecorded => ("unrecorded", Tone::Warning, "processes carry this lease, and none was recorded"),
    };
    renderer.toned_line(&[(word, tone), (&format!(" · {meaning}"), Tone::Plain)])?;
    if let Some(reason) = &verification.reason {
        renderer.line(reason)?;
    }
    if !verification.processes.is_empty() {
        let pids: Vec<String> = verification.processes.iter().map(|process| process.pid.to_string()).collect();
        renderer.line(&format!("processes: {}", pids.join(" ")))?;
    }
    Ok(())
}

fn check_cells(check: &CheckResult) -> Vec<Cell> {
    let (word, tone) = match check.outcome {
        CheckOutcome::Passed => ("passed", Tone::Good),
        CheckOutcome::Failed => ("failed", Tone::Bad),
        CheckOutcome::Unknown => ("unknown", Tone::Warning),
        CheckOutcome::NotRecorded => ("not recorded", Tone::Dim),
        CheckOutcome::NotMade => ("not made", Tone::Dim),
    };
    let found = match (&check.recorded, &check.found, &check.why) {
        (Some(recorded), Some(found), _) => Some(format!("{found}, recorded was {recorded}")),
        (_, Some(found), _) => Some(found.clone()),
        (_, None, why) => why.clone(),
    };
    vec![
        Cell::Text(check.check.replace('_', " ")),
        Cell::State(word.to_owned(), tone),
        found.map_or(Cell::Missing, Cell::Text),
    ]
}

pub(super) fn reap(arguments: &LeaseReapArguments, place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let result = connect(place)?.call::<Reap>(&ReapParams { dry_run: arguments.dry_run })?;
    show_reaped(&result, renderer)?;
    Ok(Exit::Ok)
}

fn show_reaped(result: &ReapResult, renderer: &mut Renderer) -> Result<(), Failure> {
    if matches!(renderer.format(), Format::Json | Format::Jsonl) {
        return renderer.value(result);
    }
    let mut listing = Listing::new(REAP_COLUMNS, "no lease of an earlier run is open");
    let mut push = |lease_id: &LeaseId, word: &str, tone, why: Option<&String>| {
        let note = why.map_or(Cell::Missing, |why| Cell::Text(why.clone()));
        listing.push(vec![Cell::Id(lease_id.to_string()), Cell::State(word.to_owned(), tone), note], lease_id)
    };
    let words =
        if result.dry_run { ["to be ended", "to be given up", "to be kept"] } else { ["ended", "given up", "kept"] };
    for lease_id in &result.closed {
        push(lease_id, words[0], Tone::Good, None)?;
    }
    for lease_id in &result.lost {
        push(lease_id, words[1], Tone::Dim, None)?;
    }
    for kept in &result.kept {
        push(&kept.lease_id, words[2], Tone::Warning, Some(&kept.why))?;
    }
    renderer.listing(&listing)?;
    if !renderer.is_for_programs() && result.expired > 0 {
        let verb = if result.dry_run { "would be removed" } else { "removed" };
        renderer.note(&format!("{} old leases {verb}", result.expired));
    }
    Ok(())
}

/// Finds the lease that a person means: a whole id, or enough of one.
fn find(asked: &mut impl Asked, text: &str) -> Result<LeaseId, Failure> {
    if let Ok(id) = text.parse::<LeaseId>() {
        return Ok(id);
    }
    let head: String = text.chars().take_while(|character| !matches!(character, '…' | '.')).collect();
    let head = head.to_ascii_lowercase();
    let unknown = || {
        let error = ResolveError::Unknown { kind: "lease", text: text.to_owned() };
        Failure::from(error).hint("holdfast lease list")
    };
    if head.len() < 4 || !head.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
        return Err(unknown());
    }
    let rows = list_rows(asked, ListParams { id_prefix: Some(head), ..ListParams::default() }, u32::MAX)?;
    let ids: Vec<String> = rows.iter().map(|row| row.lease_id.to_string()).collect();
    match resolve("lease", text, ids.iter().map(String::as_str)) {
        Ok(id) => id.parse().map_err(|_| unknown()),
        Err(ResolveError::Unknown { .. }) => Err(unknown()),
        Err(ambiguous @ ResolveError::Ambiguous { .. }) => Err(ambiguous.into()),
    }
}

/// Returns up to `limit` leases, page after page.
fn list_rows(asked: &mut impl Asked, mut params: ListParams, limit: u32) -> Result<Vec<LeaseRow>, Failure> {
    let mut rows: Vec<LeaseRow> = Vec::new();
    loop {
        let left = limit.saturating_sub(u32::try_from(rows.len()).unwrap_or(u32::MAX));
        params.limit = Some(left.min(PAGE_LEN));
        let page = asked.call::<List>(&params)?;
        let got = page.leases.len();
        rows.extend(page.leases);
        if got == 0 || page.next_cursor.is_none() || u32::try_from(rows.len()).is_ok_and(|count| count >= limit) {
            return Ok(rows);
        }
        params.cursor = page.next_cursor;
    }
}
