//! Nodes that reach each other by TCP, mutually authenticated by TLS.
//!
//! ```text
//! hello  := "QUIPUPER" version:4le cluster:16le from:8le to:8le run:8le twin:1
//!                                      both ways; cluster is 0 while not known; twin: another run of the other is heard
//! frame  := length:4le number:8le bytes                                 question there, answer with the same number back
//! ```
//! A node opens one connection to each node it asks, for all questions at once; answers come in any order. Who a node is, its
//! certificate says: the name `node-<number>.quipu`. Whoever has no such certificate of the cluster's authority says nothing.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, DnsName, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::node::Node;
use crate::questions::{is_for_clients, too_many};
use crate::raft::NodeId;
use crate::runs::{Heard, Runs};
use crate::transport::{Answering, Transport, Unreached};

const MAGIC: &[u8; 8] = b"QUIPUPER";
const VERSION: u32 = 2;
const HELLO_BYTES: usize = 8 + 4 + 16 + 8 + 8 + 8 + 1;
/// Larger than the largest batch and the largest piece of a snapshot.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// How long it may take to reach a node and to learn who it is.
const GREETING_MAX: Duration = Duration::from_secs(3);
/// How long what was sent may stay without a sign that it has arrived. The kernel alone would try for a quarter of an hour, with
/// pauses that grow, and so would notice late that the way is free again.
#[cfg(target_os = "linux")]
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Connections of which it is not known yet who has come. Those that come after wait, for as long as the greeting of one may take.
const STRANGERS_MAX: usize = 256;
/// How long nobody tries again to reach a node that was not reached.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Questions of one node that are answered at the same time: so many of its own, and so many of its clients.
const QUESTIONS_MAX: usize = 1_024;
/// So many strangers are complained of one by one in so long.
const COMPLAINTS_MAX: u64 = 10;
const COMPLAINTS_TIME: Duration = Duration::from_secs(10);

/// The name of a node in its certificate.
pub fn name_of(node: NodeId) -> String {
    format!("node-{node}.quipu")
}

/// How nodes prove who they are.
#[derive(Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// From files in PEM: the authority that all nodes trust, this node's certificate with what leads to it, and its key.
    pub fn from_files(
        authority: &std::path::Path,
        certificate: &std::path::Path,
        key: &std::path::Path,
    ) -> Result<Tls, String> {
        let unreadable =
            |path: &std::path::Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let read = |path: &std::path::Path| -> Result<Vec<CertificateDer<'static>>, String> {
            let found = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(path, &error))?;
            let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| unreadable(path, &error))?;
            if found.is_empty() {
                Err(format!("{}: there is no certificate in it", path.display()))
            } else {
                Ok(found)
            }
        };
        let mut roots = RootCertStore::empty();
        for root in read(authority)? {
            roots.add(root).map_err(|error| unreadable(authority, &error))?;
        }
        let roots = Arc::new(roots);
        let chain = read(certificate)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = &[&rustls::version::TLS13];
        let failed = |error: &dyn std::fmt::Display| format!("TLS between nodes: {error}");
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(|error| failed(&error))?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|error| failed(&error))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| failed(&error))?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|error| failed(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| failed(&error))?;
        Ok(Tls { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// Why there is no TLS, in words for who runs the nodes.
fn tls_says(error: &io::Error) -> String {
    use rustls::{AlertDescription as Alert, CertificateError as Certificate, Error};
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature)) => {
            "its certificate was not issued by this cluster: it belongs to another one".into()
        }
        Some(Error::InvalidCertificate(
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. },
        )) => "its certificate is for another node".into(),
        Some(Error::AlertReceived(
            Alert::BadCertificate | Alert::UnknownCA | Alert::DecryptError | Alert::CertificateUnknown,
        )) => {
            "it does not accept the certificate of this node: it belongs to another cluster, or looks for another node".into()
        }
        Some(other) => format!("TLS: {other}"),
        None => error.to_string(),
    }
}

