use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use holdfast_protocol::error::{ErrorKind, WireError};
use schemars::JsonSchema;
use serde::Deserialize;

use super::*;
use crate::install_root::InstallRoot;

#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
struct Gateway {
    port: u16,
    host: String,
    enabled: bool,
    keys: Vec<String>,
}

impl ConfigSection for Gateway {
    const NAME: &'static str = "gateway";

    fn validate(&self) -> Vec<SectionProblem> {
        match self.host.contains(' ') {
            true => vec![SectionProblem::new(["host"], "a host name has no spaces")],
            false => Vec::new(),
        }
    }
}

#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
struct Cron {
    jobs: Vec<Job>,
}

#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
struct Job {
    agent: String,
}

impl ConfigSection for Cron {
    const NAME: &'static str = "cron";

    fn cross_check(&self, others: &Sections<'_>) -> Vec<SectionProblem> {
        let Some(agents) = others.section::<AgentsConfig>() else { return Vec::new() };
        let unknown = |job: &Job| !agents.0.keys().any(|alias| alias.as_str() == job.agent);
        let jobs = self.jobs.iter().enumerate().filter(|(_, job)| unknown(job));
        jobs.map(|(index, job)| {
            SectionProblem::new(["jobs", &format!("[{index}]"), "agent"], format!("no agent `{}`", job.agent))
        })
        .collect()
    }
}

fn registry() -> Arc<SectionRegistry> {
    let sections = [
        SectionDescriptor::of::<Gateway>(),
        SectionDescriptor::of::<Cron>(),
        SectionDescriptor::of::<AgentsConfig>(),
        SectionDescriptor::of::<PermissionsConfig>(),
    ];
    Arc::new(SectionRegistry::new(sections).unwrap())
}

fn overrides(variables: &[(&str, &str)]) -> Overrides {
    Overrides::from_environment(variables.iter().map(|(name, text)| (OsString::from(name), OsString::from(text))))
}

fn read(text: &str) -> ConfigSnapshot {
    read_with(text, &[])
}

fn read_with(text: &str, variables: &[(&str, &str)]) -> ConfigSnapshot {
    ConfigSnapshot::read(Path::new("/r/config.toml"), text.as_bytes(), &registry(), &overrides(variables)).unwrap()
}

struct Home {
    root: InstallRoot,
    _directory: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = InstallRoot::at(directory.path().join("root"));
        root.prepare().unwrap();
        Self { root, _directory: directory }
    }

    fn source(&self) -> ConfigSource {
        ConfigSource::new(&self.root, registry(), Overrides::default())
    }

    fn write(&self, text: impl AsRef<[u8]>) {
        fs::write(self.root.config_file(), text).unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.root.config_file()).unwrap()
    }
}

/// About 100 kB with 25 agents; line 40 is a plain `idle_timeout_s = 600`.
fn rich() -> String {
    let mut text = String::from("# rich\nschema_version = 1\n\n[gateway]\nport = 7420\n\n");
    for index in 0..25 {
        text.push_str(&format!("[agents.agent-{index}]\ncommand = [\"agent\", \"{index}\"]\n"));
        while index == 5 && text.lines().count() < 39 {
            text.push_str("# filler\n");
        }
        text.push_str(&format!("idle_timeout_s = 600\nenv.NOTE = \"{}\"\n\n", "x".repeat(4_000)));
    }
    text
}

fn broken() -> String {
    let rich = rich();
    let mut lines: Vec<&str> = rich.lines().collect();
    assert_eq!(lines[39], "idle_timeout_s = 600");
    lines[39] = "port = = 1";
    lines.join("\n") + "\n"
}

#[test]
fn broken_toml_stops_the_start_and_the_file_is_untouched() {
    let home = Home::new();
    home.write(broken());
    let error = home.source().load_for_start().unwrap_err();
    assert_eq!(error.problem().unwrap().line(), Some(40));
    assert_eq!(error.problem().unwrap().column(), Some(8));
    assert!(error.to_string().contains("config.toml line 40, column 8: "), "{error}");
    assert_eq!(error.picture().unwrap(), "  40 | port = = 1\n     |        ^");
    assert_eq!(error.kind(), ErrorKind::ConfigInvalid);
    let wire = WireError::from(&error);
    assert!(wire.message.contains("line 40") && wire.message.contains("port = = 1"), "{wire}");
    assert_eq!(home.bytes(), broken().into_bytes());
}

