//! Which buffers of several lanes may share bytes: the order that lanes and fences give.
//!
//! A later buffer may take an earlier one's bytes when the earlier one has died before it was born,
//! and each lane that used the earlier one is its own lane, or has been waited for since: by a
//! fence, or by a fence of a lane that had waited. To come later in the program's order alone says
//! nothing of the device's.
//!
//! Owns, for each buffer and lane, the time from which a birth on that lane may take its bytes.
//! Pure. Cost: O(n + fences times lanes) to make, 8 bytes a buffer and lane; a question is O(1).

use super::recording::{NEVER, Recording};
use super::{Buffer, align_up};

/// The order of a recording.
#[derive(Debug)]
pub(super) struct Order {
    lanes: usize,
    births: Vec<u64>,
    homes: Vec<u16>,
    /// For each buffer and lane: from when on the lane may take its bytes.
    ready: Vec<u64>,
}

/// What the columns of an order are made from.
#[derive(Debug)]
pub(super) struct Deaths<'a> {
    recording: &'a Recording,
    /// Places of the buffers that die, in the order of their deaths.
    dying: Vec<usize>,
    /// The lanes whose work uses each buffer.
    users: Vec<Vec<u16>>,
}

impl Deaths<'_> {
    /// The deaths in a recording that was checked.
    pub(super) fn new(recording: &Recording) -> Deaths<'_> {
        let mut users: Vec<Vec<u16>> = recording.births.iter().map(|b| vec![b.end_lane]).collect();
        for &(at, lane) in &recording.uses {
            users[at as usize].push(lane);
        }
        for lanes in &mut users {
            lanes.sort_unstable();
            lanes.dedup();
        }
        let mut dying: Vec<usize> =
            (0..recording.births.len()).filter(|&i| recording.births[i].death != NEVER).collect();
        dying.sort_by_key(|&i| recording.births[i].death);
        Deaths { recording, dying, users }
    }

    /// From when on births on `lane` may take each buffer's bytes; [`NEVER`] where none may. Walks
    /// fences, and keeps up to when the lane is ordered behind each other one.
    pub(super) fn ready_on(&self, lane: u16) -> Vec<u64> {
        let own = |user: u16| user == lane;
        let seen_by = seen_by(self.recording, usize::from(lane));
        let mut column = vec![NEVER; self.recording.births.len()];
        for &i in &self.dying {
            let (death, users) = (self.recording.births[i].death, &self.users[i]);
            // The lane's waits: the first after which all users are behind it.
            let behind = |seen: &[u64]| {
                users.iter().all(|&user| own(user) || seen[usize::from(user)] >= death)
            };
            column[i] = if users.iter().all(|&user| own(user)) {
                death
            } else {
                let at = seen_by.partition_point(|(_, seen)| !behind(seen));
                seen_by.get(at).map_or(NEVER, |(time, _)| (*time).max(death))
            };
        }
        column
    }
}

impl Order {
    /// The order of a recording that was checked.
    pub(super) fn new(recording: &Recording) -> Order {
        let (n, lanes) = (recording.births.len(), recording.lanes.max(1));
        let deaths = Deaths::new(recording);
        let mut order = Order {
            lanes: usize::from(lanes),
            births: recording.births.iter().map(|b| b.birth).collect(),
            homes: recording.births.iter().map(|b| b.lane).collect(),
            ready: vec![NEVER; n * usize::from(lanes)],
        };
        for lane in 0..lanes {
            let column = deaths.ready_on(lane);
            for (i, ready) in column.into_iter().enumerate() {
                order.ready[i * order.lanes + usize::from(lane)] = ready;
            }
        }
        order
    }

    /// From when on births on `lane` may take the bytes of buffer `i`; [`NEVER`] where none may.
    pub(super) fn ready(&self, i: u32, lane: u16) -> u64 {
        self.ready[i as usize * self.lanes + usize::from(lane)]
    }

    /// Whether two buffers must not share bytes.
    pub(super) fn conflict(&self, a: u32, b: u32) -> bool {
        // Places are in the order of births.
        let (first, then) = (a.min(b), a.max(b));
        self.births[then as usize] < self.ready(first, self.homes[then as usize])
    }
}

/// At each fence that `lane` waits by: the time, and up to when it is behind each lane from then
/// on. A wait for a lane takes in what that lane had waited for.
fn seen_by(recording: &Recording, lane: usize) -> Vec<(u64, Vec<u64>)> {
    let lanes = usize::from(recording.lanes).max(1);
    let mut seen = vec![vec![0u64; lanes]; lanes];
    let mut found = Vec::new();
    for fence in &recording.fences {
        let (from, to) = (usize::from(fence.from), usize::from(fence.to));
        if from == to {
            continue;
        }
        let waited = seen[from].clone();
        for (own, other) in seen[to].iter_mut().zip(&waited) {
            *own = (*own).max(*other);
        }
        seen[to][from] = seen[to][from].max(fence.time);
        if to == lane {
            found.push((fence.time, seen[to].clone()));
        }
    }
    found
}

/// Packings by first fit under the exact conflicts: by size, by lifetime, by both.
pub(super) fn first_fits(
    recording: &Recording,
    order: &Order,
    buffers: &[Buffer],
) -> Vec<Vec<u64>> {
    debug_assert!(buffers.iter().all(|b| recording.births[b.id as usize].death != NEVER));
    let life = |b: &Buffer| b.death - b.birth;
    let keys: [fn(&Buffer, u64) -> u128; 3] = [
        |b, _| u128::from(b.size),
        |_, life| u128::from(life),
        |b, life| u128::from(b.size) * u128::from(life),
    ];
    let fit = |key: &fn(&Buffer, u64) -> u128| {
        let mut turn: Vec<usize> = (0..buffers.len()).collect();
        turn.sort_by_key(|&i| std::cmp::Reverse(key(&buffers[i], life(&buffers[i]))));
        first_fit(order, buffers, &turn)
    };
    keys.iter().map(fit).collect()
}

fn first_fit(order: &Order, buffers: &[Buffer], turn: &[usize]) -> Vec<u64> {
    let mut offsets = vec![0; buffers.len()];
    // Placed ones, lowest first: offset, end, place.
    let mut placed: Vec<(u64, u64, usize)> = Vec::with_capacity(buffers.len());
    for &i in turn {
        let b = &buffers[i];
        let mut at = 0;
        for &(low, end, other) in &placed {
            if low >= at + b.size {
                break;
            }
            if end > at && order.conflict(b.id as u32, buffers[other].id as u32) {
                at = align_up(end, b.alignment);
            }
        }
        offsets[i] = at;
        let entry = (at, at + b.size, i);
        placed.insert(placed.partition_point(|p| *p < entry), entry);
    }
    offsets
}
