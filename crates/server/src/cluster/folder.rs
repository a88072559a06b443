//! What a data folder knows of its cluster.
//!
//! ```text
//! <data>/cluster/node.toml            who this node is, and whom it asks first
//!                authority.pem        whom it trusts
//!                certificate.pem      what it shows
//!                key.pem              and proves it with
//!                authority-key.pem    of the first node: signs invitations
//!                invited              the last number given out, of the first node
//!                known.toml           who belonged to the cluster when the node last looked, for invitations
//! ```
//! An invitation is all of that for another node, in one file: whoever has it can join.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use quipu_cluster::certificates::{Authority, Issued};
use quipu_cluster::meta::{Meta, check_address};
use quipu_cluster::peers::Tls;
use quipu_engine::{Engine, Options};
use rand::TryRngCore;
use rand::rngs::OsRng;
use serde::{Deserialize, Serialize};

/// Replicas unless told otherwise.
pub const REPLICAS_DEFAULT: u16 = 3;

/// Who a node is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Its number.
    pub node: u64,
    /// The number of the cluster, in hexadecimal.
    pub cluster: String,
    /// The secret that keys request ids, the same on all nodes, in hexadecimal.
    pub secret: String,
    /// How many partitions there are.
    pub partitions: u16,
    /// How many nodes hold each.
    pub replicas: u16,
    /// How long request ids are remembered: replicas must agree on what they have seen.
    pub id_window_ms: u64,
    /// Where it listens for other nodes.
    pub listen: SocketAddr,
    /// Where other nodes reach it.
    pub address: String,
    /// What it shares the fate of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The node whose place it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<u64>,
    /// Nodes that were there before it, by number: whom to ask first. The first node has none.
    #[serde(default)]
    pub through: BTreeMap<String, String>,
}

impl Identity {
    /// The number of the cluster.
    pub fn cluster(&self) -> anyhow::Result<u128> {
        u128::from_str_radix(&self.cluster, 16).context("the number of the cluster is not hexadecimal")
    }

    /// What a new data folder begins with: the secret of the cluster, and chance.
    pub fn entropy(&self) -> anyhow::Result<[u8; 40]> {
        let mut entropy: [u8; 40] = chance()?;
        let secret = u128::from_str_radix(&self.secret, 16).context("the secret is not hexadecimal")?;
        entropy[..16].copy_from_slice(&secret.to_be_bytes());
        Ok(entropy)
    }

    /// Those to ask first.
    pub fn through(&self) -> BTreeMap<u64, String> {
        self.through
            .iter()
            .filter_map(|(node, address)| Some((node.parse().ok()?, address.clone())))
            .collect()
    }
}

/// Who belongs to the cluster, as a node that runs has written it down for who invites from its folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The number of the data folder with which the first node founded the cluster, written before it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub founded: Option<String>,
    /// Those who left, for ever.
    #[serde(default)]
    removed: Vec<u64>,
    /// Where the others are reached, by number.
    #[serde(default)]
    nodes: BTreeMap<String, String>,
}

impl Known {
    /// What a node knows.
    pub fn of(meta: &Meta) -> Known {
        let address =
            |(node, member): (&u64, &quipu_cluster::meta::Member)| (node.to_string(), member.address.clone());
        Known {
            founded: None,
            removed: meta.removed.iter().copied().collect(),
            nodes: meta.nodes.iter().map(address).collect(),
        }
    }

    /// Where the others are reached.
    pub fn others(&self, node: u64) -> BTreeMap<u64, String> {
        let nodes =
            self.nodes.iter().filter_map(|(node, address)| Some((node.parse().ok()?, address.clone())));
        nodes.filter(|(other, _)| *other != node).collect()
    }

    /// The same, and with which folder the cluster was founded, unless that is known.
    pub fn founded_with(mut self, folder: Option<String>) -> Known {
        self.founded = self.founded.or(folder);
        self
    }

    /// The same after the node itself has heard that it was removed.
    pub fn without(mut self, node: u64) -> Known {
        self.nodes.remove(&node.to_string());
        self.removed.push(node);
        self.removed.sort_unstable();
        self.removed.dedup();
        self
    }
}

/// All that another node needs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invitation {
    node: u64,
    cluster: String,
    secret: String,
    partitions: u16,
    replicas: u16,
    id_window_ms: u64,
    authority: String,
    certificate: String,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaces: Option<u64>,
    /// Of all that must be as the cluster says it; whom to ask first may be another by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<String>,
    through: BTreeMap<String, String>,
}

impl Invitation {
    fn checked(&self) -> String {
        let Invitation { node, cluster, secret, partitions, replicas, id_window_ms, replaces, .. } = self;
        let text = format!(
            "{node} {cluster} {secret} {partitions} {replicas} {id_window_ms} {}",
            replaces.unwrap_or(0)
        );
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
    }
}

/// Where a new node is reached.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// Where it listens for other nodes
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7072")]
    pub peer: SocketAddr,
    /// Where other nodes reach it, if that is not where it listens: host:port
    #[arg(long, value_name = "ADDRESS")]
    pub peer_address: Option<String>,
    /// What it shares the fate of: a rack, a data centre. Replicas go to different zones
    #[arg(long)]
    pub zone: Option<String>,
}

