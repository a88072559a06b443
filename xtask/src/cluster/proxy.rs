//! A proxy before each node, where there are no namespaces: nodes reach each other only through it.
//!
//! It cannot lose packets, since there is a TCP at both of its ends, but it does what the loss of packets does to
//! connections: what is cut off waits, what is lost comes late, and sometimes the connection breaks. Who has connected is told by
//! the process that owns the other end of the socket.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::ways::Ways;

/// Between looks at a way that is cut.
const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// What is lost is sent again by TCP after about this long.
const STALL: Duration = Duration::from_millis(250);
/// One loss of so many breaks the connection.
const LOSSES_PER_BREAK: u32 = 20;
/// Pieces under way in one direction of a connection.
const PIECES_MAX: usize = 256;

/// The processes of the nodes; 0 is none.
pub type Processes = Arc<Vec<AtomicU32>>;

/// Starts the proxy before a node that listens at `node`. Returns where the others reach it.
pub fn start(to: usize, node: SocketAddr, processes: &Processes, ways: &Arc<Ways>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (processes, ways) = (Arc::clone(processes), Arc::clone(ways));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (processes, ways) = (Arc::clone(&processes), Arc::clone(&ways));
            thread::spawn(move || {
                // Whoever is nobody any more is not missed.
                if let Some(from) = owner(&stream, &processes) {
                    let _ = connect(from, to, stream, node, &ways);
                }
            });
        }
    });
    Ok(address)
}

fn connect(
    from: usize,
    to: usize,
    asking: TcpStream,
    node: SocketAddr,
    ways: &Arc<Ways>,
) -> std::io::Result<()> {
    // A handshake needs both directions.
    while ways.get(from, to).is_cut || ways.get(to, from).is_cut {
        thread::sleep(LOOK_PAUSE);
    }
    let asked = TcpStream::connect(node)?;
    for stream in [&asking, &asked] {
        stream.set_nodelay(true)?;
    }
    pump((from, to), asking.try_clone()?, asked.try_clone()?, ways);
    pump((to, from), asked, asking, ways);
    Ok(())
}

/// Carries one direction of a connection until it breaks.
fn pump(way: (usize, usize), from: TcpStream, to: TcpStream, ways: &Arc<Ways>) {
    let (send, receive) = sync_channel(PIECES_MAX);
    let (reading, writing) = (Arc::clone(ways), Arc::clone(ways));
    thread::spawn(move || read(way, from, &send, &reading));
    thread::spawn(move || {
        write(way, &to, &receive, &writing);
        let _ = to.shutdown(Shutdown::Both);
    });
}

type Piece = (Instant, Vec<u8>);

fn read((from, to): (usize, usize), mut stream: TcpStream, send: &SyncSender<Piece>, ways: &Ways) {
    let mut random = SmallRng::from_os_rng();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => length,
        };
        let way = ways.get(from, to);
        let mut due = Instant::now() + way.delay;
        if random.random_range(0..100) < way.loss_percent {
            due += STALL;
            if random.random_range(0..LOSSES_PER_BREAK) == 0 {
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
        }
        if send.send((due, buffer[..length].to_vec())).is_err() {
            return;
        }
    }
}

fn write((from, to): (usize, usize), mut stream: &TcpStream, receive: &Receiver<Piece>, ways: &Ways) {
    while let Ok((due, bytes)) = receive.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        while ways.get(from, to).is_cut {
            thread::sleep(LOOK_PAUSE);
        }
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

/// The node whose process has the other end of a connection.
fn owner(stream: &TcpStream, processes: &Processes) -> Option<usize> {
    let (theirs, ours) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let socket = format!("socket:[{}]", inode(&table, theirs.port(), ours.port())?);
    processes.iter().position(|process| {
        let process = process.load(Ordering::Relaxed);
        let Ok(open) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        let mut targets = open.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
        process != 0 && targets.any(|target| target.as_os_str() == socket.as_str())
    })
}

/// The inode of the socket at one end of a connection over loopback, from the table of all.
fn inode(table: &str, local: u16, remote: u16) -> Option<&str> {
    let port = |word: &str| u16::from_str_radix(word.split_once(':')?.1, 16).ok();
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let ends = (port(words.next()?)?, port(words.next()?)?);
        (ends == (local, remote)).then(|| words.nth(6)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_connection_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        let processes: Processes = Arc::new(vec![AtomicU32::new(0), AtomicU32::new(std::process::id())]);
        assert_eq!(owner(&ours, &processes), Some(1));
        let strangers: Processes = Arc::new(vec![AtomicU32::new(0), AtomicU32::new(1)]);
        assert_eq!(owner(&ours, &strangers), None);
    }

    #[test]
    fn bytes_go_both_ways_and_a_cut_holds_one_of_them() {
        let node = TcpListener::bind("127.0.0.1:0").unwrap();
        let ways = Arc::new(Ways::new(2));
        let processes: Processes = Arc::new(vec![AtomicU32::new(std::process::id()), AtomicU32::new(0)]);
        let address = start(1, node.local_addr().unwrap(), &processes, &ways).unwrap();
        let mut asking = TcpStream::connect(address).unwrap();
        asking.write_all(b"there").unwrap();
        let (mut asked, _) = node.accept().unwrap();
        let mut read = [0; 5];
        asked.read_exact(&mut read).unwrap();
        let cut = super::super::ways::Way { is_cut: true, ..Default::default() };
        ways.begin(1, vec![(0, 1)], cut);
        asking.write_all(b"later").unwrap();
        asked.write_all(b"back!").unwrap();
        asking.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"back!");
        asked.set_nonblocking(true).unwrap();
        assert!(asked.read(&mut read).is_err(), "the other way is cut");
        asked.set_nonblocking(false).unwrap();
        ways.end(1);
        asked.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"later");
    }
}
