//! Captures: modes, invalidation, which streams belong.
