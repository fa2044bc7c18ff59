//! The chained hash of a block: of its tokens and of all tokens before them.
//!
//! The default, XXH3 of 64 bits, only finds candidates: tokens and parent are compared, so two
//! blocks are never taken for one. SHA-256 and keyed BLAKE3 give each block an identity that other
//! processes can compute too; it is told in events. Whatever the hash, the compare is made.
//! Sources: XXH3 (xxhash.com), FIPS 180-4, the BLAKE3 specification.
//! Cost for 16 tokens: XXH3 about 10 ns, the others about 300.

use sha2::Digest as _;
use twox_hash::XxHash3_64;

/// How blocks are hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hashing {
    /// XXH3 of 64 bits, seeded by the parent's.
    #[default]
    Xxh3,
    /// SHA-256 of the parent's digest and the tokens, little-endian.
    Sha256,
    /// BLAKE3 of the same under this key.
    Blake3([u8; 32]),
    /// Almost all blocks have one hash: what is compared besides is tested by this.
    #[cfg(test)]
    Poor,
}

/// A block's identity over all tokens up to its end. Under XXH3 the first 8 bytes count, the rest
/// are 0.
pub type Digest = [u8; 32];

/// Sets roots apart from blocks whose parent's hash happens to be the salt.
const ROOT: u64 = 0x666f_7265_6261_792e;

impl Hashing {
    /// The digest that stands for the tokens before the first block: of nothing but the salt.
    pub(super) fn root(self, salt: u64) -> Digest {
        let mut root = [0; 32];
        root[..8].copy_from_slice(&(salt ^ ROOT).to_le_bytes());
        root
    }

    /// The digest of a block behind the one with digest `parent`.
    #[inline]
    pub(super) fn link(self, parent: &Digest, tokens: &[i32]) -> Digest {
        match self {
            Hashing::Xxh3 => {
                let bytes = bytemuck::cast_slice(tokens);
                let hash = XxHash3_64::oneshot_with_seed(short(parent), bytes);
                let mut digest = [0; 32];
                digest[..8].copy_from_slice(&hash.to_le_bytes());
                digest
            }
            Hashing::Sha256 => {
                let mut hasher = sha2::Sha256::new();
                hasher.update(parent);
                tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
                hasher.finalize().into()
            }
            #[cfg(test)]
            Hashing::Poor => [0; 32],
            Hashing::Blake3(key) => {
                let mut hasher = blake3::Hasher::new_keyed(&key);
                hasher.update(parent);
                tokens.iter().for_each(|token| {
                    hasher.update(&token.to_le_bytes());
                });
                hasher.finalize().into()
            }
        }
    }
}

/// The part of a digest that the index looks at.
#[inline]
pub(super) fn short(digest: &Digest) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *digest;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hash_depends_on_salt_parent_and_tokens() {
        for hashing in [Hashing::Xxh3, Hashing::Sha256, Hashing::Blake3([7; 32])] {
            let root = hashing.root(0);
            let first = hashing.link(&root, &[1, 2]);
            assert_eq!(first, hashing.link(&root, &[1, 2]));
            assert_ne!(first, hashing.link(&root, &[1, 3]));
            assert_ne!(first, hashing.link(&hashing.root(1), &[1, 2]));
            assert_ne!(hashing.link(&first, &[3]), hashing.link(&root, &[3]));
        }
        let root = Hashing::Sha256.root(0);
        let other = Hashing::Blake3([8; 32]).link(&root, &[1, 2]);
        assert_ne!(Hashing::Blake3([7; 32]).link(&root, &[1, 2]), other);
    }

    #[test]
    fn sha256_is_the_standard_one() {
        // SHA-256 of 32 zero bytes followed by the little-endian words 1 and 2.
        let digest = Hashing::Sha256.link(&[0; 32], &[1, 2]);
        let mut plain = vec![0; 32];
        plain.extend([1, 0, 0, 0, 2, 0, 0, 0]);
        let expected: [u8; 32] = sha2::Sha256::digest(&plain).into();
        assert_eq!(digest, expected);
    }
}
