//! Mappings and access rights.
