//! `cargo xtask torture cluster`: a cluster of real servers, clients that never give up, and everything going wrong.
//!
//! | file | what it does |
//! |---|---|
//! | `faults` | the plan of what goes wrong, from a seed |
//! | `nodes` | the servers: founded, killed, stopped, compared |
//! | `ways` | how it is between two nodes: cut, slow, lossy |
//! | `switch`, `proxy` | the two forms of the network that make it so |
//! | `moves` | nodes that join, leave and are replaced meanwhile |
//! | `join` | `cargo xtask torture join`: a cluster with many counters grows and replaces a node |
//! | `clients` | who counts meanwhile, and writes down what was answered |

mod clients;
mod faults;
pub mod join;
mod moves;
pub mod nodes;
mod proxy;
mod switch;
mod ways;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quipu_history::{Operation, Outcome, Violation};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;

use self::clients::{Clients, Connection, Flood, Recorded, key_name};
use self::faults::{Fault, Planned, Scene};
use self::moves::Moves;
use self::nodes::{Form, Nodes, PARTITIONS};
use self::ways::Way;
use crate::interrupt::{Pending, Undo};
use crate::packages;
use crate::workspace::{Binary, Scratch};

/// Clients at the same time.
const CLIENTS: u32 = 16;
/// After the last fault the cluster has so long to serve everything at every node.
const RECOVERY_MAX: Duration = Duration::from_secs(10);
/// In the tests, on a machine that does other things too: only whether, not when.
const RECOVERY_MAX_IN_TEST: Duration = Duration::from_secs(120);
/// What `cargo xtask test` gives it.
const MINUTES_IN_TEST: f64 = 0.4;
/// The same faults in each run of the tests; a longer run of its own makes others.
const SEED_IN_TEST: u64 = 1;
/// Counters to see whether a node serves: so many that every partition has some.
const PROBES: usize = 256;
/// A server may still stumble over its full disk so long after it has room again.
const DISK_AFTERMATH: Duration = Duration::from_secs(10);
/// Replicas have so long to hear of the last changes before they are compared.
const QUIET: Duration = Duration::from_secs(2);
/// A replica that heard too late is given another chance so many times.
const COMPARISONS: u32 = 3;
/// Nodes that may come in one run at most, each with its own place in the network.
const GUESTS_MAX: f64 = 60.0;
/// Operations before and after a violation that are written down.
const AROUND: usize = 200;
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// How nodes reach each other.
#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
enum Network {
    /// Network namespaces and a switch in user space
    Namespaces,
    /// A proxy before each node
    Proxy,
    /// Namespaces where they are allowed
    Auto,
}

/// Arguments of `torture cluster`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// How many nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9))]
    nodes: u8,
    /// How long things go wrong
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Repeats the faults of another run
    #[arg(long)]
    seed: Option<u64>,
    /// How nodes reach each other
    #[arg(long, value_enum, default_value = "auto")]
    network: Network,
    /// Only faults of these kinds, as the report names them: Kill,Replace
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    binary: Binary,
    /// Seconds that the cluster may take to serve everything after the last fault
    #[arg(long, default_value_t = RECOVERY_MAX.as_secs())]
    recovery: u64,
    /// We were started once more, in namespaces made for us; the folder to work in
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

impl Arguments {
    /// As `cargo xtask test` runs it.
    pub fn in_test() -> Arguments {
        Arguments {
            nodes: 3,
            minutes: MINUTES_IN_TEST,
            seed: Some(SEED_IN_TEST),
            network: Network::Auto,
            only: Vec::new(),
            binary: Binary::debug(),
            recovery: RECOVERY_MAX_IN_TEST.as_secs(),
            inside: None,
        }
    }
}

