//! Kill -9 at random moments while turns stream: every update that a client saw is in the history once and in order, no
//! process is left, and a start needs no help.

use std::thread;
use std::time::Duration;

use holdfast_tests::acp_socket::AcpSocket;
use holdfast_tests::acp_stage::AcpStage;
use holdfast_tests::crash::rounds;
use holdfast_tests::fake_agent::{Step, chunk};
use holdfast_tests::random::Random;
use serde_json::Value;

const SESSIONS: usize = 8;
const CHUNKS: usize = 200;
/// Longer than an agent takes to end with its wrapper.
const GONE_LIMIT: Duration = Duration::from_secs(15);

fn agent_texts(updates: &[Value]) -> Vec<String> {
    let chunks = updates.iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk");
    chunks.map(|update| update["content"]["text"].as_str().unwrap().to_owned()).collect()
}

/// Prompts until the daemon dies; returns what was seen, in order.
fn prompt_until_cut(mut client: AcpSocket, session_id: &str) -> Vec<String> {
    // The error is the cut; what came before it counts.
    while client.turn(session_id, "stream").is_ok() {}
    agent_texts(&client.updates())
}

fn stored(stage: &AcpStage, session_id: &str) -> Vec<String> {
    let (updates, answer) = stage.client().load(session_id).unwrap();
    assert!(answer["result"].is_object(), "{answer}");
    agent_texts(&updates)
}

#[test]
fn what_clients_saw_of_streaming_turns_survives_every_kill() {
    let mut random = Random::for_test("acp_crash");
    let mut stage = AcpStage::start(|script, _directory| {
        let stream = (0..CHUNKS).flat_map(|number| [Step::Update(chunk(&format!("c{number} "))), Step::DelayMs(2)]);
        script.prompts = vec![stream.collect()];
    });
    let sessions: Vec<String> = (0..SESSIONS).map(|_| stage.client().open_session().unwrap()).collect();
    let mut before: Vec<usize> = vec![0; SESSIONS];
    let (rounds, mut seen_in_all) = (rounds(5), 0);
    for round in 0..rounds {
        let clients: Vec<AcpSocket> = sessions
            .iter()
            .map(|session_id| {
                let mut client = stage.client();
                client.resume(session_id).unwrap();
                client
            })
            .collect();
        let pause = Duration::from_millis(random.between(50, 1_500));
        let seen: Vec<Vec<String>> = thread::scope(|scope| {
            let workers: Vec<_> = clients
                .into_iter()
                .zip(&sessions)
                .map(|(client, session_id)| scope.spawn(move || prompt_until_cut(client, session_id)))
                .collect();
            // Time is what is random here: the moment of the kill, not something that is waited for.
            thread::sleep(pause);
            stage.daemon.kill9();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        let agents = stage.trace().pids();
        stage.daemon.boot();
        stage.wait_until_gone(&agents, GONE_LIMIT);
        for (index, session_id) in sessions.iter().enumerate() {
            let now = stored(&stage, session_id);
            let new = &now[before[index]..];
            assert!(
                new.len() >= seen[index].len() && new[..seen[index].len()] == seen[index],
                "round {round}, session {index}: seen {:?}, stored {new:?}",
                seen[index]
            );
            seen_in_all += seen[index].len();
            before[index] = now.len();
        }
    }
    assert!(seen_in_all > 0, "no update was seen in {rounds} rounds");
    println!("{rounds} kills, {seen_in_all} updates seen by clients, all stored once and in order");
}
