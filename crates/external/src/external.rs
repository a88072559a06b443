//! Counters in Redis, as the fronts see them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quipu_counting::policy::POLICIES_MAX;
use quipu_counting::service::{Finished, ScanPage};
use quipu_counting::{
    Aggregate, Batch, Changes, Counters, Execution, HotKeys, Interest, ListPage, Listing, Policies, Policy,
    Refusal, Selector, Unavailable,
};
use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::archive::{ARCHIVE_FIELD, Archive, ArchiveError, Snapshot, wall_ms};
use crate::breaker::BreakerSettings;
use crate::epoch;
use crate::eviction;
use crate::founding::found_epoch;
use crate::groups::{self, POLICIES};
use crate::lanes::Lanes;
use crate::masters::{Links, Map, is_said_by_server};
use crate::policies::{self, PoliciesError};
use crate::retry::BudgetSettings;
use crate::rights::{self, Doing};
use crate::stages::{has_stages, loosen};
use crate::standing::{Named, Standing};
use crate::striped::TotalsSeen;
use crate::stripes::Stripes;
use crate::strong::Strong;
use crate::units::{Answer, Unit, split_over, unsupported};
use crate::walks::Walk;
use crate::watching::Watching;

/// At least so long lies between two looks.
const DOUBT_PAUSE: Duration = Duration::from_millis(50);
/// How often policies and masters are looked at.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is looked at how Redis is set.
const SETTINGS_INTERVAL: Duration = Duration::from_secs(10);
/// Where nothing is archived, nobody but who watches reads the streams: they are trimmed so often, to about so many entries.
const TRIM_INTERVAL: Duration = Duration::from_secs(5);
const TRIMMED_ENTRIES: usize = 1_000;

/// How Redis is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long request ids are remembered, unless another node on the same Redis remembers them longer.
    pub id_window_ms: u64,
    /// How long one attempt may last.
    pub timeout: Duration,
    /// How long something is tried before it is given up.
    pub patience: Duration,
    /// The most requests that wait or are under way; more are refused.
    pub queue: usize,
    /// About how many bytes of counters that are more than a number a node remembers.
    pub cache_bytes: usize,
    /// When a master is left alone.
    pub breaker: BreakerSettings,
    /// How many retries there may be.
    pub budget: BudgetSettings,
    /// A change is acknowledged once so many replicas of its master have it; 0 does not wait for any.
    pub wait_replicas: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            id_window_ms: 24 * 60 * 60 * 1000,
            timeout: Duration::from_secs(1),
            patience: Duration::from_secs(8),
            queue: 65_536,
            cache_bytes: 64 << 20,
            breaker: BreakerSettings::default(),
            budget: BudgetSettings::default(),
            wait_replicas: 0,
        }
    }
}

impl Options {
    pub(crate) fn doing(&self, archives: bool) -> Doing {
        Doing { archives, waits: self.wait_replicas > 0 }
    }
}

/// Why counters in Redis cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be reached, or refuses what is needed.
    #[error("Redis: {0}")]
    Redis(#[from] RedisError),
    /// The archive behind it cannot be reached, or does not belong to it.
    #[error("{0}")]
    Archive(#[from] ArchiveError),
    /// Some of what was there is missing.
    #[error("{0}")]
    Lost(String),
    /// The user of Redis may not do what is needed.
    #[error("{0}")]
    Denied(String),
}

impl OpenError {
    /// Whether it may go by itself: somebody is not there yet. What was configured wrongly does not.
    pub fn may_pass(&self) -> bool {
        match self {
            // A server that answers at all answers the same next time, unless it says that it is just starting.
            OpenError::Redis(error) if is_said_by_server(error) => matches!(
                error.kind(),
                ErrorKind::Server(
                    ServerErrorKind::BusyLoading
                        | ServerErrorKind::ClusterDown
                        | ServerErrorKind::MasterDown
                        | ServerErrorKind::TryAgain
                )
            ),
            OpenError::Redis(error) => {
                // Who answers in another language is another server.
                !matches!(
                    error.kind(),
                    ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig | ErrorKind::Parse
                )
            }
            OpenError::Archive(error) => error.may_pass(),
            OpenError::Lost(_) | OpenError::Denied(_) => false,
        }
    }
}

impl From<PoliciesError> for OpenError {
    fn from(error: PoliciesError) -> OpenError {
        match error {
            PoliciesError::Redis(error) => OpenError::Redis(error),
            other => OpenError::Lost(other.to_string()),
        }
    }
}

/// Why not everything can be counted.
#[derive(Clone, Debug)]
struct Problem {
    text: String,
    /// What is known to be lost, if that is the reason.
    loss: Option<Loss>,
}

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Since when it is known, by the clock of Redis: nobody has counted there later.
    pub(crate) since_ms: i64,
    /// The groups that this is about, a bit for each.
    pub(crate) groups: u64,
}

