//! Ready answers of one snapshot of the fleet, and how often and how fast each was given.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::keys;

/// Of all that is kept of one snapshot, keys included: requests are written by others.
const MOST_BYTES: usize = 64 * 1024 * 1024;
const LONGEST_KEY_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 128; // what an entry takes besides

/// An answer as it goes out.
pub struct Ready {
    /// The message with its length before it, as it is framed.
    pub message: Bytes,
    series: Arc<Series>,
}

impl Ready {
    pub fn count(&self, took: Duration) {
        self.series.count(took);
    }
}

/// Calls of one method.
struct Series {
    method: String,
    /// By the first bound, in seconds, that the duration does not exceed; the last has no bound.
    bounds: Arc<[f64]>,
    buckets: Vec<AtomicU64>,
    nanoseconds: AtomicU64,
}

impl Series {
    fn count(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        self.buckets[self.bounds.partition_point(|&bound| bound < seconds)].fetch_add(1, Relaxed);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }
}

type ByKey = HashMap<Box<[u8]>, Arc<Ready>>;

#[derive(Default)]
struct Table {
    version: u64,
    methods: HashMap<String, ByKey>,
    bytes: usize,
}

/// What Python and the front share.
pub struct Store {
    prefix: String,
    by_node: Vec<String>,
    bounds: Arc<[f64]>,
    table: RwLock<Table>,
    series: RwLock<Vec<Arc<Series>>>,
}

impl Store {
    /// The name of the method of a path of our service, if some of its answers are ready.
    pub fn method<'a>(&self, path: &'a str) -> Option<&'a str> {
        let method = path.strip_prefix(&self.prefix)?;
        self.read().methods.contains_key(method).then_some(method)
    }

    /// The answer to a request that has arrived whole.
    pub fn answer(&self, method: &str, received: &[u8]) -> Option<Arc<Ready>> {
        let message = keys::message(received)?;
        let key = if self.by_node.iter().any(|each| each == method) { keys::node(message)? } else { message };
        self.read().methods.get(method)?.get(key).cloned()
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn series(&self, method: &str) -> Arc<Series> {
        let mut all = self.series.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.iter().find(|s| s.method == method) {
            return found.clone();
        }
        let made = Arc::new(Series {
            method: method.to_owned(),
            bounds: self.bounds.clone(),
            buckets: (0..=self.bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            nanoseconds: AtomicU64::new(0),
        });
        all.push(made.clone());
        made
    }

    fn message(&self, method: &str, answer: &[u8]) -> PyResult<Arc<Ready>> {
        let length = u32::try_from(answer.len()).map_err(|_| PyValueError::new_err("4 GiB are too long"))?;
        let mut framed = BytesMut::with_capacity(5 + answer.len());
        framed.put_u8(0);
        framed.put_u32(length);
        framed.put_slice(answer);
        Ok(Arc::new(Ready { message: framed.freeze(), series: self.series(method) }))
    }

    /// Keep an answer, if the version is still current and there is room.
    fn keep(&self, version: u64, method: &str, key: &[u8], ready: Arc<Ready>) {
        let size = ENTRY_BYTES + key.len() + ready.message.len();
        let mut table = self.write();
        if table.version != version || key.len() > LONGEST_KEY_BYTES || table.bytes + size > MOST_BYTES {
            return;
        }
        table.bytes += size;
        if let Some(by_key) = table.methods.get_mut(method) {
            by_key.insert(key.into(), ready);
        } else {
            let first = HashMap::from([(key.into(), ready)]);
            table.methods.insert(method.to_owned(), first);
        }
    }
}

/// The answers of one service that are ready. All of them go when the snapshot of which they are is replaced.
#[pyclass(frozen)]
pub struct Answers {
    pub store: Arc<Store>,
}

#[pymethods]
impl Answers {
    /// Requests of the methods `by_node` are told apart by their node, all others by their bytes. `bounds` are those of
    /// the histograms, in seconds, ascending.
    #[new]
    fn new(service: &str, by_node: Vec<String>, bounds: Vec<f64>) -> Self {
        Self {
            store: Arc::new(Store {
                prefix: format!("/{service}/"),
                by_node,
                bounds: bounds.into(),
                table: RwLock::default(),
                series: RwLock::default(),
            }),
        }
    }

    /// There is a snapshot of this version: forget all answers of another one.
    fn advance(&self, py: Python<'_>, version: u64) {
        py.detach(|| {
            let old = {
                let mut table = self.store.write();
                if version <= table.version {
                    return;
                }
                let next = Table { version, ..Table::default() };
                std::mem::replace(&mut *table, next)
            };
            drop(old); // when nobody waits for it any more
        });
    }

    /// Have an answer ready; ignored unless `version` is current.
    fn put(&self, version: u64, method: &str, key: &[u8], answer: &[u8]) -> PyResult<()> {
        let ready = self.store.message(method, answer)?;
        self.store.keep(version, method, key, ready);
        Ok(())
    }

    /// Have the answers to many keys ready at once: `answer_of` has the name of each key's answer in `answers`; keys
    /// without one have none.
    fn fill(
        &self,
        version: u64,
        method: &str,
        answer_of: &Bound<'_, PyDict>,
        answers: HashMap<String, Vec<u8>>,
    ) -> PyResult<()> {
        let mut ready = HashMap::with_capacity(answers.len());
        let mut bytes = 0;
        for (name, answer) in answers {
            bytes += answer.len();
            ready.insert(name, self.store.message(method, &answer)?);
        }
        let mut filled = ByKey::with_capacity(answer_of.len());
        for (key, name) in answer_of {
            let key = key.cast::<pyo3::types::PyString>()?;
            let name = name.cast::<pyo3::types::PyString>()?;
            if let Some(found) = ready.get(&*name.to_cow()?) {
                let key = key.to_cow()?;
                bytes += ENTRY_BYTES + key.len();
                filled.insert(key.as_bytes().into(), found.clone());
            }
        }
        let mut table = self.store.write();
        if table.version == version && table.bytes + bytes <= MOST_BYTES {
            table.bytes += bytes;
            table.methods.entry(method.to_owned()).or_default().extend(filled);
        }
        Ok(())
    }

    /// Every series so far: method, calls by bucket, and the seconds of all of them.
    fn counts(&self) -> Vec<(String, Vec<u64>, f64)> {
        let all = self.store.series.read().unwrap_or_else(PoisonError::into_inner);
        let counted = |series: &Arc<Series>| {
            let buckets = series.buckets.iter().map(|each| each.load(Relaxed)).collect();
            let took = Duration::from_nanos(series.nanoseconds.load(Relaxed));
            (series.method.clone(), buckets, took.as_secs_f64())
        };
        all.iter().map(counted).collect()
    }
}
