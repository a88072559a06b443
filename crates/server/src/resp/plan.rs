//! What was understood of the pipelines of a round: requests for counting, and how each command's reply will look.
//!
//! A pipeline is read in one pass and answered in another, with the execution of the whole batch between them:
//!
//! ```text
//!   commands   GET a        PING          MGET b c        INCR d
//!   requests   Read a                     Read b, Read c  Add d        -> one Batch, one execute
//!   plans      Bulk         Literal 7     Bulks 2         Integer
//!   literals                +PONG\r\n
//! ```
//!
//! Plans take requests and literal bytes in the order they were made, so a plan needs no places, only counts: eight bytes
//! per command, and no allocation.

use quipu_counting::{Action, Batch, Reply};
use quipu_wire::resp::{Encoder, Protocol};

/// How one command is answered once its requests have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// So many bytes that were encoded when the command was read.
    Literal(u32),
    /// The new value.
    Integer,
    /// The value as text, or null.
    Bulk,
    /// An array of so many values as text, or null.
    Bulks(u32),
    /// `OK`, or null when the condition did not hold: SET.
    OkOrNull,
    /// The value before as text, or null: GETSET, GETDEL, GETEX, SET with GET.
    Previous,
    /// Null, or so many literal bytes if the counter exists: GETEX with a time that is wrong, OBJECT FREQ.
    NullOrLiteral(u32),
    /// Whether the condition held, as 1 or 0: SETNX, EXPIRE, PERSIST.
    Held,
    /// `OK` for so many requests that were done all or none: MSET.
    OkForAll(u32),
    /// How many of so many counters existed before: DEL.
    CountExisted(u32),
    /// How many of so many counters exist: EXISTS.
    CountExisting(u32),
    /// The type's name.
    TypeName,
    /// How long the value is as text: STRLEN.
    TextLength,
    /// Time left to live.
    TimeLeft(Unit),
    /// When life ends.
    ExpiresAt(Unit),
    /// The number of counters.
    Count,
    /// How Redis would keep the value, or null: OBJECT ENCODING.
    Encoding,
    /// Seconds since the last change, or null: OBJECT IDLETIME.
    IdleTime,
    /// References to the value as Redis would count them, or null: OBJECT REFCOUNT.
    ReferenceCount,
    /// Bytes in memory of a counter whose key has so many, or null: MEMORY USAGE.
    Usage(u32),
    /// The value as RESTORE takes it, or null: DUMP.
    Dump,
    /// `OK`, or that the key exists: RESTORE.
    Restored,
    /// That the key exists if it does; else so many literal bytes, which are an error.
    BusyOrError(u32),
    /// `OK`: FLUSHALL.
    Ok,
    /// `[new, applied]`: INCREX.
    ValueAndApplied,
    /// The same with SATURATE: what is refused then is a step that no reply could name.
    SaturatedAndApplied,
    /// `[value, applied, version, duplicate]`: Q.ADD.
    Addition,
    /// Whether any of so many requests changed a sketch, as 1 or 0: PFADD.
    Observed(u32),
    /// `[estimate, changed, exact, duplicate]`: Q.OBSERVE.
    Seen,
    /// How many different items so many counters have seen: PFCOUNT.
    Estimate(u32),
    /// What was counted in the last so many milliseconds, which are eight literal bytes: Q.WGET.
    WindowSum,
    /// A part of the value, or its parts: Q.DGET.
    Part {
        /// Some value was asked for one by one.
        is_grouped: bool,
    },
    /// `[allowed, remaining, reset]`: Q.ACQUIRE.
    Acquired,
    /// `[allowed, which, remaining, reset]` of so many limits: Q.ACQUIREALL.
    AcquiredAll(u32),
    /// What the value was; what is asked for is some literal bytes: Q.HISTORY.
    History,
    /// `[hold, expiry]` of a counter whose key is so many literal bytes: Q.HOLD.
    Reserved(u32),
    /// `[value, applied, version, duplicate]`: Q.COMMIT, Q.VOID.
    Ended {
        /// The latter.
        is_void: bool,
    },
    /// `[last sequence, duplicate]` for so many requests of one producer session: Q.BATCH.
    Session(u32),
    /// All there is to know: Q.STAT.
    Statistics,
    /// An array of what the next so many plans give: EXEC.
    Transaction(u32),
    /// The next plan is a transaction, and before it come so many checks of watched keys: if one failed, nothing was done
    /// and the answer is null.
    Guarded(u32),
    /// All further plans belong to a transaction whose other commands come afterwards; before them come so many checks of
    /// watched keys. The session gets the replies.
    Staged(u32),
    /// From here on replies look like this: HELLO in a transaction.
    Speak(Protocol),
    /// `OK`, and the session learns the state of so many keys: WATCH.
    Watch(u32),
    /// The next plan is carried out but not sent: CLIENT REPLY.
    Mute,
}

