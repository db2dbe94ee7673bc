//! `lease/…` and `holdfast lease …` against a real daemon with real processes.

use std::collections::BTreeSet;

use holdfast_protocol::client::ClientError;
use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::ids::LeaseId;
use holdfast_protocol::methods::lease::{
    CheckOutcome, LeaseState, List, ListParams, Reap, ReapParams, Show, ShowParams, Verdict, Verify, VerifyParams,
};
use holdfast_tests::acp_stage::{AcpStage, is_alive};
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::family::{family, family_stage, signal, stored_leases, wrappers};
use rustix::process::Signal;
use serde_json::{Value, json};

const SHORT_GRACE: &str = "\n[leases]\nkill_grace_ms = 300\n";

fn typed(stage: &AcpStage, words: &[&str]) -> (String, Option<i32>) {
    let output = stage.daemon.program().arg("lease").args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout) + &text(output.stderr), output.status.code())
}

#[test]
fn a_lease_is_listed_shown_and_verified_check_by_check() {
    let stage = family_stage(SHORT_GRACE, false);
    let session_id = stage.client().open_session().unwrap();
    let pids = family(&stage);
    let mut client = stage.daemon.client();
    let of_session = ListParams {
        session_id: Some(session_id.parse().unwrap()),
        state: Some(LeaseState::Open),
        ..ListParams::default()
    };
    let listed = client.call::<List>(&of_session).unwrap().leases;
    assert_eq!(listed.len(), 1, "{listed:?}");
    let lease_id = listed[0].lease_id;
    assert_eq!(listed[0].agent, "fake");
    assert_eq!(client.call::<Show>(&ShowParams { lease_id }).unwrap().row, listed[0]);

    let verification = client.call::<Verify>(&VerifyParams { lease_id }).unwrap();
    assert_eq!(verification.verdict, Verdict::Owned, "{verification:?}");
    let outcomes: BTreeSet<_> = verification.checks.iter().map(|check| check.outcome as u8).collect();
    assert!(
        outcomes
            .iter()
            .all(|outcome| { [CheckOutcome::Passed as u8, CheckOutcome::NotRecorded as u8].contains(outcome) })
    );
    let found: BTreeSet<u32> = verification.processes.iter().map(|process| process.pid.unsigned_abs()).collect();
    assert!(pids.len() >= 4 && pids.iter().all(|pid| found.contains(pid)), "{found:?} lacks one of {pids:?}");
    assert!(pids.iter().all(|pid| is_alive(*pid)), "a look ended something");

    let id = lease_id.to_string();
    let short = format!("{}…{}", &id[..6], &id[id.len() - 4..]);
    let (text, code) = typed(&stage, &["verify", &short]);
    assert!(code == Some(0) && text.contains("owned · this tree is ours"), "{text}");
    let (text, code) = typed(&stage, &["show", &short, "--json"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["session_id"], json!(session_id));
    let (text, code) = typed(&stage, &["show", "0199a3…c2"]);
    assert!(code == Some(3) && text.contains("error: no lease `0199a3…c2`"), "{text}");
    let unknown: LeaseId = "0199a3c2-0000-7000-8000-0000000000c2".parse().unwrap();
    for refused in [
        client.call::<Show>(&ShowParams { lease_id: unknown }).map(drop),
        client.call::<Verify>(&VerifyParams { lease_id: unknown }).map(drop),
    ] {
        let Err(ClientError::Refused(error)) = refused else { panic!("{refused:?}") };
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(error.remedy.unwrap().contains("lease list"));
    }
}

#[test]
fn pages_of_leases_follow_each_other_without_gap_or_repeat() {
    let stage = family_stage("idle_timeout_s = 1\n", false);
    let mut client = stage.client();
    for _ in 0..5 {
        let session_id = client.open_session().unwrap();
        client.call("session/close", &json!({ "sessionId": session_id })).unwrap();
    }
    let mut daemon = stage.daemon.client();
    let mut seen: Vec<LeaseId> = Vec::new();
    let mut params = ListParams { agent: Some("fake".to_owned()), limit: Some(2), ..ListParams::default() };
    loop {
        let page = daemon.call::<List>(&params).unwrap();
        assert!(page.leases.len() <= 2);
        seen.extend(page.leases.iter().map(|lease| lease.lease_id));
        params.cursor = page.next_cursor;
        if params.cursor.is_none() {
            break;
        }
    }
    let mut stored: Vec<String> = stored_leases(&stage).into_iter().map(|lease| lease.lease_id).collect();
    stored.reverse();
    assert!(stored.len() >= 5);
    assert_eq!(seen.iter().map(|id| id.0.simple().to_string()).collect::<Vec<_>>(), stored, "the youngest first");
    // A cursor of another listing is none of this one.
    let first = daemon.call::<List>(&ListParams { limit: Some(1), ..ListParams::default() }).unwrap();
    let strange = ListParams { agent: Some("fake".to_owned()), cursor: first.next_cursor, ..ListParams::default() };
    let Err(ClientError::Refused(error)) = daemon.call::<List>(&strange) else { panic!("it was taken") };
    assert_eq!((error.kind, error.path.as_deref()), (ErrorKind::InvalidParams, Some("cursor")));
}

#[test]
fn a_reaping_says_what_it_would_do_and_then_does_it() {
    let mut stage = family_stage(SHORT_GRACE, true);
    stage.client().open_session().unwrap();
    let (pids, wrapper) = (family(&stage), wrappers(&stage));
    signal(wrapper[0], Signal::STOP);
    stage.daemon.kill9();
    stage.daemon.boot();
    // The start has done it already, or is about to: either way nothing is left, and asking again does no harm.
    let mut client = stage.daemon.client();
    let foreseen = client.call::<Reap>(&ReapParams { dry_run: true }).unwrap();
    assert!(foreseen.dry_run && foreseen.kept.is_empty(), "{foreseen:?}");
    let reaped = client.call::<Reap>(&ReapParams { dry_run: false }).unwrap();
    assert!(!reaped.dry_run && reaped.kept.is_empty(), "{reaped:?}");
    stage.wait_until_gone(&pids, PATIENCE);
    stage.wait_until_gone(&wrapper, PATIENCE);
    let (text, code) = typed(&stage, &["reap", "--dry-run"]);
    assert!(code == Some(0) && text.contains("no lease of an earlier run is open"), "{text}");
    let (text, code) = typed(&stage, &["list", "--format", "tsv"]);
    assert!(code == Some(0) && text.contains("\tclosed\t"), "{text}");
    eventually(
        PATIENCE,
        || stage.daemon.client().call::<Reap>(&ReapParams { dry_run: true }).unwrap().closed,
        Vec::is_empty,
    );
}
