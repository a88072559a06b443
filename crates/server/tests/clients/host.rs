//! A server that is killed and started again on the same port and folder when the client asks for it.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use super::support::Server;

/// See above.
pub struct Host {
    server: Option<Server>,
    folder: tempfile::TempDir,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Host {
    /// A server with default settings.
    pub fn start() -> Host {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let server = Server::start(folder.path());
        Host { address: server.resp, server: Some(server), folder }
    }

    /// The port as text.
    pub fn port(&self) -> String {
        self.address.port().to_string()
    }

    /// SIGKILL, and a new start.
    pub fn restart(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill();
        }
        let arguments = ["--resp", &self.address.to_string()];
        self.server = Some(Server::start_with(self.folder.path(), &arguments));
    }

    /// Runs a client with the port and these arguments. It says `restart` when it wants to be cut off, hears `restarted`
    /// then, and says `fine` at its end.
    pub fn converse(mut self, mut client: Command, arguments: &[&str]) {
        let mut child = client
            .arg(self.port())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{client:?}: {error}; `cargo xtask test` installs it"));
        let mut stdin = child.stdin.take().expect("it is piped");
        let (mut said, mut restarts) = (Vec::new(), 0);
        for line in BufReader::new(child.stdout.take().expect("it is piped")).lines().map_while(Result::ok) {
            if line == "restart" {
                self.restart();
                restarts += 1;
                stdin.write_all(b"restarted\n").expect("the client listens");
            } else {
                said.push(line);
            }
        }
        let output = child.wait_with_output().expect("the client ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{client:?}: {}\n{}\n{errors}", output.status, said.join("\n"));
        assert_eq!(said, ["fine"], "{client:?}\n{errors}");
        assert!(restarts > 0, "{client:?} was never cut off");
    }
}

/// Runs a program that must succeed and answers what it says.
pub fn succeeds(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; `cargo xtask test` installs it"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}
