//! The states of a lease and which may follow which.

/// Where a lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// Recorded; its process is about to be spawned, or was and nobody could say so.
    Starting,
    /// Its tree runs.
    Open,
    /// Its tree is being ended.
    Closing,
    /// Its whole tree has gone, and we saw it go.
    Closed,
    /// Its tree was gone, or not ours any more, when we looked.
    Lost,
}

impl LeaseState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Starting, Self::Open, Self::Closing, Self::Closed, Self::Lost];

    /// Says whether a lease in this state may go over to `next`.
    ///
    /// `Starting` closes when the adapter could not be started; `Open` closes by itself when the tree ends by itself.
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Starting => matches!(next, Self::Open | Self::Closed | Self::Lost),
            Self::Open => matches!(next, Self::Closing | Self::Closed | Self::Lost),
            Self::Closing => matches!(next, Self::Closed | Self::Lost),
            Self::Closed | Self::Lost => false,
        }
    }

    /// Says whether nothing can happen to the lease any more.
    pub fn is_over(self) -> bool {
        match self {
            Self::Starting | Self::Open | Self::Closing => false,
            Self::Closed | Self::Lost => true,
        }
    }

    /// Returns the name in the database and on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Open => "open",
            Self::Closing => "closing",
            Self::Closed => "closed",
            Self::Lost => "lost",
        }
    }

    /// Returns the state with that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl std::fmt::Display for LeaseState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}
