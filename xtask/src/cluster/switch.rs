//! A switch in user space: every node lives in a network namespace of its own with one tun device, whose other end is here.
//!
//! So packets really are lost, late or cut off, one direction at a time, and TCP of the kernel has to cope, without a
//! kernel that can do such things itself. We are on the switch too, so that clients reach all nodes whatever happens between
//! them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::ways::Ways;

/// Larger than any packet.
const PACKET_BYTES_MAX: usize = 65_536;

/// The address of a node; we have the one of the node that would come next.
pub fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, node as u8 + 1)
}

/// The file that names the namespace of a node.
pub fn namespace(folder: &Path, node: usize) -> PathBuf {
    folder.join(format!("network-{}", node + 1))
}

/// Makes the namespaces and starts to switch. Must run in a network and a mount namespace made for it: with these
/// everything goes, so nothing here is ever undone.
pub fn start(folder: &Path, nodes: usize, ways: &Arc<Ways>) -> Result<()> {
    let mut ports = Vec::new();
    for node in 0..=nodes {
        let name = format!("tun{node}");
        ports.push(open(&name)?);
        let inside: Vec<String> = match node == nodes {
            true => Vec::new(),
            false => {
                let file = namespace(folder, node);
                File::create(&file)?;
                call(Command::new("unshare").arg(format!("--net={}", file.display())).arg("true"))?;
                call(Command::new("ip").args(["link", "set", &name, "netns"]).arg(&file))?;
                vec!["nsenter".into(), format!("--net={}", file.display())]
            }
        };
        let ip = |arguments: &[&str]| {
            let words = [&inside[..], &["ip".to_string()]].concat();
            call(Command::new(&words[0]).args(&words[1..]).args(arguments))
        };
        ip(&["link", "set", "lo", "up"])?;
        ip(&["address", "add", &format!("{}/24", address(node)), "dev", &name])?;
        ip(&["link", "set", &name, "up"])?;
    }
    let switch =
        Arc::new(Switch { ports, ways: Arc::clone(ways), late: Mutex::default(), news: Condvar::new() });
    for port in 0..=nodes {
        let switch = Arc::clone(&switch);
        thread::spawn(move || switch.forward(port));
    }
    thread::spawn(move || switch.deliver_late());
    Ok(())
}

struct Switch {
    /// One of each node, and ours.
    ports: Vec<File>,
    ways: Arc<Ways>,
    late: Mutex<BinaryHeap<Reverse<Late>>>,
    news: Condvar,
}

/// A packet on its way: when it is due, for whom, its bytes.
type Late = (Instant, usize, Vec<u8>);

impl Switch {
    fn forward(&self, from: usize) {
        let mut packet = vec![0; PACKET_BYTES_MAX];
        let mut random = SmallRng::from_os_rng();
        while let Ok(length) = (&self.ports[from]).read(&mut packet) {
            let Some(to) = destination(&packet[..length], self.ports.len()) else { continue };
            let way = self.ways.get(from, to);
            if way.is_cut || random.random_range(0..100) < way.loss_percent {
                continue;
            }
            if way.delay.is_zero() {
                self.deliver(to, &packet[..length]);
            } else {
                let late = (Instant::now() + way.delay, to, packet[..length].to_vec());
                self.late.lock().unwrap_or_else(PoisonError::into_inner).push(Reverse(late));
                self.news.notify_one();
            }
        }
    }

    fn deliver(&self, to: usize, packet: &[u8]) {
        // Nobody listens where a device is down; a packet is lost then, as packets are.
        let _ = (&self.ports[to]).write(packet);
    }

    fn deliver_late(&self) {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let wait = late.peek().map(|Reverse((due, ..))| due.saturating_duration_since(Instant::now()));
            late = match wait {
                Some(wait) if wait.is_zero() => {
                    if let Some(Reverse((_, to, packet))) = late.pop() {
                        self.deliver(to, &packet);
                    }
                    late
                }
                Some(wait) => self.news.wait_timeout(late, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => self.news.wait(late).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// The port of a packet of IPv4; what else systems say when a device comes up goes nowhere.
fn destination(packet: &[u8], ports: usize) -> Option<usize> {
    let version = packet.first()? >> 4;
    let address: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    (version == 4).then(|| (0..ports).find(|port| super::switch::address(*port).octets() == address))?
}

/// What the kernel is told about a tun device: its name and flags.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
/// Packets of IP, and nothing before them.
const IFF_TUN_NO_PI: i16 = 0x0001 | 0x1000;

#[allow(unsafe_code)] // there is no other way to get at a tun device
fn open(name: &str) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").context("/dev/net/tun")?;
    let mut request = Request { name: [0; 16], flags: IFF_TUN_NO_PI, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, 40 bytes that begin with the name and the flags, and `Request`
    // is as large.
    let made = unsafe {
        rustix::ioctl::ioctl(&file, rustix::ioctl::Updater::<TUNSETIFF, Request>::new(&mut request))
    };
    made.with_context(|| format!("cannot make the device {name}"))?;
    Ok(file)
}

fn call(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_go_where_they_say() {
        let mut packet = [0; 20];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&address(2).octets());
        assert_eq!(destination(&packet, 4), Some(2));
        assert_eq!(destination(&packet, 2), None);
        packet[0] = 0x60;
        assert_eq!(destination(&packet, 4), None);
        assert_eq!(destination(&packet[..9], 4), None);
    }

    #[test]
    fn what_the_kernel_is_told_has_its_size() {
        assert_eq!(size_of::<Request>(), 40);
    }
}
