//! HTTP connections: accepted up to a limit, timed out when they only hold a place, drained at the end.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
/// How long a connection without a request in flight may take to send what is already written.
const IDLE_GRACE: Duration = Duration::from_millis(100);
/// How long to wait when the system has no descriptor left for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection above the limit may take to hear so.
const TURN_AWAY_TIMEOUT: Duration = Duration::from_secs(1);
/// How many at a time hear so; in a flood of connections the rest is closed without a word.
const TURNED_AWAY_MAX: usize = 128;
/// What a connection above the limit is told.
const TOO_MANY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n\
    Connection: close\r\nContent-Length: 158\r\n\r\n\
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
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                    tokio::spawn(serve(stream, place, router.clone(), stopped.clone()));
                } else if let Ok(place) = Arc::clone(&turned_away).try_acquire_owned() {
                    tokio::spawn(turn_away(stream, place));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    // Every connection gives its place back when it ends, so having all places means that all have ended.
    let all = u32::try_from(connections_max).unwrap_or(u32::MAX);
    if tokio::time::timeout(DRAIN_TIMEOUT, places.acquire_many(all)).await.is_err() {
        tracing::warn!("some HTTP requests did not end in time and are cut");
    }
}

async fn serve(
    stream: TcpStream,
    place: OwnedSemaphorePermit,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) {
    // Replies are small and one write each; waiting for more to send would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let busy = Arc::new(AtomicBool::new(false));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), marking(router, Arc::clone(&busy)));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                () = until_idle(&busy) => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP connection ended early");
    }
    drop(place);
}

/// The router, saying in `busy` whether it is at work.
fn marking(
    router: Router,
    busy: Arc<AtomicBool>,
) -> impl Service<Request<Incoming>, Response = axum::response::Response, Error = Infallible, Future: Send> {
    let router = TowerToHyperService::new(router);
    service_fn(move |request| {
        busy.store(true, Ordering::Relaxed);
        let (replying, busy) = (router.call(request), Arc::clone(&busy));
        async move {
            let reply = replying.await;
            busy.store(false, Ordering::Relaxed);
            reply
        }
    })
}

/// A connection that drains ends by itself after the reply in flight. One that has sent nothing, or half a request,
/// would stay: it is cut once it has been seen idle.
async fn until_idle(busy: &AtomicBool) {
    loop {
        tokio::time::sleep(IDLE_GRACE).await;
        if !busy.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Tells a connection above the limit to come later. One that does not take the answer in time goes without.
async fn turn_away(mut stream: TcpStream, place: OwnedSemaphorePermit) {
    let tell = async {
        stream.write_all(TOO_MANY.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing while a request lies unread would reset the connection, and the answer with it.
        while stream.read(&mut [0; 1024]).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(TURN_AWAY_TIMEOUT, tell).await;
    drop(place);
}

#[cfg(test)]
mod tests {
    use super::TOO_MANY;

    #[test]
    fn the_prepared_answer_is_well_formed() {
        let (head, body) = TOO_MANY.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("Content-Length: {}", body.len())),
            "the body has {} bytes",
            body.len()
        );
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
