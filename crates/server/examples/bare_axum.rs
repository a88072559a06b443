//! The least that a server on axum does: reads a request and its body, and answers with so many bytes of JSON.
//!
//! `cargo xtask bench http` measures it beside quipu, built with the same libraries, profile, allocator and number of
//! threads, so that what quipu adds can be seen. It says on stderr where it serves, as quipu does.

use std::net::Ipv4Addr;

use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::serve::ListenerExt;
use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// As many threads as quipu gives to HTTP, which is one for each core up to this.
const THREADS_MAX: usize = 4;

/// Head of every response, but for the digits of its length.
const HEAD_BYTES: usize = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: \r\n\
    date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n"
    .len();

/// Answer every request with the same number of bytes
#[derive(Parser)]
struct Arguments {
    /// Bytes of a response, head and body
    #[arg(long)]
    reply_bytes: usize,
}

fn main() -> std::io::Result<()> {
    let body = reply_body(Arguments::parse().reply_bytes);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.min(THREADS_MAX))
        .enable_all()
        .build()?;
    runtime.block_on(serve(body))
}

/// JSON that makes the response as long as asked for.
fn reply_body(reply_bytes: usize) -> Bytes {
    let body_bytes = reply_bytes.saturating_sub(HEAD_BYTES + reply_bytes.to_string().len()).max(2);
    format!("\"{}\"", "x".repeat(body_bytes - 2)).into()
}

async fn serve(body: Bytes) -> std::io::Result<()> {
    let answer = move |_request: Bytes| {
        let body = body.clone();
        async move { ([(CONTENT_TYPE, "application/json")], body).into_response() }
    };
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    eprintln!("bare axum serves: http {}", listener.local_addr()?);
    let listener = listener.tap_io(|stream| {
        // As quipu does; a server that cannot is slower, not wrong.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, Router::new().fallback(answer)).await
}
