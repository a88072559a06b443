//! A PostgreSQL of a test's own. It refuses to run as root, so then it runs as the user `postgres`.

use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::wait_until;

pub struct Postgres {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Postgres {
    pub fn start() -> Postgres {
        let folder = tempfile::tempdir().unwrap();
        if let Some((user, group)) = other_user() {
            chown(folder.path(), Some(user), Some(group)).unwrap();
        }
        let data = folder.path().join("data");
        let output = program("initdb")
            .args(["-A", "trust", "-U", "quipu", "-E", "UTF8", "--no-sync", "-D"])
            .arg(&data)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let postgres = Postgres { child: serve(&folder, port), port, folder };
        postgres.wait();
        postgres
    }

    /// Ends it at once, as a crash would, and starts it again.
    pub fn restart(&mut self) {
        self.stop();
        self.begin();
    }

    /// Ends it at once, as a crash would.
    pub fn stop(&mut self) {
        let quit = Command::new("kill").args(["-QUIT", &self.child.id().to_string()]).status().unwrap();
        assert!(quit.success());
        self.child.wait().unwrap();
    }

    /// Starts it again.
    pub fn begin(&mut self) {
        self.child = serve(&self.folder, self.port);
        self.wait();
    }

    /// Sends a signal by its name, as STOP.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    fn wait(&self) {
        wait_until("PostgreSQL answers", || {
            let ready =
                program("pg_isready").args(["-h", "127.0.0.1", "-p", &self.port.to_string()]).output();
            ready.unwrap().status.success()
        });
    }

    pub fn url(&self) -> String {
        format!("postgres://quipu@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // With its children: SIGKILL would leave them.
        let _ = Command::new("kill").args(["-QUIT", &self.child.id().to_string()]).status();
        // One that is stopped hears nothing else.
        let _ = Command::new("kill").args(["-CONT", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

fn serve(folder: &tempfile::TempDir, port: u16) -> Child {
    program("postgres")
        .arg("-D")
        .arg(folder.path().join("data"))
        .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"])
        .arg("-c")
        .arg(format!("unix_socket_directories={}", folder.path().display()))
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("PostgreSQL is installed")
}

/// Debian keeps its programs beside the path.
fn program(name: &str) -> Command {
    let debian = PathBuf::from("/usr/lib/postgresql/15/bin").join(name);
    let mut command = Command::new(if debian.exists() { debian } else { name.into() });
    if let Some((user, group)) = other_user() {
        command.uid(user).gid(group);
    }
    command
}

/// The user `postgres`, if we are root.
fn other_user() -> Option<(u32, u32)> {
    let id = Command::new("id").arg("-u").output().unwrap();
    if String::from_utf8_lossy(&id.stdout).trim() != "0" {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let user = users.lines().find(|line| line.starts_with("postgres:")).expect("a user postgres");
    let mut fields = user.split(':').skip(2);
    let mut number = || fields.next().unwrap().parse().unwrap();
    Some((number(), number()))
}
