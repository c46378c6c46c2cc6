//! Whatever a peer sends over a connection, the receiving lane stays within its memory.
#![no_main]

#[allow(dead_code)] // each target feeds one kind of lane
#[path = "../../crates/gradwire-transport/tests/hostile/feed.rs"]
mod feed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if bytes.len() <= 64 << 10 {
        feed::feed_tcp(bytes);
    }
});
