//! What the port answers, byte for byte. The forms are those of a Redis 7.0 with `cluster-enabled yes`.

use super::nodes::{Nodes, eventually, slots};
use super::resp_support::Client;

/// A tag whose slot is led by the node of this port.
fn tag_led_by(nodes: &Nodes, port: u16) -> (String, i64) {
    let map = slots(nodes.addresses()[0]);
    let mut client = nodes.client(0);
    let mut tags = (0..).map(|number| format!("t{number}"));
    tags.find_map(|tag| {
        let slot: i64 =
            client.ask(&format!("CLUSTER KEYSLOT {tag}"))[1..].trim_end_matches('|').parse().unwrap();
        let is_led = |(first, last, nodes): &(i64, i64, Vec<u16>)| {
            (*first..=*last).contains(&slot) && nodes[0] == port
        };
        map.iter().any(is_led).then_some((tag, slot))
    })
    .unwrap()
}

#[test]
fn who_asks_the_wrong_node_is_sent_to_the_right_one() {
    let nodes = Nodes::start(3);
    let ports: Vec<u16> = nodes.addresses().iter().map(|address| address.port()).collect();
    // The lead may move between two looks at it, so a round counts only if it has not.
    eventually(|| {
        let before = slots(nodes.addresses()[0]);
        let ((here, _), (there, slot)) = (tag_led_by(&nodes, ports[0]), tag_led_by(&nodes, ports[1]));
        let told = conversation(&mut nodes.client(0), &here, &there, slot, ports[1]);
        let is_same = slots(nodes.addresses()[0]) == before;
        if is_same { Ok(told) } else { Err("the lead has moved") }
    })
    .into_iter()
    .for_each(|(line, told, expected)| assert_eq!(told, expected, "{line}"));
    // The other port answers everything, and knows of no cluster.
    let mut plain = Client::connect(nodes.server(0).resp);
    let disabled = "-ERR This instance has cluster support disabled|";
    for (line, expected) in [
        ("MGET {t1}x {t2}x {t3}x", "*3|$-1|$-1|$-1|"),
        ("CLUSTER SLOTS", disabled),
        ("CLUSTER NODES", disabled),
        ("CLUSTER COUNTKEYSINSLOT 5", disabled),
        ("READONLY", disabled),
        ("INFO cluster", "$30|# Cluster|cluster_enabled:0||"),
        ("CONFIG GET cluster-enabled", "*2|$15|cluster-enabled|$2|no|"),
    ] {
        assert_eq!(plain.ask(line), expected, "{line}");
    }
}

