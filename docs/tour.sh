#!/usr/bin/env bash
# The tour: a session is made, the daemon killed with -9 in mid-turn, the same session listed, shown and continued, and no
# process is left over. Works in a root of its own and removes it.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --locked
program=${CARGO_TARGET_DIR:-target}/release/holdfast
scratch=$(mktemp -d)
export HOLDFAST_ROOT=$scratch/root

finish() {
    "$program" stop >/dev/null 2>&1 || true
    rm -rf "$scratch"
}
trap finish EXIT

say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
show() { printf '$ holdfast %s\n' "$*"; "$program" "$@"; }
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

# Waits until a command succeeds, 20 s at most.
eventually() {
    local what=$1 tries
    shift
    for ((tries = 0; tries < 200; tries++)); do
        if "$@"; then return 0; fi
        sleep 0.1
    done
    printf 'tour: gave up waiting until %s\n' "$what" >&2
    return 1
}

# What a daemon starts carries its instance in the environment, down to the last descendant.
left_over() {
    local entry
    for entry in /proc/[0-9]*; do
        if tr '\0' '\n' 2>/dev/null <"$entry/environ" | grep -qxF "HOLDFAST_INSTANCE_ID=$instance"; then
            printf '%s %s\n' "${entry#/proc/}" "$(tr '\0' ' ' 2>/dev/null <"$entry/cmdline")"
        fi
    done
}
none_left() { [ -z "$(left_over)" ]; }
gone() { ! kill -0 "$1" 2>/dev/null; }
streams() { [ "$(wc -l <"$scratch/updates.jsonl")" -ge 5 ]; }

say 'A session, by its name'
show run demo hello --session tour

say 'A slow turn in it; every line is an update that is on disk already'
"$program" run demo 'slow 30' --session tour --json >"$scratch/updates.jsonl" 2>"$scratch/client.txt" &
client=$!
eventually 'updates stream' streams
head -n 3 "$scratch/updates.jsonl" | cut -c 1-110
pid=$("$program" status --json | field pid)
instance=$("$program" status --json | field instance_id)
[ -n "$(left_over)" ] || { printf 'tour: the agent was not found by its environment\n' >&2; exit 1; }

say "The daemon dies in mid-turn: kill -9 $pid"
kill -9 "$pid"
wait "$client" && status=0 || status=$?
printf 'the client ended with exit code %d: ' "$status"
head -n 1 "$scratch/client.txt"

say 'The agent does not outlive it'
eventually 'the agent has gone' none_left
printf 'no process left over\n'

say 'No daemon is needed to look: the turn is marked, nothing else is lost'
show session list
session=$("$program" session list --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["session_id"])')
state=$("$program" session show "$session" --json | field turn_state)
[ "$state" = interrupted ] || { printf 'tour: the turn is %s, not interrupted\n' "$state" >&2; exit 1; }

say 'The session goes on, by its name or its id'
show run demo 'hello again' --session "$session"
show session show tour

say 'In order'
pid=$("$program" status --json | field pid)
show stop
eventually 'the daemon has gone' gone "$pid"
eventually 'all has gone' none_left
printf 'no process left over\n'
