//! The `punctual` binary: everything is in the library.

fn main() -> std::process::ExitCode {
    punctual::cli::main()
}
