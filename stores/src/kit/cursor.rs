//! Page cursors: opaque to clients, keyset inside, refused when forged.
//!
//! A cursor says where the next page begins. It is signed so that nobody comes to rely on what is inside, and so that
//! a cursor of one list can't be used on another.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use holdfast_protocol::error::{ErrorKind, WireError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Signs and reads cursors. Cursors end with their key, so one that is made at each start is enough.
#[derive(Clone)]
pub struct CursorKey([u8; 32]);

/// A text that is no cursor of this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// Not what a cursor looks like.
    #[error("the cursor is not one that this daemon made")]
    Malformed,
    /// Made for another list, before the last start, or by someone else.
    #[error("the cursor is for another list, or older than the daemon's last start")]
    NotOurs,
}

impl CursorError {
    /// Returns the stable kind for the wire.
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::Malformed | Self::NotOurs => ErrorKind::InvalidParams,
        }
    }

    /// Turns the error into its form on the wire.
    pub fn to_wire(self) -> WireError {
        WireError::new(self.kind(), self.to_string()).with_remedy("list again from the beginning")
    }
}

impl std::fmt::Debug for CursorKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("CursorKey(..)")
    }
}

impl CursorKey {
    /// Makes a key of 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Makes a cursor of the list `list` (its method and filters, say) that points after `position`.
    pub fn encode<T: Serialize>(&self, list: &str, position: &T) -> String {
        // A position is a tuple of numbers and strings: it always serialises.
        let payload = serde_json::to_vec(position).unwrap_or_default();
        let mut bytes = self.tag(list, &payload).as_bytes().to_vec();
        bytes.extend_from_slice(&payload);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Returns the position in a cursor of the list `list`.
    ///
    /// # Errors
    /// [`CursorError`].
    pub fn decode<T: DeserializeOwned>(&self, list: &str, cursor: &str) -> Result<T, CursorError> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| CursorError::Malformed)?;
        let (tag, payload) = bytes.split_first_chunk::<32>().ok_or(CursorError::Malformed)?;
        // The comparison of hashes takes the same time wherever they differ.
        if self.tag(list, payload) != blake3::Hash::from_bytes(*tag) {
            return Err(CursorError::NotOurs);
        }
        serde_json::from_slice(payload).map_err(|_| CursorError::NotOurs)
    }

    fn tag(&self, list: &str, payload: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&(list.len() as u64).to_le_bytes()).update(list.as_bytes()).update(payload);
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_gives_back_its_position(time in any::<i64>(), key in any::<i64>(), secret in any::<[u8; 32]>()) {
            let keys = CursorKey::new(secret);
            let cursor = keys.encode("sessions", &(time, key));
            prop_assert_eq!(keys.decode::<(i64, i64)>("sessions", &cursor), Ok((time, key)));
            prop_assert_eq!(keys.decode::<(i64, i64)>("jobs", &cursor), Err(CursorError::NotOurs));
            prop_assert_eq!(CursorKey::new([7; 32]).decode::<(i64, i64)>("sessions", &cursor), Err(CursorError::NotOurs));
        }

        #[test]
        fn no_text_is_taken_for_a_cursor(text in ".*") {
            prop_assert!(CursorKey::new([1; 32]).decode::<i64>("sessions", &text).is_err());
        }
    }

    #[test]
    fn a_changed_cursor_is_refused() {
        let keys = CursorKey::new([3; 32]);
        let cursor = keys.encode("sessions", &42);
        for at in 0..cursor.len() {
            let mut bytes = cursor.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(keys.decode::<i64>("sessions", &changed).is_err(), "changed at {at}");
        }
    }
}
