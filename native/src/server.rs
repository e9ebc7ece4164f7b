//! One server: its connections, their TLS and their limits, and what becomes of each call.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::header::HeaderValue;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::answers::{Ready, Store};
use crate::bodies::{self, Received, Reply, receive};
use crate::connections::{Admitted, Connections, Progress, UnderWay};

/// By which Python knows of whose connection a call is. One that a client sends is taken off.
const CONNECTION: &str = "cagrpc-connection";

const LARGEST_READY_REQUEST_BYTES: usize = 64 * 1024; // a node with its labels and annotations
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
const SEND_BUFFER_BYTES: usize = 256 * 1024;
// As those of the Python server: a peer that is gone without a word does not count as a connection for ever.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(20);
const NO_SOCKET: Duration = Duration::from_millis(100);

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Serving,
    /// No new connections and calls; those under way may end.
    Draining,
    Ended,
}

pub struct Limits {
    /// Of one connection; and as many requests at once are received here, of all.
    pub calls: u32,
    pub handshake: Duration,
    pub receive: Duration,
}

/// What all connections of one server share.
pub struct Server {
    pub answers: Arc<Store>,
    pub limits: Limits,
    pub connections: Arc<Connections>,
    /// The socket of the Python server.
    pub behind: String,
    /// Whether Python must let a connection's client in before calls of it are answered here.
    pub guarded: bool,
    /// Whether calls with a caller's trace are Python's, which makes spans.
    pub traced: bool,
    pub tls: RwLock<Option<Arc<ServerConfig>>>,
    /// How often the authority of clients was replaced.
    pub generation: AtomicU64,
    pub clients: Mutex<HashMap<u64, Arc<Client>>>,
    pub receiving: AtomicUsize,
    pub phase: watch::Sender<Phase>,
}

/// One connection.
pub struct Client {
    id: u64,
    /// Its certificate first, DER.
    pub chain: Vec<Vec<u8>>,
    /// One more than the generation in which Python has let it in; 0 before.
    admitted: AtomicU64,
    server: Arc<Server>,
    progress: Arc<Progress>,
    /// Each has a connection of its own to Python, so that one who does not read holds up nobody else.
    behind: tokio::sync::Mutex<Option<SendRequest<bodies::Request>>>,
}

impl Server {
    pub fn clients(&self) -> MutexGuard<'_, HashMap<u64, Arc<Client>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accept connections until it drains; return once all of them have ended.
    pub async fn serve(self: Arc<Self>, listeners: Vec<TcpListener>) {
        let (open, mut ended) = mpsc::channel::<()>(1);
        let accepting: Vec<_> =
            listeners.into_iter().map(|each| tokio::spawn(self.clone().accept(each, open.clone()))).collect();
        drop(open);
        for each in accepting {
            let _ = each.await;
        }
        let _ = ended.recv().await; // nothing is sent: it is over when nobody has the other end any more
    }

