//! Development tasks: `cargo xtask ci` is what has to pass before a change lands.

mod arrows;
mod changed;
mod ci;
mod circles;
mod code;
mod dist;
mod doc_comments;
mod fuzz;
mod limit;
mod links;
mod machine;
mod names;
mod packaging;
mod prose;
mod purity;
mod python;
mod release;
#[cfg(test)]
mod rights;
mod site;
mod spark;
mod stress;
mod suite;
mod tidy;
mod tools;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
Development tasks of Polycast

Usage: cargo xtask TASK

Tasks:
  ci [STEP]...  Run all checks, or only the steps named: fmt, test, clippy, doc, small, cluster, examples, python, packaging,
                spark; and,
                where named only, fuzz, otel, oldest, no-std, deny, site
  test [CRATE]..
                Build and run the tests of what was changed since main, and of the crates above it, or of the crates named
  stress [ARG]. Run all tests ten times, five of them beside busy cores and a busy disk, and name those that failed once:
                --runs N, --loaded N, CRATE..
  prepare STEP..
                Fetch and build what the steps python, packaging, spark and fuzz need
  oldest        Check everything with the oldest Rust that Cargo.toml names
  no-std        Build the pure crates for a target without the standard library
  mutants [CRATE]
                Look for changes of one crate that no test finds; each week another one where none is named
  swarm [ARG].. Run simulated transfers with faults drawn from seeds: --seeds A..B or --minutes N;
                with --attacker sealed transfers and an attacker
  leaders [N]   Kill the leader of managers with a real etcd, or stop it, N times in mid-transfer: 100 unless told otherwise
  eviction [S] [MIB]
                Four agents ask for S seconds (300) for five times what their stores of MIB MiB (1024) have room for: nothing that is
                pinned or open goes, no store has more than it may
  fuzz [ARG]..  Run fuzzers: --seconds N for each, TARGET.. for some; fuzz --help says more
  dist [ARG]..  Build what is given away: a stripped program with pages, completions and units, as archive, .deb and .rpm;
                --static makes one for every Linux
  release [ARG]
                Build the same from a tag, with checksums, a bill of materials and a statement of provenance
  site          Make a site of the documents with mdBook, below target/site, and check its links
  python [ARG]  Build the Python package, and run its tests in an environment of their own; --torch also those that need torch (5 GB)
  packaging     Test the alert rules, the dashboard, the Helm chart and the Ansible role with the real programs
  spark [V]..   Build the jar for Apache Spark, and run jobs with it: of Spark 4, or those of 4 and 3.5 that are named; --short leaves
                out those that take long
  arrows        Show which crate uses which, and check that arrows only point down, and that no crate has more modules
                that use each other in a circle than it had
  tidy          Check the rules of style that no other tool knows, for code and documents;
                links between documents, and that docs/README.md names every page";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (task, rest) = match arguments.split_first() {
        Some((task, rest)) => (task.as_str(), rest),
        None => ("", [].as_slice()),
    };
    match task {
        "ci" => ci::run(rest),
        ci::PREPARE => tools::prepare(rest),
        "test" => changed::run(rest),
        "stress" => stress::run(rest),
        stress::PAUSES => stress::pauses(),
        "oldest" => tools::oldest(),
        "no-std" => tools::no_std(),
        "mutants" => tools::mutants(rest),
        "fuzz" => fuzz::run(rest),
        "dist" => dist::run(rest),
        "release" => release::run(rest),
        "site" => site::run(rest),
        "python" => python::run(rest),
        "packaging" => packaging::run(),
        "spark" => spark::run(rest),
        "swarm" => tools::swarm(rest),
        "leaders" => tools::leaders(rest),
        "eviction" => tools::eviction(rest),
        "arrows" => {
            let workspace = workspace::load();
            println!("{}", arrows::picture(&workspace.members));
            let circles = circles::check(&workspace.members, &workspace.sources);
            report(&[arrows::check(&workspace.members), purity::check(&workspace), circles].concat())
        }
        "tidy" => {
            let workspace = workspace::load();
            let sources = &workspace.sources;
            let documents = &workspace.documents;
            let style = [tidy::check(sources), tidy::check_list(sources), doc_comments::check(sources)];
            let prose = [prose::check(documents), prose::check_sources(sources), prose::check_list(sources)];
            let links = [links::check(documents, &links::is_there), links::check_index(documents)];
            let names = names::check(documents, sources, &names::packages());
            report(&[style.concat(), prose.concat(), links.concat(), names].concat())
        }
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::FAILURE
        }
    }
}

/// Prints one line a problem; fails if there is one.
fn report(problems: &[String]) -> ExitCode {
    for problem in problems {
        eprintln!("{problem}");
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
