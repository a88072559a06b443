//! The quipu binary: everything is in the library, so that tests and benchmarks reach it too.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    quipu_server::cli::main()
}
