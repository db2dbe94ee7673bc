//! `holdfast daemon`: one process that owns one install root until it is told to stop.

mod attach;
mod listeners;
mod process;
mod signals;

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_actors::health::standing_warnings;
use holdfast_actors::leases::{Adopter, Ownership, Spawner};
use holdfast_actors::log::LogRouter;
use holdfast_actors::ports::Ports;
use holdfast_actors::root::{Grown, Root, RootControl, RootError, RootFailed, RootHandle, RootSpec, SurfaceOutcome};
use holdfast_actors::tree::{HoldfastTree, config_registry};
use holdfast_protocol::health::HealthWarning;
use holdfast_stores::config::{ConfigSource, InitMode, Initialized, KeyOutcome, Overrides, SectionDescriptor, init};
use holdfast_stores::install_root::InstallRoot;
use holdfast_stores::instance_lock::{InstanceLock, LockError};
use holdfast_stores::kit::unchecked::compile_options_of_process;
use holdfast_stores::log::LogLevel;
use serde::Serialize;
use tracing::Instrument;

use self::process::Detached;
use self::signals::{Signals, Wish};
use crate::cli::{DaemonArguments, GlobalArguments};
use crate::commands::Place;
use crate::http::GatewayConfig;
use crate::render::{Exit, Failure, Renderer};

/// The version, as the lock file, status and the log say it.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Threads that run actors. Stores have threads of their own, so more would only wait for the same disk.
const WORKER_THREADS: usize = 2;

/// How long work on blocking threads may hold up the exit once the tree has ended.
const LAST_WORK_LIMIT: Duration = Duration::from_secs(2);

/// What the daemon says on standard output once it serves; one line with `--json`.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    ready: bool,
    pid: u32,
    version: &'a str,
    root: &'a Path,
    socket: PathBuf,
    generation: u64,
    listeners: Vec<ReadyListener>,
    down: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct ReadyListener {
    name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

/// Runs the daemon of `place` until it has ended. Makes what is missing of the install root first.
///
/// # Errors
/// Why it did not start, or why it ended unasked.
pub fn run(
    arguments: &DaemonArguments,
    place: &Place,
    global: &GlobalArguments,
    renderer: &mut Renderer,
) -> Result<Exit, Failure> {
    process::keep_files_private();
    let detached = arguments.detached.then(Detached::leave).transpose();
    let detached =
        detached.map_err(|error| Failure::new(Exit::Failed, format!("failed to leave whoever started it: {error}")))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .thread_name("holdfast")
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("failed to start the runtime: {error}")))?;
    let outcome = runtime.block_on(serve(place, detached, stderr_level(global.verbose), renderer));
    runtime.shutdown_timeout(LAST_WORK_LIMIT);
    outcome
}

/// What also goes to standard error: the log file has the rest.
fn stderr_level(verbose: u8) -> LogLevel {
    match verbose {
        0 => LogLevel::Warn,
        1 => LogLevel::Info,
        _ => LogLevel::Debug,
    }
}

