//! Lobbies that meet, in one process, over loopback and shared memory.

mod meeting;
mod parties;
mod strangers;