/// See the head of this file.
pub struct Peers {
    id: NodeId,
    /// The number of the cluster, once it is known.
    cluster: Mutex<u128>,
    tls: Option<Tls>,
    /// Which process of the node this is.
    run: u64,
    runs: Runs,
    addresses: Mutex<BTreeMap<NodeId, String>>,
    links: Mutex<HashMap<NodeId, mpsc::UnboundedSender<Asked>>>,
    /// How many were complained of since when.
    complaints: Mutex<(Instant, u64)>,
}

/// A question that waits for its answer.
struct Asked {
    question: Bytes,
    answer: oneshot::Sender<Result<Bytes, Unreached>>,
}

/// Who somebody says to be, and whom they want.
struct Hello {
    cluster: u128,
    from: NodeId,
    to: NodeId,
    run: u64,
    /// Whether another run of the other is heard.
    is_twin: bool,
}

impl Hello {
    fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..28].copy_from_slice(&self.cluster.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.from.to_le_bytes());
        bytes[36..44].copy_from_slice(&self.to.to_le_bytes());
        bytes[44..52].copy_from_slice(&self.run.to_le_bytes());
        bytes[52] = self.is_twin.into();
        bytes
    }

    async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Hello, String> {
        let mut bytes = [0; HELLO_BYTES];
        // What comes behind the version is a matter of the version.
        let (beginning, rest) = bytes.split_at_mut(MAGIC.len() + size_of::<u32>());
        stream.read_exact(beginning).await.map_err(|error| error.to_string())?;
        let mut reader = quipu_wire::entry::Reader::new(beginning);
        let malformed = |_| "cut short".to_string();
        if &reader.array::<8>().map_err(malformed)? != MAGIC {
            return Err("that is no node of quipu".into());
        }
        let version = u32::from_le_bytes(reader.array().map_err(malformed)?);
        if version != VERSION {
            return Err(format!("it speaks version {version} between nodes, and this program {VERSION}"));
        }
        stream.read_exact(rest).await.map_err(|error| error.to_string())?;
        let mut reader = quipu_wire::entry::Reader::new(rest);
        Ok(Hello {
            cluster: u128::from_le_bytes(reader.array().map_err(malformed)?),
            from: u64::from_le_bytes(reader.array().map_err(malformed)?),
            to: u64::from_le_bytes(reader.array().map_err(malformed)?),
            run: u64::from_le_bytes(reader.array().map_err(malformed)?),
            is_twin: reader.flag().map_err(malformed)?,
        })
    }
}

impl Peers {
    /// Those of a node, in the process of this number (see `runs.rs`). Without `tls` anybody who reaches the port is believed: for tests.
    pub fn new(id: NodeId, run: u64, tls: Option<Tls>) -> Arc<Peers> {
        Arc::new(Peers {
            id,
            cluster: Mutex::new(0),
            tls,
            run,
            runs: Runs::new(),
            addresses: Mutex::default(),
            links: Mutex::default(),
            complaints: Mutex::new((Instant::now(), 0)),
        })
    }

    /// The number of the cluster is known now: nodes of another are not spoken to.
    pub fn belong_to(&self, cluster: u128) {
        *self.cluster.lock() = cluster;
    }

