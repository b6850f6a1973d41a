//! A folder of many images that takes no room on the disk.

use std::fs::{self, File};

use tempfile::TempDir;

/// A folder of so many black images of class 0 in each part. A file has holes in place of zeros.
pub fn of_images(count: u32) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for split in ["train", "t10k"] {
        let write = |name: &str, header: &[u32], size: u64| {
            let path = folder.path().join(format!("{split}-{name}-ubyte"));
            let header = header.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
            fs::write(&path, &header).expect("a header");
            let file = File::options().write(true).open(path).expect("a file");
            file.set_len(header.len() as u64 + size * u64::from(count)).expect("a hole");
        };
        write("images-idx3", &[0x803, count, 28, 28], 28 * 28);
        write("labels-idx1", &[0x801, count], 1);
    }
    folder
}
