//! Handles that leave the process and come back.
