//! Stories told to quipu and to a real Redis: lists of commands whose replies must be the same bytes.

use super::{Client, Quipu, Redis, command, same_reply};

/// Tells every story in both protocols, command by command and in one write, each on new connections and an empty
/// keyspace.
pub fn tell_all(stories: &[&[&str]]) {
    let (quipu, redis) = (Quipu::start(), Redis::start());
    let mut differences = Vec::new();
    for protocol in ["2", "3"] {
        for story in stories {
            for in_one_write in [false, true] {
                let ours = tell(quipu.client(), story, protocol, in_one_write);
                let theirs = tell(redis.client(), story, protocol, in_one_write);
                for (line, (our, their)) in story.iter().zip(ours.iter().zip(&theirs)) {
                    if !same_reply(line, our, their) {
                        differences.push(format!(
                            "RESP{protocol} {line}\n    quipu {our}\n    redis {their}   in {story:?}"
                        ));
                    }
                }
            }
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

fn tell(mut client: Client, story: &[&str], protocol: &str, in_one_write: bool) -> Vec<String> {
    client.ask(&format!("HELLO {protocol}"));
    assert_eq!(client.ask("FLUSHALL"), "+OK|");
    if in_one_write {
        let frames: Vec<u8> = story.iter().flat_map(|line| command(line)).collect();
        client.send(&frames);
        return story.iter().map(|_| client.reply()).collect();
    }
    story.iter().map(|line| client.ask(line)).collect()
}
