//! The events of one client.
//!
//! ```text
//! retry: 1000                                          how long to wait before coming back
//! event: change   id: run-number   data: the counter   one counter, as a read shows it
//! event: clear    id: run-number   data: {...}         all counters were deleted
//! event: reset                     data: {"reason"}    forget what you know; what there is follows
//! event: ready    id: run-number   data: {...}         what there is was said; from now on changes
//! ```
//!
//! What there is comes as changes without ids: a client that is cut off in the middle of it has not heard everything up to any
//! event, and begins anew.
//!
//! A stream holds no events. It takes the next few from the topics when the other end has taken the last ones.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream;
use quipu_counting::{ListOrder, Listed as Counter, Listing};
use quipu_wire::json::reply::CounterBody;
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::hub::{Subscription, body_to_json};
use super::topics::Event;
use crate::http::App;
use crate::http::answer::Refused;
use crate::http::conversation::Conversation;
use crate::http::list::walk;
use crate::http::load::{Room, Watching};

/// How long a client shall wait before it comes back.
const RETRY_MS: u64 = 1_000;
/// How often something is sent where there is nothing to say, so that nobody on the way takes the connection for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// And how often at most.
const HEARTBEAT_MIN: Duration = Duration::from_secs(1);
/// Events sent at once: some packets.
const EVENTS_PER_FRAME: usize = 64;
/// Counters of all prefixes that a client is told at the beginning.
pub const STATE_MAX: usize = 1_000;
/// About what one of them takes.
const STATE_COUNTER_BYTES: usize = 320;
/// Before the counters of a prefix are listed again: for what could not be listed, and for who is too slow for changes.
const STATE_PAUSE: Duration = Duration::from_secs(1);

/// What a stream is made of.
pub struct Parts {
    pub app: Arc<App>,
    /// Its place among those who watch, until it ends.
    pub _place: Watching,
    pub subscription: Subscription,
    /// Where to see whether the other end takes what is sent.
    pub conversation: Option<Arc<Conversation>>,
    pub interval_ms: u64,
    pub initial: bool,
    pub last_event_id: Option<String>,
}

/// See the head of this file.
pub struct Stream {
    parts: Parts,
    stage: Stage,
    heartbeat: Duration,
    /// What there is, on its way.
    frames: VecDeque<Bytes>,
    /// For that.
    room: Room,
    /// The counters of prefixes, being listed.
    listing: JoinSet<Listed>,
    /// When they were last asked for.
    listed_at: Option<Instant>,
    /// Up to this event the client has heard everything.
    since: u64,
    /// Up to this one it hears what there was when the turn began.
    until: u64,
    /// When it may hear of the same counter again.
    next_turn: Instant,
}

/// How far a stream is.
enum Stage {
    /// Nothing was said.
    Begin,
    /// What there is must be said; with a reason, to one who knows something else.
    State(Option<&'static str>),
    /// Changes.
    Changes,
}

/// Counters of prefixes.
struct Listed {
    counters: Vec<Counter>,
    is_complete: bool,
    /// What changed after this event may not be in them.
    since: u64,
    room: Room,
}

impl Stream {
    /// One that begins.
    pub fn new(parts: Parts) -> Stream {
        if let Some(conversation) = &parts.conversation {
            conversation.never_ends();
        }
        // A stream that says nothing for longer would be taken for an idle connection.
        let heartbeat = HEARTBEAT.min((parts.app.load.limits.idle_timeout / 2).max(HEARTBEAT_MIN));
        Stream {
            parts,
            stage: Stage::Begin,
            heartbeat,
            frames: VecDeque::new(),
            room: Room::default(),
            listing: JoinSet::new(),
            listed_at: None,
            since: 0,
            until: 0,
            next_turn: Instant::now(),
        }
    }

    /// Its bytes, as the other end takes them.
    pub fn into_frames(self) -> impl stream::Stream<Item = Result<Bytes, Infallible>> {
        stream::unfold(self, |mut stream| async move { Some((Ok(stream.next().await?), stream)) })
    }