async fn serve(
    place: &Place,
    detached: Option<Detached>,
    stderr: LogLevel,
    renderer: &mut Renderer,
) -> Result<Exit, Failure> {
    let root = &place.root;
    let mut signals = Signals::install()
        .map_err(|error| Failure::new(Exit::Failed, format!("failed to take over the signals: {error}")))?;
    let ports = Ports::system();
    let prepared =
        root.prepare().map_err(|error| Failure::caused(Exit::of_kind(error.kind()), &error).hint(error.remedy()))?;
    // Only the owner of a root makes what is missing in it.
    let lock =
        InstanceLock::acquire(root, ports.clock.now_ms(), VERSION).map_err(|error| lock_failure(&error, place))?;
    let made = init(root, InitMode::Missing)
        .map_err(|error| Failure::caused(Exit::of_kind(error.kind()), &error).hint(error.remedy()))?;
    let router = LogRouter::install(Some(stderr));
    for (path, mode) in &prepared.loose {
        tracing::warn!(path = %path.display(), mode = format!("{mode:o}"), "others can enter this directory");
    }
    tell_what_was_made(&made, place, renderer);
    let started = start(root, lock, ports, router);
    let running = tokio::select! {
        started = started => started?,
        // Nothing is served yet and what was written is whole at any moment, so there is nothing to wait for.
        () = told_to_stop(&mut signals) => return Ok(Exit::Ok),
    };
    announce(&running, place, renderer);
    if let Some(Err(error)) = detached.map(Detached::serve) {
        tracing::warn!(%error, "standard output and error stay with whoever started the daemon");
    }
    let outcome = attend(&running, &mut signals).await;
    if let Err(failed) = &outcome {
        tracing::error!(%failed, "the daemon ends");
    }
    outcome.map_err(|failed| {
        Failure::caused(Exit::Failed, &failed)
            .hint("the log says more: data/state/runtime-trace.jsonl in the install root")
    })
}

/// Says what a first start made, and what it did not.
fn tell_what_was_made(made: &Initialized, place: &Place, renderer: &mut Renderer) {
    match (made.config_made, &made.key) {
        (_, KeyOutcome::Withheld(sealed)) => {
            tracing::warn!(%sealed, "the key that opens secrets is missing; secrets stay closed");
        }
        (true, KeyOutcome::Made) => renderer.done(&format!("made {} (config.toml, key)", place.shown())),
        (true, KeyOutcome::Kept) => renderer.done(&format!("made {} (config.toml)", place.shown())),
        (false, KeyOutcome::Made) => renderer.done(&format!("made the key of {}", place.shown())),
        (false, KeyOutcome::Kept) => {}
    }
}

/// What health says of the build, for the life of the process.
async fn build_warnings() -> Vec<HealthWarning> {
    match compile_options_of_process().await {
        Ok(options) => standing_warnings(&options),
        Err(error) => {
            tracing::warn!(%error, "SQLite's build flags can't be told");
            Vec::new()
        }
    }
}

/// Says where the configuration of `root` comes from, and which sections this program knows.
pub(crate) fn config_source(root: &InstallRoot) -> Result<ConfigSource, Failure> {
    let registry = config_registry([SectionDescriptor::of::<GatewayConfig>()])
        .map_err(|error| Failure::caused(Exit::Failed, &error))?;
    Ok(ConfigSource::new(root, registry, Overrides::from_environment(std::env::vars_os())))
}

/// Starts the tree and its listeners.
async fn start(
    root: &InstallRoot,
    lock: InstanceLock,
    ports: Ports,
    router: LogRouter,
) -> Result<RootHandle<HoldfastTree>, Failure> {
    let source = config_source(root)?;
    let tree = router.new_tree();
    router.adopt_unmarked(tree);
    let executable = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Failed, format!("failed to find this program's own file: {error}")))?;
    let spawner = Spawner::start(&executable).map_err(|error| Failure::caused(Exit::Failed, &error))?;
    let adopter = Adopter::install(spawner.clone(), Ownership::SpawnerOnly)
        .map_err(|error| Failure::caused(Exit::Failed, &error))?;
    let reaper = adopter.clone();
    tokio::spawn(async move {
        if let Err(error) = reaper.reap_the_dead().await {
            tracing::warn!(%error, "dead orphans are not reaped any more");
        }
    });
    let builder = HoldfastTree {
        root: root.clone(),
        source,
        router,
        tree,
        version: VERSION,
        warnings: build_warnings().await,
        program: executable.clone(),
        spawner,
        adopter: Some(adopter),
    };
    let place = root.clone();
    let make_listeners =
        move |grown: Grown<'_, HoldfastTree>| listeners::listeners(&grown, &place, VERSION, executable);
    let spec = RootSpec { lock, ports, builder, listeners: Box::new(make_listeners) };
    Root::start(spec).instrument(tree.span()).await.map_err(|error| start_failure(&error))
}

