//! What one group of layers stores: head sizes, element format, block length, and where in memory
//! a token's keys and values lie.
//!
//! Owns the arithmetic of sizes and offsets, all of it checked: a geometry whose bytes overflow is
//! refused when it is made. A layout is three numbers that consumers build their views from: layer
//! `l` of block `b` starts at `offset + l * layer_stride + b * block_stride`. Knows no memory.

use super::error::{KvError, Result};

/// How one element is stored. Formats with scales come with the storage formats; they will be
/// further variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Element {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// Any format of one byte an element whose scales lie elsewhere (fp8, int8).
    Byte,
}

impl Element {
    /// Bytes an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::Bf16 => 2,
            Element::Byte => 1,
        }
    }
}

/// What a group's blocks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Keys and values of attention.
    Attention {
        /// Tokens that a query sees, itself included; 0: all.
        window: u32,
    },
    /// One vector a token that keys and values are made of (multi-head latent attention): the key
    /// head size counts, the value head size must be 0.
    Latent,
    /// A state of this many bytes a layer that does not grow with the sequence (Mamba and its
    /// like): one block a sequence.
    State {
        /// Bytes a layer.
        bytes: u64,
    },
}

/// Which index is outermost in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// All layers of a block lie together: one block is one copy.
    #[default]
    BlockOuter,
    /// All blocks of a layer lie together, as kernels expect that take one tensor a layer.
    LayerOuter,
}

/// One group: layers that share a block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Layers of the group, at least 1.
    pub layers: u32,
    /// Key and value heads a layer.
    pub heads: u32,
    /// Elements of a key head.
    pub key_size: u32,
    /// Elements of a value head; may differ from the key's.
    pub value_size: u32,
    /// Tokens a block, at least 1.
    pub block_tokens: u32,
    /// The elements' format.
    pub element: Element,
    /// What is stored.
    pub content: Content,
    /// What is outermost.
    pub order: Order,
}

/// Where a group's elements lie, in bytes, for a group of a given number of blocks. Token `t` and
/// head `h` of the keys of layer `l` in block `b` start at
/// `l * layer_stride + b * block_stride + t * key_token_stride + h * key_head_stride`;
/// those of the values at `value_offset` more, with the values' own strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a block over all layers.
    pub block_bytes: u64,
    /// From a block to the next, within a layer.
    pub block_stride: u64,
    /// From a layer to the next, within a block.
    pub layer_stride: u64,
    /// From a layer's keys to its values, within a block.
    pub value_offset: u64,
    /// From a token's keys to the next token's.
    pub key_token_stride: u64,
    /// From a key head to the next.
    pub key_head_stride: u64,
    /// From a token's values to the next token's.
    pub value_token_stride: u64,
    /// From a value head to the next.
    pub value_head_stride: u64,
    /// Bytes of the whole group.
    pub total_bytes: u64,
}

impl Geometry {
    /// The layout of a group of `blocks` blocks. [`KvError::Geometry`] where a size is 0 or bytes
    /// overflow 63 bits. Cost: some multiplications.
    pub fn layout(&self, blocks: u32) -> Result<Layout> {
        let wrong = |what| Err(KvError::Geometry(what));
        if self.layers == 0 || self.block_tokens == 0 {
            return wrong("a group needs at least one layer and one token a block");
        }
        let values = match self.content {
            Content::State { bytes } => return self.state_layout(bytes, blocks),
            Content::Latent if self.value_size != 0 => {
                return wrong("latent attention stores no values: their head size must be 0");
            }
            Content::Latent => 0,
            Content::Attention { .. } if self.value_size == 0 => {
                return wrong("attention stores values: their head size must not be 0");
            }
            Content::Attention { .. } => self.value_size,
        };
        if self.heads == 0 || self.key_size == 0 {
            return wrong("a group needs at least one head with at least one element");
        }
        let bytes = self.element.bytes();
        let head = |size: u32| u64::from(size) * bytes;
        let token = |size: u32| head(size).checked_mul(u64::from(self.heads));
        let side = |size: u32| token(size)?.checked_mul(u64::from(self.block_tokens));
        let sizes = || {
            let keys = side(self.key_size)?;
            let layer = keys.checked_add(side(values)?)?;
            Some((keys, layer, token(self.key_size)?, token(values)?))
        };
        let Some((keys, layer, key_token, value_token)) = sizes() else { return too_large() };
        let mut layout = self.place(layer, blocks)?;
        layout.value_offset = keys;
        layout.key_token_stride = key_token;
        layout.key_head_stride = head(self.key_size);
        layout.value_token_stride = value_token;
        layout.value_head_stride = head(values);
        Ok(layout)
    }