    /// Answers other nodes for as long as the node lives.
    pub async fn serve(self: Arc<Peers>, listener: TcpListener, node: Weak<Node>) {
        let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
        loop {
            // It is never closed.
            let Ok(place) = Arc::clone(&strangers).acquire_owned().await else { return };
            let accepted = listener.accept().await;
            if node.strong_count() == 0 {
                return;
            }
            match accepted {
                Ok((stream, address)) => {
                    let (peers, node) = (Arc::clone(&self), Weak::clone(&node));
                    tokio::spawn(async move {
                        if let Err(why) = peers.welcome(stream, node, place).await {
                            peers.complain(&format!(
                                "a connection from {address} between nodes was refused: {why}"
                            ));
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!("no connection between nodes was accepted: {error}");
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Anybody who reaches the port can give reason to: that must not fill a disk with it.
    fn complain(&self, text: &str) {
        let mut complaints = self.complaints.lock();
        let (since, count) = &mut *complaints;
        if since.elapsed() >= COMPLAINTS_TIME {
            if *count > COMPLAINTS_MAX {
                tracing::warn!("{} more connections between nodes were refused", *count - COMPLAINTS_MAX);
            }
            (*since, *count) = (Instant::now(), 0);
        }
        *count += 1;
        if *count <= COMPLAINTS_MAX {
            tracing::warn!("{text}");
        }
    }

    /// Its place among strangers is free again once it is known who it is.
    async fn welcome(
        &self,
        stream: TcpStream,
        node: Weak<Node>,
        place: OwnedSemaphorePermit,
    ) -> Result<(), String> {
        set_up(&stream);
        let Some(tls) = &self.tls else {
            let from = tokio::time::timeout(GREETING_MAX, self.greet_back(stream, None)).await;
            let (from, heard, stream) = from.map_err(|_| "it says nothing".to_string())??;
            drop(place);
            answer_all(stream, from, heard, node).await;
            return Ok(());
        };
        let greeted = tokio::time::timeout(GREETING_MAX, async {
            let stream = TlsAcceptor::from(Arc::clone(&tls.server)).accept(stream).await;
            let stream = stream.map_err(|error| tls_says(&error))?;
            let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let certificate = certificate.cloned().ok_or("it has no certificate")?.into_owned();
            self.greet_back(stream, Some(certificate)).await
        });
        let (from, heard, stream) = greeted.await.map_err(|_| "it says nothing".to_string())??;
        drop(place);
        answer_all(stream, from, heard, node).await;
        Ok(())
    }

    /// Learns who has come, and whether they are welcome.
    async fn greet_back<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut stream: S,
        certificate: Option<CertificateDer<'static>>,
    ) -> Result<(NodeId, Heard, S), String> {
        let hello = Hello::read(&mut stream).await?;
        let ours =
            Hello { is_twin: self.runs.hears_another(hello.from, hello.run), ..self.hello(hello.from) };
        // Said in any case, so that the other side can tell its operator what is wrong.
        stream.write_all(&ours.encode()).await.map_err(|error| error.to_string())?;
        stream.flush().await.map_err(|error| error.to_string())?;
        if let Some(certificate) = certificate {
            let name = name_of(hello.from);
            let valid = DnsName::try_from(name.clone()).map_err(|error| error.to_string())?;
            let parsed = webpki::EndEntityCert::try_from(&certificate).map_err(|error| error.to_string())?;
            let checked = parsed.verify_is_valid_for_subject_name(&ServerName::DnsName(valid));
            checked.map_err(|_| {
                format!("it says to be node {}, but its certificate is not for {name}", hello.from)
            })?;
        }
        ours.check(&hello)?;
        if hello.to != self.id {
            return Err(format!("it looks for node {}, and this is node {}", hello.to, self.id));
        }
        let heard = self.runs.meet(hello.from, hello.run).ok_or_else(|| another_run(hello.from))?;
        Ok((hello.from, heard, stream))
    }

    fn hello(&self, to: NodeId) -> Hello {
        Hello { cluster: *self.cluster.lock(), from: self.id, to, run: self.run, is_twin: false }
    }

    /// Who hears another process with the data folder of this node, and for how long they have said so.
    pub fn refused_as_twin_by(&self) -> Option<(NodeId, Duration)> {
        self.runs.refused_by()
    }

    async fn connect(&self, node: NodeId, address: &str) -> Result<(Heard, Box<dyn Stream>), String> {
        let stream = TcpStream::connect(address).await.map_err(|error| format!("{address}: {error}"))?;
        set_up(&stream);
        let mut stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from(name_of(node)).map_err(|error| error.to_string())?;
                let connected = TlsConnector::from(Arc::clone(&tls.client)).connect(name, stream).await;
                Box::new(connected.map_err(|error| format!("{address}: {}", tls_says(&error)))?)
            }
        };
        let ours = self.hello(node);
        stream.write_all(&ours.encode()).await.map_err(|error| format!("{address}: {error}"))?;
        stream.flush().await.map_err(|error| format!("{address}: {error}"))?;
        let theirs = Hello::read(&mut stream).await.map_err(|error| format!("{address}: {error}"))?;
        ours.check(&theirs).map_err(|error| format!("{address}: {error}"))?;
        if theirs.from != node {
            return Err(format!("at {address} there is node {}, not node {node}", theirs.from));
        }
        self.runs.note_refusal(node, theirs.is_twin);
        if theirs.is_twin {
            return Err(format!("node {node} says: {}", another_run(self.id)));
        }
        let heard =
            self.runs.meet(node, theirs.run).ok_or_else(|| format!("{address}: {}", another_run(node)))?;
        Ok((heard, stream))
    }

    /// The connection to a node, made when something is asked and made again when it broke.
    async fn link(peers: Weak<Peers>, node: NodeId, mut asked: mpsc::UnboundedReceiver<Asked>) {
        while let Some(first) = asked.recv().await {
            let Some(alive) = peers.upgrade() else { return };
            let address = alive.addresses.lock().get(&node).cloned();
            let connected = match address {
                Some(address) => {
                    let connecting = tokio::time::timeout(GREETING_MAX, alive.connect(node, &address));
                    connecting.await.unwrap_or_else(|_| Err(format!("{address} does not answer")))
                }
                None => Err(format!("where node {node} is, is not known")),
            };
            drop(alive);
            match connected {
                Ok((heard, stream)) => {
                    // Bounded as the queue that it is fed from.
                    let (again, merged) = mpsc::unbounded_channel();
                    let _ = again.send(first);
                    // What comes in is passed on until the connection breaks.
                    let conversation = converse(stream, heard, merged);
                    tokio::pin!(conversation);
                    loop {
                        tokio::select! {
                            () = &mut conversation => break,
                            next = asked.recv() => match next {
                                Some(next) => drop(again.send(next)),
                                None => return,
                            },
                        }
                    }
                }
                Err(why) => {
                    let unreached = Unreached::not_sent(why);
                    let _ = first.answer.send(Err(unreached.clone()));
                    let until = tokio::time::Instant::now() + RETRY_PAUSE;
                    while let Ok(Some(next)) = tokio::time::timeout_at(until, asked.recv()).await {
                        let _ = next.answer.send(Err(unreached.clone()));
                    }
                }
            }
        }
    }
}

impl Hello {
    fn check(&self, other: &Hello) -> Result<(), String> {
        if self.cluster != 0 && other.cluster != 0 && self.cluster != other.cluster {
            let (ours, theirs) = (self.cluster, other.cluster);
            return Err(format!("it belongs to cluster {theirs:032x}, and this node to {ours:032x}"));
        }
        Ok(())
    }
}

impl Transport for Arc<Peers> {
    fn ask(&self, node: NodeId, question: Bytes) -> Answering {
        let (answer, answered) = oneshot::channel();
        {
            let mut links = self.links.lock();
            let link = links.entry(node).or_insert_with(|| {
                // Bounded by who asks, each of whom waits for the answer: what clients want by `together.rs`, which has a few
                // messages under way, replicas and chores by their number.
                let (ask, asked) = mpsc::unbounded_channel();
                tokio::spawn(Peers::link(Arc::downgrade(self), node, asked));
                ask
            });
            let _ = link.send(Asked { question, answer });
        }
        Box::pin(async move {
            answered
                .await
                .unwrap_or_else(|_| Err(Unreached::lost(format!("the connection to node {node} broke"))))
        })
    }

    fn learn(&self, addresses: &BTreeMap<NodeId, String>) {
        // Nothing is forgotten: whoever joins knows of one node before the others tell of themselves.
        self.addresses.lock().extend(addresses.iter().map(|(node, address)| (*node, address.clone())));
    }
}

fn another_run(node: NodeId) -> String {
    format!("another process with the data folder of node {node} is running")
}

/// What is sent goes at once, and a way that is cut is given up soon. Without this it would only be slower.
fn set_up(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, SILENCE_MAX.as_millis() as u32);
}

/// A connection, encrypted or not.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(u64, Bytes)> {
    let length = stream.read_u32_le().await? as usize;
    let number = stream.read_u64_le().await?;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame beyond all limits"));
    }
    // As much as there is, not as much as is announced.
    let mut bytes = Vec::new();
    stream.take(length as u64).read_to_end(&mut bytes).await?;
    if bytes.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((number, Bytes::from(bytes)))
}

async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), number: u64, bytes: &[u8]) -> io::Result<()> {
    stream.write_u32_le(bytes.len() as u32).await?;
    stream.write_u64_le(number).await?;
    stream.write_all(bytes).await
}