/// Lines with what was answered and what should be.
fn conversation(
    client: &mut Client,
    here: &str,
    there: &str,
    slot: i64,
    port: u16,
) -> Vec<(String, String, String)> {
    let moved = format!("-MOVED {slot} 127.0.0.1:{port}|");
    let crossed = "-CROSSSLOT Keys in request don't hash to the same slot|";
    let aborted = "-EXECABORT Transaction discarded because of previous errors.|";
    let lines = [
        ("DEL {H}a {H}b", ":0|"),
        ("INCR {H}a", ":1|"),
        ("INCR {T}a", &moved),
        ("GET {T}a", &moved),
        // Who was told, and comes back to look, is answered.
        ("MGET {T}a {T}b", "*2|$-1|$-1|"),
        ("MGET {H}a {H}b", "*2|$1|1|$-1|"),
        ("MGET {H}a {T}a", crossed),
        ("MSET {T}a 1 {H}a 1", crossed),
        ("OBJECT ENCODING {T}a", "$-1|"),
        ("Q.ADD {T}a 1 ID x", &moved),
        ("Q.BATCH p 1 1 {T}a 1 {H}a 1", crossed),
        ("WATCH {T}a", &moved),
        ("SET {T}a", "-ERR wrong number of arguments for 'set' command|"),
        // What is refused when it is queued spoils the transaction.
        ("MULTI", "+OK|"),
        ("INCR {H}a", "+QUEUED|"),
        ("INCR {T}a", &moved),
        ("EXEC", aborted),
        ("MULTI", "+OK|"),
        ("MGET {H}a {T}a", crossed),
        ("EXEC", aborted),
        ("MULTI", "+OK|"),
        ("INCR {H}a", "+QUEUED|"),
        ("PING", "+QUEUED|"),
        ("INCR {H}b", "+QUEUED|"),
        ("EXEC", "*3|:2|+PONG|:1|"),
        // Replicas may be asked to look, and only to look.
        ("READONLY", "+OK|"),
        ("GET {T}a", "$-1|"),
        ("INCR {T}a", &moved),
        ("MULTI", "+OK|"),
        ("GET {T}a", "+QUEUED|"),
        ("EXEC", "*1|$-1|"),
        ("READWRITE", "+OK|"),
        ("INCR {T}a", &moved),
        ("READONLY", "+OK|"),
        ("RESET", "+RESET|"),
        ("GET {T}a", &moved),
        ("ASKING", "+OK|"),
        ("SELECT 0", "+OK|"),
        ("SELECT 1", "-ERR SELECT is not allowed in cluster mode|"),
        ("INFO cluster", "$30|# Cluster|cluster_enabled:1||"),
        ("CONFIG GET cluster-enabled", "*2|$15|cluster-enabled|$3|yes|"),
    ];
    lines
        .into_iter()
        .map(|(line, expected)| {
            let line = line.replace("{H}", &format!("{{{here}}}")).replace("{T}", &format!("{{{there}}}"));
            let told = client.ask(&line);
            (line, told, expected.to_owned())
        })
        .collect()
}

