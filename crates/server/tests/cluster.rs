//! Real servers that are nodes of one cluster: founded and joined by the command line, killed and started again.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::cluster::{
    add, ask, described, found, free_address, free_ports, quipu, start_settled, value, wait_for, wait_until,
    wait_until_settled,
};
use support::{QUIPU, Server, run};

#[test]
fn three_servers_count_as_one_while_one_after_the_other_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let mut servers = start_settled(&data);
    let keys: Vec<String> = (0..8).map(|number| format!("counter:{number}")).collect();
    let mut rounds = 0;
    for (victim, data) in data.iter().enumerate() {
        for _ in 0..5 {
            let all: Vec<&Server> = servers.iter().collect();
            keys.iter().for_each(|key| add(&all, key, &format!("r{rounds}")));
            rounds += 1;
        }
        servers.remove(victim).kill();
        for _ in 0..5 {
            let left: Vec<&Server> = servers.iter().collect();
            keys.iter().for_each(|key| add(&left, key, &format!("r{rounds}")));
            // And again, as somebody would who lost the reply.
            keys.iter().for_each(|key| add(&left, key, &format!("r{rounds}")));
            rounds += 1;
        }
        servers.insert(victim, Server::start(data));
    }
    for server in &servers {
        for key in &keys {
            assert_eq!(value(server, key), rounds, "{key}");
        }
    }
    // A policy, set at one, holds at another.
    assert_eq!(ask_in_time(&servers[0], "Q.POLICY SET counter:* '{\"max\":10}'"), ["+OK"]);
    let refused = ask_in_time(&servers[2], "INCR counter:1");
    assert!(refused[0].starts_with("-LIMIT"), "{refused:?}");
    let removed = ask_in_time(&servers[1], "Q.POLICY DEL counter:*");
    assert!(
        removed == [":1"] || removed == [":0"],
        "once, or at the first attempt, which nobody heard of: {removed:?}"
    );
    for server in servers {
        let (status, log) = server.terminate();
        assert!(status.success(), "{log:?}");
    }
    // Started once more, all of it is there, and in time all hold the same: whoever was killed last may have to catch up.
    let until = Instant::now() + Duration::from_secs(120);
    let digest = |data: &PathBuf| quipu(&["cluster", "digest", "--data", data.to_str().unwrap()]);
    loop {
        let servers: Vec<Server> = data.iter().map(|data| Server::start(data)).collect();
        assert_eq!(value(&servers[1], "counter:7"), rounds);
        std::thread::sleep(Duration::from_secs(1));
        servers.into_iter().for_each(|server| drop(server.terminate()));
        let digests: Vec<String> = data.iter().map(digest).collect();
        assert_eq!(digests[0].lines().count(), 16);
        if digests.iter().all(|digest| *digest == digests[0]) {
            return;
        }
        assert!(Instant::now() < until, "{digests:#?}");
    }
}

/// What a server answers once it can: on a busy machine a lead may move again just then.
fn ask_in_time(server: &Server, command: &str) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let reply = ask(server.resp, command).unwrap();
        let cannot_yet = ["-CLUSTERDOWN", "-UNAVAILABLE", "-BUSY"];
        if !cannot_yet.iter().any(|code| reply[0].starts_with(code)) {
            return reply;
        }
        assert!(Instant::now() < until, "{command}: {reply:?}");
    }
}

#[test]
fn a_folder_that_counted_alone_grows_into_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("node-1");
    let alone = Server::start(&first);
    for number in 0..100 {
        ask(alone.resp, &format!("Q.ADD counter:{number} 5 ID alone")).unwrap();
    }
    alone.terminate();
    let data = found(folder.path(), 3);
    let one = Server::start(&data[0]);
    wait_for(&one, 1, 16);
    let two = Server::start(&data[1]);
    let three = Server::start(&data[2]);
    wait_until_settled(&[&one, &two, &three]);
    // Its own folder is not opened as that of a server alone any more, and is whole.
    one.kill();
    assert_eq!(value(&two, "counter:99"), 5);
    add(&[&two, &three], "counter:99", "alone-too");
    assert_eq!(value(&three, "counter:99"), 6);
    let again = ask(two.resp, "Q.ADD counter:3 5 ID alone").unwrap();
    assert_eq!(again[4], ":1", "known from before: {again:?}");
    let checked = run(&["check", data[0].to_str().unwrap()], &[]);
    let told = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success() && told.contains("quipu cluster digest"), "{told}");
    assert_eq!(quipu(&["cluster", "digest", "--data", data[0].to_str().unwrap()]).lines().count(), 16);
}

