//! CUDA's types as the C ABI sees them: numbers, opaque handles, structures of `cuda.h` 12.x.
//!
//! A handle is a number here, never a pointer that anything reads through. Enumerations are
//! `u32` (or `i32` where the header's are signed) since a caller may pass any value.

pub use crate::results::*;

/// An address in device memory.
pub type CUdeviceptr = u64;
/// A device's ordinal.
pub type CUdevice = i32;
/// A context; 0 is none.
pub type CUcontext = u64;
/// A stream; 0 is the default stream, 1 the legacy one, 2 the thread's own.
pub type CUstream = u64;
/// An event.
pub type CUevent = u64;
/// A physical allocation, from `cuMemCreate`.
pub type CUmemGenericAllocationHandle = u64;
/// A memory pool.
pub type CUmemoryPool = u64;
/// A graph.
pub type CUgraph = u64;
/// A graph made ready to run.
pub type CUgraphExec = u64;
/// A node of a graph.
pub type CUgraphNode = u64;
/// A module.
pub type CUmodule = u64;
/// A function of a module.
pub type CUfunction = u64;
/// A user object that graphs retain.
pub type CUuserObject = u64;

/// A device's identity.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CUuuid {
    /// Sixteen bytes, unique to the device.
    pub bytes: [u8; 16],
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const CU_MEM_LOCATION_TYPE_DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_HOST`.
pub const CU_MEM_LOCATION_TYPE_HOST: u32 = 2;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA`.
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA: u32 = 3;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT`.
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: u32 = 4;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub const CU_MEM_ALLOCATION_TYPE_PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`.
pub const CU_MEM_HANDLE_TYPE_FABRIC: u32 = 8;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`.
pub const CU_MEM_ACCESS_FLAGS_PROT_NONE: u32 = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READ`.
pub const CU_MEM_ACCESS_FLAGS_PROT_READ: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: u32 = 3;

/// Where memory lies.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CUmemLocation {
    /// `CU_MEM_LOCATION_TYPE_*`.
    pub type_: u32,
    /// The device's ordinal or the NUMA node.
    pub id: i32,
}

/// Flags of a physical allocation.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CUmemAllocFlags {
    /// 1 asks for compressible memory.
    pub compressionType: u8,
    /// 1 asks for memory that network cards can reach.
    pub gpuDirectRDMACapable: u8,
    /// A bit mask of intended uses.
    pub usage: u16,
    /// Zero.
    pub reserved: [u8; 4],
}

/// What a physical allocation is to be.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CUmemAllocationProp {
    /// `CU_MEM_ALLOCATION_TYPE_*`.
    pub type_: u32,
    /// A bit mask of `CU_MEM_HANDLE_TYPE_*` that it may be exported as.
    pub requestedHandleTypes: u32,
    /// Where it lies.
    pub location: CUmemLocation,
    /// Windows only.
    pub win32HandleMetaData: u64,
    /// Flags.
    pub allocFlags: CUmemAllocFlags,
}

/// Access rights of one location.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CUmemAccessDesc {
    /// Whose access is meant.
    pub location: CUmemLocation,
    /// `CU_MEM_ACCESS_FLAGS_*`.
    pub flags: u32,
}

const _: () = {
    assert!(size_of::<CUmemAllocationProp>() == 32);
    assert!(size_of::<CUmemAccessDesc>() == 12);
};
