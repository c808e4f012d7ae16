//! Prints measurements of the planners as a table, or with `--json` as JSON.

use std::process::ExitCode;

use polycast_experiments::{Row, blast, datacast, orca, shufflecast};

const USAGE: &str = "usage: measure [trees|tree-quality|relays|economics|circuits|labels|readings|dynamics|elmo]... [--quick] [--json]";

fn main() -> ExitCode {
    let (options, items): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let quick = options.iter().any(|option| option == "--quick");
    let mut rows = Vec::new();
    if items.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    }
    for item in &items {
        match measure(item, quick) {
            Ok(more) => rows.extend(more),
            Err(error) => {
                eprintln!("{error}\n{USAGE}");
                return ExitCode::FAILURE;
            }
        }
    }
    if options.iter().any(|option| option == "--json") {
        println!("{}", serde_json::to_string(&rows).expect("rows are plain data"));
    } else {
        rows.iter().for_each(print);
    }
    ExitCode::SUCCESS
}

fn measure(item: &str, quick: bool) -> Result<Vec<Row>, String> {
    let runs = if quick { 10 } else { 100 };
    let sessions = if quick { 20_000 } else { 1_000_000 };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(match item {
        "trees" => datacast::speed(runs),
        "tree-quality" => datacast::quality(runs),
        "relays" => [shufflecast::relaying(), shufflecast::failures()].concat(),
        "economics" => shufflecast::economics(),
        "circuits" => blast::scheduling(runs / 5).map_err(|error| error.to_string())?,
        "labels" => orca::switch_state(sessions, threads),
        "readings" => orca::readings(sessions, threads),
        "dynamics" => [orca::dynamics(sessions / 10, sessions), orca::failures(sessions / 10)].concat(),
        "elmo" => orca::elmo(sessions / 10),
        _ => return Err(format!("'{item}' is nothing to measure")),
    })
}

fn print(row: &Row) {
    let paper = row.paper.map_or_else(|| "-".into(), |paper| format!("{paper:.4}"));
    println!(
        "{:<22} {:<64} {:>12} {:>14.4} {:<8} {}",
        row.item, row.name, paper, row.ours, row.unit, row.note
    );
}
