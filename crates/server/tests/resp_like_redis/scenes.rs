//! From a seed to a script: what several connections do to the same few counters, and bytes that are hardly commands.

use super::grammar;
use super::script::{Act, Step, Word, frame, line};
use super::vocabulary::Draw;

/// What both servers can do, found out when they start.
pub struct Stage {
    /// Names of the commands both have and that may be drawn.
    pub commands: Vec<&'static str>,
}

/// The script of a seed.
pub fn script(seed: u64, stage: &Stage) -> Vec<Step> {
    let mut draw = Draw::new(seed);
    match draw.within(0..20) {
        0..8 => Scene::of(&mut draw, 1, 1).play(stage),
        8..11 => Scene::of(&mut draw, 3, 1).play(stage),
        11..17 => Scene::of(&mut draw, 3, 12).play(stage),
        17 => walks(&mut draw),
        18 => {
            draw.become_tame();
            stream(&mut draw)
        }
        _ => {
            draw.become_tame();
            muted(&mut draw, stage)
        }
    }
}

/// A pipeline of so many commands, none of which is answered differently by design: as commands, or as bytes in pieces.
pub fn long_pipeline(seed: u64, commands: usize, in_pieces: bool) -> Vec<Step> {
    let mut draw = Draw::new(seed);
    draw.become_tame();
    let names = [
        "incr", "incrby", "get", "mget", "decr", "set", "del", "exists", "ping", "echo", "multi", "exec",
        "expireat",
    ];
    let commands: Vec<Vec<Word>> = (0..commands)
        .map(|_| {
            let name = *draw.pick(&names);
            grammar::command(&mut draw, name)
        })
        .collect();
    if in_pieces {
        let bytes = commands.iter().flat_map(|words| frame(words)).collect::<Vec<u8>>();
        return vec![Step { connection: 0, act: Act::Pour(pieces(&mut draw, &bytes)) }];
    }
    commands.into_iter().map(|words| Step { connection: 0, act: Act::Ask(words) }).collect()
}

/// Connections that take turns.
struct Scene<'d> {
    draw: &'d mut Draw,
    steps: Vec<Step>,
    connections: usize,
    /// How many of twenty commands are about transactions.
    transactions: usize,
    /// Which connections are between MULTI and EXEC, as far as one can tell without asking.
    within_multi: Vec<bool>,
    /// Whether counters are never removed. Where they are, only those that exist are watched: one that was not there, and
    /// is not there again, is as it was here, and touched in Redis.
    only_grows: bool,
}

/// Commands that remove nothing.
const GROWING: &[&str] = &[
    "incr", "decr", "incrby", "decrby", "get", "mget", "mset", "setnx", "getset", "exists", "type", "ping",
    "persist",
];

