//! Device attributes: what `cuDeviceGetAttribute` answers for each number of `cuda.h` 12.9.
//!
//! Owns the table. Figures that shape how a runtime behaves (compute capability, support for
//! virtual memory, handle types, peers) follow the settings; the rest are those of a
//! large data-centre part, rounded, so that a program's limits are passed, never reached.

use crate::settings::Settings;

/// The fixed rows: attribute and value.
static FIXED: &[(u32, i32)] = &[
    (1, 1024),       // threads per block
    (2, 1024),       // block x
    (3, 1024),       // block y
    (4, 64),         // block z
    (5, i32::MAX),   // grid x
    (6, 65_535),     // grid y
    (7, 65_535),     // grid z
    (8, 49_152),     // shared memory per block
    (9, 65_536),     // constant memory
    (10, 32),        // warp
    (11, i32::MAX),  // pitch
    (12, 65_536),    // registers per block
    (13, 1_000_000), // clock, kHz: one cycle is one nanosecond
    (14, 512),       // texture alignment
    (15, 1),         // copies overlap kernels
    (16, 132),       // multiprocessors
    (17, 0),         // kernel time limit
    (18, 0),         // integrated
    (19, 1),         // maps host memory
    (20, 0),         // compute mode: default
    (21, 131_072),   // texture sizes, 21 to 29
    (22, 131_072),
    (23, 65_536),
    (24, 16_384),
    (25, 16_384),
    (26, 16_384),
    (27, 32_768),
    (28, 32_768),
    (29, 2048),
    (30, 512),        // surface alignment
    (31, 1),          // concurrent kernels
    (32, 1),          // ECC
    (34, 0),          // PCI device
    (35, 0),          // TCC driver
    (36, 1_000_000),  // memory clock, kHz
    (37, 5120),       // memory bus, bits
    (38, 52_428_800), // L2 cache
    (39, 2048),       // threads per multiprocessor
    (40, 3),          // copy engines
    (41, 1),          // unified addressing
    (42, 32_768),
    (43, 2048),
    (44, 1),
    (45, 32_768),
    (46, 32_768),
    (47, 8192),
    (48, 8192),
    (49, 32_768),
    (50, 0),  // PCI domain
    (51, 32), // texture pitch alignment
    (52, 32_768),
    (53, 32_768),
    (54, 2046),
    (55, 32_768),
    (56, 131_072),
    (57, 65_536),
    (58, 16_384),
    (59, 16_384),
    (60, 16_384),
    (61, 32_768),
    (62, 2048),
    (63, 32_768),
    (64, 32_768),
    (65, 2048),
    (66, 32_768),
    (67, 32_768),
    (68, 2046),
    (69, 268_435_456),
    (70, 131_072),
    (71, 65_000),
    (72, 2_097_120),
    (73, 32_768),
    (74, 32_768),
    (77, 32_768),
    (78, 1),       // stream priorities
    (79, 1),       // L1 caches globals
    (80, 1),       // L1 caches locals
    (81, 233_472), // shared memory per multiprocessor
    (82, 65_536),  // registers per multiprocessor
    (83, 1),       // managed memory
    (84, 0),       // on a board with others
    (86, 0),       // native atomics with the host
    (87, 2),       // single to double speed
    (88, 0),       // pageable memory access
    (89, 1),       // concurrent managed access
    (90, 1),       // compute preemption
    (91, 1),       // registered host memory keeps its address
    (92, 1),       // stream memory operations, first form
    (93, 1),
    (94, 1),
    (95, 1), // cooperative launch
    (96, 1),
    (97, 232_448), // shared memory per block, opted in
    (98, 1),       // flushes remote writes
    (99, 1),       // host registration
    (100, 0),
    (101, 0),
    (104, 0), // Windows handles
    (105, 0),
    (106, 32), // blocks per multiprocessor
    (107, 0),  // compressible memory
    (108, 0),  // persisting L2
    (109, 0),
    (111, 1024), // reserved shared memory
    (112, 1),
    (113, 1), // read-only host registration
    (114, 1),
    (115, 1), // memory pools
    (117, 1), // RDMA flush: host
    (118, 0), // RDMA ordering: none
    (120, 1), // clusters
    (121, 1),
    (122, 1), // 64-bit stream memory operations
    (123, 1), // stream waits on NOR
    (125, 1), // IPC events
    (126, 4), // sync domains
    (127, 0), // tensor maps
    (129, 1),
    (130, 0), // no NUMA memory of its own
    (131, -1),
    (132, 0), // multicast
    (133, 0), // no MPS
    (134, 0), // host NUMA node
    (135, 0),
    (136, 0),
    (137, 0),
    (138, 0),
    (139, 0x2330_10DE), // PCI device and vendor
    (140, 0x16C1_10DE),
    (142, 0), // host NUMA pools
    (143, 0),
];

/// The value of an attribute; `None` for a number that is no attribute.
pub fn value(settings: &Settings, ordinal: i32, attribute: u32) -> Option<i32> {
    let allowed = |feature: &str| i32::from(!settings.lacks.iter().any(|f| f == feature));
    let vmm = allowed("vmm");
    Some(match attribute {
        33 => bus(ordinal),
        75 => settings.capability.0 as i32,
        76 => settings.capability.1 as i32,
        85 => ordinal,
        102 => vmm,
        103 => vmm & allowed("fd"),
        110 => vmm & allowed("rdma"),
        116 => allowed("rdma"),
        119 => vmm & allowed("fd"),
        124 => vmm & allowed("fd") & allowed("dma_buf"),
        128 => vmm & i32::from(settings.fabric) & allowed("fabric"),
        141 => vmm & allowed("host_numa"),
        // Known from CUDA 13 on.
        145 if settings.version >= 13_000 => vmm & allowed("host_numa"),
        _ => FIXED.iter().find(|row| row.0 == attribute)?.1,
    })
}

/// The PCI bus of a device.
pub fn bus(ordinal: i32) -> i32 {
    ordinal + 1
}