/// Lets things go wrong until the time is over, and looks at what came of it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let binary = arguments.binary.get()?;
    let seed = arguments.seed.unwrap_or_else(|| StdRng::from_os_rng().random());
    if let Some(folder) = &arguments.inside {
        return Torture { arguments, seed, form: Form::Namespaces, folder }.run(&binary);
    }
    let scratch = Scratch::new("torture-cluster")?;
    let unshare = unshare();
    let has_namespaces = arguments.network != Network::Proxy && can_unshare(&unshare);
    match arguments.network {
        Network::Namespaces => {
            ensure!(
                has_namespaces,
                "network namespaces or /dev/net/tun are not allowed here; use --network proxy"
            );
        }
        Network::Auto if !has_namespaces => println!("no network namespaces here: proxies instead"),
        _ => {}
    }
    if !has_namespaces {
        return Torture { arguments, seed, form: Form::Proxy, folder: scratch.path() }.run(&binary);
    }
    // All that is made in there goes with the last process in there.
    let mut child = Command::new(unshare[0])
        .args(&unshare[1..])
        .arg(this_program()?)
        .args(["torture", "cluster", "--network", "namespaces", "--seed", &seed.to_string()])
        .args(["--nodes", &arguments.nodes.to_string(), "--minutes", &arguments.minutes.to_string()])
        .args(["--recovery", &arguments.recovery.to_string()])
        .args(arguments.only.iter().map(|kind| format!("--only={kind}")))
        .arg("--binary")
        .arg(&binary)
        .arg("--inside")
        .arg(scratch.path())
        .spawn()
        .context("cannot run unshare")?;
    let _pending = Pending::new(Undo::Kill(child.id()));
    ensure!(child.wait()?.success(), "the cluster did not stand it");
    Ok(())
}

/// The words that start a program in namespaces of its own: networks, mounts, and processes, so that none survives.
fn unshare() -> Vec<&'static str> {
    let mut words = vec!["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !packages::is_root() {
        words.push("--map-root-user");
    }
    words
}

/// Where this program is. Tests that were built meanwhile may have put it there anew: then the kernel says that the old one is gone.
fn this_program() -> Result<PathBuf> {
    let path = std::env::current_exe()?;
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or_else(|| path.clone(), PathBuf::from))
}

fn can_unshare(unshare: &[&str]) -> bool {
    let probe = "ip link set lo up && test -w /dev/net/tun && command -v nsenter";
    let tried = Command::new(unshare[0]).args(&unshare[1..]).args(["sh", "-c", probe]).output();
    tried.is_ok_and(|output| output.status.success())
}

struct Torture<'a> {
    arguments: &'a Arguments,
    seed: u64,
    form: Form,
    folder: &'a Path,
}

/// What was found out, and what must not be.
#[derive(Default)]
struct Findings {
    violations: Vec<String>,
    /// Counters whose history is worth keeping, with the time.
    of_counters: Vec<(u32, u64)>,
}

