//! Reading leases: through their owner, or from its file while no owner runs.

use holdfast_protocol::ids::LeaseId;
use holdfast_stores::leases::{LeaseFilter, LeasePage, LeaseReads as StoredReads, LeaseRecord};

use super::error::LeasesError;
use super::handle::LeasesHandle;
use crate::address::{CallError, Down};

/// Reads leases. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) enum LeaseReads {
    /// Through the owner.
    Owner(LeasesHandle),
    /// From the file, which nobody owns now; `None`: there is no file, so there are no leases. What was open when the daemon
    /// died is shown as it was left: only the next start can tell what became of it.
    AtRest(Result<Option<StoredReads>, Down>),
}

impl LeaseReads {
    pub(crate) async fn list(
        &self,
        filter: LeaseFilter,
        before: Option<LeaseId>,
        limit: u32,
    ) -> Result<LeasePage, LeasesError> {
        match self {
            Self::Owner(handle) => handle.list(filter, before, limit).await,
            Self::AtRest(reads) => match at_rest(reads)? {
                Some(reads) => Ok(reads.lease_list(&filter, before, limit).await?),
                None => Ok(LeasePage { leases: Vec::new(), next: None }),
            },
        }
    }

    pub(crate) async fn show(&self, lease_id: LeaseId) -> Result<Option<LeaseRecord>, LeasesError> {
        match self {
            Self::Owner(handle) => handle.show(lease_id).await,
            Self::AtRest(reads) => match at_rest(reads)? {
                Some(reads) => Ok(reads.lease_show(lease_id).await?),
                None => Ok(None),
            },
        }
    }
}

fn at_rest(reads: &Result<Option<StoredReads>, Down>) -> Result<Option<&StoredReads>, LeasesError> {
    match reads {
        Ok(reads) => Ok(reads.as_ref()),
        Err(down) => Err(CallError::Down(down.clone()).into()),
    }
}