impl<'d> Scene<'d> {
    fn of(draw: &'d mut Draw, connections_max: usize, transactions: usize) -> Scene<'d> {
        let connections = draw.within(1..connections_max + 1);
        let only_grows = draw.one_in(4);
        if transactions > 2 {
            draw.never_repeat_moments();
        }
        Scene {
            draw,
            steps: vec![],
            connections,
            transactions,
            within_multi: vec![false; connections],
            only_grows,
        }
    }

    fn play(mut self, stage: &Stage) -> Vec<Step> {
        for connection in 0..self.connections {
            if self.draw.one_in(2) {
                self.ask(connection, vec![b"HELLO".to_vec(), b"3".to_vec()]);
            }
        }
        let length = self.draw.within(4..30);
        let mut connection = 0;
        while self.steps.len() < length {
            if self.draw.one_in(3) {
                connection = self.draw.within(0..self.connections);
            }
            let words = if self.draw.within(0..20) < self.transactions {
                self.transactional(connection, stage)
            } else {
                self.ordinary(stage)
            };
            self.say(connection, words);
        }
        // What the transactions left behind.
        for connection in 0..self.connections {
            if self.within_multi[connection] {
                self.ask(connection, vec![b"EXEC".to_vec()]);
            }
        }
        self.ask(0, [&b"MGET"[..], b"a", b"b", b"c", b"n:1"].map(<[u8]>::to_vec).to_vec());
        self.ask(0, vec![b"DBSIZE".to_vec()]);
        self.steps
    }

    fn ordinary(&mut self, stage: &Stage) -> Vec<Word> {
        if self.only_grows {
            let name = *self.draw.pick(GROWING);
            grammar::command(self.draw, name)
        } else {
            grammar::any(self.draw, &stage.commands)
        }
    }

    fn transactional(&mut self, connection: usize, stage: &Stage) -> Vec<Word> {
        let is_within = self.within_multi[connection];
        let name = match (is_within, self.draw.within(0..10)) {
            (true, 0..3) => "exec",
            (true, 3) => "discard",
            (true, 4) if self.transactions > 2 => *self.draw.pick(&["multi", "watch", "unwatch", "reset"]),
            (true, 4) => *self.draw.pick(&["multi", "unwatch", "reset"]),
            (true, _) => return self.ordinary(stage),
            (false, 0..4) => "multi",
            (false, 4..8) if self.transactions > 2 => "watch",
            (false, 8) => *self.draw.pick(&["exec", "discard", "unwatch"]),
            (false, _) => return self.ordinary(stage),
        };
        let words = grammar::command(self.draw, name);
        if name == "watch" && !self.only_grows {
            for key in &words[1..] {
                self.ask(connection, vec![b"INCR".to_vec(), key.clone()]);
            }
        }
        if words.len() == 1 {
            self.within_multi[connection] = match name {
                "multi" => true,
                "exec" | "discard" | "reset" => false,
                _ => is_within,
            };
        }
        words
    }

    fn ask(&mut self, connection: usize, words: Vec<Word>) {
        self.steps.push(Step { connection, act: Act::Ask(words) });
    }

    fn say(&mut self, connection: usize, words: Vec<Word>) {
        // An empty name cannot be typed behind a prompt: it would be a blank line, which is nothing.
        let is_typed = self.draw.one_in(12) && !words[0].is_empty();
        // A counter that is born expired exists in Redis until someone looks at it.
        let look = grammar::may_be_born_expired(&words).then(|| vec![b"EXISTS".to_vec(), words[1].clone()]);
        let act = if is_typed { Act::Type(words) } else { Act::Ask(words) };
        self.steps.push(Step { connection, act });
        if let Some(words) = look {
            self.ask(connection, words);
        }
    }
}

/// Many keys, some of them gone again, and every way to list them.
fn walks(draw: &mut Draw) -> Vec<Step> {
    let ask = |words: Vec<Word>| Step { connection: 0, act: Act::Ask(words) };
    let mut steps = Vec::new();
    let keys = draw.within(1..400);
    for number in 0..keys {
        let prefix = *draw.pick(&["user:", "n:", "x", ""]);
        steps.push(ask(vec![b"INCRBY".to_vec(), format!("{prefix}{number}").into_bytes(), draw.integer()]));
        if draw.one_in(5) {
            steps.push(ask(vec![b"DEL".to_vec(), format!("{prefix}{}", draw.within(0..keys)).into_bytes()]));
        }
    }
    steps.push(ask(vec![b"DBSIZE".to_vec()]));
    for _ in 0..draw.within(1..6) {
        let pattern = match draw.within(0..3) {
            0 => draw.pattern(),
            _ => {
                draw.pick(&["*", "user:*", "*1*", "n:?", "x[1-5]*", "*[^0-3]", "user:1"]).as_bytes().to_vec()
            }
        };
        if draw.one_in(3) {
            steps.push(ask(vec![draw.cased("KEYS"), pattern]));
            continue;
        }
        let mut words = vec![draw.cased("SCAN"), b"0".to_vec()];
        if draw.one_in(2) {
            words.extend([draw.cased("MATCH"), pattern]);
        }
        while draw.one_in(2) {
            let count = if draw.one_in(5) {
                draw.number()
            } else {
                draw.pick(&["1", "3", "10", "100", "1000"]).as_bytes().to_vec()
            };
            words.extend([draw.cased("COUNT"), count]);
        }
        if draw.one_in(4) {
            words
                .extend([draw.cased("TYPE"), draw.word(&["string", "string", "list", "hash", "nosuch", ""])]);
        }
        // A walk that begins in the middle finds what lies behind: that is each server's own.
        let is_walk = !draw.one_in(10);
        if !is_walk {
            words[1] = draw.number();
        }
        if draw.one_in(20) {
            words.push(draw.word(&["COUNT", "MATCH", "TYPE", "FOO"]));
        }
        let act = if is_walk { Act::Walk(words) } else { Act::Ask(words) };
        steps.push(Step { connection: 0, act });
    }
    steps
}

/// A pipeline whose bytes arrive in pieces and may be damaged: the servers must agree on where the commands end.
fn stream(draw: &mut Draw) -> Vec<Step> {
    // None of these stores a value as it is sent, or tells the time.
    let names =
        ["incr", "decrby", "incrby", "get", "mget", "del", "exists", "ping", "echo", "getdel", "persist"];
    let mut bytes = Vec::new();
    for _ in 0..draw.within(1..8) {
        let name = *draw.pick(&names);
        let words = grammar::command(draw, name);
        bytes.extend(if draw.one_in(4) { line(&words) } else { frame(&words) });
    }
    for _ in 0..draw.within(0..4) {
        damage(draw, &mut bytes);
    }
    let greeting = draw.one_in(2).then(|| Act::Ask(vec![b"HELLO".to_vec(), b"3".to_vec()]));
    let pour = Act::Pour(pieces(draw, &bytes));
    greeting.into_iter().chain([pour]).map(|act| Step { connection: 0, act }).collect()
}

/// What has a meaning in the protocol, in the wrong place.
const ODD_BYTES: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"*",
    b"$",
    b"-1",
    b"0",
    b"*0\r\n",
    b"*-1\r\n",
    b"\"",
    b"'",
    b"\\",
    b" ",
    b"\0",
    b"\xff",
    b"*1\r\n",
    b"$3\r\n",
    b"*99999999999\r\n",
    b"*2147483648\r\n",
    b"$-1\r\n",
    b"$99999999999\r\n",
    b"+",
    b"*01\r\n",
    b"$ 1\r\n",
];