#[test]
fn a_refused_reload_leaves_the_old_snapshot_whole_and_a_later_good_one_works() {
    let home = Home::new();
    home.write(rich());
    let running = home.source().load_for_start().unwrap();
    home.write(broken());
    let error = home.source().load_for_reload().unwrap_err();
    assert_eq!(error.problem().unwrap().line(), Some(40));
    assert_eq!(running.section::<AgentsConfig>().unwrap().0.len(), 25);
    assert_eq!(running.revision(), Revision::of(rich().as_bytes()));
    assert_eq!(home.bytes(), broken().into_bytes());

    home.write(rich().replace("port = 7420", "port = 7421"));
    let reloaded = home.source().load_for_reload().unwrap();
    assert_eq!(reloaded.section::<Gateway>().unwrap().port, 7_421);
    assert_ne!(reloaded.revision(), running.revision());
}

#[test]
fn a_section_of_the_wrong_type_downs_itself_at_a_start_and_refuses_a_reload() {
    let home = Home::new();
    home.write("cron = true\n[gateway]\nport = 1\n");
    let snapshot = home.source().load_for_start().unwrap();
    let error = snapshot.section::<Cron>().unwrap_err();
    assert_eq!(error.to_string(), "config.toml line 1, column 8: `cron`: expected a table, found boolean `true`");
    assert_eq!(error.first.expected.as_deref(), Some("a table"));
    assert_eq!(error.first.found.as_deref(), Some("boolean `true`"));
    assert_eq!(snapshot.section::<Gateway>().unwrap().port, 1);
    assert_eq!(snapshot.section_errors().map(|error| error.section).collect::<Vec<_>>(), ["cron"]);
    let refused = home.source().load_for_reload().unwrap_err();
    assert!(refused.to_string().contains("line 1, column 8: `cron`"), "{refused}");
    assert_eq!(home.bytes(), b"cron = true\n[gateway]\nport = 1\n");

    let tables = read("[[cron]]\nx = 1\n");
    let error = tables.section::<Cron>().unwrap_err();
    assert_eq!((error.first.line(), error.first.found.as_deref()), (Some(1), Some("a list")));
}

#[test]
fn a_wrong_value_is_named_with_line_key_expected_and_found() {
    for (text, line, column, expected) in [
        (
            "[gateway]\nport = \"x\"\n",
            2,
            8,
            "`gateway.port`: expected a whole number from 0 to 65535, found string \"x\"",
        ),
        (
            "[gateway]\nport = 70000\n",
            2,
            8,
            "`gateway.port`: expected a whole number from 0 to 65535, found integer `70000`",
        ),
        ("gateway = { enabled = 1 }\n", 1, 23, "`gateway.enabled`: expected true or false, found integer `1`"),
        ("gateway.host = [1]\n", 1, 16, "`gateway.host`: expected a string, found a list"),
        ("[gateway]\nkeys = [\n  \"a\",\n  5,\n]\n", 4, 3, "`gateway.keys[1]`: expected a string, found an integer"),
        ("[[cron.jobs]]\nagent = 'x'\n[[cron.jobs]]\n\n", 3, 1, "`cron.jobs[1]`: missing field `agent`"),
        ("[gateway]\nhost = 'a b'\n", 2, 8, "`gateway.host`: a host name has no spaces"),
        (
            "[permissions]\npolicy = 'alow_all'\n",
            2,
            10,
            "`permissions.policy`: expected one of `ask`, `allow_reads`, `allow_all`, `deny_all`, found `alow_all`",
        ),
        ("[agents.a]\nbuiltin = 'demo'\nidle_timeout_s = 0\n", 3, 18, "`agents.a.idle_timeout_s`: must be 1 or more"),
        ("[agents.a]\nidle_timeout_s = 1\n", 1, 1, "`agents.a`: the agent has no `command`"),
        (
            "[agents.a]\ncommand = 5\n",
            2,
            11,
            "`agents.a.command`: expected a command: a list of words or one string, found integer `5`",
        ),
        ("[agents.a]\ncommand = 'x \"y'\n", 2, 11, "`agents.a.command`: a double quote is not closed"),
        ("[agents.'A b']\nbuiltin = 'demo'\n", 1, 9, "use 1 to 64 characters"),
    ] {
        for (mark, end) in [("", "\n"), ("\u{feff}", "\r\n")] {
            let snapshot = read(&format!("{mark}{}", text.replace('\n', end)));
            let problem = snapshot.problems().next().unwrap_or_else(|| panic!("nothing wrong with {text:?}"));
            let described = problem.describe(Path::new("config.toml"));
            assert!(described.contains(expected), "{described}");
            assert_eq!((problem.line(), problem.column()), (Some(line), Some(column)), "{described}");
        }
    }
    let hint = read("[permissions]\npolicy = 'alow_all'\n").problems().next().unwrap().hint.clone();
    assert_eq!(hint.as_deref(), Some("did you mean `allow_all`?"));
}