    fn state_layout(&self, bytes: u64, blocks: u32) -> Result<Layout> {
        if bytes == 0 {
            return Err(KvError::Geometry("a state needs at least one byte"));
        }
        self.place(bytes, blocks)
    }

    /// The strides over layers and blocks, for `layer` bytes of one layer of one block.
    fn place(&self, layer: u64, blocks: u32) -> Result<Layout> {
        let of = |bytes: u64, count: u32| {
            bytes.checked_mul(u64::from(count)).filter(|&bytes| bytes <= i64::MAX as u64)
        };
        let sizes = || {
            let block = of(layer, self.layers)?;
            Some((block, of(block, blocks)?, of(layer, blocks)?))
        };
        let Some((block_bytes, total_bytes, layer_total)) = sizes() else { return too_large() };
        let (block_stride, layer_stride) = match self.order {
            Order::BlockOuter => (block_bytes, layer),
            Order::LayerOuter => (layer, layer_total),
        };
        Ok(Layout {
            block_bytes,
            block_stride,
            layer_stride,
            value_offset: 0,
            key_token_stride: 0,
            key_head_stride: 0,
            value_token_stride: 0,
            value_head_stride: 0,
            total_bytes,
        })
    }

    /// Blocks that `tokens` tokens take.
    #[inline]
    pub(super) fn blocks_for(&self, tokens: u32) -> u32 {
        match self.content {
            Content::State { .. } => u32::from(tokens > 0),
            _ => tokens.div_ceil(self.block_tokens),
        }
    }

    /// Tokens that a query sees; 0: all.
    pub(super) fn window(&self) -> u32 {
        match self.content {
            Content::Attention { window } => window,
            _ => 0,
        }
    }

    pub(super) fn is_state(&self) -> bool {
        matches!(self.content, Content::State { .. })
    }
}

fn too_large<T>() -> Result<T> {
    Err(KvError::Geometry("the group's bytes do not fit in 63 bits: fewer or smaller blocks"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama3_8b() -> Geometry {
        Geometry {
            layers: 32,
            heads: 8,
            key_size: 128,
            value_size: 128,
            block_tokens: 16,
            element: Element::Bf16,
            content: Content::Attention { window: 0 },
            order: Order::BlockOuter,
        }
    }

    #[test]
    fn sixteen_tokens_of_llama3_8b_are_one_granule() {
        let layout = llama3_8b().layout(10).expect("it fits");
        assert_eq!(layout.block_bytes, 2 << 20);
        assert_eq!(layout.block_stride, 2 << 20);
        assert_eq!(layout.layer_stride, 64 << 10);
        assert_eq!(layout.value_offset, 32 << 10);
        assert_eq!((layout.key_token_stride, layout.key_head_stride), (2048, 256));
        assert_eq!(layout.total_bytes, 20 << 20);
    }

    #[test]
    fn layers_outside_put_a_layers_blocks_together() {
        let geometry = Geometry { order: Order::LayerOuter, ..llama3_8b() };
        let layout = geometry.layout(10).expect("it fits");
        assert_eq!(layout.block_stride, 64 << 10);
        assert_eq!(layout.layer_stride, 640 << 10);
        assert_eq!(layout.total_bytes, 20 << 20);
    }

    #[test]
    fn keys_and_values_of_different_sizes_have_their_own_strides() {
        let geometry = Geometry { key_size: 192, value_size: 128, ..llama3_8b() };
        let layout = geometry.layout(1).expect("it fits");
        assert_eq!(layout.value_offset, 192 * 2 * 8 * 16);
        assert_eq!(layout.value_token_stride, 128 * 2 * 8);
        assert_eq!(layout.layer_stride, (192 + 128) * 2 * 8 * 16);
    }

    #[test]
    fn nonsense_is_refused() {
        let base = llama3_8b();
        let refused = |geometry: Geometry| {
            assert!(matches!(geometry.layout(4), Err(KvError::Geometry(_))), "{geometry:?}");
        };
        refused(Geometry { layers: 0, ..base });
        refused(Geometry { heads: 0, ..base });
        refused(Geometry { key_size: 0, ..base });
        refused(Geometry { value_size: 0, ..base });
        refused(Geometry { block_tokens: 0, ..base });
        refused(Geometry { content: Content::Latent, ..base });
        refused(Geometry { content: Content::State { bytes: 0 }, ..base });
        refused(Geometry { key_size: u32::MAX, heads: u32::MAX, ..base });
        refused(Geometry { content: Content::State { bytes: u64::MAX }, ..base });
        refused(Geometry { key_size: 1 << 30, heads: 1 << 20, block_tokens: 1 << 10, ..base });
    }
}
