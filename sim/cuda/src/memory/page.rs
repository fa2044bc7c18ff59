//! Physical pages: device memory in memfds, handles counted by reference.
