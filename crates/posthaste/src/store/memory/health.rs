//! What can be said of a table in memory: who has leased what.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use super::MemoryStore;
use crate::error::Result;
use crate::store::Count;
use crate::store::health::{Access, Cleaning, Fleet, Health, Holder, LOOKED_AT, Pin, Work};

#[async_trait]
impl Health for MemoryStore {
    async fn access(&self) -> Result<Access> {
        Ok(Access { server: "memory".to_owned(), ..Access::default() })
    }

    async fn pins(&self) -> Result<Option<Vec<Pin>>> {
        Ok(None)
    }

    async fn cleaning(&self) -> Result<Vec<Cleaning>> {
        Ok(Vec::new())
    }

    async fn work(&self) -> Result<Work> {
        let rows = self.lock();
        let now = rows.now();
        let open = || rows.by_sequence.values().filter(|row| row.outcome.is_none());
        let due: Vec<_> = open().filter(|row| row.available_at <= now && !row.is_leased(now)).collect();
        let oldest = due.iter().map(|row| row.available_at).min();
        let mut holders: BTreeMap<&str, Holder> = BTreeMap::new();
        for row in open() {
            let (Some(by), Some(until)) = (row.locked_by.as_deref(), row.locked_until) else { continue };
            let worker = by.split('#').next().unwrap_or(by);
            let holder = holders.entry(worker).or_insert_with(|| Holder {
                worker: worker.to_owned(),
                leased: 0,
                ended: 0,
                ended_for: None,
                present: None,
            });
            if until > now {
                holder.leased += 1;
            } else {
                holder.ended += 1;
                holder.ended_for = holder.ended_for.max(Duration::try_from(now - until).ok());
            }
        }
        Ok(Work {
            due: Count::of(i64::try_from(due.len()).unwrap_or(i64::MAX), LOOKED_AT),
            oldest_due: oldest.and_then(|oldest| Duration::try_from(now - oldest).ok()),
            holders: holders.into_values().collect(),
            relays: None,
        })
    }

    async fn fleet(&self) -> Result<Fleet> {
        Ok(Fleet::default())
    }
}