impl Torture<'_> {
    fn run(&self, binary: &Path) -> Result<()> {
        let length = Duration::from_secs_f64(self.arguments.minutes * 60.0);
        let count = usize::from(self.arguments.nodes);
        let form = match self.form {
            Form::Namespaces => "network namespaces and a switch",
            Form::Proxy => "proxies",
            Form::Direct => "nothing between them",
        };
        println!(
            "{count} nodes, {CLIENTS} clients, {} s of faults; network: {form}; --seed {}",
            length.as_secs(),
            self.seed
        );
        // A plan has about so many nodes that come.
        let more = (self.arguments.minutes * 3.0).ceil().clamp(4.0, GUESTS_MAX) as usize;
        let mut nodes = Nodes::found(binary, self.folder, count, more, self.form)?;
        let small_disks: Vec<usize> = (0..count).filter(|node| nodes.has_small_disk(*node)).collect();
        if small_disks.is_empty() {
            println!("no file system can be mounted here: disks do not get full");
        }
        let scene = Scene { nodes: count, small_disks: &small_disks, only: &self.arguments.only };
        let plan = faults::plan(&mut StdRng::seed_from_u64(self.seed), scene, length);
        ensure!(!plan.is_empty(), "nothing of the kind {:?} can happen here", self.arguments.only);
        let mut findings = Findings::default();
        let clients = Clients::start(nodes.addresses(), CLIENTS, self.seed);
        let happened = carry_out(&plan, &mut nodes, &clients, &mut findings)?;

        let recovery = self.wait_until_it_serves(&mut nodes, &mut findings)?;
        let answers = clients.answers();
        let recorded = clients.finish();
        println!(
            "{answers} answers; all nodes served all partitions again {:.1} s after the last fault",
            recovery.as_secs_f64()
        );
        judge(&recorded, &mut findings);
        self.wait_until_nobody_is_behind(&nodes, &mut findings);
        compare_replicas(&mut nodes, &mut findings)?;
        report(&happened, &recorded);
        if findings.violations.is_empty() {
            println!("linearizable; nothing lost, nothing counted twice; replicas are the same");
            return Ok(());
        }
        let kept = self.keep(&nodes, &recorded, &findings)?;
        for violation in findings.violations.iter().take(20) {
            println!("VIOLATION {violation}");
        }
        bail!(
            "{} violations with --seed {}; history and logs are in {}",
            findings.violations.len(),
            self.seed,
            kept.display()
        )
    }

    /// Until every node answers for every partition.
    fn wait_until_it_serves(&self, nodes: &mut Nodes, findings: &mut Findings) -> Result<Duration> {
        let began = Instant::now();
        let max = Duration::from_secs(self.arguments.recovery);
        let probes: Vec<String> = (0..PROBES).map(|number| format!("probe:{number}")).collect();
        for node in nodes.seats() {
            let address = nodes.address(node);
            let serves = || Connection::open(address)?.increment(&probes);
            let mut answer = serves();
            while !matches!(answer, Ok(true)) {
                for (ended, status) in nodes.ended()? {
                    let words = nodes.last_words(ended);
                    findings
                        .violations
                        .push(format!("node {} ended after the faults: {status}: {words}", ended + 1));
                    nodes.start(ended)?;
                }
                if began.elapsed() > max * 6 {
                    findings.violations.push(format!("node {} does not serve: {answer:?}", node + 1));
                    return Ok(began.elapsed());
                }
                thread::sleep(LOOK_PAUSE);
                answer = serves();
            }
        }
        if began.elapsed() > max {
            findings
                .violations
                .push(format!("it took {:.1} s to serve again", began.elapsed().as_secs_f64()));
        }
        Ok(began.elapsed())
    }

    /// Until every replica has what its leader has, without being started again.
    fn wait_until_nobody_is_behind(&self, nodes: &Nodes, findings: &mut Findings) {
        let until = Instant::now() + Duration::from_secs(self.arguments.recovery) * 6;
        let mut behind = nodes.behind();
        while !behind.is_empty() && Instant::now() < until {
            thread::sleep(QUIET);
            behind = nodes.behind();
        }
        if !behind.is_empty() {
            let named: Vec<String> =
                behind.iter().map(|(partition, seat)| format!("{partition} at node {}", seat + 1)).collect();
            findings.violations.push(format!("replicas do not catch up: partitions {}", named.join(", ")));
        }
    }

    /// Keeps what is needed to look into it.
    fn keep(&self, nodes: &Nodes, recorded: &Recorded, findings: &Findings) -> Result<PathBuf> {
        let target = self.folder.parent().unwrap_or(self.folder);
        let kept = target.join(format!("torture-cluster-failed-{}", self.seed));
        std::fs::create_dir_all(&kept)?;
        for log in nodes.logs() {
            std::fs::copy(&log, kept.join(log.file_name().unwrap_or_default()))?;
        }
        std::fs::write(kept.join("violations.txt"), findings.violations.join("\n"))?;
        for (key, at_us) in &findings.of_counters {
            let history = around(&recorded.operations, *key, *at_us);
            std::fs::write(kept.join(format!("{}.txt", key_name(*key).replace(':', "-"))), history)?;
        }
        Ok(kept)
    }
}

