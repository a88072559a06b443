//! Starts servers on free ports for measurements and torture, and stops them however that ends.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::interrupt::{Pending, Undo};

/// How long a server may take until it answers; also with a large folder to recover.
const START_MAX: Duration = Duration::from_secs(60);

/// Between looks at a server that starts.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A running server, killed when dropped.
pub struct Server {
    child: Child,
    /// Where it speaks RESP.
    pub resp: SocketAddr,
    /// Where it speaks HTTP, if it does.
    pub http: SocketAddr,
    _pending: Pending,
}

impl Server {
    /// redis-server with an append-only file and no snapshots, as people run it who care about their counts.
    pub fn redis(folder: &Path, appendfsync: &str) -> Result<Server> {
        std::fs::create_dir_all(folder)?;
        let resp = free_address()?;
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &resp.port().to_string(), "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", appendfsync])
            .arg("--dir")
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(File::create(folder.join("stdout.log"))?)
            .spawn()
            .context("cannot start redis-server")?;
        let mut server = Server::new(child, resp);
        server.wait_until("redis-server answers", |server| Ok(answers_ping(server.resp).then_some(())))?;
        Ok(server)
    }

    /// quipu with its data in `folder`; it says on stderr where it listens.
    pub fn quipu(binary: &Path, folder: &Path, durability: &str) -> Result<Server> {
        std::fs::create_dir_all(folder)?;
        // Beside the data, not in it: the folder may be a file system that is about to vanish.
        let log = log_path(folder);
        let child = Command::new(binary)
            .args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--durability", durability])
            .arg("--data")
            .arg(folder.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let mut server = Server::new(child, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        (server.http, server.resp) = server
            .wait_until("quipu serves", |_| Ok(addresses(&std::fs::read_to_string(&log)?)))
            .with_context(|| format!("quipu said: {}", std::fs::read_to_string(&log).unwrap_or_default()))?;
        Ok(server)
    }

    fn new(child: Child, resp: SocketAddr) -> Server {
        let pending = Pending::new(Undo::Kill(child.id()));
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Server { child, resp, http, _pending: pending }
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn wait_until<T>(&mut self, what: &str, mut look: impl FnMut(&Server) -> Result<Option<T>>) -> Result<T> {
        let deadline = Instant::now() + START_MAX;
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("waited until {what}, but the process ended: {status}");
            }
            if Instant::now() > deadline {
                bail!("waited {} s until {what}", START_MAX.as_secs());
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; there is nothing to learn from a failure here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where quipu's stderr goes when its data is in `folder`.
fn log_path(folder: &Path) -> PathBuf {
    folder.with_extension("quipu.log")
}

/// A port that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Of HTTP and RESP, from `quipu 0.1.0 serves: http 127.0.0.1:7070, resp 127.0.0.1:7071, data ...`.
fn addresses(log: &str) -> Option<(SocketAddr, SocketAddr)> {
    // Only whole lines: the last one may still be on its way.
    let ready = log.split_inclusive('\n').find(|line| line.contains(" serves: ") && line.ends_with('\n'))?;
    let facts = ready.split_once(" serves: ")?.1;
    let address =
        |front: &str| facts.split(", ").find_map(|fact| fact.trim().strip_prefix(front)?.trim().parse().ok());
    Some((address("http ")?, address("resp ")?))
}

fn answers_ping(address: SocketAddr) -> bool {
    let ping = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 7];
        stream.read_exact(&mut reply)?;
        Ok(&reply == b"+PONG\r\n")
    };
    ping().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_names_the_address() {
        let ready = "a warning\nquipu 0.1.0 serves: http 127.0.0.1:7070, resp 127.0.0.1:7071, data d, durability sync\n";
        let expected = ("127.0.0.1:7070".parse().unwrap(), "127.0.0.1:7071".parse().unwrap());
        assert_eq!(addresses(ready), Some(expected));
        for incomplete in ["", "a warning\n", "quipu 0.1.0 serves: http 127.0.0.1:7070, resp 127.0.0.1:70"] {
            assert_eq!(addresses(incomplete), None, "{incomplete:?}");
        }
    }
}
