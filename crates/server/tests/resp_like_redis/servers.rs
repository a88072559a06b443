//! The real binary and a real Redis, side by side, and connections to both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use quipu_wire::commands::commands;
use quipu_wire::resp::{ReplyDecoder, Value};

use super::grammar;
use super::resp_support::{Client, Redis, show};
use super::scenes::Stage;
use super::script::{Act, Step, Word, frame};
use super::support::Server;

/// Both servers. A pair is used by one script at a time.
pub struct Pair {
    quipu: Server,
    redis: Redis,
    _folder: tempfile::TempDir,
}

/// How a script is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Every command waits for the reply to the one before.
    OneByOne,
    /// What one connection says without another in between goes as one pipeline.
    Pipelined,
}

/// What came back for one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The bytes of one reply.
    Reply(Vec<u8>),
    /// The keys of a whole walk.
    Keys(BTreeSet<Vec<u8>>),
    /// All bytes until the other end closed.
    Everything(Vec<u8>),
    /// The other end has closed the connection.
    Closed,
}

impl Display for Answer {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Reply(bytes) | Answer::Everything(bytes) => formatter.write_str(&show(bytes)),
            Answer::Keys(keys) => {
                let keys: Vec<String> = keys.iter().map(|key| key.escape_ascii().to_string()).collect();
                write!(formatter, "{} keys: {}", keys.len(), keys.join(" "))
            }
            Answer::Closed => formatter.write_str("(closed)"),
        }
    }
}

impl Pair {
    /// Starts both. Redis has one database, as quipu does.
    pub fn start() -> Pair {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let quipu = Server::start_with(folder.path(), &["--durability", "none"]);
        Pair { quipu, redis: Redis::start_with(&["--databases", "1"]), _folder: folder }
    }

    /// What scripts may use.
    pub fn stage(&self) -> Stage {
        let mut redis = self.redis.client();
        redis.send(&frame(&[b"COMMAND".to_vec(), b"LIST".to_vec()]));
        let names = redis.reply_bytes().expect("an answer");
        let (names, _) = ReplyDecoder::new().decode(&names).expect("a reply").expect("all of it");
        let names = names.as_elements().expect("a list");
        let is_shared = |name: &&str| names.iter().any(|known| known.as_bytes() == Some(name.as_bytes()));
        let commands = commands()
            .map(|spec| spec.name)
            .filter(is_shared)
            .filter(|name| grammar::is_played(name))
            .collect();
        Stage { commands }
    }

    fn ours(&self) -> Client {
        Client::connect(self.quipu.resp)
    }

    /// Plays a script on both, from an empty keyspace, and hands the answers of both to `hear`, step by step, until that
    /// says no.
    pub fn play(&self, script: &[Step], pace: Pace, mut hear: impl FnMut(&Step, Answer, Answer) -> bool) {
        let mut control = [self.ours(), self.redis.client()];
        control.iter_mut().for_each(|client| client.send_line("FLUSHALL"));
        control.iter_mut().for_each(|client| assert_eq!(client.reply(), "+OK|"));
        let mut connections: BTreeMap<usize, [Client; 2]> = BTreeMap::new();
        let mut rest = script;
        while let Some(first) = rest.first() {
            let is_plain = |step: &&Step| matches!(step.act, Act::Ask(_) | Act::Type(_));
            let same =
                rest.iter().take_while(|step| is_plain(step) && step.connection == first.connection).count();
            let (run, later) = rest.split_at(if pace == Pace::Pipelined { same.max(1) } else { 1 });
            rest = later;
            let clients =
                connections.entry(first.connection).or_insert_with(|| [self.ours(), self.redis.client()]);
            clients.iter_mut().for_each(|client| send(client, run));
            // All answers are awaited, also when nobody listens any more: what runs late would run into the next script.
            let mut goes_on = true;
            for step in run {
                let [ours, theirs] = clients.each_mut().map(|client| answer(client, step));
                goes_on = goes_on && hear(step, ours, theirs);
            }
            if !goes_on {
                return;
            }
        }
    }
}

/// Sends all of a run before anything is read, so that both servers work at the same time.
fn send(client: &mut Client, run: &[Step]) {
    match run {
        [Step { act: Act::Walk(_), .. }] => {}
        [Step { act: Act::Pour(pieces), .. }] => {
            pieces.iter().for_each(|piece| client.try_send(piece));
            client.try_end();
        }
        _ => client.try_send(&run.iter().flat_map(Step::bytes).collect::<Vec<u8>>()),
    }
}

fn answer(client: &mut Client, step: &Step) -> Answer {
    match &step.act {
        Act::Ask(_) | Act::Type(_) => client.reply_bytes().map_or(Answer::Closed, Answer::Reply),
        Act::Walk(words) => walk(client, words),
        Act::Pour(_) => Answer::Everything(client.rest_bytes()),
    }
}

/// Follows the cursor until it is 0 again. What is no page of keys is answered as it is.
fn walk(client: &mut Client, words: &[Word]) -> Answer {
    let (mut words, mut keys) = (words.to_vec(), BTreeSet::new());
    loop {
        client.try_send(&frame(&words));
        let Some(reply) = client.reply_bytes() else { return Answer::Closed };
        let decoded = ReplyDecoder::new().decode(&reply);
        let Ok(Some((Value::Array(page), _))) = decoded else { return Answer::Reply(reply) };
        let [cursor, Value::Array(found)] = page.as_slice() else { return Answer::Reply(reply) };
        keys.extend(found.iter().filter_map(|key| key.as_bytes().map(<[u8]>::to_vec)));
        match cursor.as_bytes() {
            Some(b"0") => return Answer::Keys(keys),
            Some(cursor) => words[1] = cursor.to_vec(),
            None => return Answer::Reply(reply),
        }
    }
}