/// Asks everything that comes, until the connection breaks or nothing comes any more.
async fn converse(stream: Box<dyn Stream>, heard: Heard, mut asked: mpsc::UnboundedReceiver<Asked>) {
    let (from, to) = tokio::io::split(stream);
    let (mut from, mut to) = (BufReader::with_capacity(1 << 16, from), BufWriter::with_capacity(1 << 16, to));
    let waiting = Waiting::default();
    let asking = async {
        let mut number = 0u64;
        while let Some(next) = asked.recv().await {
            let mut next = Some(next);
            // What has come meanwhile goes along.
            while let Some(one) = next {
                number += 1;
                waiting.lock().insert(number, one.answer);
                write_frame(&mut to, number, &one.question).await?;
                next = asked.try_recv().ok();
            }
            to.flush().await?;
        }
        io::Result::Ok(())
    };
    let why = tokio::select! {
        done = asking => done.err(),
        why = read_answers(&mut from, &heard, &waiting) => Some(why),
    };
    let why =
        Unreached::lost(why.map_or_else(|| "the connection has ended".into(), |error| error.to_string()));
    for (_, waiting) in waiting.into_inner() {
        let _ = waiting.send(Err(why.clone()));
    }
}

/// Who waits for which answer.
type Waiting = Mutex<HashMap<u64, oneshot::Sender<Result<Bytes, Unreached>>>>;

