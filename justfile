# Every habit as a recipe. Needs just (https://just.systems); the commands work without it too.

export CARGO_TERM_COLOR := env("CARGO_TERM_COLOR", "auto")

# list the recipes
default:
    @just --list --unsorted

# build, make a root, start the daemon, run one turn
try *PROMPT="hello":
    cargo run --release -- run demo {{ quote(PROMPT) }}

# all tests, as the README says
test *ARGS:
    cargo test --workspace --locked {{ ARGS }}

# write the sources in their one form
fmt:
    cargo fmt --all

# what the compiler can complain about
lint:
    cargo clippy --workspace --all-targets --locked -- -D warnings

# what no compiler checks: rooms, locks, SQL, words
guards:
    .ci/guards
    .ci/guards --self-test

# write the generated pages and build the book to target/book
docs:
    HOLDFAST_WRITE_PAGES=1 cargo test -p holdfast --lib --locked pages
    mdbook build docs

# write .sqlx anew from the migrations
sqlx *ARGS:
    .ci/sqlx-prepare {{ ARGS }}

# what must hold before a change lands
ci:
    bash .ci/run

# a session is made, the daemon killed in mid-turn, the session continued
tour:
    bash docs/tour.sh

# print the benchmarks as a table, or one JSON object a line with --json
bench *ARGS:
    cargo build --release --quiet -p holdfast -p holdfast-tests --bins
    cargo run --release --quiet -p holdfast-tests --bin bench -- {{ ARGS }}

# crash rounds: kill -9 at random moments, everything that was acknowledged checked
soak:
    HOLDFAST_SOAK=1 cargo test --release --workspace --test it crash:: -- --nocapture --test-threads=1
