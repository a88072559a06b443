//! Every story, with several seeds; and that a story notices what is not so.

use std::path::PathBuf;

use quipu_cluster::plant::{Plant, plant};
use quipu_sim::cluster::story::{tell, tell_file};

/// What must not depend on luck is tried with so many.
const SEEDS: u64 = 2;
/// Seeds within which a planted bug must be found.
const SEEDS_WITH_A_BUG: u64 = 10;

fn stories() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("stories");
    let files = std::fs::read_dir(&folder).expect("the stories").map(|entry| entry.expect("a file").path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|kind| kind == "story")).collect();
    files.sort();
    files
}

#[test]
fn every_story_comes_true() {
    let stories = stories();
    assert!(stories.len() >= 17, "{stories:?}");
    let told = stories.iter().flat_map(|path| (1..=SEEDS).filter_map(|seed| tell_file(path, seed).err()));
    let told: Vec<String> = told.map(|mismatch| mismatch.to_string()).collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
}

/// A story of what must never happen is worth nothing unless it tells when it does.
#[test]
fn a_replica_that_forgets_what_it_promised_is_noticed() {
    let path = stories().into_iter().find(|path| path.ends_with("started_again.story")).expect("the story");
    plant(Some(Plant::ForgetsPromises));
    let told = (1..=SEEDS_WITH_A_BUG).find_map(|seed| tell_file(&path, seed).err());
    plant(None);
    let told = told.map(|mismatch| mismatch.got).unwrap_or_default();
    assert!(told.ends_with("trusts its lease"), "{told}");
}

/// A file, a line, what was expected and what came instead.
#[test]
fn what_does_not_come_true_is_told() {
    for (story, line, expected, got) in [
        ("cluster of 3\nadd likes 5 id a at node 1 -> 6", 2, "6", "5"),
        (
            "cluster of 3\nadd likes 5 id a at node 1 -> 5\nadd likes 5 id a at node 2 -> 10",
            3,
            "10",
            "5 again",
        ),
        ("cluster of 3\n\n# nobody\nread likes at node 1 -> no-leader", 4, "no-leader", "0"),
        ("cluster of 3\ncrash node 2\nadd likes 1 id a at node 2 -> 1", 3, "1", "it is down"),
        ("cluster of 1\nsing", 2, "done", "nobody knows how to do this: sing"),
    ] {
        let told = tell("a.story", story, 1).expect_err(story);
        assert_eq!((told.line, &*told.expected, &*told.got), (line, expected, got), "{story}");
        let text = told.to_string();
        assert!(text.starts_with(&format!("a.story:{line}: ")), "{text}");
        assert!(text.contains(&format!("expected: {expected}\n")) && text.contains(&format!("got: {got}\n")));
    }
}

/// Steps that wait for something to become so must also find out that it does not.
#[test]
fn what_never_becomes_so_is_told() {
    let alone = "cluster of 3\ncall l the leader of likes\ncall f a follower of likes\ncut f from all\n\
                 add likes 1 id a at l -> 1\nall replicas agree";
    for (story, line, got) in [
        ("cluster of 3\nnote snapshots\nnode 2 got a snapshot", 3, "it got none"),
        (alone, 6, "partition "),
        ("cluster of 3\ncrash node 2\nsettle", 3, "not yet: "),
    ] {
        let told = tell("a.story", story, 1).expect_err(story);
        assert!(told.line == line && told.got.starts_with(got), "{told}");
    }
}