/// The hash of policies as it was last seen.
#[derive(Default)]
struct Known {
    version: u64,
    /// How long ids are remembered, as far as nodes have said so.
    id_window_ms: u64,
    /// Name, value, name, value.
    fields: Vec<Vec<u8>>,
}

/// Counters in Redis or Valkey.
pub struct External {
    pub(crate) lanes: Arc<Lanes>,
    /// For what is not a call: a long walk must not fail others.
    links: Arc<Links>,
    /// The PostgreSQL behind it, if there is one.
    archive: Option<Arc<Archive>>,
    /// Counters in rows there, for policies that want it.
    strong: Option<Arc<Strong>>,
    /// The policies that hold, as they are stored.
    known: Mutex<Known>,
    /// What stripes had a moment ago.
    pub(crate) totals: TotalsSeen,
    /// What somebody wants to hear of.
    pub(crate) watching: Watching,
    /// Itself, for what goes on after a call.
    pub(crate) own: Weak<External>,
    /// Why not everything can be counted, if not.
    problem: Mutex<Option<Problem>>,
    /// Whether everybody was asked, and all counters are there.
    has_all: AtomicBool,
    /// What is wrong with how Redis is set, and when that was looked at.
    warning: Mutex<(Option<String>, Option<Instant>)>,
    /// When the streams were last trimmed, if they are.
    trimmed: Mutex<Option<Instant>>,
    pub(crate) handle: Handle,
    keeper: Mutex<Option<AbortHandle>>,
}

impl External {
    /// Opens the counters that lie there, or begins with none. `url` names a server, or several of a cluster with commas in
    /// between.
    pub async fn open(url: &str, options: Options) -> Result<Arc<External>, OpenError> {
        External::open_before(url, None, options).await
    }

    /// The same before an archive, which knows whether a Redis that is empty is a new one.
    pub async fn open_before(
        url: &str,
        archive: Option<Arc<Archive>>,
        options: Options,
    ) -> Result<Arc<External>, OpenError> {
        let links = Arc::new(Links::new(url, options.timeout)?);
        let map = links.map().await?;
        for address in map.masters() {
            links.load(&address).await?;
            rights::check(&links, &address, options.doing(archive.is_some())).await?;
        }
        let epoch = found_epoch(&links, &map, archive.as_deref()).await?;
        let snapshot = archive.clone().map(|archive| Arc::new(Snapshot::new(archive)));
        let lanes = Lanes::new(options.clone(), Links::new(url, options.timeout)?, epoch, map, snapshot);
        let strong = archive.as_ref().map(|archive| Strong::start(Arc::clone(archive), &options));
        let external = Arc::new_cyclic(|own| External {
            own: own.clone(),
            totals: TotalsSeen::default(),
            lanes: Arc::new(lanes),
            links,
            archive,
            strong,
            known: Mutex::default(),
            problem: Mutex::new(None),
            has_all: AtomicBool::new(false),
            watching: Watching::default(),
            warning: Mutex::default(),
            trimmed: Mutex::default(),
            handle: Handle::current(),
            keeper: Mutex::new(None),
        });
        external.look().await;
        match (external.loss(), &external.archive) {
            // Until everything is back, the policies hold that were last flushed.
            (Some(_), Some(archive)) => external.take_over(policies::of_fields(archive.policies().await?)?),
            _ => external.look_at_policies().await?,
        }
        let (ours, held) = (options.id_window_ms, external.id_window_ms());
        if ours < held {
            tracing::warn!(
                "nodes on this Redis remember request ids for {} s, and this one was started with {} s: the longer time holds",
                held / 1000,
                ours / 1000
            );
        }
        let (kept, lanes) = (Arc::downgrade(&external), Arc::clone(&external.lanes));
        let keeper = tokio::spawn(async move {
            loop {
                // However many calls are in doubt, one look serves them all.
                tokio::time::sleep(DOUBT_PAUSE).await;
                let _ = tokio::time::timeout(LOOK_INTERVAL, lanes.look_now.notified()).await;
                let Some(external) = kept.upgrade() else { return };
                external.look().await;
            }
        });
        *external.keeper.lock() = Some(keeper.abort_handle());
        Ok(external)
    }

