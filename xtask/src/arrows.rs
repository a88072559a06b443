//! The arrows between crates point one way. A review cannot see a new arrow among many lines; this can.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Which of our crates each crate may use. A new crate gets its line here first.
const ALLOWED: &[(&str, &[&str])] = &[
    ("quipu-counting", &[]),
    ("quipu-wire", &["quipu-counting"]),
    ("quipu-store", &[]),
    ("quipu-engine", &["quipu-counting", "quipu-wire", "quipu-store"]),
    ("quipu-cluster", &["quipu-engine", "quipu-store", "quipu-wire", "quipu-counting"]),
    ("quipu-external", &["quipu-counting", "quipu-wire"]),
    (
        "quipu-server",
        &["quipu-cluster", "quipu-external", "quipu-engine", "quipu-counting", "quipu-wire", "quipu-store"],
    ),
    ("quipu-history", &[]),
    (
        "quipu-sim",
        &["quipu-cluster", "quipu-engine", "quipu-counting", "quipu-wire", "quipu-store", "quipu-history"],
    ),
    ("xtask", &["quipu-counting", "quipu-history"]),
];

/// What the meaning of counting must never touch, not even through others: bytes of messages, async, chance.
const NEVER_IN_COUNTING: &[&str] = &["serde", "serde_core", "tokio", "rand", "rand_core"];

fn metadata() -> Value {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(top)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn texts<'a>(list: &'a Value, field: &'a str) -> impl Iterator<Item = &'a str> {
    list.as_array().unwrap().iter().map(move |item| item[field].as_str().unwrap())
}

#[test]
fn crates_use_only_what_lies_below_them() {
    let metadata = metadata();
    let members: BTreeSet<&str> =
        metadata["workspace_members"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    let ours: Vec<&Value> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|package| members.contains(package["id"].as_str().unwrap()))
        .collect();
    let names: BTreeSet<&str> = ours.iter().map(|package| package["name"].as_str().unwrap()).collect();
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    for package in &ours {
        let name = package["name"].as_str().unwrap();
        let Some(allowed) = allowed.get(name) else {
            panic!("{name} is new: give it a line in ALLOWED, with the crates it may use");
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            // Tests may look wherever they need to.
            if dependency["kind"] == "dev" {
                continue;
            }
            let used = dependency["name"].as_str().unwrap();
            assert!(
                !names.contains(used) || allowed.contains(&used),
                "{name} uses {used}: that arrow does not exist in the design"
            );
        }
    }
}

#[test]
fn counting_stays_pure() {
    let metadata = metadata();
    let packages: BTreeMap<&str, &str> =
        texts(&metadata["packages"], "id").zip(texts(&metadata["packages"], "name")).collect();
    let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (node["id"].as_str().unwrap(), node))
        .collect();
    let (counting, _) = packages.iter().find(|(_, name)| **name == "quipu-counting").unwrap();

    let mut seen = BTreeSet::new();
    let mut to_visit = vec![*counting];
    while let Some(id) = to_visit.pop() {
        if !seen.insert(packages[id]) {
            continue;
        }
        for dependency in nodes[id]["deps"].as_array().unwrap() {
            // Kind null is what ends up in the library; `dev` and `build` do not.
            if dependency["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"].is_null()) {
                to_visit.push(dependency["pkg"].as_str().unwrap());
            }
        }
    }
    for never in NEVER_IN_COUNTING {
        assert!(!seen.contains(never), "counting has come to depend on {never}, through one of {seen:?}");
    }
}
