//! The 64 bytes by which one process names a block to another, as CUDA's legacy handles do.
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | `FOREBAY1`: all others are the driver's |
//! | 8..12 | the exporting process |
//! | 12..16 | flags, 0 |
//! | 16..24 | a random number of that process |
//! | 24..32 | a random number of the block: memory that is allocated anew has another handle |
//! | 32..40 | the length that was asked for |
//! | 40..56 | the device's UUID |
//! | 56..64 | 0 |
//!
//! Numbers are little-endian. Whoever holds a handle can do nothing with it unless the exporting
//! process answers ([`super::server`]). Owns no state.

/// `CU_IPC_HANDLE_SIZE`.
pub const HANDLE_BYTES: usize = 64;
const MAGIC: [u8; 8] = *b"FOREBAY1";

/// `CUipcMemHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RawHandle(pub [u8; HANDLE_BYTES]);

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The exporting process.
    pub process: u32,
    /// The number that it drew.
    pub nonce: u64,
    /// The block's.
    pub key: u64,
    /// The length that was asked for.
    pub bytes: u64,
    /// The device.
    pub uuid: [u8; 16],
}

/// Whose a handle is.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// The driver's, or nobody's.
    Foreign,
    /// Of this kind, in a form that is not known here.
    Newer,
    /// One of a pool's.
    Ours(Handle),
}

impl Handle {
    /// The handle as it is sent.
    pub fn raw(&self) -> RawHandle {
        let parts: [&[u8]; 8] = [
            &MAGIC,
            &self.process.to_le_bytes(),
            &[0; 4],
            &self.nonce.to_le_bytes(),
            &self.key.to_le_bytes(),
            &self.bytes.to_le_bytes(),
            &self.uuid,
            &[0; 8],
        ];
        let mut raw = [0; HANDLE_BYTES];
        for (to, from) in raw.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        RawHandle(raw)
    }

    /// Reads a handle.
    pub fn read(raw: &RawHandle) -> Read {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&raw.0[at..at + 8]);
            u64::from_le_bytes(word)
        };
        if raw.0[..8] != MAGIC {
            return Read::Foreign;
        }
        let owner = word(8);
        if owner >> 32 != 0 || word(56) != 0 {
            return Read::Newer;
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&raw.0[40..56]);
        let process = owner as u32;
        Read::Ours(Handle { process, nonce: word(16), key: word(24), bytes: word(32), uuid })
    }
}