    /// Looks at masters, at policies, and whether something is lost.
    async fn look(&self) {
        self.lanes.find_masters().await;
        let map = self.lanes.map();
        let standing = Standing::look(&self.links, &map).await;
        standing.answering(&map).iter().for_each(|address| self.lanes.trust(address));
        if let Named::Epoch(named) = &standing.policies
            && epoch::is_newer(named, &self.lanes.epoch())
        {
            self.enter(named);
        }
        self.judge(&standing);
        self.look_at_settings(&map).await;
        if let Err(error) = self.trim(&map).await {
            tracing::debug!(%error, "streams cannot be trimmed");
        }
        if self.problem.lock().is_none()
            && let Err(error) = self.look_at_policies_and_window().await
        {
            tracing::warn!(%error, "policies cannot be looked at");
        }
    }

    /// And says how long this node remembers ids, if nobody remembers them as long.
    async fn look_at_policies_and_window(&self) -> Result<(), PoliciesError> {
        self.look_at_policies().await?;
        let (ours, known) = (self.lanes.options.id_window_ms, self.known.lock().id_window_ms);
        if known >= ours {
            return Ok(());
        }
        if known > 0 {
            tracing::warn!(
                "request ids were remembered for {} s on this Redis, and from now on for {} s: start all nodes with the same --id-window",
                known / 1000,
                ours / 1000
            );
        }
        let map = self.lanes.map();
        let mut link = self.links.get(map.of_policies().ok_or_else(nobody)?).await?;
        policies::window_pipeline(ours).exec_async(&mut link).await?;
        self.look_at_policies().await
    }

    /// How long ids are remembered: the longest time that any node is known to remember them.
    pub(crate) fn id_window_ms(&self) -> u64 {
        self.lanes.id_window_ms()
    }

    /// Takes old entries out of the streams where no archive wants them. Should one be bound just now, it sees that it lacks them, and is seeded.
    async fn trim(&self, map: &Map) -> Result<(), RedisError> {
        let is_due = self.trimmed.lock().is_none_or(|trimmed| trimmed.elapsed() >= TRIM_INTERVAL);
        if self.archive.is_some() || !is_due {
            return Ok(());
        }
        let bound = redis::cmd("HGET").arg(POLICIES).arg(ARCHIVE_FIELD).to_owned();
        let bound: Option<String> = self.links.ask_for(map.of_policies().ok_or_else(nobody)?, &bound).await?;
        if bound.is_none() {
            for address in map.masters() {
                let mut pipeline = redis::Pipeline::new();
                for group in map.groups_of(&address) {
                    let trim = pipeline.cmd("XTRIM").arg(groups::stream(group));
                    trim.arg("MAXLEN").arg("~").arg(TRIMMED_ENTRIES);
                }
                let count = pipeline.len();
                self.links.ask_all(&address, &pipeline, count).await?;
            }
        }
        *self.trimmed.lock() = Some(Instant::now());
        Ok(())
    }

