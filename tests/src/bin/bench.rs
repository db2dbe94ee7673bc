//! `bench [--json] [--quick] [--only NAME]`: prints the benchmarks. Build it in release, and the program beside it.

use std::process::ExitCode;

use holdfast_tests::bench::{Options, print_table, run};

fn main() -> ExitCode {
    let mut options = Options { rounds: 5, round_ms: 1_000, only: None };
    let mut json = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = true,
            "--quick" => options = Options { rounds: 3, round_ms: 300, ..options },
            "--only" => options.only = arguments.next(),
            other => {
                eprintln!("error: `{other}` is not known\nusage: bench [--json] [--quick] [--only NAME]");
                return ExitCode::from(2);
            }
        }
    }
    let mut rows = Vec::new();
    run(&options, |row| {
        if json {
            match serde_json::to_string(&row) {
                Ok(line) => println!("{line}"),
                Err(error) => eprintln!("error: a row is no JSON: {error}"),
            }
        } else {
            eprintln!("measured: {}", row.name);
        }
        rows.push(row);
    });
    if !json {
        print_table(&rows);
    }
    ExitCode::SUCCESS
}