#[test]
fn the_policies_of_a_folder_become_those_of_its_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("node-1");
    let alone = Server::start(&first);
    let policies = [
        ("stock:*", r#"{"min":0,"max":9}"#),
        ("trail:*", r#"{"audit":"30d"}"#),
        ("uniques:*", r#"{"kind":"unique"}"#),
        (
            "visits:*",
            r#"{"kind":"window","window":{"type":"calendar","unit":"month","zone":"Europe/Berlin"}}"#,
        ),
    ];
    for (pattern, policy) in policies {
        let reply = alone.request("PUT", &format!("/api/v1/policies/{pattern}"), &[], policy);
        assert!(matches!(reply.status, 200 | 201), "{pattern}: {reply:?}");
    }
    let listed = |server: &Server| {
        let reply = server.request("GET", "/api/v1/policies", &[], "");
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.body
    };
    let before = listed(&alone);
    alone.terminate();
    let data = found(folder.path(), 2);
    // Ended before it can have done anything, and perhaps in the middle of founding.
    Server::start(&data[0]).kill();
    let one = Server::start(&data[0]);
    wait_for(&one, 1, 16);
    let two = Server::start(&data[1]);
    wait_until_settled(&[&one, &two]);
    for server in [&one, &two] {
        assert_eq!(listed(server), before);
        for number in 0..50 {
            let reply = ask_in_time(server, &format!("DECR stock:{number}"));
            assert!(reply[0].starts_with("-LIMIT"), "{reply:?}");
        }
    }
}

#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 2);
    let text = |path: &PathBuf| path.to_str().unwrap().to_string();
    let refuse = |arguments: &[&str], words: &str| {
        let output = run(arguments, &[]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains(words), "{arguments:?}: {told}");
    };
    refuse(&["cluster", "init", "--data", &text(&data[0])], "belongs to a node of a cluster already");
    refuse(&["cluster", "invite", "--data", &text(&data[1])], "only where `quipu cluster init` was");
    refuse(&["cluster", "invite", "--data", folder.path().to_str().unwrap()], "quipu cluster init");
    for (address, why) in [
        ("foo", "has no port"),
        ("http://a:1/", "the port must be a number"),
        ("0.0.0.0:1", "nobody reaches a node there"),
    ] {
        let new = folder.path().join("nonsense");
        refuse(&["cluster", "init", "--data", &text(&new), "--peer-address", address], why);
        assert!(!new.exists(), "nothing was written for {address}");
    }
    let garbage = folder.path().join("garbage.toml");
    std::fs::write(&garbage, "node = 1\n").unwrap();
    let third = folder.path().join("third");
    refuse(&["cluster", "join", &text(&garbage), "--data", &text(&third)], "no invitation");
    // A certificate of another cluster.
    let others = found(&folder.path().join("others"), 1);
    let one = Server::start(&data[0]);
    wait_for(&one, 1, 16);
    for name in ["authority.pem", "certificate.pem", "key.pem"] {
        std::fs::copy(others[0].join("cluster").join(name), data[1].join("cluster").join(name)).unwrap();
    }
    let stranger = Server::start(&data[1]);
    let until = Instant::now() + Duration::from_secs(30);
    while !stranger.log().iter().any(|line| line.contains("does not yet belong to its cluster")) {
        assert!(Instant::now() < until, "{:?}", stranger.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(ask(one.resp, "INCR still").unwrap(), [":1"]);
}

/// Whatever stops in the middle leaves a folder that is served alone, or is finished, or says what to do; never one that counts
/// beside its cluster.
#[test]
fn folders_that_are_not_quite_those_of_nodes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_string();
    let refuse = |arguments: &[&str], words: &str| {
        let output = run(arguments, &[]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains(words), "{arguments:?}: {told}");
    };
    let serve =
        |data: &Path, words: &str| refuse(&["serve", "--data", &text(data), "--resp", "127.0.0.1:0"], words);
    // Somebody uses it: nothing was begun.
    let first = folder.path().join("node-1");
    let alone = Server::start(&first);
    assert_eq!(ask(alone.resp, "INCR before").unwrap(), [":1"]);
    refuse(&["cluster", "init", "--data", &text(&first)], "in use");
    alone.terminate();
    let alone = Server::start(&first);
    assert_eq!(ask(alone.resp, "INCR before").unwrap(), [":2"]);
    alone.terminate();
    // It stopped before anything, and after the folder was made ready.
    std::fs::create_dir(first.join("cluster")).unwrap();
    serve(&first, "or remove that folder");
    let data = found(folder.path(), 2);
    std::fs::remove_file(first.join("cluster/node.toml")).unwrap();
    serve(&first, "run it again");
    // A node that has run does not begin another cluster.
    let known = first.join("cluster/known.toml");
    std::fs::write(&known, "").unwrap();
    serve(&first, "from a copy");
    refuse(&["cluster", "init", "--data", &text(&first)], "cannot begin another cluster");
    std::fs::rename(first.join("cluster"), folder.path().join("away")).unwrap();
    serve(&first, "from a copy");
    refuse(&["cluster", "init", "--data", &text(&first)], "cannot begin another cluster");
    // An invitation is taken as it was written.
    let others = found(&folder.path().join("others"), 1);
    let invitation = run(&["cluster", "invite", "--data", &text(&others[0])], &[]);
    let written = String::from_utf8(invitation.stdout).unwrap();
    let changed = folder.path().join("changed.toml");
    std::fs::write(&changed, written.replace("partitions = 16", "partitions = 32")).unwrap();
    let joins = folder.path().join("joins");
    refuse(&["cluster", "join", &text(&changed), "--data", &text(&joins)], "not as it was written");
    assert!(!joins.exists() && data.len() == 2);
}

/// A cluster for trying it out, and its nodes. What the shell says about other servers is none of its business.
fn try_out(temporary: &Path) -> (Child, Vec<Value>) {
    let mut child = Command::new(QUIPU)
        .args(["cluster", "dev", "--json", "--port", &free_ports().to_string()])
        .env("TMPDIR", temporary)
        .env("QUIPU_BACKEND", "redis://127.0.0.1:1")
        .env("QUIPU_DURABILITY", "none")
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    (child, ready["nodes"].as_array().unwrap().clone())
}

#[test]
fn the_servers_of_a_cluster_for_trying_it_out_do_not_outlive_it() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut child, nodes) = try_out(temporary.path());
    child.kill().unwrap();
    child.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    for node in nodes {
        let resp: SocketAddr = node["resp"].as_str().unwrap().parse().unwrap();
        while TcpStream::connect(resp).is_ok() {
            assert!(Instant::now() < until, "{node} still serves");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_cluster_for_trying_it_out_serves_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut child, nodes) = try_out(temporary.path());
    assert_eq!(nodes.len(), 3);
    for (node, expected) in nodes.iter().zip(1..) {
        let resp: SocketAddr = node["resp"].as_str().unwrap().parse().unwrap();
        assert_eq!(ask(resp, "INCR likes").unwrap(), [format!(":{expected}")]);
        let resp_cluster: SocketAddr = node["respCluster"].as_str().unwrap().parse().unwrap();
        assert_eq!(ask(resp_cluster, "CLUSTER KEYSLOT foo").unwrap(), [":12182"]);
    }
    let signal = |id: i64, signal| {
        let id = rustix::process::Pid::from_raw(id as i32).unwrap();
        rustix::process::kill_process(id, signal).unwrap();
    };
    signal(nodes[1]["pid"].as_i64().unwrap(), rustix::process::Signal::KILL);
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("node 2 (process ") && line.contains("has ended")));
    // As when the terminal is closed.
    signal(child.id().into(), rustix::process::Signal::HUP);
    assert!(child.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn what_a_node_says_of_itself_is_what_holds() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 1);
    let server = Server::start_with(&data[0], &["--durability", "none"]);
    wait_for(&server, 1, 16);
    let info = converse(server.resp, &[vec!["INFO".to_string()]]);
    assert!(info.contains("durability:sync"), "{info}");
    let no_ports = run(&["cluster", "dev", "--port", "0"], &[]);
    assert_eq!(no_ports.status.code(), Some(2), "{no_ports:?}");
}

