//! A queue bounded in bytes rather than in items: between a connection's task and those who speak over it.
//!
//! What waits in the queue, and what was taken from it but is not written yet, counts against one budget. So a peer
//! that does not read holds a bounded amount of memory, whatever the size of the frames.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc};

/// Something with a size.
pub trait Weigh {
    /// Returns the bytes it holds.
    fn weight_bytes(&self) -> usize;
}

/// What goes out over a connection: whole lines, each with its newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The bytes. Empty when a notification was handled, which is answered by nothing.
    pub data: Vec<u8>,
    /// Which request this answers, as the connection counts them; `None` for everything else.
    pub ticket: Option<u64>,
}

impl From<Vec<u8>> for Frame {
    fn from(data: Vec<u8>) -> Self {
        Self { data, ticket: None }
    }
}

impl Weigh for Frame {
    fn weight_bytes(&self) -> usize {
        self.data.len()
    }
}

/// A frame of the peer that was over the limit; its bytes are gone, what follows it is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("frame is over the limit of {limit_bytes} bytes")]
pub struct FrameTooLong {
    /// The limit, without the newline.
    pub limit_bytes: usize,
}

impl Weigh for Result<Vec<u8>, FrameTooLong> {
    fn weight_bytes(&self) -> usize {
        self.as_ref().map_or(0, Vec::len)
    }
}

/// Speaks over a connection.
pub type FrameSender = Sender<Frame>;

/// Takes what is to be written.
pub type FrameReceiver = Receiver<Frame>;

/// Makes a queue for `budget_bytes`. An item larger than the budget takes all of it.
pub fn channel<T: Weigh>(budget_bytes: usize) -> (Sender<T>, Receiver<T>) {
    let budget_bytes = u32::try_from(budget_bytes).unwrap_or(u32::MAX);
    // Semaphores count in usize; on every platform we build for that holds a u32.
    let budget = Arc::new(Semaphore::new(usize::try_from(budget_bytes).unwrap_or(Semaphore::MAX_PERMITS)));
    let shared = Arc::new(Shared { budget, budget_bytes, queued_bytes: AtomicUsize::new(0) });
    let (sender, receiver) = mpsc::unbounded_channel();
    (Sender { queue: sender, shared: Arc::clone(&shared) }, Receiver { queue: receiver, shared })
}

#[derive(Debug)]
struct Shared {
    budget: Arc<Semaphore>,
    budget_bytes: u32,
    queued_bytes: AtomicUsize,
}

/// The other end is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection is closed")]
pub struct ChannelClosed;

/// Why an item was not taken at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TryPushError<T> {
    /// The peer is behind; the item comes back.
    #[error("the peer does not read fast enough")]
    Full(T),
    /// The other end is gone.
    #[error("the connection is closed")]
    Closed,
}