    async fn next(&mut self) -> Option<Bytes> {
        let hub = Arc::clone(self.parts.subscription.hub());
        let heartbeat = tokio::time::sleep(self.heartbeat);
        tokio::select! {
            biased;
            () = hub.closed() => None,
            // May be dropped wherever it waits: what it has done so far is noted.
            frame = self.produce() => Some(frame),
            () = heartbeat => Some(Bytes::from_static(b":\n\n")),
        }
    }

    async fn produce(&mut self) -> Bytes {
        loop {
            // Lets what was said before go out, so that it shows whether the other end takes it.
            tokio::task::yield_now().await;
            if let Some(conversation) = &self.parts.conversation {
                conversation.unblocked().await;
            }
            if let Some(frame) = self.frames.pop_front() {
                return frame;
            }
            self.room = Room::default();
            match self.stage {
                Stage::Begin => {
                    self.begin();
                    return Bytes::from(format!("retry: {RETRY_MS}\n\n"));
                }
                Stage::State(reason) => self.say_state(reason).await,
                Stage::Changes => {
                    if let Some(frame) = self.say_changes().await {
                        return frame;
                    }
                }
            }
        }
    }

    fn begin(&mut self) {
        let subscription = &self.parts.subscription;
        let Some(id) = &self.parts.last_event_id else {
            self.stage = Stage::State(None);
            return;
        };
        match subscription.hub().event_number(id) {
            Some(number) if subscription.covers(number) => {
                (self.since, self.until) = (number, number);
                self.stage = Stage::Changes;
                let mut frame = String::new();
                put_event(
                    &mut frame,
                    "ready",
                    None,
                    &Ready { resumed: true, ..Ready::of(0, true) }.to_json(),
                );
                self.frames.push_back(Bytes::from(frame));
            }
            Some(_) => {
                self.stage = Stage::State(Some("what happened since that event is not known any more"))
            }
            None => {
                self.stage = Stage::State(Some("that event was sent by another server, or before a restart"))
            }
        }
    }

    /// Says what there is.
    async fn say_state(&mut self, reason: Option<&'static str>) {
        while !self.parts.subscription.is_known() {
            self.parts.subscription.news().await;
        }
        let lists = !self.parts.subscription.selection().prefixes.is_empty()
            && (self.parts.initial || reason.is_some());
        let (listed, known) = match lists {
            true => {
                let listed = self.list().await;
                let known = self.parts.subscription.known(listed.since);
                (listed, known)
            }
            false => {
                let (since, known) = self.parts.subscription.known_now();
                (Listed { counters: Vec::new(), is_complete: true, since, room: Room::default() }, known)
            }
        };
        let subscription = &self.parts.subscription;
        // What has changed since comes as changes: what was listed may be older or newer than the first of them.
        let changed =
            subscription.changed(listed.counters.iter().map(|counter| &counter.key[..]), listed.since);
        let unchanged = listed.counters.iter().filter(|counter| !changed.contains(&counter.key));
        let states = known.iter().map(|change| change.json.clone());
        let states = states.chain(unchanged.map(state));
        let mut count = 0;
        let mut frame = String::new();
        if let Some(reason) = reason {
            let reset = json!({ "reason": reason });
            let _ = write!(frame, "event: reset\ndata: {reset}\n\n");
        }
        for state in states {
            put_event(&mut frame, "change", None, &state);
            count += 1;
            if count % EVENTS_PER_FRAME == 0 {
                self.frames.push_back(Bytes::from(std::mem::take(&mut frame)));
            }
        }
        let id = subscription.hub().event_id(listed.since);
        put_event(&mut frame, "ready", Some(&id), &Ready::of(count, listed.is_complete).to_json());
        self.frames.push_back(Bytes::from(frame));
        self.room = listed.room;
        (self.since, self.until) = (listed.since, listed.since);
        self.stage = Stage::Changes;
    }

