//! What a process that runs in a session sees of the others: the matrix over real processes, sockets and stores, and each
//! way to ask agrees with the others.

use std::fs;
use std::path::{Path, PathBuf};

use holdfast_protocol::ids::AgentAlias;
use holdfast_stores::acp_sessions::Ownership;
use holdfast_stores::config::AgentVisibility;
use holdfast_tests::acp_stage::{AcpStage, fake_agent};
use holdfast_tests::daemon::executable;
use holdfast_tests::eventually::{PATIENCE, eventually};
use holdfast_tests::fake_agent::{Script, Spawn, Step};
use rusqlite::Connection;
use serde_json::{Value, json};

/// Asks the daemon from where it is run.
const ASKER: &str = env!("CARGO_BIN_EXE_asker");

/// Looks for questions to its own session, runs each as a shell script, and leaves what that said.
fn answers_questions(directory: &Path) -> Step {
    let directory = directory.display();
    let command = format!(
        "n=1; while :; do ask={directory}/ask-$HOLDFAST_SESSION_ID-$n; answer={directory}/answer-$HOLDFAST_SESSION_ID-$n
         if [ -e $ask ]; then sh $ask > $answer.part 2>&1; mv $answer.part $answer; n=$((n+1)); else sleep 0.02; fi; done"
    );
    Step::Spawn(Spawn { command, setsid: true, clear_environment: false, hold_output: false })
}

/// A session with a process in it that does what it is told.
struct Inside {
    directory: PathBuf,
    session_id: String,
    questions: usize,
}

impl Inside {
    fn new(stage: &AcpStage, session_id: String) -> Self {
        Self { directory: stage.path("."), session_id, questions: 0 }
    }

    /// Runs a line of shell inside of the session, and returns what it said.
    #[track_caller]
    fn ask(&mut self, line: &str) -> String {
        self.questions += 1;
        let path = |kind: &str| self.directory.join(format!("{kind}-{}-{}", self.session_id, self.questions));
        fs::write(self.directory.join("question"), line).unwrap();
        fs::rename(self.directory.join("question"), path("ask")).unwrap();
        eventually(PATIENCE * 2, || fs::read_to_string(path("answer")).ok(), Option::is_some).unwrap()
    }

    /// Prompts `agent` from within the session, which makes a session, and returns its id.
    #[track_caller]
    fn run(&mut self, stage: &AcpStage, agent: &str) -> String {
        let program = format!("cd / && {} --root {}", executable().display(), stage.daemon.root.path().display());
        let said = self.ask(&format!("{program} run {agent} hello --json 2>/dev/null"));
        let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap_or_else(|_| panic!("{said}"));
        last["result"]["session_id"].as_str().unwrap_or_else(|| panic!("{said}")).to_owned()
    }
}

/// Returns the columns that decide, as stored.
fn ownership(stage: &AcpStage, session_id: &str) -> Ownership {
    let connection = Connection::open(stage.daemon.root.acp_sessions_database()).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    let columns =
        "session_id, agent_id, owner_session_key, spawned_by, parent_session_key, ancestor_session_keys, backend,
        instance_id";
    let query = format!("SELECT {columns} FROM acp_session WHERE session_id = ?1");
    let read = connection.query_row(&query, [session_id], |row| {
        assert_eq!(row.get::<_, String>(6).unwrap(), "acp");
        assert!(!row.get::<_, String>(7).unwrap().is_empty());
        Ok(Ownership {
            session_key: row.get(0)?,
            agent_id: row.get::<_, String>(1)?.parse().unwrap(),
            owner_session_key: row.get(2)?,
            spawned_by: row.get(3)?,
            parent_session_key: row.get(4)?,
            ancestor_session_keys: serde_json::from_str(&row.get::<_, String>(5)?).unwrap(),
        })
    });
    read.unwrap()
}

