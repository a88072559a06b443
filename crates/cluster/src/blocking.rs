//! Work that blocks: on a thread of its own, so that nobody waits for it who does not have to.

use std::io;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does it and waits for what comes of it. Where everything runs on one thread, as in a simulation, it runs there: then
/// nothing depends on how threads are scheduled.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => Ok(work()),
        _ => tokio::task::spawn_blocking(work).await.map_err(io::Error::other),
    }
}

/// Does work that borrows what it needs, and blocks this thread with it: what else would run here goes on elsewhere.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