    /// The counters of the prefixes. Goes on where it was if it is called again before it was done.
    async fn list(&mut self) -> Listed {
        loop {
            if self.listing.is_empty() {
                if let Some(before) = self.listed_at {
                    tokio::time::sleep_until(before + STATE_PAUSE).await;
                }
                self.listed_at = Some(Instant::now());
                let app = Arc::clone(&self.parts.app);
                let hub = Arc::clone(self.parts.subscription.hub());
                let prefixes = self.parts.subscription.selection().prefixes.clone();
                self.listing.spawn(async move {
                    loop {
                        let since = hub.number();
                        if let Ok((counters, is_complete, room)) = list(&app, &prefixes).await {
                            hub.round_over().await;
                            return Listed { counters, is_complete, since, room };
                        }
                        tokio::time::sleep(STATE_PAUSE).await;
                    }
                });
            }
            if let Some(Ok(listed)) = self.listing.join_next().await {
                return listed;
            }
        }
    }

    /// The next changes, if there are any now. At most once an interval for the same counter.
    async fn say_changes(&mut self) -> Option<Bytes> {
        if self.since >= self.until {
            tokio::time::sleep_until(self.next_turn).await;
            self.until = self.parts.subscription.hub().number();
        }
        let Some(events) = self.parts.subscription.events(self.since, self.until, EVENTS_PER_FRAME) else {
            self.stage = Stage::State(Some("there were more changes than can be kept for a slow client"));
            return None;
        };
        let Some((last, _)) = events.last() else {
            self.since = self.until;
            self.parts.subscription.news().await;
            return None;
        };
        if self.next_turn <= Instant::now() {
            self.next_turn = Instant::now() + Duration::from_millis(self.parts.interval_ms);
        }
        self.since = if events.len() < EVENTS_PER_FRAME { self.until } else { *last };
        let mut frame = String::new();
        for (number, event) in &events {
            let id = self.parts.subscription.hub().event_id(*number);
            match event {
                Event::Change(change) => put_event(&mut frame, "change", Some(&id), &change.json),
                Event::Clear => put_event(&mut frame, "clear", Some(&id), b"{\"cleared\":true}"),
            }
        }
        Some(Bytes::from(frame))
    }
}

/// What there is was said.
#[derive(Serialize)]
struct Ready {
    /// So many counters.
    counters: usize,
    /// Whether that is all.
    complete: bool,
    /// Whether the client knew everything already but for the changes that follow.
    resumed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl Ready {
    fn of(counters: usize, complete: bool) -> Ready {
        let detail = || format!("there are more than {STATE_MAX}; GET /api/v1/counters lists the others");
        Ready { counters, complete, resumed: false, detail: (!complete).then(detail) }
    }

    fn to_json(&self) -> Vec<u8> {
        // There is nothing in it that JSON cannot say.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// JSON has no line ends in it but where we put them, which is nowhere.
fn put_event(out: &mut String, name: &str, id: Option<&str>, json: &[u8]) {
    let _ = writeln!(out, "event: {name}");
    if let Some(id) = id {
        let _ = writeln!(out, "id: {id}");
    }
    let _ = write!(out, "data: {}\n\n", String::from_utf8_lossy(json));
}

fn state(counter: &Counter) -> Bytes {
    body_to_json(&CounterBody::listed(counter))
}

/// The first counters of these prefixes, and whether that is all.
async fn list(app: &Arc<App>, prefixes: &[Arc<[u8]>]) -> Result<(Vec<Counter>, bool, Room), Refused> {
    let room = app.load.reserve(STATE_MAX * STATE_COUNTER_BYTES)?;
    let mut counters: Vec<Counter> = Vec::new();
    let mut is_complete = true;
    for prefix in prefixes {
        let limit = STATE_MAX - counters.len();
        if limit == 0 {
            return Ok((counters, false, room));
        }
        let listing = Listing { prefix: prefix.to_vec(), order: ListOrder::Key, after: None, limit };
        let page = walk(app, listing).await?;
        is_complete &= !page.more;
        counters.extend(page.counters);
    }
    // Prefixes may overlap.
    counters.sort_unstable_by(|one, other| one.key.cmp(&other.key));
    counters.dedup_by(|one, other| one.key == other.key);
    Ok((counters, is_complete, room))
}