#[test]
fn secret_values_are_in_no_message() {
    for text in [
        "[agents.a]\nbuiltin = 'demo'\nenv.X = ['marker']\n",
        "[agents.a]\nbuiltin = 'demo'\nenv = 'marker'\n",
        "[gateway]\nkeys = 'marker'\n",
        "api_key = 'marker' x\n",
        "[agents.a.env]\nTOKEN = 'marker\n",
        "[agents.a.env]\nPLAIN = marker\n",
        "[agents.a]\nbuiltin = 'demo'\nenv = { 'A=B' = 'marker' }\n",
    ] {
        let outcome = ConfigSnapshot::read(Path::new("c"), text.as_bytes(), &registry(), &Overrides::default());
        let said = match &outcome {
            Err(error) => format!("{error} {error:?} {:?} {}", error.picture(), error.remedy()),
            Ok(snapshot) => {
                let error = snapshot.section_errors().next().unwrap();
                format!("{error} {error:?} {:?} {snapshot:?} {}", error.first.picture(), error.remedy())
            }
        };
        assert!(!said.contains("marker"), "{text:?}: {said}");
    }
    let good = read("[agents.a]\nbuiltin = 'demo'\nenv.KEY = 'marker'\n");
    assert!(!format!("{:?}", good.section::<AgentsConfig>().unwrap()).contains("marker"));
    let variables = [("HOLDFAST_CONFIG__gateway__port", "marker")];
    let overridden = read_with("", &variables);
    assert!(!format!("{:?} {:?}", overrides(&variables), overridden.overrides()).contains("marker"));
}

#[test]
fn unknown_keys_are_kept_and_warned_about() {
    let text = "gatway = 1\n[gateway]\nenabeld = true\nport = 5\n[x_vendor.custom]\nnote = 'y'\n[agents.a]\nbuiltin = 'demo'\nidle_timeot_s = 5\n";
    let snapshot = read(text);
    let warnings: Vec<(Option<usize>, String, Option<String>)> =
        snapshot.warnings().map(|warning| (warning.line(), warning.path.to_string(), warning.hint.clone())).collect();
    let mean = |word: &str| Some(format!("did you mean `{word}`?"));
    assert_eq!(
        warnings,
        [
            (Some(1), "gatway".to_owned(), mean("gateway")),
            (Some(3), "gateway.enabeld".to_owned(), mean("enabled")),
            (Some(5), "x_vendor".to_owned(), None),
            (Some(9), "agents.a.idle_timeot_s".to_owned(), mean("idle_timeout_s")),
        ]
    );
    assert_eq!(snapshot.section::<Gateway>().unwrap().port, 5);
    assert_eq!(snapshot.text(), text);
    snapshot.clone().refuse_problems().unwrap();
    let strict = snapshot.refuse_warnings().unwrap_err();
    assert!(strict.to_string().starts_with("config.toml line 1, column "), "{strict}");
    assert!(strict.to_string().ends_with("(and 3 more problems)"), "{strict}");
}