    async fn accept(self: Arc<Self>, listener: TcpListener, open: mpsc::Sender<()>) {
        let mut phase = self.phase.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = phase.wait_for(|now| *now != Phase::Serving) => return,
            };
            let Ok((stream, peer)) = accepted else {
                sleep(NO_SOCKET).await; // no file descriptor is left, most likely
                continue;
            };
            if let Some(admitted) = self.connections.admit(peer.ip()) {
                let (server, open) = (self.clone(), open.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = server.connection(stream, &admitted) => {}
                        () = admitted.progress.end.notified() => {}
                    }
                    drop(open);
                });
            }
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, admitted: &Admitted) {
        let deadline = Instant::now() + self.limits.handshake;
        let _ = stream.set_nodelay(true);
        let config = self.tls.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(config) = config else {
            return self.speak(stream, Vec::new(), &admitted.progress, deadline).await;
        };
        let handshake = TlsAcceptor::from(config).accept(stream);
        if let Ok(Ok(stream)) = timeout(self.limits.handshake, handshake).await {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let chain = chain.iter().map(|each| each.to_vec()).collect();
            self.speak(stream, chain, &admitted.progress, deadline).await;
        }
    }

    async fn speak(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send,
        chain: Vec<Vec<u8>>,
        progress: &Arc<Progress>,
        deadline: Instant,
    ) {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let client = Arc::new(Client {
            id: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            chain,
            admitted: AtomicU64::new(0),
            server: self.clone(),
            progress: progress.clone(),
            behind: tokio::sync::Mutex::new(None),
        });
        self.clients().insert(client.id, client.clone());
        let _forget = Forget(client.clone());
        let counted = Counted { stream, progress: progress.clone() };
        let mut phase = self.phase.subscribe();
        let serve = service_fn(move |request| client.clone().serve(request));
        let mut connection = pin!(
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .auto_date_header(false)
                .max_concurrent_streams(self.limits.calls)
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .max_send_buf_size(SEND_BUFFER_BYTES)
                .keep_alive_interval(KEEPALIVE)
                .keep_alive_timeout(KEEPALIVE_ANSWER)
                .serve_connection(TokioIo::new(counted), serve)
        );
        let mut begun = pin!(sleep(deadline.saturating_duration_since(Instant::now())));
        let (mut looked, mut draining) = (false, false);
        loop {
            tokio::select! {
                _ = connection.as_mut() => return,
                () = begun.as_mut(), if !looked => {
                    looked = true;
                    if !progress.speaks() {
                        return; // it has said nothing
                    }
                }
                _ = phase.wait_for(|now| *now != Phase::Serving), if !draining => {
                    draining = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Forgets a connection when it is over.
struct Forget(Arc<Client>);

impl Drop for Forget {
    fn drop(&mut self) {
        self.0.server.clients().remove(&self.0.id);
    }
}

impl Client {
    pub fn admit(&self, generation: u64) {
        self.admitted.store(generation + 1, Ordering::SeqCst);
    }

    fn is_admitted(&self) -> bool {
        let now = self.server.generation.load(Ordering::SeqCst) + 1;
        !self.server.guarded || self.admitted.load(Ordering::SeqCst) == now
    }

    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Reply>, AnyError> {
        let started = Instant::now();
        let _under_way = UnderWay::on(&self.progress);
        let (head, mut body) = request.into_parts();
        let mut received = Bytes::new();
        let method = self.server.answers.method(head.uri.path());
        let may_be_ready = method.is_some() && self.is_admitted() && self.is_plain(&head.headers);
        let one = if may_be_ready { One::of(&self.server) } else { None };
        if let (Some(method), Some(_one)) = (method, one) {
            let all = receive(&mut body, LARGEST_READY_REQUEST_BYTES);
            match timeout(self.server.limits.receive, all).await {
                Err(_) => return Err(h2::Error::from(h2::Reason::CANCEL).into()), // as Python does
                Ok(Ok(Received::Whole(whole))) => {
                    if let Some(ready) = self.server.answers.answer(method, &whole) {
                        ready.count(started.elapsed());
                        return Ok(response(&ready));
                    }
                    received = whole;
                }
                Ok(part) => {
                    if let Received::Part(part) = part? {
                        received = part;
                    }
                }
            }
        }
        self.forward(Request::from_parts(head, bodies::Request { received, rest: body })).await
    }

    /// Whether a call has nothing of which only Python knows what to make.
    fn is_plain(&self, headers: &HeaderMap) -> bool {
        let is_ours = headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        let encoded = headers.get("grpc-encoding").is_some_and(|name| name != "identity");
        let traced = self.server.traced && (headers.contains_key("traceparent") || headers.contains_key("tracestate"));
        is_ours && !encoded && !traced
    }

    async fn forward(&self, mut request: Request<bodies::Request>) -> Result<Response<Reply>, AnyError> {
        let authority = request.uri().authority().map_or("cagrpc", |found| found.as_str());
        let path = request.uri().path_and_query().map_or("/", |found| found.as_str());
        let uri = Uri::builder().scheme("http").authority(authority).path_and_query(path).build()?;
        *request.uri_mut() = uri;
        request.headers_mut().insert(CONNECTION, self.id.into());
        let sent = self.behind().await?.send_request(request).await?;
        Ok(sent.map(Reply::Forwarded))
    }

    async fn behind(&self) -> Result<SendRequest<bodies::Request>, AnyError> {
        let mut behind = self.behind.lock().await;
        if let Some(open) = behind.as_ref().filter(|open| !open.is_closed()) {
            return Ok(open.clone());
        }
        let stream = UnixStream::connect(&self.server.behind).await?;
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(connection);
        Ok(behind.insert(sender).clone())
    }
}

fn response(ready: &Ready) -> Response<Reply> {
    let mut response = Response::new(Reply::Message(ready.message.clone()));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// One of the requests that are received at once, so that slow ones hold no more memory than that.
struct One<'a>(&'a AtomicUsize);

impl<'a> One<'a> {
    fn of(server: &'a Server) -> Option<Self> {
        let one = Self(&server.receiving);
        let others = server.receiving.fetch_add(1, Ordering::Relaxed);
        (others < server.limits.calls as usize).then_some(one)
    }
}

impl Drop for One<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that counts what is read from it.
struct Counted<S> {
    stream: S,
    progress: Arc<Progress>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.progress.read.fetch_add(buffer.filled().len() - before, Ordering::Relaxed);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
