//! The front as Python has it: its settings, its certificates, its thread, and what it tells of clients.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::answers::Answers;
use crate::connections::Connections;
use crate::server::{Limits, Phase, Server};

/// One server's front. It serves from `start` to `end`, in a thread of its own that never holds the interpreter.
#[pyclass(frozen)]
pub struct Front {
    server: Arc<Server>,
    listeners: Mutex<Vec<OwnedFd>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[pymethods]
impl Front {
    /// It owns the listening sockets `listeners` from now on. `behind` is the path of the socket of the Python server.
    /// Where it is `guarded` a connection's calls are answered here once Python has said `admit`.
    #[new]
    #[pyo3(signature = (answers, listeners, behind, *, guarded, traced, connections, connections_of_one_peer, calls,
        handshake_seconds, receive_seconds))]
    #[allow(clippy::too_many_arguments)] // by name
    fn new(
        answers: &Answers,
        listeners: Vec<RawFd>,
        behind: String,
        guarded: bool,
        traced: bool,
        connections: usize,
        connections_of_one_peer: usize,
        calls: u32,
        handshake_seconds: f64,
        receive_seconds: f64,
    ) -> Self {
        #[allow(unsafe_code)] // the caller's promise: it has given them away
        let own = |fd: RawFd| unsafe { OwnedFd::from_raw_fd(fd) };
        Self {
            server: Arc::new(Server {
                answers: answers.store.clone(),
                limits: Limits {
                    calls,
                    handshake: Duration::from_secs_f64(handshake_seconds),
                    receive: Duration::from_secs_f64(receive_seconds),
                },
                connections: Arc::new(Connections::new(connections, connections_of_one_peer)),
                behind,
                guarded,
                traced,
                tls: None.into(),
                generation: 0.into(),
                clients: Mutex::default(),
                receiving: 0.into(),
                phase: watch::Sender::new(Phase::Serving),
            }),
            listeners: Mutex::new(listeners.into_iter().map(own).collect()),
            thread: Mutex::default(),
        }
    }

    /// Show this certificate at new connections, and ask clients for one of `client_ca`, if there is one (PEM). Clients
    /// that were admitted in another `generation` have to be admitted again. Raises `ValueError`.
    fn use_tls(&self, certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>, generation: u64) -> PyResult<()> {
        let config = config(certificate, key, client_ca).map_err(|error| PyValueError::new_err(error.to_string()))?;
        *self.server.tls.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(config));
        self.server.generation.store(generation, Ordering::SeqCst);
        Ok(())
    }

    /// Serve from now on.
    fn start(&self) -> PyResult<()> {
        let listeners = std::mem::take(&mut *self.listeners.lock().unwrap_or_else(PoisonError::into_inner));
        // One thread: a call is answered where its socket is read, without waking another.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let server = self.server.clone();
        let run = move || {
            runtime.block_on(async {
                let listeners: Result<Vec<_>, _> =
                    listeners.into_iter().map(|fd| TcpListener::from_std(fd.into())).collect();
                let mut phase = server.phase.subscribe();
                tokio::select! {
                    () = server.clone().serve(listeners.expect("they are listening sockets that do not block")) => {}
                    _ = phase.wait_for(|now| *now == Phase::Ended) => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("front".into()).spawn(run)?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Take no new connections and calls, and let those under way end.
    fn drain(&self) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.server.phase.send_replace(Phase::Draining);
    }

    /// End, once all connections have, and at the latest after so long.
    fn end(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        self.drain();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else {
            return Ok(());
        };
        py.detach(|| {
            let deadline = std::time::Instant::now() + Duration::from_secs_f64(seconds);
            while !thread.is_finished() && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.server.phase.send_replace(Phase::Ended);
            thread.join()
        })
        .map_err(|_| PyOSError::new_err("the front's thread has panicked"))
    }

    /// The certificates of a connection's client, DER, its own first; none where it has none, or is gone.
    fn chain(&self, connection: u64) -> Vec<Vec<u8>> {
        self.server.clients().get(&connection).map(|client| client.chain.clone()).unwrap_or_default()
    }

    /// Answer a connection's calls here, until clients' authority is replaced by another than that of `generation`.
    fn admit(&self, connection: u64, generation: u64) {
        if let Some(client) = self.server.clients().get(&connection) {
            client.admit(generation);
        }
    }
}

type AnyError = Box<dyn std::error::Error>;

fn config(certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> Result<ServerConfig, AnyError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for each in CertificateDer::pem_slice_iter(pem) {
                roots.add(each?)?;
            }
            builder
                .with_client_cert_verifier(WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build()?)
        }
    };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>()?;
    let mut config = builder.with_single_cert(chain, PrivateKeyDer::from_pem_slice(key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A session that is resumed would not be asked for its certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
