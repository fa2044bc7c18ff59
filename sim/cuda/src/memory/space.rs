//! The address map: reservations and what lies in them.