/// The sending end. Cheap to clone.
#[derive(Debug)]
pub struct Sender<T> {
    queue: mpsc::UnboundedSender<Carried<T>>,
    shared: Arc<Shared>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<T: Weigh> Sender<T> {
    /// Sends, waiting until the budget has room. Dropping the future sends nothing.
    ///
    /// # Errors
    /// [`ChannelClosed`] when the other end is gone.
    pub async fn push(&self, item: impl Into<T>) -> Result<(), ChannelClosed> {
        let item = item.into();
        let wanted = self.permits_for(&item);
        let permit = Arc::clone(&self.shared.budget).acquire_many_owned(wanted).await.map_err(|_| ChannelClosed)?;
        self.send(item, Some(permit))
    }

    /// Sends if the budget has room now.
    ///
    /// # Errors
    /// [`TryPushError::Full`] with the item, or [`TryPushError::Closed`].
    pub fn try_push(&self, item: impl Into<T>) -> Result<(), TryPushError<T>> {
        let item = item.into();
        match Arc::clone(&self.shared.budget).try_acquire_many_owned(self.permits_for(&item)) {
            Ok(permit) => self.send(item, Some(permit)).map_err(|_closed| TryPushError::Closed),
            Err(TryAcquireError::NoPermits) => Err(TryPushError::Full(item)),
            Err(TryAcquireError::Closed) => Err(TryPushError::Closed),
        }
    }

    /// Sends without regard to the budget: for answers, which the bound on requests in flight limits.
    ///
    /// # Errors
    /// [`ChannelClosed`] when the other end is gone.
    pub fn push_now(&self, item: impl Into<T>) -> Result<(), ChannelClosed> {
        self.send(item.into(), None)
    }

    /// Waits until the other end is gone.
    pub async fn closed(&self) {
        self.queue.closed().await;
    }

    /// Says whether the other end is gone.
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Returns the bytes that wait to be taken.
    pub fn queued_bytes(&self) -> usize {
        self.shared.queued_bytes.load(Ordering::Relaxed)
    }

    /// Returns how many senders there are, this one included.
    pub fn senders(&self) -> usize {
        self.queue.strong_count()
    }

    fn permits_for(&self, item: &T) -> u32 {
        u32::try_from(item.weight_bytes()).unwrap_or(u32::MAX).min(self.shared.budget_bytes)
    }

    fn send(&self, item: T, permit: Option<OwnedSemaphorePermit>) -> Result<(), ChannelClosed> {
        let weight_bytes = item.weight_bytes();
        self.shared.queued_bytes.fetch_add(weight_bytes, Ordering::Relaxed);
        self.queue.send(Carried { item, permit }).map_err(|_closed| ChannelClosed)
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct Receiver<T> {
    queue: mpsc::UnboundedReceiver<Carried<T>>,
    shared: Arc<Shared>,
}

impl<T: Weigh> Receiver<T> {
    /// Takes the next item; `None` when all senders are gone and the queue is empty.
    pub async fn recv(&mut self) -> Option<Carried<T>> {
        let carried = self.queue.recv().await?;
        self.took(&carried);
        Some(carried)
    }

    /// Takes what is there, `items_max` at most, waiting for the first; returns 0 when all senders are gone.
    pub async fn recv_many(&mut self, into: &mut Vec<Carried<T>>, items_max: usize) -> usize {
        let from = into.len();
        let count = self.queue.recv_many(into, items_max).await;
        into[from..].iter().for_each(|carried| self.took(carried));
        count
    }

    /// Takes the next item if there is one now.
    pub fn try_recv(&mut self) -> Option<Carried<T>> {
        let carried = self.queue.try_recv().ok()?;
        self.took(&carried);
        Some(carried)
    }

    fn took(&self, carried: &Carried<T>) {
        self.shared.queued_bytes.fetch_sub(carried.item.weight_bytes(), Ordering::Relaxed);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // Whoever waits for room would wait for ever.
        self.shared.budget.close();
    }
}

/// An item with its share of the budget, which is free again when this is dropped: keep it until the item is written.
#[derive(Debug)]
pub struct Carried<T> {
    item: T,
    permit: Option<OwnedSemaphorePermit>,
}

impl<T> Carried<T> {
    /// Takes the item out; its share of the budget lives on in the second value.
    pub fn into_parts(self) -> (T, Option<OwnedSemaphorePermit>) {
        (self.item, self.permit)
    }
}

impl<T> Deref for Carried<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.item
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn frame(size_bytes: usize) -> Frame {
        Frame::from(vec![b'x'; size_bytes])
    }

    #[tokio::test]
    async fn a_sender_waits_for_room_until_what_was_taken_is_written() {
        let (sender, mut receiver) = channel::<Frame>(10);
        sender.push(frame(6)).await.unwrap();
        assert!(sender.push(frame(6)).now_or_never().is_none(), "12 of 10 bytes were accepted");
        let taken = receiver.recv().await.unwrap();
        assert!(sender.push(frame(6)).now_or_never().is_none(), "what is not written yet must count");
        drop(taken);
        sender.push(frame(6)).await.unwrap();
        assert_eq!(sender.queued_bytes(), 6);
    }

    #[tokio::test]
    async fn an_item_over_the_budget_passes_alone() {
        let (sender, mut receiver) = channel::<Frame>(10);
        sender.push(frame(1)).await.unwrap();
        assert!(matches!(sender.try_push(frame(100)), Err(TryPushError::Full(_))));
        drop(receiver.recv().await);
        sender.push(frame(100)).await.unwrap();
        assert_eq!(receiver.recv().await.unwrap().data.len(), 100);
    }

    #[tokio::test]
    async fn a_sender_that_waits_learns_that_the_other_end_is_gone() {
        let (sender, receiver) = channel::<Frame>(1);
        sender.push(frame(1)).await.unwrap();
        let waiting = tokio::spawn({
            let sender = sender.clone();
            async move { sender.push(frame(1)).await }
        });
        tokio::task::yield_now().await;
        drop(receiver);
        assert_eq!(waiting.await.unwrap(), Err(ChannelClosed));
        assert_eq!(sender.push_now(frame(1)), Err(ChannelClosed));
        assert_eq!(sender.try_push(frame(1)), Err(TryPushError::Closed));
    }

    #[tokio::test]
    async fn answers_pass_whatever_waits() {
        let (sender, mut receiver) = channel::<Frame>(1);
        sender.push(frame(1)).await.unwrap();
        sender.push_now(Frame { data: vec![1, 2, 3], ticket: Some(7) }).unwrap();
        let mut taken = Vec::new();
        assert_eq!(receiver.recv_many(&mut taken, 10).await, 2);
        assert_eq!(taken[1].ticket, Some(7));
        assert_eq!(sender.queued_bytes(), 0);
    }
}