#[test]
fn commands_about_the_cluster_look_as_those_of_redis() {
    let mut nodes = Nodes::start(3);
    let mut client = nodes.client(0);
    let own = client.ask("CLUSTER MYID");
    let id = own.strip_prefix("$40|").unwrap().trim_end_matches('|').to_owned();
    assert!(id.len() == 40 && id.bytes().all(|digit| digit.is_ascii_hexdigit()), "{id}");
    for (line, expected) in [
        ("CLUSTER MYSHARDID", own.as_str()),
        ("CLUSTER KEYSLOT foo", ":12182|"),
        ("CLUSTER KEYSLOT {foo}bar", ":12182|"),
        ("CLUSTER COUNTKEYSINSLOT 12182", ":0|"),
        ("CLUSTER GETKEYSINSLOT 12182 10", "*0|"),
        ("CLUSTER COUNTKEYSINSLOT x", "-ERR value is not an integer or out of range|"),
        ("CLUSTER COUNTKEYSINSLOT 16384", "-ERR Invalid slot|"),
        ("CLUSTER COUNTKEYSINSLOT -1", "-ERR Invalid slot|"),
        ("CLUSTER GETKEYSINSLOT x 1", "-ERR value is not an integer or out of range|"),
        ("CLUSTER GETKEYSINSLOT 16384 1", "-ERR Invalid slot or number of keys|"),
        ("CLUSTER GETKEYSINSLOT 1 -1", "-ERR Invalid slot or number of keys|"),
        ("CLUSTER COUNT-FAILURE-REPORTS x", "-ERR Unknown node x|"),
        (&format!("CLUSTER COUNT-FAILURE-REPORTS {id}"), ":0|"),
        ("CLUSTER FOO", "-ERR unknown subcommand 'FOO'. Try CLUSTER HELP.|"),
        ("CLUSTER", "-ERR wrong number of arguments for 'cluster' command|"),
    ] {
        assert_eq!(client.ask(line), expected, "{line}");
    }
    assert!(client.ask("CLUSTER HELP").contains("|+SLOTS|"));
    assert!(client.ask("HELLO 2").contains("$4|mode|$7|cluster|"));
    assert!(client.ask("INFO server").contains("|redis_mode:cluster|"));
    // Keys of a slot, which its replicas have too, a little later.
    let mut plain = Client::connect(nodes.server(0).resp);
    assert_eq!(plain.ask("MSET foo 1 {foo}a 2 {foo}b 3"), "+OK|");
    eventually(|| match client.ask("CLUSTER COUNTKEYSINSLOT 12182") {
        told if told == ":3|" => Ok(()),
        other => Err(other),
    });
    let found = client.ask("CLUSTER GETKEYSINSLOT 12182 10");
    assert!(["$3|foo|", "$6|{foo}a|", "$6|{foo}b|"].iter().all(|key| found.contains(key)), "{found}");
    assert!(client.ask("CLUSTER GETKEYSINSLOT 12182 2").starts_with("*2|"));
    assert_eq!(client.ask("CLUSTER GETKEYSINSLOT 12182 0"), "*0|");
    assert_eq!(client.ask("MULTI"), "+OK|");
    assert_eq!(client.ask("CLUSTER COUNTKEYSINSLOT 12182"), "+QUEUED|");
    assert_eq!(client.ask("EXEC"), "*1|:3|");
    // Of all keys a node shows those that it leads.
    let mut shown = Vec::new();
    for at in 0..3 {
        let keys = nodes.client(at).ask("KEYS {foo}*");
        shown.push(keys[..3].to_owned());
    }
    shown.sort_unstable();
    assert_eq!(shown, ["*0|", "*0|", "*2|"]);

    let info = client.ask("CLUSTER INFO");
    let facts = "cluster_state:ok|cluster_slots_assigned:16384|cluster_slots_ok:16384|cluster_slots_pfail:0|\
                 cluster_slots_fail:0|cluster_known_nodes:3|cluster_size:3|cluster_current_epoch:";
    assert!(info.contains(facts), "{info}");
    for (hello, empty) in [("HELLO 2", "*0|"), ("HELLO 3", "%0|")] {
        client.ask(hello);
        let told = client.ask("CLUSTER SLOTS");
        let node = format!("*4|$9|127.0.0.1|:{}|$40|{id}|{empty}", nodes.addresses()[0].port());
        let is_whole = told.contains("|*3|:0|:0|*4|") && told.contains("|*5|:1|:");
        assert!(is_whole && told.contains(":16383|*4|") && told.contains(&node), "{told}");
    }
    let told = client.ask("CLUSTER SHARDS");
    let port = nodes.addresses()[0].port();
    let node = format!(
        "%7|$2|id|$40|{id}|$4|port|:{port}|$2|ip|$9|127.0.0.1|$8|endpoint|$9|127.0.0.1|$4|role|$6|master|\
         $18|replication-offset|:0|$6|health|$6|online|"
    );
    assert!(told.starts_with("*3|%2|$5|slots|*") && told.contains(&node), "{told}");
    client.ask("HELLO 2");
    let told = client.ask("CLUSTER NODES");
    let line = told.split(['|', '\n']).find(|line| line.starts_with(&id)).unwrap();
    assert!(line.starts_with(&format!("{id} 127.0.0.1:{port}@")), "{line}");
    assert!(line.contains(" myself,master - 0 0 ") && line.contains(" connected "), "{line}");
    assert_eq!(told.matches(" master - 0 ").count(), 2, "{told}");

    // After a restart on another port the others know it, under its old name.
    nodes.kill(0);
    nodes.restart(0);
    let port = nodes.addresses()[0].port();
    eventually(|| {
        let told = nodes.client(1).ask("CLUSTER NODES");
        let line = format!("{id} 127.0.0.1:{port}@");
        if told.contains(&line) { Ok(()) } else { Err(told) }
    });
}

#[test]
fn a_node_knows_who_leads_what_it_does_not_hold() {
    let mut nodes = Nodes::start(5);
    // Each of the five holds three fifths, and all of them name the same leaders: also when one of these is gone.
    let gone = slots(nodes.addresses()[4])[0].2[0];
    nodes.kill(nodes.at(gone));
    eventually(|| {
        let maps: Vec<_> = nodes.addresses().into_iter().map(slots).collect();
        let is_led = |(.., nodes): &(i64, i64, Vec<u16>)| nodes[0] != gone;
        if maps.iter().flatten().all(is_led) { Ok(()) } else { Err(maps) }
    });
}
