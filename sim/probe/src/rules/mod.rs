//! The rules, a file for each part of the driver.
//!
//! Owns the list. Each rule stands on its own: it makes all that it looks at, and may leave
//! anything behind. Names are unique and never reused for another question, since results of
//! different drivers are compared by them.

mod access;
mod capture;
mod context;
mod graphmem;
mod memory;
mod pointer;
mod pools;
mod share;
mod stream;
mod symbols;
mod vmm;

pub use share::{import_and_answer, import_and_weigh};

use crate::rule::Rule;

/// All rules, in the order of the tables.
pub fn all() -> Vec<&'static Rule> {
    let parts: [&'static [Rule]; 11] = [
        vmm::RULES,
        access::RULES,
        memory::RULES,
        pools::RULES,
        pointer::RULES,
        share::RULES,
        context::RULES,
        symbols::RULES,
        stream::RULES,
        capture::RULES,
        graphmem::RULES,
    ];
    parts.iter().flat_map(|part| part.iter()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_fit_a_table() {
        let mut names = BTreeSet::new();
        for rule in super::all() {
            assert!(names.insert(rule.name), "{} stands twice", rule.name);
            assert!(rule.name.len() <= 90 && !rule.name.contains('|'), "{}", rule.name);
            assert!(!rule.expected.is_empty(), "{}", rule.name);
        }
        assert!(names.len() >= 100, "{} rules", names.len());
    }
}