    async fn look_at_settings(&self, map: &Map) {
        let looked_at = self.warning.lock().1;
        if looked_at.is_some_and(|looked_at| looked_at.elapsed() < SETTINGS_INTERVAL) {
            return;
        }
        let found = eviction::warning(&self.links, map).await;
        let mut warning = self.warning.lock();
        if let Some(text) = found.as_ref().filter(|_| warning.0 != found) {
            tracing::warn!("{text}");
        }
        *warning = (found, Some(Instant::now()));
    }

    /// What is wrong with how Redis is set, though everything can be counted.
    pub fn warning(&self) -> Option<String> {
        self.warning.lock().0.clone()
    }

    fn judge(&self, standing: &Standing) {
        let ours = self.lanes.epoch();
        if let Some(ahead_ms) = standing.ahead_ms {
            self.lanes.redis_ahead_ms.store(ahead_ms, Ordering::Relaxed);
        }
        let has_all = !standing.is_partly_unknown() && !standing.has_lost(&ours);
        self.has_all.store(has_all, Ordering::Relaxed);
        let mut problem = self.problem.lock();
        let known = problem.take();
        *problem = standing.problem(&ours).map(|text| {
            if known.as_ref().is_none_or(|known| known.text != text) {
                tracing::error!("{text}");
            }
            let known = known.as_ref().and_then(|known| known.loss);
            let loss = standing.has_lost(&ours).then(|| {
                let groups = standing.lost_mask(&ours);
                // Where nothing else is lost than before, it is not later either.
                let known = known.filter(|known| groups & !known.groups == 0);
                Loss { since_ms: known.map_or(standing.time_ms, |known| known.since_ms), groups }
            });
            Problem { text, loss }
        });
        if problem.is_none() && known.is_some() {
            tracing::info!("Redis has everything again");
            self.lanes.snapshot.iter().for_each(|snapshot| snapshot.clear());
        }
    }

    /// Goes on in a newer epoch: Redis was rebuilt.
    fn enter(&self, epoch: &str) {
        tracing::info!("counting goes on in epoch {epoch}");
        self.lanes.set_epoch(epoch);
        // Its policies count from the beginning.
        *self.known.lock() = Known::default();
    }

    /// This node has rebuilt Redis.
    pub(crate) async fn take_over_epoch(&self, epoch: &str) {
        if *epoch != *self.lanes.epoch() {
            self.enter(epoch);
        }
        self.look().await;
    }

    /// Whether all counters were seen at the last look.
    pub(crate) fn has_all(&self) -> bool {
        self.has_all.load(Ordering::Relaxed)
    }

    /// Something may be lost: has it looked at soon.
    pub(crate) fn look_soon(&self) {
        self.lanes.look_now.notify_one();
    }

    /// What time it is by the clock of Redis, as far as this node knows.
    pub(crate) fn time_of_redis_ms(&self) -> i64 {
        wall_ms() + self.lanes.redis_ahead_ms.load(Ordering::Relaxed)
    }