#[test]
fn a_lost_node_is_replaced_by_another_and_cannot_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut data = found(folder.path(), 4);
    let fourth = data.remove(3);
    let mut servers = start_settled(&data);
    let all: Vec<&Server> = servers.iter().collect();
    (0..40).for_each(|number| add(&all, &format!("counter:{}", number % 10), &format!("first-{number}")));
    servers.remove(2).kill();
    servers.push(Server::start(&fourth));
    wait_until(&servers[0], |cluster| cluster["nodes"].as_array().unwrap().len() == 4);
    let said = servers[1].client(&["cluster", "remove", "3"]);
    assert!(said.status.success(), "{said:?}");
    wait_until(&servers[0], |cluster| {
        let nodes: Vec<u64> =
            cluster["nodes"].as_array().unwrap().iter().map(|node| node["node"].as_u64().unwrap()).collect();
        nodes == [1, 2, 4]
    });
    wait_for(&servers[2], 3, 16);
    // Without those who had it all from the beginning, it is all there.
    servers.remove(1).kill();
    let left: Vec<&Server> = servers.iter().collect();
    (0..40).for_each(|number| add(&left, &format!("counter:{}", number % 10), &format!("first-{number}")));
    for number in 0..10 {
        assert_eq!(value(&servers[1], &format!("counter:{number}")), 4);
    }
    let shown = servers[1].client(&["cluster", "status"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("node 4   holds 16") && !shown.contains("node 3"), "{shown}");
    // The one that was lost is found again, and is told.
    let mut back = Server::start(&data[2]);
    let (status, log) = back.wait();
    assert!(!status.success());
    assert!(log.iter().any(|line| line.contains("node 3 was removed from the cluster")), "{log:?}");
    for (number, why) in [("3", "no node of this number"), ("nobody", "invalid value")] {
        let refused = servers[0].client(&["cluster", "remove", number]);
        assert!(!refused.status.success());
        assert!(String::from_utf8_lossy(&refused.stderr).contains(why), "{refused:?}");
    }
}