/// Waits for a wish to stop and leaves the others for later.
async fn told_to_stop(signals: &mut Signals) {
    while signals.next().await != Wish::Stop {}
}

/// Does what signals ask for until the root has ended.
async fn attend(running: &RootHandle<HoldfastTree>, signals: &mut Signals) -> Result<Exit, RootFailed> {
    let mut stops = 0;
    loop {
        let wish = tokio::select! {
            outcome = running.wait() => return outcome.map(|()| Exit::Ok),
            wish = signals.next() => wish,
        };
        match wish {
            Wish::Stop => {
                stops += 1;
                tracing::info!(times = stops, "told to stop");
                if stops > 2 {
                    return Ok(Exit::Interrupted);
                }
                running.shutdown();
            }
            // The root tells the log how it went.
            Wish::Reload => {
                let control = running.control().clone();
                tokio::spawn(async move { control.reload().await });
            }
            Wish::Tell => tell(running.control()),
        }
    }
}

/// Logs how every surface stands.
fn tell(control: &RootControl) {
    let view = control.view();
    for surface in view.surfaces.iter() {
        let (state, down, in_flight) = surface.now();
        let reason = down.map(|down| down.reason);
        let (generation, restarts) = (surface.stats.generation(), surface.stats.restarts());
        tracing::info!(
            name = surface.name,
            state,
            surface_generation = generation,
            restarts,
            in_flight,
            reason,
            "surface"
        );
    }
}

/// Says that the daemon serves. Whoever started it may not be listening, which is no failure.
fn announce(running: &RootHandle<HoldfastTree>, place: &Place, renderer: &mut Renderer) {
    let (root, view) = (&place.root, running.control().view());
    let down = |report: &holdfast_actors::root::SurfaceReport| {
        matches!(report.outcome, SurfaceOutcome::Failed(_)).then_some(report.name)
    };
    let ready = Ready {
        ready: true,
        pid: process::id(),
        version: VERSION,
        root: root.path(),
        socket: root.socket(),
        generation: view.generation,
        listeners: view
            .listeners
            .into_iter()
            .map(|listener| ReadyListener { name: listener.name, address: listener.address, failed: listener.failed })
            .collect(),
        down: running.started().iter().filter_map(down).collect(),
    };
    tracing::info!(pid = ready.pid, version = VERSION, root = %root.path().display(), "the daemon serves");
    let told = match renderer.is_for_programs() {
        true => renderer.json_line(&ready),
        false => {
            let mut line = format!("holdfast {VERSION} serves {} · pid {}", place.shown(), ready.pid);
            for listener in ready.listeners.iter().filter(|listener| listener.name != "socket") {
                match (&listener.address, &listener.failed) {
                    (_, Some(why)) => line.push_str(&format!(" · {} failed: {why}", listener.name)),
                    (Some(address), None) => line.push_str(&format!(" · {} {address}", listener.name)),
                    (None, None) => {}
                }
            }
            if !ready.down.is_empty() {
                line.push_str(&format!(" · down: {} (holdfast status)", ready.down.join(", ")));
            }
            renderer.line(&line)
        }
    };
    if told.is_err() {
        tracing::debug!("nobody reads standard output");
    }
}

fn lock_failure(error: &LockError, place: &Place) -> Failure {
    let exit = Exit::of_kind(error.kind());
    match error {
        LockError::Held { owner, .. } => Failure::new(exit, format!("another daemon owns {}: {owner}", place.shown())),
        LockError::NotAFile { .. } | LockError::Io { .. } => Failure::caused(exit, error),
    }
    .hint(error.remedy())
}

fn start_failure(error: &RootError) -> Failure {
    match error {
        RootError::Config(error) => error.clone().into(),
        RootError::Listener { .. } | RootError::Supervisor { .. } => {
            let failure = Failure::caused(Exit::of_kind(error.kind()), error);
            match error.remedy() {
                Some(remedy) => failure.hint(remedy),
                None => failure,
            }
        }
    }
}