/// The operations of a counter before and after a moment.
fn around(operations: &[Operation], key: u32, at_us: u64) -> String {
    let mut of_key: Vec<&Operation> = operations.iter().filter(|operation| operation.key == key).collect();
    of_key.sort_by_key(|operation| operation.answered_us);
    let middle = of_key.partition_point(|operation| operation.answered_us < at_us);
    let range = middle.saturating_sub(AROUND)..(middle + AROUND).min(of_key.len());
    of_key[range].iter().fold(String::new(), |mut text, operation| {
        let _ = writeln!(text, "{operation:?}");
        text
    })
}

/// Lets happen what is planned, when its time comes. Returns how often what happened.
fn carry_out(
    plan: &[Planned],
    nodes: &mut Nodes,
    clients: &Clients,
    findings: &mut Findings,
) -> Result<BTreeMap<String, usize>> {
    let mut events: Vec<(Duration, bool, usize)> = plan
        .iter()
        .enumerate()
        .flat_map(|(number, planned)| [(planned.from, true, number), (planned.to, false, number)])
        .collect();
    events.sort();
    let began = Instant::now();
    // Nodes whose disk is full, or was until then.
    let mut full: HashMap<usize, Option<Instant>> = HashMap::new();
    let mut floods: HashMap<usize, Flood> = HashMap::new();
    let mut moves = Moves::new(nodes.seats().len());
    let mut happened: BTreeMap<String, usize> = BTreeMap::new();
    // Time that went by until a log had no room any more is not part of the plan.
    let mut late = Duration::ZERO;
    // The last change may still take its time.
    let last = (plan.iter().map(|planned| planned.to).max().unwrap_or_default(), false, usize::MAX);
    for (at, begins, number) in events.into_iter().chain([last]) {
        let moved_until = Instant::now() + moves::MOVE_MAX;
        let must_move =
            |moves: &Moves| number == usize::MAX && moves.is_moving() && Instant::now() < moved_until;
        while began.elapsed() < at + late || must_move(&moves) {
            thread::sleep(LOOK_PAUSE);
            if let Some(told) = moves.look(nodes)? {
                println!("{:7.1} s  {told}", began.elapsed().as_secs_f64());
                clients.reach(nodes.addresses());
            }
            for (node, status) in nodes.ended()? {
                let excuse = full.get(&node);
                let words = nodes.last_words(node);
                println!("{:7.1} s  node {} ended: {status}", began.elapsed().as_secs_f64(), node + 1);
                if moves.is_leaving(node) {
                    continue;
                }
                if !excuse.is_some_and(|until| until.is_none_or(|until| until.elapsed() < DISK_AFTERMATH)) {
                    findings.violations.push(format!("node {} ended by itself: {status}: {words}", node + 1));
                }
                if !matches!(excuse, Some(None)) {
                    nodes.start(node)?;
                }
            }
            if clients.have_violations() {
                findings.violations.push("the faults ended early".into());
                end_all(plan, nodes, &mut moves);
                return Ok(happened);
            }
        }
        let Some(Planned { from, to, fault }) = plan.get(number).copied() else { break };
        let name = |place: usize| format!("node {}", moves.seat(place) + 1);
        if begins {
            println!(
                "{:7.1} s  {} for {:.1} s",
                began.elapsed().as_secs_f64(),
                fault.named(name),
                (to - from).as_secs_f64()
            );
            *happened.entry(fault.kind()).or_default() += 1;
            let skipped = moves.skipped;
            begin(fault, number, nodes, &mut moves)?;
            if moves.skipped > skipped {
                *happened.entry(format!("{} skipped", fault.kind())).or_default() += 1;
            }
            clients.reach(nodes.addresses());
        } else {
            end(fault, number, nodes, &mut moves)?;
        }
        if let Fault::FillDisk(place) = fault {
            let node = moves.seat(place);
            full.insert(node, (!begins).then(Instant::now));
            if begins {
                floods.insert(node, Flood::start(nodes.address(node)));
                let filling = Instant::now();
                let is_full = nodes.wait_until_log_is_full(node)?;
                late += filling.elapsed();
                let so = if is_full { "has no room" } else { "still has room" };
                println!("           its log {so} after {:.1} s", filling.elapsed().as_secs_f64());
                *happened.entry("FillDisk noticed by the log".into()).or_default() += usize::from(is_full);
            } else {
                floods.remove(&node);
            }
        }
    }
    if moves.is_moving() {
        findings.violations.push(format!("a node did not get in or out within {:?}", moves::MOVE_MAX));
    }
    happened.insert("moves over".into(), moves.done);
    Ok(happened)
}

