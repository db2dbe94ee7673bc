//! What an owner shows without being asked: the readers of its store, facts that do not change while it lives.
//!
//! An owner may wait for its disk in the middle of a message, for as long as another process holds the file. Whoever only
//! reads must not wait with it, so readers are not asked for by message: the owner shows them while it serves.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::address::{Address, CallError};

/// A place where one surface shows a `T`, over all its incarnations. Cheap to clone.
#[derive(Debug)]
pub struct Shown<T> {
    cell: Arc<watch::Sender<Option<T>>>,
}

impl<T> Clone for Shown<T> {
    fn clone(&self) -> Self {
        Self { cell: Arc::clone(&self.cell) }
    }
}

impl<T> Default for Shown<T> {
    /// Nothing is shown yet.
    fn default() -> Self {
        Self { cell: Arc::new(watch::Sender::new(None)) }
    }
}

impl<T: Clone + Send + Sync + 'static> Shown<T> {
    /// Shows a value, in place of the former one. For the owner, once it can serve.
    pub fn show(&self, value: T) {
        self.cell.send_replace(Some(value));
    }

    /// Shows nothing. For the owner, before what it showed goes away.
    pub fn hide(&self) {
        self.cell.send_replace(None);
    }

    /// Returns what the owner at `address` shows; waits while it restarts, `limit` at most.
    ///
    /// # Errors
    /// [`CallError::Down`] and [`CallError::Stopped`] when it does not serve, [`CallError::Timeout`].
    pub async fn get<M: Send + 'static>(&self, address: &Address<M>, limit: Duration) -> Result<T, CallError> {
        if let Some(down) = address.down() {
            return Err(CallError::Down(down));
        }
        let mut cell = self.cell.subscribe();
        let shown = async {
            match cell.wait_for(Option::is_some).await.map(|value| (*value).clone()) {
                Ok(Some(value)) => value,
                // The sender is in `self`, so the wait ends only with a value.
                Ok(None) | Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            value = shown => Ok(value),
            error = address.refused() => Err(error),
            () = tokio::time::sleep(limit) => Err(CallError::Timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::{Limits, Slot};

    #[tokio::test]
    async fn what_is_shown_is_returned_and_what_is_not_is_waited_for() {
        let slot: Slot<()> = Slot::new("a", Limits::default());
        let address = slot.address();
        let shown = Shown::default();
        let waiting = {
            let (shown, address) = (shown.clone(), address.clone());
            tokio::spawn(async move { shown.get(&address, Duration::from_secs(30)).await })
        };
        shown.show(7);
        assert_eq!(waiting.await.unwrap().unwrap(), 7);
        assert_eq!(shown.get(&address, Duration::ZERO).await.unwrap(), 7);
        shown.hide();
        assert!(matches!(shown.get(&address, Duration::ZERO).await, Err(CallError::Timeout)));
        drop(slot);
        assert!(matches!(shown.get(&address, Duration::from_secs(30)).await, Err(CallError::Stopped)));
    }
}