#[test]
fn a_node_takes_the_place_of_one_that_lost_its_disk() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let mut servers = start_settled(&data);
    (0..40)
        .for_each(|number| add(&[&servers[0]], &format!("counter:{}", number % 10), &format!("id-{number}")));
    // The machine gets a new disk, and keeps its address.
    let nodes = servers[0].request("GET", "/api/v1/cluster", &[], "").json()["nodes"].clone();
    let address = nodes[2]["address"].as_str().unwrap();
    servers.remove(2).kill();
    std::fs::remove_dir_all(&data[2]).unwrap();
    let first = data[0].to_str().unwrap();
    let no_such = run(&["cluster", "replace", "9", "--data", first], &[]);
    assert!(String::from_utf8_lossy(&no_such.stderr).contains("has no node 9"), "{no_such:?}");
    let (invitation, fourth) = (folder.path().join("four.toml"), folder.path().join("node-4"));
    std::fs::write(&invitation, quipu(&["cluster", "replace", "3", "--data", first])).unwrap();
    let (invitation, place) = (invitation.to_str().unwrap(), fourth.to_str().unwrap());
    quipu(&["cluster", "join", invitation, "--data", place, "--peer", address]);
    servers.push(Server::start(&fourth));
    wait_until(&servers[0], |cluster| {
        let nodes = cluster["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node["node"].as_u64().unwrap()).eq([1, 2, 4])
    });
    wait_for(&servers[2], 3, 16);
    servers.remove(1).kill();
    (0..10).for_each(|number| assert_eq!(value(&servers[1], &format!("counter:{number}")), 4));
}