    /// What is known to be lost, if something is.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.problem.lock().as_ref().and_then(|problem| problem.loss)
    }

    /// The version of the policies that hold.
    pub(crate) fn policies_version(&self) -> u64 {
        self.known.lock().version
    }

    /// The fields of the hash of policies as they were last seen, with their version, if that is newer than this one.
    pub(crate) fn policies_after(&self, version: u64) -> Option<(u64, Vec<Vec<u8>>)> {
        let known = self.known.lock();
        (known.version > version).then(|| (known.version, known.fields.clone()))
    }

    /// Why nothing, or not everything, can be counted at the moment.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().as_ref().map(|problem| problem.text.clone())
    }

    /// The archive behind it, if there is one.
    pub fn archive(&self) -> Option<&Arc<Archive>> {
        self.archive.as_ref()
    }

    /// The masters that hold the counters, and how many of the 64 groups each has.
    pub fn masters(&self) -> Vec<(String, usize)> {
        let map = self.lanes.map();
        let groups = |address: String| (map.groups_of(&address).count(), address);
        map.masters().into_iter().map(groups).map(|(count, address)| (address, count)).collect()
    }

    /// The epoch of the counters. Redis has lost what does not name it.
    pub fn epoch(&self) -> Arc<str> {
        self.lanes.epoch()
    }

    /// Connections for what is not a call.
    pub(crate) fn links(&self) -> Arc<Links> {
        Arc::clone(&self.links)
    }

    /// Where the groups are now.
    pub(crate) fn map(&self) -> Arc<Map> {
        self.lanes.map()
    }

    /// Which counters are spread over several groups.
    pub(crate) fn stripes(&self) -> Arc<Stripes> {
        Arc::clone(&self.lanes.stripes.read())
    }

    /// Where a group is now.
    pub(crate) fn master_of(&self, group: u16) -> Option<String> {
        self.lanes.map().of_group(group).map(str::to_owned)
    }

    pub(crate) async fn look_at_policies(&self) -> Result<(), PoliciesError> {
        let map = self.lanes.map();
        let address = map.of_policies().ok_or_else(nobody)?;
        let answer = self.links.ask(address, &policies::version_command()).await?;
        let version = policies::version(&answer, &self.lanes.epoch())?;
        if version == self.policies_version() {
            return Ok(());
        }
        let stored = policies::all(&self.links.ask(address, &policies::all_command()).await?)?;
        self.take_over(stored);
        Ok(())
    }

    fn take_over(&self, stored: policies::Stored) {
        let mut known = self.known.lock();
        // Looks may overtake each other.
        if stored.version > known.version {
            let id_window_ms = stored.id_window_ms;
            *known = Known { version: stored.version, id_window_ms, fields: stored.fields };
            self.lanes.remember_for(id_window_ms);
            self.strong.iter().for_each(|strong| strong.remember_for(id_window_ms));
            // Layouts come from both, so both change as one.
            let mut stripes = self.lanes.stripes.write();
            *self.lanes.policies.write() = Arc::new(stored.policies);
            *stripes = Arc::new(stored.stripes);
        }
    }

    fn store(
        &self,
        pattern: &[u8],
        policy: Option<&Policy>,
    ) -> impl Future<Output = Result<bool, PoliciesError>> + Send + 'static {
        let (links, map, epoch) = (Arc::clone(&self.links), self.lanes.map(), self.lanes.epoch());
        let (pipeline, is_set) = (policies::set_pipeline(pattern, policy), policy.is_some());
        async move {
            let address = map.of_policies().ok_or_else(nobody)?;
            policies::version(&links.ask(address, &policies::version_command()).await?, &epoch)?;
            let mut link = links.get(address).await?;
            Ok(policies::was_there(pipeline.query_async(&mut link).await, is_set)?)
        }
    }

    /// Sends what is to be strong its own way. Returns the rest.
    fn take_strong(&self, units: Vec<Unit>) -> Vec<Unit> {
        let policies = Arc::clone(&self.lanes.policies.read());
        if !policies.want_strong() {
            return units;
        }
        let (mut strong, mut others) = (Vec::new(), Vec::new());
        for unit in units {
            match unit.is_strong(&policies) {
                Some(true) if unit.is_of_session() => {
                    let why = "a producer's session is not for strong counters, nothing was changed; use request ids";
                    unit.answer(Answer::Unavailable(Unavailable::Unsupported(why.to_owned())));
                }
                Some(true) => strong.push(unit),
                Some(false) => others.push(unit),
                None => unit.answer(Answer::Refused(Refusal::CrossSlot)),
            }
        }
        match &self.strong {
            Some(rows) => rows.add(strong, policies),
            None => {
                let why = Unavailable::Unsupported(WITHOUT_ARCHIVE.to_owned());
                strong.into_iter().for_each(|unit| unit.answer(Answer::Unavailable(why.clone())));
            }
        }
        others
    }

    /// Why a policy cannot be set or removed, because counters of its pattern would have to move between Redis and PostgreSQL.
    fn would_move(
        &self,
        pattern: &[u8],
        policy: Option<&Policy>,
        now_ms: u64,
    ) -> Result<Option<String>, Unavailable> {
        let before = self.policies()?;
        let mut after = before.clone();
        after.set(pattern, policy.cloned());
        let was_strong = before.get(pattern).map(|policy| policy.strong);
        let will_be_strong = policy.map(|policy| policy.strong);
        if was_strong == will_be_strong || !before.want_strong() && !after.want_strong() {
            return Ok(None);
        }
        let Some(rows) = &self.strong else {
            return Ok(match will_be_strong {
                Some(true) => Some(WITHOUT_ARCHIVE.to_owned()),
                _ => policies::rules_strong(&before, pattern).then(|| ROWS_UNSEEN.to_owned()),
            });
        };
        let is_bound = self.archive.as_ref().is_some_and(|archive| archive.is_bound());
        // Who binds them later would take the policy for one of an archive of before, whose rows are missing.
        if will_be_strong == Some(true) && !is_bound {
            return Err(Unavailable::NoLeader(UNBOUND.to_owned()));
        }
        // Neither side is walked over for a policy that has no say about strong counters.
        if !policies::rules_strong(&before, pattern) && !policies::rules_strong(&after, pattern) {
            return Ok(None);
        }
        // What has no policy of its own any more has the next one, which may be of the other sort.
        let become_strong = will_be_strong.unwrap_or(was_strong == Some(false));
        let moves = move |key: &[u8]| policies::is_strong(&before, key) != policies::is_strong(&after, key);
        let (count, place) = if become_strong {
            let (walk, selector) =
                (Walk { rows: None, ..self.walk_over_all(now_ms)? }, Selector::new(pattern));
            (self.wait(async move { walk.count(selector.prefix(), moves).await })?, "Redis")
        } else {
            let rows = Arc::clone(rows);
            (self.wait(async move { rows.count(moves).await })?, "PostgreSQL")
        };
        Ok((count > 0).then(|| {
            format!(
                "{count} counters of this pattern lie in {place}, and would be left there; delete them first, or choose a \
                 pattern that has none"
            )
        }))
    }

    /// Has a batch done whose requests are about one counter each, or about several of one group. Called within the runtime.
    pub(crate) fn finish_apart(self: &Arc<Self>, batch: Batch, now_ms: u64, finished: Finished) {
        if let Some(why) = unsupported(&batch) {
            finished(batch, Err(Unavailable::Unsupported(why)));
            return;
        }
        let under_way = self.lanes.under_way.load(Ordering::Relaxed);
        if under_way > 0 && under_way + batch.requests.len() > self.lanes.options.queue {
            finished(batch, Err(Unavailable::Busy(format!("{under_way} requests wait for Redis"))));
            return;
        }
        let stripes = Arc::clone(&self.lanes.stripes.read());
        if !stripes.is_empty() {
            let layouts = self.layouts(&batch, now_ms);
            if !layouts.is_empty() {
                Arc::clone(self).finish_striped(batch, layouts, now_ms, finished);
                return;
            }
        }
        let finished = match batch.requests.iter().any(|request| request.id.is_some()) {
            true => Arc::clone(self).minding_late(now_ms, finished),
            false => finished,
        };
        self.send(batch, now_ms, finished, |batch, index| groups::group(batch.key(index)));
    }

    /// Has a batch done whose requests go to these groups. Called within the runtime.
    pub(crate) fn send(
        &self,
        batch: Batch,
        now_ms: u64,
        finished: Finished,
        group_of: impl Fn(&Batch, usize) -> u16,
    ) {
        let units = split_over(batch, now_ms, finished, group_of);
        self.lanes.add(self.take_strong(units));
    }

    /// While something is lost, a walk would miss it and say nothing.
    pub(crate) fn walk_over_all(&self, now_ms: u64) -> Result<Walk, Unavailable> {
        match self.loss() {
            Some(_) => Err(Unavailable::NoLeader(self.problem().unwrap_or_default())),
            None => Ok(self.walk(now_ms)),
        }
    }

    fn walk(&self, now_ms: u64) -> Walk {
        let policies = Arc::clone(&self.lanes.policies.read());
        Walk {
            links: Arc::clone(&self.links),
            map: self.lanes.map(),
            stripes: Arc::clone(&self.lanes.stripes.read()),
            rows: self
                .strong
                .clone()
                .map(|rows| (rows, policies))
                .filter(|(_, policies)| policies.want_strong()),
            timeout: self.lanes.options.timeout,
            now_ms,
        }
    }

    /// Waits for what Redis has to be asked about. Never called by a thread that serves others.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        asked: impl Future<Output = Result<T, Unavailable>> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (tell, told) = std::sync::mpsc::channel();
        self.handle.spawn(async move {
            // Nobody may be left to hear it.
            let _ = tell.send(asked.await);
        });
        told.recv().unwrap_or_else(|_| Err(Unavailable::Unreadable("the node is stopping".into())))
    }
}