#[test]
fn sections_are_checked_against_each_other() {
    let snapshot = read("[agents.a]\nbuiltin = 'demo'\n[[cron.jobs]]\nagent = 'a'\n[[cron.jobs]]\nagent = 'b'\n");
    let error = snapshot.section::<Cron>().unwrap_err();
    assert_eq!(error.to_string(), "config.toml line 6, column 9: `cron.jobs[1].agent`: no agent `b`");
}

#[test]
fn an_override_wins_and_an_unfit_one_is_named() {
    let text = "[gateway]\nport = 1\nhost = 'h'\n";
    let snapshot =
        read_with(text, &[("HOLDFAST_CONFIG__gateway__port", "7421"), ("HOLDFAST_CONFIG__agents__a__builtin", "demo")]);
    assert_eq!(snapshot.section::<Gateway>().unwrap(), Gateway { port: 7_421, host: "h".into(), ..Gateway::default() });
    assert_eq!(snapshot.section::<AgentsConfig>().unwrap().0.len(), 1);
    assert_eq!(snapshot.text(), text);
    assert_eq!(
        snapshot.place_of(&KeyPath::new(["gateway", "port"])),
        Place::Variable("HOLDFAST_CONFIG__gateway__port".to_owned())
    );
    assert!(matches!(snapshot.place_of(&KeyPath::new(["gateway", "host"])), Place::File(_)));

    for (name, value, expected) in [
        (
            "HOLDFAST_CONFIG__gateway__port",
            "high",
            "`gateway.port`: expected a whole number from 0 to 65535, found string \"high\"",
        ),
        ("HOLDFAST_CONFIG__gateway", "true", "`gateway`: expected a table, found boolean `true`"),
        ("HOLDFAST_CONFIG__gateway__host", "a b", "`gateway.host`: a host name has no spaces"),
        ("HOLDFAST_CONFIG__gateway__port__x", "1", "`gateway.port.x`: `port` is no table but integer"),
    ] {
        let snapshot = read_with(text, &[("HOLDFAST_CONFIG__cron__jobs", "[]"), (name, value)]);
        let error = snapshot.section::<Gateway>().unwrap_err();
        assert!(error.to_string().starts_with(&format!("environment variable {name}: {expected}")), "{error}");
        assert!(error.remedy().contains(name));
        snapshot.refuse_problems().unwrap_err();
    }
}

#[test]
fn an_override_of_nothing_known_is_a_warning() {
    let snapshot = read_with("", &[("HOLDFAST_CONFIG__gateway__prt", "1"), ("HOLDFAST_CONFIG__nothing", "1")]);
    let warnings: Vec<String> = snapshot.warnings().map(|warning| warning.describe(Path::new("c"))).collect();
    assert_eq!(
        warnings,
        [
            "environment variable HOLDFAST_CONFIG__gateway__prt: `gateway.prt`: unknown key, kept but not used",
            "environment variable HOLDFAST_CONFIG__nothing: `nothing`: unknown key, kept but not used",
        ]
    );
}

#[test]
fn a_lost_file_with_a_good_backup_stops_the_start_with_the_command_to_restore_it() {
    let home = Home::new();
    let missing = home.source().load_for_start().unwrap_err();
    assert!(matches!(missing, ConfigError::Missing { .. }), "{missing}");
    assert_eq!(missing.remedy(), "holdfast init");

    fs::write(home.root.config_backup(), "[gateway]\nport = 9\n").unwrap();
    let (file, backup) = (home.root.config_file(), home.root.config_backup());
    let command = format!("cp -p -- '{}' '{}'", backup.display(), file.display());
    for (text, found) in [(None, "missing"), (Some(""), "empty"), (Some(" \n"), "empty")] {
        if let Some(text) = text {
            home.write(text);
        }
        let error = home.source().load_for_start().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "`{}` is {found}, but `{}` holds the version before the last save",
                file.display(),
                backup.display()
            )
        );
        assert_eq!(error.remedy(), command);
        assert!(matches!(home.source().load_for_reload(), Err(ConfigError::Lost { .. })));
    }
    home.write("port = = 1\n");
    let error = home.source().load_for_start().unwrap_err();
    assert!(error.to_string().contains("holds the version before the last save"), "{error}");
    assert!(error.remedy().ends_with(&command), "{}", error.remedy());

    for bad in ["", "x = = 1", "# only a comment\n"] {
        fs::write(&backup, bad).unwrap();
        let error = home.source().load_for_start().unwrap_err();
        assert!(matches!(error, ConfigError::Syntax { backup: None, .. }), "{error}");
        home.write("");
        home.source().load_for_start().unwrap();
        home.write("port = = 1\n");
    }
}

