//! What cannot be meant is refused with a sentence that says what to do, and passwords are never shown.

use crate::stores::postgres::Postgres;
use crate::support::{backed_command, run};
use crate::{query, stores};

fn refused(arguments: &[&str]) -> String {
    let output =
        run(&[&["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"], arguments].concat(), &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    said
}

#[test]
fn what_makes_no_sense_with_a_backend_is_refused() {
    let backend = "redis://:geheim@127.0.0.1:1";
    for (setting, value) in [
        ("--data", "here"),
        ("--durability", "none"),
        ("--memory", "64MiB"),
        ("--partitions", "4"),
        ("--queue-wait", "2s"),
        ("--hot-keys", "false"),
    ] {
        let said = refused(&["--backend", backend, setting, value]);
        assert!(
            said.contains(&format!("flag {setting}")) && said.contains("leave one of the two out"),
            "{said}"
        );
        assert!(!said.contains("geheim"), "{said}");
    }
    for (arguments, expected) in [
        (&["--archive", "postgres://one/db"][..], "say --backend"),
        (&["--backend", "127.0.0.1:6379"], "not a URL like redis://"),
        (&["--backend", "rediss://127.0.0.1:6379"], "TLS to Redis"),
        (
            &["--backend", "redis://127.0.0.1:6379", "--archive", "mysql://x:geheim@y"],
            "not a URL like postgres://",
        ),
        (
            &["--backend", "redis://127.0.0.1:6379", "--archive", "host=y user=x password=geheim"],
            "not a URL like postgres://",
        ),
        (&["--backend", "redis://127.0.0.1:6379", "--archive-log"], "no archive to write to"),
    ] {
        let said = refused(arguments);
        assert!(said.contains(expected) && !said.contains("geheim"), "{said}");
    }
}

#[test]
fn a_wrong_password_is_said_at_once_and_never_shown() {
    let port = stores::free_port();
    let _redis = stores::Server::start_with(port, &["--requirepass", "right-secret"]);
    let folder = tempfile::tempdir().unwrap();
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{port}");
    let output = backed_command(folder.path(), &url("wrong-secret"), &[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("password"), "{said}");
    assert!(!said.contains("wrong-secret") && !said.contains("waiting up to"), "{said}");
    let node = crate::Node::start(&url("right-secret"), &[]);
    assert_eq!(node.add("likes", 1, None), 1);
    let shown = run(&["config", "show", "--json"], &[("QUIPU_BACKEND", &url("right-secret"))]);
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains(&format!("redis://:***@127.0.0.1:{port}")), "{shown}");
    assert!(!shown.contains("right-secret"));
    let (_, log) = node.server.terminate();
    assert!(log.iter().all(|line| !line.contains("right-secret")), "{log:?}");
}

#[test]
fn what_is_wrong_with_an_archive_is_said() {
    let (redis, postgres) = (stores::Server::start(), Postgres::start());
    query(&postgres, "CREATE USER guest");
    let missing = postgres.url().replace("/postgres", "/nowhere");
    let guest = postgres.url().replace("quipu@", "guest@");
    for (archive, expected) in [(missing, "create that database"), (guest, "needs the right to make tables")]
    {
        let said = refused(&["--backend", &redis.url(), "--archive", &archive]);
        assert!(said.contains(expected) && !said.contains("listens there"), "{said}");
    }
}