impl Drop for External {
    fn drop(&mut self) {
        self.keeper.lock().take().inspect(AbortHandle::abort);
        self.lanes.stop();
        if let Some(strong) = &self.strong {
            strong.stop();
        }
    }
}

/// What a policy that wants strong counters needs.
const WITHOUT_ARCHIVE: &str =
    "strong counters lie in rows of PostgreSQL, and there is none: start with --archive postgres://...";
/// Why it has to wait.
const UNBOUND: &str = "it is not known yet whether the archive belongs to this Redis, and strong counters would lie there: PostgreSQL \
     cannot be reached, or is another one (`quipu backend` says which)";
/// Why a node without an archive does not take such a policy away.
const ROWS_UNSEEN: &str = "strong counters of this pattern may lie in rows of PostgreSQL, which this node does not see, and would be left \
     there; ask a node that has --archive";

pub(crate) fn nobody() -> RedisError {
    (ErrorKind::Client, "nobody has the slot").into()
}

pub(crate) fn unreachable(error: PoliciesError) -> Unavailable {
    Unavailable::NoLeader(format!("policies: {error}"))
}

impl Counters for External {
    fn execute(&self, _batch: &mut Batch, _now_ms: u64) -> Result<Execution, Unavailable> {
        Ok(Execution::Pending)
    }

