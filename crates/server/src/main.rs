//! The quipu binary: everything is in the library, so that tests and benchmarks reach it too.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of the allocator, which has no name for it in its Rust binding.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// Its default: how the place above is recognized.
const PURGE_DELAY_DEFAULT_MS: std::ffi::c_long = 1_000;
/// How long freed memory is kept before the system may get it back. Without a delay a large HTTP request would fetch its
/// buffers from the system each time, which was a third of what a batch takes.
const PURGE_DELAY_MS: std::ffi::c_long = 10;

fn main() -> ExitCode {
    return_memory_soon();
    quipu_server::cli::main(return_memory_now)
}

#[allow(unsafe_code)]
fn return_memory_soon() {
    // SAFETY: both calls read or write one number of the allocator's options; setting is not thread-safe, and this
    // is the first thing the process does, before it has another thread.
    unsafe {
        if libmimalloc_sys::mi_option_get(PURGE_DELAY) == PURGE_DELAY_DEFAULT_MS {
            libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS);
        }
    }
}

/// Gives the system what has been free for longer than the delay. The allocator itself does so only when it is asked for
/// memory: checkpoints free some ten MiB at a time, 6 bytes a counter with five million of them, and counting needs none.
#[allow(unsafe_code)]
fn return_memory_now() {
    // SAFETY: any thread may call it at any time; it looks at free memory alone.
    unsafe { libmimalloc_sys::mi_collect(false) }
}