/// The cluster's part of a data folder.
#[derive(Clone, Debug)]
pub struct ClusterFolder {
    path: PathBuf,
}

impl ClusterFolder {
    fn of(data: &Path) -> ClusterFolder {
        ClusterFolder { path: data.join("cluster") }
    }

    /// Refuses a data folder that was to become that of a node, and did not quite.
    pub fn refuse_half_made(data: &Path) -> anyhow::Result<()> {
        let folder = ClusterFolder::of(data);
        if !folder.path.is_dir() || folder.file("node.toml").is_file() {
            return Ok(());
        }
        let what_to_do = match Engine::look(data)? {
            Some(found) if found.is_replicated && folder.was_in_use() => {
                "put it back from a copy, or replace the node"
            }
            Some(found) if found.is_replicated => {
                "`quipu cluster init` did not come to its end; run it again"
            }
            _ => {
                "`quipu cluster init` or `join` did not come to its end; run it again, or remove that folder to serve without a \
                 cluster"
            }
        };
        bail!("{} has no node.toml: {what_to_do}", folder.path.display());
    }

    /// Whether a node has run with it.
    fn was_in_use(&self) -> bool {
        self.file("known.toml").is_file()
    }

    /// That of a data folder, if it is of a node.
    pub fn find(data: &Path) -> Option<ClusterFolder> {
        let folder = ClusterFolder::of(data);
        folder.file("node.toml").is_file().then_some(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Who the node is.
    pub fn identity(&self) -> anyhow::Result<Identity> {
        let path = self.file("node.toml");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    /// How it proves that.
    pub fn tls(&self) -> anyhow::Result<Tls> {
        Tls::from_files(&self.file("authority.pem"), &self.file("certificate.pem"), &self.file("key.pem"))
            .map_err(anyhow::Error::msg)
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let (path, new) = (self.file(name), self.file(&format!("{name}.new")));
        let opened = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new);
        // As a whole or not at all.
        let written = opened.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            fs::File::open(&self.path)?.sync_all()
        });
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Who belonged to the cluster when the node last looked; nobody where it has not run yet.
    pub fn known(&self) -> anyhow::Result<Known> {
        let path = self.file("known.toml");
        match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).with_context(|| path.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Known::default()),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    /// Writes that down.
    pub fn learn(&self, known: &Known) -> anyhow::Result<()> {
        self.write("known.toml", &toml::to_string(known)?)
    }

    /// Last of all the identity: with it the folder is that of a node.
    fn write_all(&self, identity: &Identity, authority: &str, issued: &Issued) -> anyhow::Result<()> {
        fs::create_dir_all(&self.path).with_context(|| format!("cannot make {}", self.path.display()))?;
        self.write("authority.pem", authority)?;
        self.write("certificate.pem", &issued.certificate)?;
        self.write("key.pem", &issued.key)?;
        self.write("node.toml", &toml::to_string(identity)?)
    }
}

/// Bytes that nobody can guess.
fn chance<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    OsRng.try_fill_bytes(&mut bytes).context("the system has no randomness")?;
    Ok(bytes)
}

fn refuse_member(data: &Path) -> anyhow::Result<()> {
    if ClusterFolder::find(data).is_some() {
        bail!("{} belongs to a node of a cluster already", data.display());
    }
    Ok(())
}

/// Where others reach a node, before anything is written.
fn address(place: &Place) -> anyhow::Result<String> {
    if place.peer.port() == 0 {
        bail!("--peer {}: a node listens on a port that others know, so not on 0", place.peer);
    }
    if place.peer_address.is_none() && place.peer.ip().is_unspecified() {
        bail!("nobody reaches a node at {}; say with --peer-address where others reach it", place.peer);
    }
    let address = place.peer_address.clone().unwrap_or_else(|| place.peer.to_string());
    check_address(&address).map_err(anyhow::Error::msg)?;
    Ok(address)
}

/// Makes a data folder, used alone so far or new, that of the first node of a new cluster.
pub fn init(
    data: &Path,
    place: &Place,
    replicas: u16,
    partitions: u16,
    id_window_ms: u64,
) -> anyhow::Result<Identity> {
    refuse_member(data)?;
    let (found, folder) = (Engine::look(data)?, ClusterFolder::of(data));
    if found.is_some_and(|found| found.is_replicated) && (!folder.path.is_dir() || folder.was_in_use()) {
        bail!(
            "{} is that of a node of a cluster whose folder {} is gone, or node.toml in it: put it back from a copy, or replace the node. It cannot begin \
             another cluster, since it need not have all that the first has acknowledged",
            data.display(),
            folder.path.display()
        );
    }
    let secret = found.map_or_else(chance, |found| Ok(found.secret))?;
    let identity = Identity {
        node: 1,
        cluster: format!("{:032x}", u128::from_be_bytes(chance()?).max(1)),
        secret: format!("{:032x}", u128::from_be_bytes(secret)),
        partitions: found.map_or(partitions, |found| found.partitions),
        replicas,
        id_window_ms,
        listen: place.peer,
        address: address(place)?,
        zone: place.zone.clone(),
        replaces: None,
        through: BTreeMap::new(),
    };
    let (authority, own) = Authority::new()?;
    // First of all: by this who comes after a crash sees what was begun.
    fs::create_dir_all(&folder.path).with_context(|| format!("cannot make {}", folder.path.display()))?;
    fs::File::open(data).and_then(|data| data.sync_all()).context("cannot sync the data folder")?;
    if found.is_some_and(|found| !found.is_replicated) {
        Engine::make_replicated(data, Options::default()).inspect_err(|_| {
            // Nothing was begun, and nothing is in there: the folder is served as before.
            let _ = fs::remove_dir(&folder.path);
        })?;
    }
    folder.write("authority-key.pem", &own.key)?;
    folder.write("invited", "1\n")?;
    folder.write_all(&identity, authority.certificate(), &authority.issue(identity.node)?)?;
    Ok(identity)
}

