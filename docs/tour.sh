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

# Our processes carry the root or a lease of it in their environment; the tour's own shell and its children do not count.
left_over() {
    local entry pid
    for entry in /proc/[0-9]*; do
        pid=${entry#/proc/}
        [ "$pid" != $$ ] || continue
        if tr '\0' '\n' 2>/dev/null <"$entry/environ" | grep -q '^HOLDFAST_LEASE_ID=' &&
            tr '\0' '\n' 2>/dev/null <"$entry/environ" | grep -qxF "HOLDFAST_ROOT=$HOLDFAST_ROOT"; then
            printf '%s %s\n' "$pid" "$(tr '\0' ' ' 2>/dev/null <"$entry/cmdline")"
        fi
    done
}
none_left() { [ -z "$(left_over)" ]; }
streams() { [ "$(wc -l <"$scratch/updates.jsonl")" -ge 5 ]; }

say 'A session, by its name'
show run demo hello --session tour

say 'A slow turn in it; every line is an update that is on disk already'
"$program" run demo 'slow 30' --session tour --json >"$scratch/updates.jsonl" 2>"$scratch/client.txt" &
client=$!
eventually 'updates stream' streams
head -n 3 "$scratch/updates.jsonl" | cut -c 1-110
pid=$("$program" status --json | field pid)

say "The daemon dies in mid-turn: kill -9 $pid"
kill -9 "$pid"
wait "$client" && status=0 || status=$?
printf 'the client ended with exit code %d: ' "$status"
head -n 1 "$scratch/client.txt"

say 'The agent does not outlive it'
eventually 'the agent has gone' none_left
printf 'no process left over\n'

say 'The next command starts a daemon again; the session goes on'
show run demo 'hello again' --session tour
show session list
show session show tour

say 'In order'
show stop
eventually 'all has gone' none_left
printf 'no process left over\n'
