//! The doors. They are above the Tree, so that no client ever sees a refused connection because of a reload.

use futures_util::future::BoxFuture;
use holdfast_protocol::error::WireError;

/// A listening address, such as the socket or the admin HTTP.
///
/// A change is made in two steps, so that a reload can be refused before anything has changed: [`Listener::prepare`], then
/// either [`Listener::commit`] or [`Listener::abort`]. The first start is `prepare` and `commit` too.
pub trait Listener<C>: Send + 'static {
    /// Returns the name, for people and `status`.
    fn name(&self) -> &'static str;

    /// Binds what `config` asks for and is not bound yet, next to what is. Accepts nothing there yet.
    ///
    /// # Errors
    /// What could not be bound, and why. At a reload the file is refused and all stays as it was; at the first start the
    /// root does not start, so a listener that the daemon can do without answers `Ok` then and says `failed` in its
    /// status.
    fn prepare<'a>(&'a mut self, config: &'a C) -> BoxFuture<'a, Result<(), WireError>>;

    /// Accepts on what was prepared, then closes what it replaces.
    fn commit(&mut self) -> BoxFuture<'_, ()>;

    /// Lets go of what was prepared.
    fn abort(&mut self) -> BoxFuture<'_, ()>;

    /// Stops accepting. Connections that are open go on; Live ends them.
    fn stop(&mut self) -> BoxFuture<'_, ()>;

    /// Returns how it stands.
    fn status(&self) -> ListenerStatus;
}

/// How a listener stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerStatus {
    /// Its name.
    pub name: &'static str,
    /// Where clients reach it (a path, a URL), while it listens.
    pub address: Option<String>,
    /// Why it does not listen though it should.
    pub failed: Option<String>,
}

/// The listeners of one root, in the order of their start.
pub(super) struct Listeners<C>(Vec<Box<dyn Listener<C>>>);

impl<C: Send + Sync + 'static> Listeners<C> {
    pub(super) fn new(listeners: Vec<Box<dyn Listener<C>>>) -> Self {
        Self(listeners)
    }

    /// Prepares all, or none.
    pub(super) async fn prepare(&mut self, config: &C) -> Result<(), (&'static str, WireError)> {
        for index in 0..self.0.len() {
            if let Err(error) = self.0[index].prepare(config).await {
                for listener in self.0[..=index].iter_mut().rev() {
                    listener.abort().await;
                }
                return Err((self.0[index].name(), error));
            }
        }
        Ok(())
    }

    pub(super) async fn commit(&mut self) {
        for listener in &mut self.0 {
            listener.commit().await;
        }
    }

    pub(super) async fn abort(&mut self) {
        for listener in self.0.iter_mut().rev() {
            listener.abort().await;
        }
    }

    pub(super) async fn stop(&mut self) {
        for listener in self.0.iter_mut().rev() {
            listener.stop().await;
        }
    }

    pub(super) fn statuses(&self) -> Vec<ListenerStatus> {
        self.0.iter().map(|listener| listener.status()).collect()
    }
}