/// Invites another node, as the first one; perhaps one that takes the place of another.
pub fn invite(data: &Path, replaces: Option<u64>) -> anyhow::Result<(u64, String)> {
    let folder = ClusterFolder::find(data).with_context(|| {
        format!("{} is not that of a node; `quipu cluster init` makes it one", data.display())
    })?;
    let identity = folder.identity()?;
    let read = |name: &str| fs::read_to_string(folder.file(name));
    let Ok(key) = read("authority-key.pem") else {
        bail!(
            "only where `quipu cluster init` was can others be invited; if that folder is lost, put authority-key.pem and \
             invited of its backup into {}",
            folder.path.display()
        );
    };
    let authority = Authority::from_pem(read("authority.pem")?, &key)?;
    if replaces == Some(identity.node) {
        bail!(
            "{} is that of node {} itself; put authority-key.pem and invited from {} into the folder of another node, and replace \
             it from there",
            data.display(),
            identity.node,
            folder.path.display()
        );
    }
    let known = folder.known()?;
    if known.removed.contains(&identity.node) {
        bail!(
            "node {} was removed from the cluster, and invites nobody; put authority-key.pem and invited from {} into the folder \
             of a node that belongs to it, and invite from there",
            identity.node,
            folder.path.display()
        );
    }
    // One at a time: no two nodes may have one number.
    let one = fs::File::open(&folder.path).context("cannot open the folder")?;
    one.lock().context("cannot lock the folder")?;
    let last = read("invited")?.trim().parse::<u64>().context("cluster/invited is not a number")?;
    if let Some(lost) = replaces.filter(|lost| !(1..=last).contains(lost)) {
        bail!("the cluster has no node {lost}; `quipu cluster status` shows those it has");
    }
    if let Some(lost) = replaces.filter(|lost| known.removed.contains(lost)) {
        bail!(
            "node {lost} is gone already, and others hold what it held; `quipu cluster invite` is for one more node"
        );
    }
    let node = last + 1;
    folder.write("invited", &format!("{node}\n"))?;
    let issued = authority.issue(node)?;
    let mut invitation = Invitation {
        node,
        cluster: identity.cluster.clone(),
        secret: identity.secret.clone(),
        partitions: identity.partitions,
        replicas: identity.replicas,
        id_window_ms: identity.id_window_ms,
        authority: authority.certificate().to_string(),
        certificate: issued.certificate,
        key: issued.key,
        replaces,
        check: None,
        through: through(&identity, known, replaces),
    };
    invitation.check = Some(invitation.checked());
    Ok((node, toml::to_string(&invitation)?))
}

/// Whom the new node asks first: everybody who is known, since some may be down when it starts.
fn through(identity: &Identity, known: Known, replaces: Option<u64>) -> BTreeMap<String, String> {
    let mut through = known.nodes;
    through.insert(identity.node.to_string(), identity.address.clone());
    if let Some(lost) = replaces {
        through.remove(&lost.to_string());
    }
    through
}

/// Makes a new data folder that of the node an invitation is for.
pub fn join(invitation: &str, data: &Path, place: &Place) -> anyhow::Result<Identity> {
    refuse_member(data)?;
    if Engine::look(data)?.is_some() {
        bail!("{} holds counters already; a node that joins begins with an empty folder", data.display());
    }
    let invited: Invitation = toml::from_str(invitation).context("that is no invitation")?;
    if invited.check.as_ref().is_some_and(|check| *check != invited.checked()) {
        bail!("the invitation is not as it was written; let `quipu cluster invite` write another");
    }
    let identity = Identity {
        node: invited.node,
        cluster: invited.cluster,
        secret: invited.secret,
        partitions: invited.partitions,
        replicas: invited.replicas,
        id_window_ms: invited.id_window_ms,
        listen: place.peer,
        address: address(place)?,
        zone: place.zone.clone(),
        replaces: invited.replaces,
        through: invited.through,
    };
    let issued = Issued { certificate: invited.certificate, key: invited.key };
    ClusterFolder::of(data).write_all(&identity, &invited.authority, &issued)?;
    Ok(identity)
}
