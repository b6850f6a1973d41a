//! Any bytes, read as images and as labels: no panic, and no more memory than `-rss_limit_mb` allows.

#![no_main]

use libfuzzer_sys::fuzz_target;
use harness::images::idx::{Items, read};

fuzz_target!(|bytes: &[u8]| {
    // Whether they are refused does not matter here; the property tests say when they must be.
    for items in [Items::Images, Items::Labels] {
        for most in [1, usize::MAX] {
            let _ = read(bytes, items, most);
        }
    }
});
