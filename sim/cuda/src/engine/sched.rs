//! The scheduler: which queue's head runs next.