/// Hands answers to those who wait, until the connection breaks.
async fn read_answers(from: &mut (impl AsyncRead + Unpin), heard: &Heard, waiting: &Waiting) -> io::Error {
    loop {
        match read_frame(from).await {
            Ok(_) if !heard.note() => {
                return io::Error::other("another process with this data folder runs instead");
            }
            Ok((number, answer)) => {
                if let Some(waiting) = waiting.lock().remove(&number) {
                    let _ = waiting.send(Ok(answer));
                }
            }
            Err(error) => return error,
        }
    }
}

/// Answers everything that a node asks, until the connection breaks.
async fn answer_all<S>(stream: S, asker: NodeId, heard: Heard, node: Weak<Node>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (from, to) = tokio::io::split(stream);
    let mut from = BufReader::with_capacity(1 << 16, from);
    // Bounded by what the other node has under way, which waits for every answer; one that takes none is let go of after `SILENCE_MAX`.
    let (answer, mut answers) = mpsc::unbounded_channel::<(u64, Bytes)>();
    let writing = tokio::spawn(async move {
        let mut to = BufWriter::with_capacity(1 << 16, to);
        while let Some(next) = answers.recv().await {
            let mut next = Some(next);
            while let Some((number, bytes)) = next {
                if write_frame(&mut to, number, &bytes).await.is_err() {
                    return;
                }
                next = answers.try_recv().ok();
            }
            if to.flush().await.is_err() {
                return;
            }
        }
    });
    // However much clients want, replicas hear each other: a leader that is not heard is replaced.
    let [of_nodes, of_clients] = [(); 2].map(|()| Arc::new(Semaphore::new(QUESTIONS_MAX)));
    while let Ok((number, question)) = read_frame(&mut from).await {
        if !heard.note() {
            break;
        }
        let place = match is_for_clients(&question) {
            true => Arc::clone(&of_clients).try_acquire_owned().ok(),
            false => Arc::clone(&of_nodes).acquire_owned().await.ok(),
        };
        let Some(place) = place else {
            let _ = answer.send((number, too_many()));
            continue;
        };
        let (node, answer) = (Weak::clone(&node), answer.clone());
        tokio::spawn(async move {
            let Some(node) = node.upgrade() else { return };
            let bytes = node.receive(asker, &question).await;
            let _ = answer.send((number, bytes));
            drop(place);
        });
        if writing.is_finished() {
            break;
        }
    }
    writing.abort();
}
