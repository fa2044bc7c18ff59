//! Streams: queues of work in order.