/// Nothing is wrong any more.
fn end_all(plan: &[Planned], nodes: &mut Nodes, moves: &mut Moves) {
    for (number, planned) in plan.iter().enumerate() {
        // A disk that was not filled is not emptied.
        let _ = end(planned.fault, number, nodes, moves);
    }
}

fn begin(fault: Fault, number: usize, nodes: &mut Nodes, moves: &mut Moves) -> Result<()> {
    if let Fault::Replace(place) = fault {
        return moves.replace(place, nodes);
    }
    let fault = fault.at(|place| moves.seat(place));
    let cut = Way { is_cut: true, ..Way::default() };
    let [hears, speaks] = match fault {
        Fault::Isolate(node) | Fault::Deafen(node) | Fault::Delay(node, _) | Fault::Lose(node, _) => {
            faults::ways_of(node, &nodes.seats())
        }
        _ => Default::default(),
    };
    let both = || [hears.clone(), speaks.clone()].concat();
    match fault {
        Fault::Kill(node) => nodes.kill(node)?,
        Fault::KillAll => {
            // First all at once, then one by one, to clean up.
            nodes.seats().into_iter().try_for_each(|node| nodes.signal(node, Signal::KILL))?;
            nodes.seats().into_iter().try_for_each(|node| nodes.kill(node))?;
        }
        Fault::Pause(node) => nodes.signal(node, Signal::STOP)?,
        Fault::Isolate(_) => nodes.ways.begin(number, both(), cut),
        Fault::CutPair(one, other) => nodes.ways.begin(number, vec![(one, other), (other, one)], cut),
        Fault::CutOneWay(from, to) => nodes.ways.begin(number, vec![(from, to)], cut),
        Fault::Deafen(_) => nodes.ways.begin(number, hears.clone(), cut),
        Fault::Delay(_, delay) => nodes.ways.begin(number, both(), Way { delay, ..Way::default() }),
        Fault::Lose(_, loss_percent) => {
            nodes.ways.begin(number, both(), Way { loss_percent, ..Way::default() });
        }
        Fault::FillDisk(node) => nodes.fill_disk(node)?,
        Fault::Visit => moves.visit(nodes)?,
        Fault::Replace(_) => {} // above: it is about a place
    }
    Ok(())
}

fn end(fault: Fault, number: usize, nodes: &mut Nodes, moves: &mut Moves) -> Result<()> {
    match fault.at(|place| moves.seat(place)) {
        Fault::Kill(node) => nodes.start(node),
        Fault::KillAll => nodes.seats().into_iter().try_for_each(|node| nodes.start(node)),
        Fault::Pause(node) => nodes.signal(node, Signal::CONT),
        Fault::FillDisk(node) => {
            nodes.empty_disk(node)?;
            nodes.start(node)
        }
        // It is over when the cluster says so.
        Fault::Replace(_) => Ok(()),
        Fault::Visit => {
            moves.end_visit();
            Ok(())
        }
        _ => {
            nodes.ways.end(number);
            Ok(())
        }
    }
}