/// The unit of a time in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds, rounded to the nearest as Redis does.
    Seconds,
    /// Milliseconds.
    Milliseconds,
}

/// The most requests that are executed as one. Larger pipelines are executed in several steps: partitions stay locked for
/// the time of one step, and other connections get their turn. Commands with many keys and transactions are not
/// divided.
pub const REQUESTS_PER_DRAFT_MAX: usize = 4096;
/// The most bytes of keys and ids that are executed as one, for the same reason.
pub const BYTES_PER_BATCH_MAX: usize = 1024 * 1024;

/// The places in a batch above which its memory is given back instead of being kept for the next pipeline.
const RETAINED_REQUESTS: usize = 4 * REQUESTS_PER_DRAFT_MAX;
/// The literal bytes above which their memory is given back.
const RETAINED_LITERAL_BYTES: usize = 256 * 1024;

/// What was understood and not yet answered.
#[derive(Debug, Default)]
pub struct Draft {
    /// What the commands ask of the counters.
    pub batch: Batch,
    /// How they will be answered.
    pub plans: Vec<Plan>,
    /// Replies that are known already.
    pub literals: Vec<u8>,
}

/// Plans with what they need to be carried out: a draft that was executed, or a part of one.
#[derive(Clone, Copy, Debug)]
pub struct View<'d> {
    /// How the commands are answered.
    pub plans: &'d [Plan],
    /// Replies that were known when the commands were read.
    pub literals: &'d [u8],
    /// What the requests gave.
    pub replies: &'d [Reply],
}

impl Draft {
    /// All of it.
    pub fn view(&self) -> View<'_> {
        View { plans: &self.plans, literals: &self.literals, replies: &self.batch.replies }
    }

    /// Asks for `action` on `key`, answered by `plan`.
    #[inline]
    pub fn request(&mut self, key: &[u8], action: Action, plan: Plan) {
        self.batch.push(key, action);
        self.plans.push(plan);
    }

    /// Asks whether `key` exists; if it does, the answer is this error, else null.
    pub fn request_or_complain(&mut self, key: &[u8], error: &[u8]) {
        let length = self.hold_error(error);
        self.request(key, Action::Read, Plan::NullOrLiteral(length));
    }

    /// Answers with what `write` encodes.
    pub fn literal(&mut self, protocol: Protocol, write: impl FnOnce(&mut Encoder<'_>)) {
        let before = self.literals.len();
        write(&mut Encoder::new(&mut self.literals, protocol));
        self.plans.push(Plan::Literal((self.literals.len() - before) as u32));
    }

    /// Answers with what `write` encodes, unless it fails: then nothing is drafted.
    pub fn try_literal<T, E>(
        &mut self,
        protocol: Protocol,
        write: impl FnOnce(&mut Encoder<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let before = self.literals.len();
        let outcome = write(&mut Encoder::new(&mut self.literals, protocol));
        match outcome {
            Ok(_) => self.plans.push(Plan::Literal((self.literals.len() - before) as u32)),
            Err(_) => self.literals.truncate(before),
        }
        outcome
    }

    /// Keeps an error for a plan that may answer with it; returns its length.
    pub fn hold_error(&mut self, text: &[u8]) -> u32 {
        let before = self.literals.len();
        // Errors look the same in every protocol.
        Encoder::new(&mut self.literals, Protocol::Resp2).error(text);
        (self.literals.len() - before) as u32
    }

    /// Answers with bytes that are the same in every protocol.
    #[inline]
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.literals.extend_from_slice(bytes);
        self.plans.push(Plan::Literal(bytes.len() as u32));
    }

    /// Whether the batch should be executed before more is added.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.plans.len() >= REQUESTS_PER_DRAFT_MAX
            || self.batch.requests.len() >= REQUESTS_PER_DRAFT_MAX
            || self.batch.bytes_len() >= BYTES_PER_BATCH_MAX
            || self.literals.len() >= BYTES_PER_BATCH_MAX
    }

    /// Whether there is nothing to answer.
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// Forgets what was answered.
    pub fn clear(&mut self) {
        self.plans.clear();
        self.literals.clear();
        self.batch.clear();
        if self.batch.requests.capacity() > RETAINED_REQUESTS {
            self.batch = Batch::default();
            self.plans = Vec::new();
        }
        self.literals.shrink_to(RETAINED_LITERAL_BYTES);
    }
}

const _: () = assert!(size_of::<Plan>() <= 8);
