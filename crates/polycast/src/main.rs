//! `polycast`: deliver one object to many machines.

fn main() -> std::process::ExitCode {
    polycast::main(None)
}