    fn finish(&self, mut batch: Batch, now_ms: u64, finished: Finished) {
        let _inside = self.handle.enter();
        let own = self.own.upgrade();
        match own {
            Some(external) if has_stages(&batch) => external.finish_in_stages(batch, now_ms, finished),
            Some(external) => match loosen(&mut batch) {
                Some(loosened) => external.finish_loose(batch, loosened, now_ms, finished),
                None => external.finish_apart(batch, now_ms, finished),
            },
            None => finished(batch, Err(Unavailable::Unreadable("the node is stopping".into()))),
        }
    }

    /// What was answered is what Redis made of it; when that is on a disk is Redis's business.
    fn settle(&self, _offset: u64) -> Result<(), Unavailable> {
        Ok(())
    }

    fn is_settled(&self, _offset: u64) -> bool {
        true
    }

    fn when_settled(&self, _offset: u64, settled: Box<dyn FnOnce(Result<(), Unavailable>) + Send>) {
        settled(Ok(()));
    }

    fn policies(&self) -> Result<Policies, Unavailable> {
        let (links, map, epoch) = (Arc::clone(&self.links), self.lanes.map(), self.lanes.epoch());
        let stored = self.wait(async move {
            let asked = async {
                let address = map.of_policies().ok_or_else(nobody)?;
                policies::version(&links.ask(address, &policies::version_command()).await?, &epoch)?;
                policies::all(&links.ask(address, &policies::all_command()).await?)
            };
            asked.await.map_err(unreachable)
        })?;
        let policies = stored.policies.clone();
        self.take_over(stored);
        Ok(policies)
    }

