//! The cache against a naive model, with a device of token arrays that its tables are read by.

mod complaints;
mod hybrids;
mod model;
mod policies;
mod rules;
