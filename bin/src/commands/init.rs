//! `holdfast init`. The first `run` needs none: the daemon it starts makes what is missing.

use std::path::Path;

use holdfast_stores::config::{InitError, InitMode, Initialized, KeyOutcome, init};
use serde_json::json;

use super::Place;
use crate::render::{Exit, Failure, Renderer};

pub(super) fn new_root(place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let made = init(&place.root, InitMode::New).map_err(|error| failure(&error))?;
    if renderer.is_for_programs() {
        let path = |path: &Path| path.display().to_string();
        renderer.value(&json!({
            "root": path(place.root.path()),
            "config": path(&place.root.config_file()),
            "key_made": made.key == KeyOutcome::Made,
        }))?;
    }
    tell(&made, place, renderer);
    if !renderer.is_for_programs() {
        renderer.note("next: holdfast run demo \"hello\"   ·   holdfast agent detect");
    }
    Ok(Exit::Ok)
}

fn tell(made: &Initialized, place: &Place, renderer: &mut Renderer) {
    let key = made.key == KeyOutcome::Made;
    match (made.config_made, key) {
        (true, true) => renderer.done(&format!("made {} (config.toml, key)", place.shown())),
        (true, false) => renderer.done(&format!("made {} (config.toml)", place.shown())),
        (false, true) => renderer.done(&format!("made a key in {}", place.shown())),
        (false, false) => {}
    }
    if let KeyOutcome::Withheld(sealed) = &made.key {
        renderer.note(&format!(
            "no key was made: {sealed} was sealed with one that is missing; put it back as {}",
            place.root.secret_key().display()
        ));
    }
    for (path, mode) in &made.prepared.loose {
        renderer.note(&format!("others can enter {} (mode {mode:o}); chmod 700 closes it", path.display()));
    }
}

fn failure(error: &InitError) -> Failure {
    Failure::caused(Exit::of_kind(error.kind()), error).hint(error.remedy())
}
