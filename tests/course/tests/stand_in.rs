//! Programs that tests put in the place of others.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long [`wait_until`] waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a program of a script for `sh`, in place of what is there.
pub fn stand_in(path: impl AsRef<Path>, script: &str) -> io::Result<()> {
    let path = path.as_ref();
    fs::write(path, format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Returns once something has happened that another program does.
/// Panics when it has not after a minute.
#[track_caller]
pub fn wait_until(happened: impl Fn() -> bool) {
    let since = Instant::now();
    while !happened() {
        assert!(since.elapsed() < PATIENCE, "nothing happens");
        sleep(Duration::from_millis(10));
    }
}
