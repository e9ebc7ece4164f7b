//! Which connections are open, and which of them makes room for another one.
//!
//! Whoever reaches the port may open connections and say nothing, with or without a certificate. So no peer has more than
//! its share, and where all are taken one is ended rather than a new one refused: one that has not begun to speak, the
//! oldest first; then one of the peer with the most.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

const PREFACE_BYTES: usize = 24; // "PRI * HTTP/2.0..."

/// What a connection has done so far.
#[derive(Default)]
pub struct Progress {
    /// Bytes that were read of it, decrypted.
    pub read: AtomicUsize,
    /// Calls under way.
    pub calls: AtomicUsize,
    /// To be awaited by who serves it: it has to end.
    pub end: Notify,
}

impl Progress {
    /// Whether it has begun to speak, after its handshake.
    pub fn speaks(&self) -> bool {
        self.read.load(Ordering::Relaxed) >= PREFACE_BYTES
    }

    fn is_idle(&self) -> bool {
        self.calls.load(Ordering::Relaxed) == 0
    }
}

struct Entry {
    peer: IpAddr,
    progress: Arc<Progress>,
}

#[derive(Default)]
struct Table {
    last: u64,
    /// The oldest first.
    open: BTreeMap<u64, Entry>,
    of_peers: HashMap<IpAddr, usize>,
}

pub struct Connections {
    most: usize,
    most_of_one_peer: usize,
    table: Mutex<Table>,
}

/// A connection that was let in; it is forgotten with this.
pub struct Admitted {
    id: u64,
    pub progress: Arc<Progress>,
    among: Arc<Connections>,
}

impl Connections {
    pub fn new(most: usize, most_of_one_peer: usize) -> Self {
        Self { most, most_of_one_peer, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Let a connection in, and end another one where that takes its place; none where it has to be refused.
    pub fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Admitted> {
        let peer = peer.to_canonical();
        let mut table = self.table();
        let own = table.of_peers.get(&peer).copied().unwrap_or(0);
        if own >= self.most_of_one_peer {
            let id = table.least_needed_of(peer, false)?;
            table.end(id);
        } else if table.open.len() >= self.most {
            let id = table.least_needed(peer, own)?;
            table.end(id);
        }
        table.last += 1;
        let id = table.last;
        let progress = Arc::<Progress>::default();
        table.open.insert(id, Entry { peer, progress: progress.clone() });
        *table.of_peers.entry(peer).or_default() += 1;
        Some(Admitted { id, progress, among: self.clone() })
    }
}

impl Table {
    /// Of all, where there is no room for one more of a peer that has `own` already.
    fn least_needed(&self, peer: IpAddr, own: usize) -> Option<u64> {
        let silent = self.open.iter().find(|(_, each)| !each.progress.speaks());
        if let Some((id, _)) = silent {
            return Some(*id);
        }
        let (greediest, most) = self.of_peers.iter().max_by_key(|(_, count)| **count)?;
        if *most > own + 1 { self.least_needed_of(*greediest, true) } else { self.least_needed_of(peer, false) }
    }

    /// Of one peer: one that does not speak, one without a call, and any only where it has more than others.
    fn least_needed_of(&self, peer: IpAddr, any: bool) -> Option<u64> {
        let of_peer = || self.open.iter().filter(|(_, each)| each.peer == peer);
        let found = of_peer()
            .find(|(_, each)| !each.progress.speaks())
            .or_else(|| of_peer().find(|(_, each)| each.progress.is_idle()))
            .or_else(|| if any { of_peer().next() } else { None });
        found.map(|(id, _)| *id)
    }

    fn end(&mut self, id: u64) {
        if let Some(entry) = self.forget(id) {
            entry.progress.end.notify_one();
        }
    }

    fn forget(&mut self, id: u64) -> Option<Entry> {
        let entry = self.open.remove(&id)?;
        if let Some(count) = self.of_peers.get_mut(&entry.peer) {
            *count -= 1;
            if *count == 0 {
                self.of_peers.remove(&entry.peer);
            }
        }
        Some(entry)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.among.table().forget(self.id);
    }
}

/// A call under way on a connection.
pub struct UnderWay(Arc<Progress>);

impl UnderWay {
    pub fn on(progress: &Arc<Progress>) -> Self {
        progress.calls.fetch_add(1, Ordering::Relaxed);
        Self(progress.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}
