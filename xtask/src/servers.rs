//! Starts servers on free ports for measurements and torture, and stops them however that ends.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::interrupt::{Pending, Undo};

/// How long a server may take until it answers; also one that reads a large file first.
const START_MAX: Duration = Duration::from_secs(300);

/// Between looks at a server that starts.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// How long a server may take for one answer outside of measurements.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A running server, killed when dropped.
pub struct Server {
    child: Child,
    /// Where it speaks RESP.
    pub resp: SocketAddr,
    /// Where it speaks HTTP, if it does.
    pub http: Option<SocketAddr>,
    _pending: Pending,
}

impl Server {
    /// redis-server, or one that takes its arguments, with an append-only file and no snapshots, as people run it who
    /// care about their counts.
    pub fn redis_like(program: &Path, folder: &Path, appendfsync: &str) -> Result<Server> {
        std::fs::create_dir_all(folder)?;
        let resp = free_address()?;
        let child = Command::new(program)
            .args(["--bind", "127.0.0.1", "--port", &resp.port().to_string(), "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", appendfsync])
            .arg("--dir")
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(File::create(folder.join("stdout.log"))?)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut server = Server::new(child, resp);
        let what = format!("{} answers", program.display());
        // While it reads its file it answers, but not to a ping.
        server.wait_until(&what, |server| Ok(answers_ping(server.resp).then_some(())))?;
        Ok(server)
    }

    /// quipu with its data in `folder`; it says on stderr where it listens. `arguments` are added to `serve`.
    pub fn quipu(binary: &Path, folder: &Path, arguments: &[&str]) -> Result<Server> {
        std::fs::create_dir_all(folder)?;
        let mut command = Command::new(binary);
        command
            .args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"])
            .arg("--data")
            .arg(folder.join("data"))
            .args(arguments);
        // Beside the data, not in it: the folder may be a file system that is about to vanish.
        Server::announced(command, &folder.with_extension("quipu.log"))
    }

    /// A program that says on stderr where it serves, as quipu does.
    pub fn announced(mut command: Command, log: &Path) -> Result<Server> {
        // Settings of whoever measures are not what is measured.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("QUIPU_"))
        {
            command.env_remove(name);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(log)?)
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Server::new(child, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let (http, resp) = server
            .wait_until("it serves", |_| Ok(announced_addresses(&std::fs::read_to_string(log)?)))
            .with_context(|| format!("it said: {}", std::fs::read_to_string(log).unwrap_or_default()))?;
        server.http = http;
        server.resp = resp.unwrap_or(server.resp);
        Ok(server)
    }

    fn new(child: Child, resp: SocketAddr) -> Server {
        let pending = Pending::new(Undo::Kill(child.id()));
        Server { child, resp, http: None, _pending: pending }
    }

    /// Its process.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process has not ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// A number from `INFO`, if the server tells it.
    pub fn info_number(&self, field: &str) -> Result<Option<u64>> {
        let info = info(self.resp).context("INFO")?;
        Ok(info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().parse().ok()))
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

/// A port that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Where HTTP and RESP are, from `quipu 0.1.0 serves: http 127.0.0.1:7070, resp 127.0.0.1:7071, data ...`.
fn announced_addresses(log: &str) -> Option<(Option<SocketAddr>, Option<SocketAddr>)> {
    // Only whole lines: the last one may still be on its way.
    let ready = log.split_inclusive('\n').find(|line| line.contains(" serves: ") && line.ends_with('\n'))?;
    let (_, facts) = ready.split_once(" serves: ")?;
    let address =
        |front: &str| facts.split(", ").find_map(|fact| fact.trim().strip_prefix(front)?.parse().ok());
    Some((address("http "), address("resp ")))
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

fn info(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.write_all(b"INFO\r\n")?;
    let mut reader = BufReader::new(stream);
    let mut header = String::new();
    reader.read_line(&mut header)?;
    let length = header.trim().strip_prefix('$').and_then(|length| length.parse::<usize>().ok());
    let length = length.with_context(|| format!("an answer that begins with {header:?}"))?;
    ensure!(length < 1 << 20, "an answer of {length} bytes");
    let mut text = vec![0; length];
    reader.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What a folder takes on disk, in bytes, as `du` counts it.
pub fn disk_bytes(folder: &Path) -> Result<u64> {
    let output = Command::new("du").args(["-s", "--block-size=1"]).arg(folder).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let bytes = text.split_whitespace().next().and_then(|bytes| bytes.parse().ok());
    bytes.with_context(|| format!("du said {text:?}"))
}

/// A program in PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_names_the_addresses() {
        let ready = "a warning\nquipu 0.1.0 serves: http 127.0.0.1:7070, resp 127.0.0.1:7071, data d, durability sync\n";
        let (http, resp) = ("127.0.0.1:7070".parse().ok(), "127.0.0.1:7071".parse().ok());
        assert_eq!(announced_addresses(ready), Some((http, resp)));
        assert_eq!(announced_addresses("bare axum serves: http 127.0.0.1:7070\n"), Some((http, None)));
        for incomplete in ["", "a warning\n", "quipu 0.1.0 serves: http 127.0.0.1:7070, resp 127.0.0.1:70"] {
            assert_eq!(announced_addresses(incomplete), None, "{incomplete:?}");
        }
    }

    #[test]
    fn folders_have_a_size() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), vec![7; 100_000]).unwrap();
        assert!(disk_bytes(folder.path()).unwrap() >= 100_000);
    }

    #[test]
    fn programs_are_found_in_the_path() {
        assert!(find_program("sh").is_some());
        assert_eq!(find_program("no-such-program-anywhere"), None);
    }
}