#[test]
fn list_status_history_load_and_prompt_agree_with_the_rule_over_the_whole_matrix() {
    let stage = AcpStage::start(|script, directory| {
        script.on_new_session = vec![answers_questions(directory)];
        let other = Script { state: Some(directory.join("other-state")), ..script.clone() };
        other.write_to(&directory.join("other-script")).unwrap();
    });
    let config = stage.daemon.root.config_file();
    let agent = |name: &str, script: &str| {
        let command = [fake_agent(), stage.path(script)].map(|path| path.display().to_string());
        format!("\n[agents.{name}]\ncommand = {command:?}\n")
    };
    let base = fs::read_to_string(&config).unwrap() + &agent("other", "other-script");
    let configure = |more: &str| {
        fs::write(&config, format!("{base}{more}")).unwrap();
        let reloaded = stage.daemon.program().arg("reload").output().unwrap();
        assert!(reloaded.status.success(), "{}", String::from_utf8_lossy(&reloaded.stderr));
    };
    configure("");
    let socket = stage.daemon.root.socket();
    let by_owner = |agent: &str| {
        let mut client = holdfast_tests::acp_socket::AcpSocket::attach(&socket, agent).unwrap();
        client.open_session().unwrap()
    };
    let me = by_owner("fake");
    let mut inside = Inside::new(&stage, me.clone());
    let child = inside.run(&stage, "other");
    let mut inside_child = Inside::new(&stage, child.clone());
    let sessions = [
        ("fake", me.clone()),
        ("fake", by_owner("fake")),
        ("other", by_owner("other")),
        ("demo", by_owner("demo")),
        ("other", child.clone()),
        ("demo", inside_child.run(&stage, "demo")),
    ];
    let rows: Vec<Ownership> = sessions.iter().map(|(_, session_id)| ownership(&stage, session_id)).collect();
    assert_eq!(rows[4].owner_session_key.as_ref(), Some(&me));
    assert_eq!((rows[5].spawned_by.as_ref(), rows[5].parent_session_key.as_ref()), (Some(&child), Some(&child)));
    assert_eq!(rows[5].ancestor_session_keys, [me.clone(), child.clone()], "from its parent's row");
    assert!(rows[..4].iter().all(|row| row.owner_session_key.as_ref() == Some(&row.session_key)));

    let wanted: Vec<String> = sessions.iter().map(|(agent, session_id)| format!("{agent}={session_id}")).collect();
    let question = format!("{ASKER} {} {}", socket.display(), wanted.join(" "));
    let fake: AgentAlias = "fake".parse().unwrap();
    for sees in ["self", "tree", "agent", "all"] {
        for a2a in ["false", "true", "[\"other\"]"] {
            for sandboxed in [false, true] {
                let section = format!("sessions = \"{sees}\"\na2a = {a2a}\nsandboxed = {sandboxed}\n");
                configure(&format!("[agents.fake.visibility]\n{section}"));
                let a2a: Value = serde_json::from_str(a2a).unwrap();
                let visibility = json!({ "sessions": sees, "a2a": a2a, "sandboxed": sandboxed });
                let visibility: AgentVisibility = serde_json::from_value(visibility).unwrap();
                let said = inside.ask(&question);
                let answers: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{section}{said}"));
                for row in &rows {
                    let AgentVisibility { sessions, a2a, sandboxed } = &visibility;
                    let seen = holdfast_actors::visibility::can_see(row, &me, &fake, *sessions, a2a, *sandboxed);
                    let answer = answers[&row.session_key].as_object().unwrap();
                    assert!(answer.values().all(|found| *found == seen), "{section}{seen} for {row:?}: {answer:?}");
                }
            }
        }
    }
    // The owner of the install sees all of it, whatever the sections say.
    let output = std::process::Command::new("sh").args(["-c", &question]).output().unwrap();
    let answers: Value = serde_json::from_slice(&output.stdout).unwrap();
    for row in &rows {
        assert!(answers[&row.session_key].as_object().unwrap().values().all(|found| *found == true), "{answers}");
    }
}

#[test]
fn the_environment_proves_nothing_and_ancestry_can_not_be_shaken_off() {
    let stage = AcpStage::start_with("visibility = { sessions = \"self\" }\n", |script, directory| {
        script.on_new_session = vec![answers_questions(directory)];
    });
    let (mine, other) = (stage.client().open_session().unwrap(), stage.client().open_session().unwrap());
    let socket = stage.daemon.root.socket();
    let question = format!("{ASKER} {} fake={mine} fake={other}", socket.display());
    let judge = |said: &str| -> Vec<bool> {
        let answers: Value = serde_json::from_str(said).unwrap_or_else(|_| panic!("{said}"));
        [&mine, &other].map(|session| answers[session]["status"].as_bool().unwrap()).into()
    };
    let mut inside = Inside::new(&stage, mine.clone());
    let asked = |inside: &mut Inside, around: &str| judge(&inside.ask(&around.replace("ASK", &question)));
    assert_eq!(asked(&mut inside, "ASK"), [true, false]);
    assert_eq!(asked(&mut inside, "env -i PATH=\"$PATH\" ASK"), [true, false], "without any environment");
    let claims = format!("HOLDFAST_SESSION_ID={other} ASK");
    assert_eq!(asked(&mut inside, &claims), [true, false], "claiming another session");
    // Two forks and a session of its own: the parent is the wrapper by then.
    let away = "(setsid sh -c \"ASK > $0.part; mv $0.part $0.away\" &)
        while [ ! -e $0.away ]; do sleep 0.02; done; cat $0.away";
    assert_eq!(asked(&mut inside, away), [true, false], "after two forks");

    // From outside an environment that fits nothing changes nothing.
    let outside = |environment: &[(&str, &str)]| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &question]).envs(environment.iter().copied());
        judge(&String::from_utf8(command.output().unwrap().stdout).unwrap())
    };
    assert_eq!(outside(&[]), [true, true]);
    assert_eq!(outside(&[("HOLDFAST_SESSION_ID", &mine)]), [true, true], "a session without its lease");
    let unknown = "0199a3c2-0000-7000-8000-0000000000c2";
    assert_eq!(outside(&[("HOLDFAST_SESSION_ID", &mine), ("HOLDFAST_LEASE_ID", unknown)]), [true, true]);
}