#[test]
fn the_first_node_founds_its_cluster_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let mut servers = start_settled(&data);
    add(&[&servers[0]], "likes", "id");
    servers.remove(0).kill();
    // All is lost but who it is, as if that came from a backup.
    for entry in std::fs::read_dir(&data[0]).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            _ if entry.file_name() == "cluster" => {}
            true => std::fs::remove_dir_all(entry.path()).unwrap(),
            false => std::fs::remove_file(entry.path()).unwrap(),
        }
    }
    // Whom it knows is not who leads, and has to ask that one for it.
    let is_new = |cluster: &Value| cluster["leader"].as_u64().is_some_and(|leader| leader != 1);
    wait_until(&servers[0], is_new);
    let cluster = described(&servers[0]);
    let follower = 5 - cluster["leader"].as_u64().unwrap();
    let known = data[0].join("cluster/known.toml");
    let text = std::fs::read_to_string(&known).unwrap();
    let (head, _) = text.split_once("[nodes]").unwrap();
    let address = &cluster["nodes"][follower as usize - 1]["address"];
    std::fs::write(&known, format!("{head}[nodes]\n{follower} = {address}\n")).unwrap();
    let mut back = Server::start(&data[0]);
    let (status, log) = back.wait();
    assert!(!status.success());
    assert!(log.iter().any(|line| line.contains("another data folder is node 1")), "{log:?}");
    assert_eq!(value(&servers[0], "likes"), 1);
}

#[test]
fn a_node_that_is_removed_while_it_runs_ends() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 4);
    let mut servers = start_settled(&data);
    (0..40)
        .for_each(|number| add(&[&servers[0]], &format!("counter:{}", number % 10), &format!("id-{number}")));
    let leaving = servers[3].resp;
    let asking = std::thread::spawn(move || {
        // Its clients are served by others through it until it knows that it is out, and are told so from then on.
        let mut replies = BTreeSet::new();
        while let Ok(reply) = ask(leaving, "INCR asked-of-who-leaves") {
            replies.insert(reply[0].trim_end_matches(char::is_numeric).to_string());
        }
        replies
    });
    let said = servers[0].client(&["cluster", "remove", "4"]);
    assert!(said.status.success(), "{said:?}");
    let (status, log) = servers.remove(3).wait();
    let replies = asking.join().unwrap();
    let is_true = |reply: &String| match reply.split(' ').next() {
        Some("-CLUSTERDOWN") => reply.contains("was removed"),
        word => matches!(word, Some(":" | "-UNAVAILABLE")),
    };
    assert!(replies.iter().all(is_true), "{replies:?}");
    let again = run(&["cluster", "invite", "--data", data[0].to_str().unwrap()], &[]);
    let invitation = String::from_utf8(again.stdout).unwrap();
    assert!((1..=3).all(|node| invitation.contains(&format!("\n{node} = \""))), "{invitation}");
    // A node writes down every few seconds who belongs to the cluster.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let gone = run(&["cluster", "replace", "4", "--data", data[0].to_str().unwrap()], &[]);
        if String::from_utf8_lossy(&gone.stderr).contains("node 4 is gone already") {
            break;
        }
        assert!(Instant::now() < until, "{gone:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
    for name in ["authority-key.pem", "invited"] {
        std::fs::copy(data[0].join("cluster").join(name), data[3].join("cluster").join(name)).unwrap();
    }
    let outside = run(&["cluster", "invite", "--data", data[3].to_str().unwrap()], &[]);
    let told = String::from_utf8_lossy(&outside.stderr).into_owned();
    assert!(told.contains("node 4 was removed from the cluster, and invites nobody"), "{told}");
    assert!(!status.success());
    assert!(log.iter().any(|line| line.contains("node 4 was removed from the cluster")), "{log:?}");
    (0..10).for_each(|number| assert_eq!(value(&servers[1], &format!("counter:{number}")), 4));
}

/// Both copies would promise and forget things in the name of one node.
#[test]
fn a_copy_of_a_data_folder_does_not_run_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let mut servers = start_settled(&data);
    (0..10).for_each(|number| add(&[&servers[0]], &format!("counter:{number}"), &format!("id-{number}")));
    servers.remove(2).kill();
    let copy = folder.path().join("copy");
    let copied = Command::new("cp").args(["-r"]).args([&data[2], &copy]).status().unwrap();
    assert!(copied.success());
    servers.push(Server::start(&data[2]));
    let all: Vec<&Server> = servers.iter().collect();
    wait_until_settled(&all);
    let settings = copy.join("cluster/node.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    let listen =
        text.lines().find_map(|line| line.strip_prefix("listen = ")).unwrap().trim_matches('"').to_string();
    std::fs::write(&settings, text.replace(&listen, &free_address())).unwrap();
    let (status, log) = Server::start(&copy).wait();
    assert!(!status.success());
    let why = "hears from another process with the data folder of node 3";
    assert!(log.iter().any(|line| line.contains(why)), "{log:?}");
    (10..20).for_each(|number| add(&all, &format!("counter:{number}"), &format!("id-{number}")));
    for server in all {
        (0..20).for_each(|number| assert_eq!(value(server, &format!("counter:{number}")), 1));
    }
}