#[test]
fn what_is_no_readable_text_is_refused_by_its_own_name() {
    let home = Home::new();
    let file = home.root.config_file();
    home.write(b"[gateway]\nhost = \"\xff\"\n");
    let error = home.source().load_for_start().unwrap_err();
    assert!(matches!(error, ConfigError::NotUtf8 { line: 2, column: 9, .. }), "{error:?}");

    let large = fs::File::create(&file).unwrap();
    large.set_len(100 * 1024 * 1024).unwrap();
    let error = home.source().load_for_start().unwrap_err();
    assert!(matches!(error, ConfigError::TooLarge { size_bytes: 104_857_600, .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::TooLarge);

    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let error = home.source().load_for_start().unwrap_err();
    assert!(matches!(error, ConfigError::NotAFile { found: "a directory", .. }), "{error:?}");
    fs::remove_dir(&file).unwrap();

    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let error = home.source().load_for_start().unwrap_err();
    assert!(matches!(error, ConfigError::NotAFile { found: "a special file", .. }), "{error:?}");
    fs::remove_file(&file).unwrap();

    let socket = std::os::unix::net::UnixListener::bind(&file).unwrap();
    let error = home.source().load_for_start().unwrap_err();
    assert!(matches!(error, ConfigError::NotAFile { found: "a socket", .. }), "{error:?}");
    drop(socket);
    fs::remove_file(&file).unwrap();

    std::os::unix::fs::symlink("/nowhere/at/all", &file).unwrap();
    let error = home.source().load_for_start().unwrap_err();
    assert!(matches!(error, ConfigError::NotAFile { found: "a symbolic link to nothing", .. }), "{error:?}");
    fs::remove_file(&file).unwrap();

    home.write("x = 1\nx = 2\n");
    let error = home.source().load_for_start().unwrap_err();
    assert_eq!(error.problem().unwrap().line(), Some(2), "{error}");
}

#[test]
fn a_file_without_permission_is_refused_with_the_fix() {
    let home = Home::new();
    home.write("x = 1\n");
    fs::set_permissions(home.root.config_file(), fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser may read everything; there is nothing to see then.
    if fs::read(home.root.config_file()).is_ok() {
        return;
    }
    let error = home.source().load_for_start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.remedy().starts_with("let this user read it: chmod 600 '"), "{}", error.remedy());
}

#[test]
fn the_layouts_version_is_checked() {
    read("schema_version = 1\n").refuse_warnings().unwrap();
    let newer = read("schema_version = 3\n[gateway]\nport = 4\n");
    assert_eq!(newer.section::<Gateway>().unwrap().port, 4);
    let warning = newer.warnings().next().unwrap();
    assert!(warning.message.contains("written for version 3"), "{}", warning.message);
    for bad in ["schema_version = 0\n", "schema_version = 'x'\n", "[schema_version]\n"] {
        let error =
            ConfigSnapshot::read(Path::new("c"), bad.as_bytes(), &registry(), &Overrides::default()).unwrap_err();
        assert!(matches!(&error, ConfigError::SchemaVersion { problem, .. } if problem.line() == Some(1)), "{error}");
    }
}

#[test]
fn the_schema_describes_the_whole_file() {
    let registry = registry();
    let schema = registry.json_schema();
    for name in ["schema_version", "gateway", "cron", "agents", "permissions"] {
        assert!(schema.pointer(&format!("/properties/{name}")).is_some(), "{name}");
    }
    assert!(schema.pointer("/$defs/AgentConfig/properties/idle_timeout_s/description").is_some());
    let twice = [SectionDescriptor::of::<Gateway>(), SectionDescriptor::of::<Gateway>()];
    assert_eq!(SectionRegistry::new(twice).unwrap_err(), DuplicateSection { name: "gateway" });
}

#[test]
fn an_agents_defaults_are_the_documented_ones() {
    let snapshot = read(
        "[permissions]\nunattended = 'wait'\n[agents.demo]\nbuiltin = 'demo'\n[agents.claude]\ncommand = 'claude-agent-acp --flag \"a b\"'\npermissions.policy = 'allow_reads'\n",
    );
    let agents = snapshot.section::<AgentsConfig>().unwrap();
    let defaults = snapshot.section::<PermissionsConfig>().unwrap();
    let demo = agents.get(&"demo".parse().unwrap()).unwrap();
    assert_eq!(demo.launch(), Some(Launch::Builtin(BuiltinAgent::Demo)));
    assert_eq!(demo.idle_timeout_s, 900);
    let claude = agents.get(&"claude".parse().unwrap()).unwrap();
    let words = ["claude-agent-acp", "--flag", "a b"].map(str::to_owned);
    assert_eq!(claude.launch(), Some(Launch::Command(&words)));
    assert_eq!(
        claude.permissions.over(defaults),
        PermissionsConfig { policy: PermissionPolicy::AllowReads, unattended: UnattendedPolicy::Wait }
    );
    assert_eq!(
        demo.permissions.over(PermissionsConfig::default()),
        PermissionsConfig { policy: PermissionPolicy::Ask, unattended: UnattendedPolicy::Deny }
    );
    assert_eq!(agents.nearest("claud"), Some("claude"));
}

mod set_up {
    use super::*;

    fn root() -> (tempfile::TempDir, InstallRoot) {
        let directory = tempfile::tempdir().unwrap();
        let root = InstallRoot::at(directory.path().join("root"));
        (directory, root)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_root_has_a_valid_configuration_and_a_private_key() {
        let (_directory, root) = root();
        let made = init(&root, InitMode::New).unwrap();
        assert!(made.config_made);
        assert_eq!(made.key, KeyOutcome::Made);
        assert_eq!(names(root.path()), [".secret_key", "agents", "config.toml", "data", "shared"]);
        assert_eq!((mode(&root.config_file()), mode(&root.secret_key())), (0o600, 0o600));
        let source = ConfigSource::new(&root, registry(), Overrides::default());
        let snapshot = source.load_for_reload().unwrap().refuse_warnings().unwrap();
        let agents = snapshot.section::<AgentsConfig>().unwrap();
        assert_eq!(agents.get(&"demo".parse().unwrap()).unwrap().launch(), Some(Launch::Builtin(BuiltinAgent::Demo)));
        let key = fs::read_to_string(root.secret_key()).unwrap();
        key.lines().last().unwrap().parse::<age::x25519::Identity>().unwrap();
    }

    #[test]
    fn the_commented_examples_of_the_first_configuration_are_valid_too() {
        let text = include_str!("first.toml");
        let examples: Vec<&str> = text
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest)
                    if rest.starts_with('[') || rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')) =>
                {
                    rest
                }
                _ => line,
            })
            .collect();
        assert!(examples.iter().filter(|line| !line.starts_with('#')).count() > 10);
        read(&examples.join("\n")).refuse_warnings().unwrap();
    }

    #[test]
    fn nothing_that_exists_is_replaced() {
        let (_directory, root) = root();
        root.prepare().unwrap();
        fs::write(root.config_file(), rich()).unwrap();
        fs::write(root.secret_key(), "mine").unwrap();
        let error = init(&root, InitMode::New).unwrap_err();
        assert!(matches!(error, InitError::AlreadySetUp { .. }), "{error}");
        let kept = init(&root, InitMode::Missing).unwrap();
        assert_eq!((kept.config_made, kept.key), (false, KeyOutcome::Kept));
        assert_eq!(fs::read_to_string(root.config_file()).unwrap(), rich());
        assert_eq!(fs::read_to_string(root.secret_key()).unwrap(), "mine");

        // Not even what is no file.
        fs::remove_file(root.config_file()).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", root.config_file()).unwrap();
        assert!(!init(&root, InitMode::Missing).unwrap().config_made);
        assert!(fs::symlink_metadata(root.config_file()).unwrap().is_symlink());
    }

    #[test]
    fn a_lost_configuration_is_not_buried_under_a_new_one() {
        let (_directory, root) = root();
        root.prepare().unwrap();
        fs::write(root.config_backup(), rich()).unwrap();
        for mode in [InitMode::New, InitMode::Missing] {
            let error = init(&root, mode).unwrap_err();
            assert!(matches!(error, InitError::Config(ConfigError::Lost { .. })), "{error}");
        }
        assert!(!root.config_file().exists() && !root.secret_key().exists());
    }

    #[test]
    fn no_key_is_made_while_something_is_sealed_with_another() {
        for text in ["[agents.a]\nbuiltin = 'demo'\nenv.K = 'age:abc'\n", "x = = 'age:abc'\n"] {
            let (_directory, root) = root();
            root.prepare().unwrap();
            fs::write(root.config_file(), text).unwrap();
            let kept = init(&root, InitMode::Missing).unwrap();
            assert!(matches!(kept.key, KeyOutcome::Withheld(_)), "{:?}", kept.key);
            assert!(!root.secret_key().exists());
        }
        let (_directory, root) = root();
        root.prepare().unwrap();
        fs::write(root.plugin_state_database(), "").unwrap();
        assert!(matches!(init(&root, InitMode::Missing).unwrap().key, KeyOutcome::Withheld(_)));
    }

    #[test]
    fn of_many_first_runs_one_makes_each_file_and_none_fails() {
        let (_directory, root) = root();
        let made: Vec<Initialized> = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..8).map(|_| scope.spawn(|| init(&root, InitMode::Missing).unwrap())).collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        assert_eq!(made.iter().filter(|made| made.config_made).count(), 1);
        assert_eq!(made.iter().filter(|made| made.key == KeyOutcome::Made).count(), 1);
        assert_eq!(names(root.path()), [".secret_key", "agents", "config.toml", "data", "shared"]);
    }

    #[test]
    fn a_save_keeps_the_old_text_and_only_replaces_what_was_loaded() {
        let (_directory, root) = root();
        root.prepare().unwrap();
        fs::write(root.config_file(), rich()).unwrap();
        let base = Revision::of(rich().as_bytes());
        let new = rich().replace("port = 7420", "port = 7421");

        let error = save(&root, Revision::of(b""), b"").unwrap_err();
        assert!(matches!(error, SaveError::Conflict { .. }), "{error}");
        let error = save(&root, base, b"x = = 1").unwrap_err();
        assert!(matches!(error, SaveError::Config(ConfigError::Syntax { .. })), "{error}");
        assert_eq!(fs::read_to_string(root.config_file()).unwrap(), rich());
        assert!(!root.config_backup().exists());
        assert!(save(&root, base, rich().as_bytes()).unwrap().unchanged);
        assert!(!root.config_backup().exists());

        let saved = save(&root, base, new.as_bytes()).unwrap();
        assert_eq!(
            saved,
            Saved { revision: Revision::of(new.as_bytes()), unchanged: false, durable: true, warning: None }
        );
        assert_eq!(fs::read_to_string(root.config_file()).unwrap(), new);
        assert_eq!(fs::read_to_string(root.config_backup()).unwrap(), rich());
        assert_eq!((mode(&root.config_file()), mode(&root.config_backup())), (0o600, 0o600));
        assert!(matches!(save(&root, base, b"x = 1"), Err(SaveError::Conflict { .. })));
        assert!(names(root.path()).iter().all(|name| !name.ends_with(".new")));
    }

    #[test]
    fn a_linked_configuration_stays_a_link() {
        let (directory, root) = root();
        root.prepare().unwrap();
        let elsewhere = directory.path().join("dotfiles.toml");
        fs::write(&elsewhere, "x = 1\n").unwrap();
        std::os::unix::fs::symlink(&elsewhere, root.config_file()).unwrap();
        save(&root, Revision::of(b"x = 1\n"), b"x = 2\n").unwrap();
        assert!(fs::symlink_metadata(root.config_file()).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "x = 2\n");
    }
}
