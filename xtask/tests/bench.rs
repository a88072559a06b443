//! A section of `cargo xtask bench` from its arguments to its files, on whatever build is there: the figures mean nothing.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// quipu and the bare handler of the build that these tests belong to; built if only xtask is tested.
fn programs() -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_BIN_EXE_xtask")).parent().unwrap();
    let (quipu, bare) = (folder.join("quipu"), folder.join("examples/bare_axum"));
    if !quipu.is_file() || !bare.is_file() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let arguments = ["build", "--package", "quipu-server", "--bin", "quipu", "--example", "bare_axum"];
        assert!(Command::new(cargo).args(arguments).status().unwrap().success());
    }
    (quipu, bare)
}

#[test]
fn a_section_prints_its_table_and_leaves_its_files() {
    let (quipu, bare) = programs();
    let results = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["bench", "http", "--quick", "--only", "GET"]);
    command.arg("--binary").arg(quipu).arg("--bare").arg(bare).arg("--output").arg(results.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for server in ["bare axum", "quipu"] {
        assert!(
            text.lines().any(|line| line.trim_start().starts_with("GET") && line.contains(server)),
            "{text}"
        );
    }

    let json: Value =
        serde_json::from_slice(&std::fs::read(results.path().join("http.json")).unwrap()).unwrap();
    assert_eq!(json["incompleteBy"], "--quick");
    assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
    let row = &json["findings"]["rows"][0];
    assert_eq!(row["runs"]["quipu"][0]["errors"], 0);
    // Both answer with the same number of bytes, but for a digit.
    let bytes = ["quipu", "bare axum"].map(|name| row["summary"][name]["replyBytes"].as_f64().unwrap());
    assert!((bytes[0] - bytes[1]).abs() < 3.0, "{bytes:?}");
    let svg = std::fs::read_to_string(results.path().join("http.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains(">GET</text>"), "{svg}");
}

#[test]
fn mistakes_are_told_before_anything_is_built() {
    for (arguments, hint) in [
        (&["bench", "competition"][..], "unrecognized subcommand"),
        (&["bench", "compare", "--peer", "valkey=/no/such/file"], "/no/such/file is no file"),
        (&["bench", "compare", "--rounds", "0"], "0 is not in 1..=1000"),
        (&["bench", "compare", "--binary", "/no/such/quipu"], "/no/such/quipu"),
        (&["torture", "overload", "--seconds", "0"], "0 is not in 1..=86400"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_xtask")).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(hint), "{arguments:?}: {text}");
    }
}