/// Holds what clients saw against what can have happened.
fn judge(recorded: &Recorded, findings: &mut Findings) {
    findings.violations.extend(recorded.violations.iter().cloned());
    if let Err(violations) = quipu_history::check(&recorded.operations) {
        for violation in &violations {
            let Violation { key, at_us, .. } = violation;
            findings.violations.push(format!("{}: {violation}", key_name(*key)));
            findings.of_counters.push((*key, *at_us));
        }
    }
}

/// Stops all nodes and compares what they hold.
fn compare_replicas(nodes: &mut Nodes, findings: &mut Findings) -> Result<()> {
    for attempt in 1.. {
        thread::sleep(QUIET);
        nodes.stop()?;
        let digests = nodes.digests()?;
        let mut replicas: BTreeMap<u64, Vec<(usize, &nodes::Digest)>> = BTreeMap::new();
        for (node, held) in nodes.seats().into_iter().zip(&digests) {
            held.iter()
                .for_each(|digest| replicas.entry(digest.partition).or_default().push((node + 1, digest)));
        }
        ensure!(replicas.len() == PARTITIONS, "only partitions {:?} are anywhere", replicas.keys());
        let (mut compared, mut behind) = (0, Vec::new());
        for replicas in replicas.values() {
            let newest = replicas.iter().map(|(_, digest)| digest.sequence).max();
            for (node, digest) in replicas {
                if Some(digest.sequence) != newest {
                    behind.push((*node, *digest));
                }
                for (other_node, other) in replicas.iter().filter(|(other, _)| other > node) {
                    if other.sequence == digest.sequence {
                        compared += 1;
                        if other.digest != digest.digest {
                            findings.violations.push(format!(
                                "replicas differ: node {node} {digest:?}, node {other_node} {other:?}"
                            ));
                        }
                    }
                }
            }
        }
        if behind.is_empty() || attempt == COMPARISONS {
            if !behind.is_empty() {
                findings.violations.push(format!("replicas stay behind: {behind:?}"));
            }
            println!("{compared} pairs of replicas of {PARTITIONS} partitions compared");
            break;
        }
        println!("{} replicas are behind: the nodes go on for a while", behind.len());
        for node in nodes.seats() {
            nodes.start(node)?;
        }
        nodes.wait_until_whole()?;
    }
    nodes.check_folders()
}

fn report(happened: &BTreeMap<String, usize>, recorded: &Recorded) {
    println!("faults:");
    for (kind, count) in happened {
        println!("  {count:5} {kind}");
    }
    let (mut added, mut refused, mut read) = (0, 0, 0);
    let mut waits_us: Vec<u64> = Vec::with_capacity(recorded.operations.len());
    for operation in &recorded.operations {
        match operation.outcome {
            Outcome::Added { .. } => added += 1,
            Outcome::Refused { .. } => refused += 1,
            Outcome::Read { .. } => read += 1,
        }
        waits_us.push(operation.answered_us - operation.asked_us);
    }
    println!(
        "{added} additions, {refused} refusals, {read} looks, {} answers repeated",
        recorded.repetitions
    );
    waits_us.sort_unstable();
    let wait_ms = |share: f64| {
        let at = ((waits_us.len() as f64 * share) as usize).min(waits_us.len().saturating_sub(1));
        waits_us.get(at).map_or(0.0, |wait| *wait as f64 / 1_000.0)
    };
    let [half, most, longest] = [0.5, 0.99, 1.0].map(wait_ms);
    println!("waits, retries included: p50 {half:.1} ms, p99 {most:.0} ms, the longest {longest:.0} ms");
    for (excuse, count) in &recorded.excuses {
        println!("  {count} times instead of an answer: {excuse}");
    }
}
