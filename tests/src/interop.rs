//! Real ACP clients and agents from npm: acpx, the TypeScript SDK with its example agent, and the Node.js they need.
//!
//! `tests/interop/package-lock.json` says what exactly, by checksum; install scripts do not run. The lock file names
//! platform packages that the tests never use on the platforms they are for: without them `npm ci` would not take it.

mod acpx;

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub use acpx::{Acpx, Running, Said};

const MANIFEST: &str = include_str!("../interop/package.json");
const LOCK: &str = include_str!("../interop/package-lock.json");

/// Set where the packages must be there: what can't be installed fails the test then.
const REQUIRED_VARIABLE: &str = "HOLDFAST_TEST_INTEROP_REQUIRED";

/// npm's codes for a registry that can't be reached.
const UNREACHABLE: [&str; 12] = [
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "EHOSTUNREACH",
    "ENETUNREACH",
    "ENOTCACHED",
    "ENOTFOUND",
    "ERR_SOCKET_TIMEOUT",
    "ETIMEDOUT",
    "E502",
    "E503",
    "E504",
];

/// The packages, installed below the target directory.
#[derive(Debug, Clone)]
pub struct Packages {
    directory: PathBuf,
}

impl Packages {
    /// Returns the packages, installed now if they were not; prints why there are none.
    ///
    /// # Panics
    /// When they can't be installed for another reason than that there is no npm, no registry within reach, or no
    /// Node.js for this machine; when `HOLDFAST_TEST_INTEROP_REQUIRED` is set, for any reason.
    pub fn get() -> Option<Self> {
        static INSTALLED: OnceLock<Result<Packages, String>> = OnceLock::new();
        match INSTALLED.get_or_init(install) {
            Ok(packages) => Some(packages.clone()),
            Err(reason) => {
                assert!(std::env::var_os(REQUIRED_VARIABLE).is_none(), "no npm packages: {reason}");
                eprintln!("skipped, no npm packages: {reason}");
                None
            }
        }
    }

    /// Returns Node.js 24.
    pub fn node(&self) -> PathBuf {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
        self.module(&format!("node-linux-{architecture}/bin/node"))
    }

    /// Returns acpx's script.
    pub fn acpx(&self) -> PathBuf {
        self.module("acpx/dist/cli.js")
    }

    /// Returns the script of the TypeScript SDK's example agent. The SDK no longer ships it; acpx brings the last that did.
    pub fn example_agent(&self) -> PathBuf {
        self.module("acpx/node_modules/@agentclientprotocol/sdk/dist/examples/agent.js")
    }

    /// Returns the TypeScript SDK's module.
    pub fn sdk(&self) -> PathBuf {
        self.module("@agentclientprotocol/sdk/dist/v1/stable/acp.js")
    }

    fn module(&self, path: &str) -> PathBuf {
        self.directory.join("node_modules").join(path)
    }
}

/// Returns a script of `tests/interop/`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("interop").join(name)
}

/// Returns the packages, or why there can be none here.
fn install() -> Result<Packages, String> {
    let target = target_directory();
    let mut hasher = DefaultHasher::new();
    (MANIFEST, LOCK).hash(&mut hasher);
    let packages = Packages { directory: target.join(format!("interop-{:016x}", hasher.finish())) };
    // Other test processes may want the same; the lock ends with the file's descriptor, however this process ends.
    let guard = File::create(target.join("interop.lock")).unwrap();
    guard.lock().unwrap();
    if !packages.directory.exists() {
        let staging = tempfile::Builder::new().prefix("interop-new-").tempdir_in(&target).unwrap();
        npm_ci(staging.path())?;
        // Whole or not at all: a run that is killed leaves only what the next one does not look at.
        fs::rename(staging.keep(), &packages.directory).unwrap();
    }
    if packages.node().is_file() { Ok(packages) } else { Err("there is no Node.js for this machine".to_owned()) }
}

/// Returns the directory that cargo builds into: this executable is `target/<profile>/deps/it-<hash>`.
fn target_directory() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned()
}

fn npm_ci(directory: &Path) -> Result<(), String> {
    fs::write(directory.join("package.json"), MANIFEST).unwrap();
    fs::write(directory.join("package-lock.json"), LOCK).unwrap();
    let mut command = Command::new("npm");
    command.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--prefer-offline"]);
    // One more try each, so that a machine without a network is not held up for long.
    command.args(["--logs-max=0", "--loglevel=error", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]);
    let output = match command.current_dir(directory).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err("npm is not installed".to_owned()),
        Err(error) => panic!("npm could not be run: {error}"),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let code = said.lines().find_map(|line| line.strip_prefix("npm error code ")).unwrap_or_default().trim();
    assert!(UNREACHABLE.contains(&code), "npm ci failed with {}: {said}", output.status);
    Err(format!("npm does not reach its registry ({code})"))
}