fn damage(draw: &mut Draw, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = draw.within(0..bytes.len());
    let odd = *draw.pick(ODD_BYTES);
    match draw.within(0..4) {
        0 => drop(bytes.remove(at)),
        1 => bytes[at] = odd[0],
        2 => drop(bytes.splice(at..at, odd.iter().copied())),
        _ => bytes.truncate(at),
    }
}

fn pieces(draw: &mut Draw, bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut pieces) = (bytes, Vec::new());
    while !rest.is_empty() {
        let length = if draw.one_in(2) { draw.within(1..4) } else { draw.within(1..200) };
        let (piece, later) = rest.split_at(length.min(rest.len()));
        pieces.push(piece.to_vec());
        rest = later;
    }
    pieces
}

/// CLIENT REPLY, QUIT and what else leaves a reader waiting: sent as one, and listened to until the end.
fn muted(draw: &mut Draw, stage: &Stage) -> Vec<Step> {
    let names: Vec<&str> = [
        "incr", "get", "del", "ping", "echo", "mget", "expireat", "type", "multi", "exec", "discard", "reset",
    ]
    .into_iter()
    .filter(|name| stage.commands.contains(name) || !grammar::is_played(name))
    .collect();
    let mut bytes = Vec::new();
    for _ in 0..draw.within(2..14) {
        let words = match draw.within(0..12) {
            0..4 => {
                vec![
                    draw.cased("CLIENT"),
                    draw.cased("REPLY"),
                    draw.word(&["ON", "OFF", "SKIP", "SKIP", "FOO"]),
                ]
            }
            4 => vec![draw.word(&["NOSUCH", "GET", "INCRBY"])],
            5 if draw.one_in(3) => vec![draw.cased("QUIT")],
            _ => {
                let name = *draw.pick(&names);
                grammar::command(draw, name)
            }
        };
        bytes.extend(frame(&words));
    }
    vec![Step { connection: 0, act: Act::Pour(pieces(draw, &bytes)) }]
}
