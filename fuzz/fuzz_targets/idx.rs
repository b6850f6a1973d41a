//! Any bytes, read as images and as labels: no panic, and no more memory than `-rss_limit_mb` allows.

#![no_main]

use libfuzzer_sys::fuzz_target;
use harness::images::idx::{read_images, read_labels};

fuzz_target!(|bytes: &[u8]| {
    // Whether they are refused does not matter here; the property tests say when they must be.
    let _ = read_images(bytes);
    let _ = read_labels(bytes);
});
