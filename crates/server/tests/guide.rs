//! Every example of docs/guide.md, typed into a shell as it stands, against a real server; what it prints is what the page says.
//!
//! In the page, `...` stands for whatever a run makes of it: times, names of holds.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::process::Command;

use support::Server;

/// A command and the lines it prints.
struct Example {
    line: usize,
    command: String,
    printed: Vec<String>,
}

fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut is_inside = false;
    for (number, line) in page.lines().enumerate() {
        match line {
            "```console" => is_inside = true,
            "```" => is_inside = false,
            _ if !is_inside => {}
            _ => match line.strip_prefix("$ ") {
                Some(command) => {
                    examples.push(Example {
                        line: number + 1,
                        command: command.to_owned(),
                        printed: Vec::new(),
                    });
                }
                None => {
                    examples.last_mut().expect("a block begins with a command").printed.push(line.to_owned())
                }
            },
        }
    }
    examples
}

/// Whether a line is the expected one, in which `...` stands for anything.
fn fits(expected: &str, line: &str) -> bool {
    let mut parts = expected.split("...");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[test]
fn the_guide_is_true() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide.md")).unwrap();
    let examples = examples(&page);
    assert!(examples.len() > 30, "the page has {} examples", examples.len());
    for Example { line, command, printed } in examples {
        let typed = command
            .replace("redis-cli ", &format!("redis-cli -p {} ", server.resp.port()))
            .replace("localhost:7070", &server.http.to_string());
        let run = Command::new("bash")
            .args(["-c", &typed])
            .env("QUIPU_SERVER", format!("http://{}", server.http))
            .env("QUIPU_TARGET", format!("resp://{}", server.resp))
            .env("PATH", with_quipu())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
        let said: Vec<&str> = said.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let is_same = said.len() == printed.len()
            && printed.iter().zip(&said).all(|(expected, line)| fits(expected, line));
        assert!(
            is_same,
            "docs/guide.md:{line}: {command}\nprinted\n{}\nand not\n{}",
            said.join("\n"),
            printed.join("\n")
        );
    }
}

/// The path with the program under test in front.
fn with_quipu() -> String {
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_quipu")).parent().unwrap().display().to_string();
    format!("{folder}:{}", std::env::var("PATH").unwrap_or_default())
}
