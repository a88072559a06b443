//! HTTP connections: accepted up to a limit, timed out when they only hold a place, drained at the end.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

/// How long a connection may take to send the head of a request; also how long it may be idle between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest head of a request: a key of 512 bytes, all of them percent-encoded, and ample headers.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// How long requests in flight may take to end when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait when the system has no descriptor left for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What a connection above the limit is told.
const TOO_MANY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n\
    Connection: close\r\nContent-Length: 169\r\n\r\n\
    {\"type\":\"urn:quipu:problem:busy\",\"title\":\"Service Unavailable\",\"status\":503,\
    \"detail\":\"too many connections; retry later\",\"reason\":\"busy\",\"retryAfterMs\":1000}\n";

/// The running front.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Serves `router` on what `listener` accepts, at most `connections_max` at a time.
    pub fn start(
        runtime: &Runtime,
        listener: TcpListener,
        router: Router,
        connections_max: usize,
    ) -> std::io::Result<Server> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let _inside = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (stop, stopped) = watch::channel(false);
        let accepting = runtime.spawn(accept(listener, router, connections_max, stopped));
        Ok(Server { address, stop, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nothing more, lets what is in flight end, and returns.
    pub async fn drain(self) {
        // If the accepting task is gone there is nothing left to stop.
        let _ = self.stop.send(true);
        let _ = self.accepting.await;
    }
}

async fn accept(
    listener: tokio::net::TcpListener,
    router: Router,
    connections_max: usize,
    mut stopped: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(connections_max));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => break,
        };
        match accepted {
            Ok((stream, _)) => match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => serve(stream, place, &router, &graceful),
                Err(_) => turn_away(stream),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::warn!("some HTTP connections did not end in time and are cut");
    }
}

fn serve(stream: TcpStream, place: OwnedSemaphorePermit, router: &Router, graceful: &GracefulShutdown) {
    // Replies are small and one write each; waiting for more to send would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let service = TowerToHyperService::new(router.clone());
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an HTTP connection ended early");
        }
        drop(place);
    });
}

/// Tells a connection above the limit to come later. One that does not take the answer at once goes without.
fn turn_away(mut stream: TcpStream) {
    tokio::spawn(async move {
        let told = tokio::time::timeout(Duration::from_secs(1), stream.write_all(TOO_MANY.as_bytes()));
        let _ = told.await;
    });
}

#[cfg(test)]
mod tests {
    use super::TOO_MANY;

    #[test]
    fn the_prepared_answer_is_well_formed() {
        let (head, body) = TOO_MANY.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "the body has {} bytes", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