    fn set_policy(&self, pattern: &[u8], policy: Option<Policy>, now_ms: u64) -> Result<bool, Unavailable> {
        if let Some(why) = self.would_move(pattern, policy.as_ref(), now_ms)? {
            return Err(Unavailable::Unsupported(why));
        }
        if let Some(what) = policy.as_ref().and_then(policies::unsupported) {
            let why = format!("{what} not supported by a deployment on Redis, nothing was changed");
            return Err(Unavailable::Unsupported(why));
        }
        let known = self.policies()?;
        if policy.is_some() && known.get(pattern).is_none() && known.len() >= POLICIES_MAX {
            return Err(Unavailable::Unsupported(format!(
                "there are {POLICIES_MAX} policies, which is the most"
            )));
        }
        let stripes = |policy: Option<&Policy>| policy.and_then(|policy| policy.stripes).unwrap_or(1);
        self.note_stripes(pattern, stripes(known.get(pattern)), stripes(policy.as_ref()), now_ms)?;
        let stored = self.store(pattern, policy.as_ref());
        let was_there = self.wait(async move { stored.await.map_err(unreachable) })?;
        // In force when this returns.
        self.policies()?;
        Ok(was_there)
    }

    fn scan(&self, cursor: u64, count: usize, now_ms: u64) -> Result<ScanPage, Unavailable> {
        let walk = self.walk_over_all(now_ms)?;
        self.wait(async move { walk.scan(cursor, count).await })
    }

    fn list(&self, listing: &Listing, now_ms: u64) -> Result<ListPage, Unavailable> {
        let (walk, listing) = (self.walk_over_all(now_ms)?, listing.clone());
        self.wait(async move { walk.list(&listing).await })
    }

    fn aggregate(&self, selector: &Selector, now_ms: u64) -> Result<Aggregate, Unavailable> {
        let (walk, selector) = (self.walk_over_all(now_ms)?, selector.clone());
        let policies = Arc::clone(&self.lanes.policies.read());
        self.wait(async move { walk.aggregate(&selector, &policies).await })
    }

    fn random_key(&self, draw: u64, now_ms: u64) -> Result<Option<Vec<u8>>, Unavailable> {
        let walk = self.walk_over_all(now_ms)?;
        self.wait(async move { walk.random_key(draw).await })
    }

    fn watch(&self, interest: Interest, watched: Box<dyn FnOnce() + Send>) {
        self.watch_streams(interest, watched);
    }

    fn changes(&self) -> Changes {
        self.watched_changes()
    }

    /// What the archive has.
    fn has_older(&self) -> bool {
        self.archive.is_some()
    }

    /// Not known here: nobody counts requests by key.
    fn hot(&self, _n: usize, _now_ms: u64) -> Result<HotKeys, Unavailable> {
        Ok(HotKeys::default())
    }

    fn facts(&self) -> Vec<(&'static str, u64)> {
        let archived = self.archive.as_ref().map(|archive| archive.facts.all()).unwrap_or_default();
        let facts = &self.lanes.facts;
        let read = |fact: &std::sync::atomic::AtomicU64| fact.load(Ordering::Relaxed);
        let own = [
            ("external_rounds", read(&facts.rounds)),
            ("external_calls", read(&facts.calls)),
            ("external_requests", read(&facts.requests)),
            ("external_retries", read(&facts.retries)),
            ("external_failures", read(&facts.failures)),
            ("external_breaker_opened", read(&facts.breaker_opened)),
            ("external_lost", read(&facts.lost)),
            ("external_conflicts", read(&facts.conflicts)),
            ("external_stale_reads", read(&facts.stale_reads)),
            ("external_unreplicated", read(&facts.unreplicated)),
            ("external_under_way", self.lanes.under_way.load(Ordering::Relaxed) as u64),
            ("external_masters", self.lanes.map().masters().len() as u64),
        ];
        let strong = self.strong.as_ref().map(|strong| strong.facts()).unwrap_or_default();
        own.into_iter().chain(archived).chain(strong).collect()
    }
}
