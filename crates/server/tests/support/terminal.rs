//! The binary on a terminal: what a person would see.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// How long a test waits for something to appear before it has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process whose stdin, stdout and stderr are one terminal of 24 lines and 80 columns.
pub struct Terminal {
    child: Child,
    pieces: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    /// Starts `command` on a terminal of its own that can show colours.
    pub fn spawn(mut command: Command) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("the system has terminals");
        grantpt(&master).expect("ours");
        unlockpt(&master).expect("ours");
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("a terminal has a size");
        let name = ptsname(&master, Vec::new()).expect("it has a name").into_string().expect("of letters");
        let open = || File::options().read(true).write(true).open(&name).expect("it can be opened");
        for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
            if !command.get_envs().any(|(name, _)| name == variable) {
                command.env_remove(variable);
            }
        }
        command.env("TERM", "xterm-256color").stdin(open()).stdout(open()).stderr(open());
        let child = command.spawn().expect("the binary starts");
        // Its own handles of the terminal go here, so that the end of the child is the end of what can be read.
        drop(command);
        Terminal { child, pieces: read_all(master), seen: String::new() }
    }

    /// Waits until what was shown since the start contains `text`.
    pub fn wait_for(&mut self, text: &str) {
        let give_up = Instant::now() + PATIENCE;
        while !self.seen.contains(text) {
            let left = give_up.saturating_duration_since(Instant::now());
            match self.pieces.recv_timeout(left) {
                Ok(piece) => self.seen.push_str(&String::from_utf8_lossy(&piece)),
                Err(_) => panic!("{text:?} did not appear in {:?}", self.seen),
            }
        }
    }

    /// Forgets what was shown, so that [`wait_for`](Terminal::wait_for) looks at what comes.
    pub fn forget(&mut self) {
        self.seen.clear();
    }

    /// As Ctrl-C does.
    pub fn interrupt(&self) {
        let id = Pid::from_raw(self.child.id() as i32).expect("a process id is not 0");
        kill_process(id, Signal::INT).expect("it was running");
    }

    /// Waits for the end; all that was shown, with plain line ends.
    pub fn finish(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().expect("it ends");
        while let Ok(piece) = self.pieces.recv() {
            self.seen.push_str(&String::from_utf8_lossy(&piece));
        }
        (status, self.seen.replace("\r\n", "\n"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended already; a test that failed must not leave it behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reading ends with an error when nobody has the other end open any more.
fn read_all(master: OwnedFd) -> Receiver<Vec<u8>> {
    let (sender, pieces) = channel();
    thread::spawn(move || {
        let mut master = File::from(master);
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = master.read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    pieces
}