#[test]
fn a_node_that_is_stopped_lets_others_lead_first() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let mut servers: Vec<Server> = data.iter().map(|data| Server::start(data)).collect();
    servers.iter().for_each(|server| wait_for(server, 3, 16));
    for (number, data) in data.iter().enumerate() {
        wait_until_settled(&servers.iter().collect::<Vec<_>>());
        let leaving = servers.remove(0);
        // What has no id is asked for once: were there no leader meanwhile, nobody could say what became of it.
        let (address, others) = (servers[0].resp, servers.len());
        assert_eq!(others, 2);
        let counts = std::thread::spawn(move || {
            (0..100)
                .map(|number| ask(address, &format!("INCR rolling:{}", number % 16)).unwrap())
                .collect::<Vec<_>>()
        });
        let (status, log) = leaving.terminate();
        assert!(status.success(), "{log:?}");
        let replies = counts.join().unwrap();
        assert!(replies.iter().all(|reply| reply[0].starts_with(':')), "restart {number}: {replies:?}");
        servers.push(Server::start(data));
    }
}

/// Several commands on one connection; all that is answered.
fn converse(address: SocketAddr, commands: &[Vec<String>]) -> String {
    let mut text = String::new();
    for command in commands {
        text.push_str(&format!("*{}\r\n", command.len()));
        command.iter().for_each(|word| text.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    }
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream.write_all(b"QUIT\r\n").unwrap();
    let mut answered = String::new();
    stream.read_to_string(&mut answered).unwrap();
    answered
}

#[test]
fn what_cannot_be_decided_together_is_refused_and_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let servers = start_settled(&data);
    let words = |line: &str| line.split(' ').map(String::from).collect::<Vec<String>>();
    for server in &servers {
        let crossing = ["MULTI", "INCR qa", "INCR zb", "EXEC"].map(words);
        let answered = converse(server.resp, &crossing);
        assert!(answered.contains("-CROSSSLOT"), "{answered}");
        // What is watched is decided together with the rest, and so is the counter of a hold.
        let watching = ["WATCH zb", "MULTI", "INCR qa", "EXEC"].map(words);
        let answered = converse(server.resp, &watching);
        assert!(answered.contains("-CROSSSLOT"), "{answered}");
        let held = converse(server.resp, &[words("Q.HOLD zb 1 60000")]);
        let hold = held.lines().find(|line| !line.starts_with(['*', '$', ':', '+'])).unwrap();
        let ending = ["MULTI", &format!("Q.VOID {hold}"), "INCR qa", "EXEC"].map(words);
        let answered = converse(server.resp, &ending);
        assert!(answered.contains("-CROSSSLOT"), "{answered}");
        let answered = converse(server.resp, &["MULTI", "INCR a{t}", "INCR b{t}", "EXEC"].map(words));
        assert!(answered.contains("*2\r\n:"), "{answered}");
    }
    assert_eq!((value(&servers[0], "qa"), value(&servers[0], "zb")), (0, 0));
    // More at once than a replica takes.
    let many = |from: u32| -> Vec<String> {
        let keys = (from..from + 40_000).map(|number| format!("k{number}{{t}}"));
        ["DEL".to_string()].into_iter().chain(keys).collect()
    };
    let all = [words("MULTI"), many(0), many(40_000), words("EXEC")];
    let answered = converse(servers[0].resp, &all);
    assert!(answered.contains("the limits are"), "{answered}");
    for server in &servers {
        add(&[server], "a{t}", &format!("after-{}", server.resp));
    }
    assert_eq!(value(&servers[2], "a{t}"), 6);
}
