//! Keys by which managers show that they are there, and the answers of etcd's servers.

use super::{ADDRESS_LEN_MAX, Etcd, Op, Store, StoreError, after, api, operation};

/// Life of such a key without its manager, in seconds.
const LIFE_S: i64 = 10;
/// Managers that are read: far more than one cluster has.
const MANAGERS_MAX: i64 = 64;
/// The longest version that is shown.
const VERSION_LEN_MAX: usize = 64;

/// A manager that shows itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Present {
    /// Address where agents reach it.
    pub address: String,
    /// Version of its program.
    pub version: String,
}

/// A server of etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EtcdServer {
    pub address: String,
    /// Its version, or why it does not answer.
    pub answer: Result<String, String>,
}

impl<E: Etcd> Store<E> {
    /// Beginning of the managers' keys.
    fn shown_prefix(&self) -> String {
        format!("{}/managers/", self.prefix)
    }

    /// The key of the manager at this address.
    pub(super) fn shown_key(&self, address: &str) -> Vec<u8> {
        format!("{}{address}", self.shown_prefix()).into_bytes()
    }

    /// Keeps the key of a manager alive, by the lease that an earlier call has returned, or makes it.
    pub(crate) async fn show(
        &self,
        lease: Option<i64>,
        address: &str,
        version: &str,
    ) -> Result<i64, StoreError> {
        if let Some(lease) = lease
            && self.etcd.keep_alive(lease).await?.ttl > 0
        {
            return Ok(lease);
        }
        let lease = self.etcd.grant(LIFE_S).await?;
        let put = api::PutRequest { key: self.shown_key(address), value: version.into(), lease };
        let success = vec![operation(Op::RequestPut(put))];
        self.etcd.txn(api::TxnRequest { compare: Vec::new(), success, failure: Vec::new() }).await?;
        Ok(lease)
    }

    /// The managers that show themselves, by their addresses. Keys that no manager has written are left out.
    pub(crate) async fn shown(&self) -> Result<Vec<Present>, StoreError> {
        let prefix = self.shown_prefix().into_bytes();
        let request =
            api::RangeRequest { key: prefix.clone(), range_end: after(&prefix), limit: MANAGERS_MAX };
        let found = self.etcd.range(request).await?.kvs.into_iter();
        let shown = found.filter_map(|kv| {
            let address = text(kv.key.strip_prefix(prefix.as_slice())?, ADDRESS_LEN_MAX)?;
            let version = text(&kv.value, VERSION_LEN_MAX)?;
            // It would not end with its manager.
            (kv.lease != 0).then_some(Present { address, version })
        });
        Ok(shown.collect())
    }

    /// Asks each server of etcd for its version.
    pub(crate) async fn ask_servers(&self) -> Vec<EtcdServer> {
        let mut servers = Vec::new();
        for (at, address) in self.etcd.servers().into_iter().enumerate() {
            let answer = self.etcd.status(at).await;
            let answer = answer.map(|status| status.version).map_err(|error| error.to_string());
            servers.push(EtcdServer { address, answer });
        }
        servers
    }
}

/// A word of at most so many bytes.
fn text(bytes: &[u8], len_max: usize) -> Option<String> {
    let is_word = !bytes.is_empty() && bytes.len() <= len_max && bytes.iter().all(u8::is_ascii_graphic);
    is_word.then(|| String::from_utf8_lossy(bytes).into_owned())
}
