//! The IDX reader believes nothing. One of these tests reads how much memory this process has.

mod properties;

use std::io::{BufReader, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use harness::images::idx::{read_images, read_labels};

const IMAGES: u32 = 0x803;
const LABELS: u32 = 0x801;

fn header(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn file(words: &[u32], body: usize) -> Vec<u8> {
    let body = (0..body).map(|i| (i % 10) as u8);
    header(words).into_iter().chain(body).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

/// Returns the message about a malformed file.
fn refusal<R>(read: anyhow::Result<R>) -> String {
    read.err().expect("a refusal").to_string()
}

#[test]
fn a_header_that_promises_billions_costs_nothing() {
    for count in [0, 1_000_001, u32::MAX] {
        let expected = format!("announces {count} items; 1 to 1000000 are possible");
        assert_eq!(refusal(read_images(&file(&[IMAGES, count, 28, 28], 784)[..])), expected);
        assert_eq!(refusal(read_labels(&file(&[LABELS, count], 10)[..])), expected);
    }
}

#[test]
fn kinds_sizes_lengths_and_labels_are_checked() {
    for (header, body, expected) in [
        (&[IMAGES, 2, 28, 28], 1567, "ends after 1567 of the 1568 bytes that its header announces"),
        (&[IMAGES, 2, 28, 28], 1569, "goes on after the 1568 bytes that its header announces"),
        (&[IMAGES, 1, 32, 32], 1024, "holds images of 32×32 pixels; 28×28 are needed"),
        (&[LABELS, 1, 0, 0], 1, "starts with 0x00000801; a file of images starts with 0x00000803"),
    ] {
        assert_eq!(refusal(read_images(&file(header, body)[..])), expected);
    }
    let mut labels = file(&[LABELS, 3], 3);
    labels[9] = 10;
    for (labels, expected) in [
        (file(&[LABELS, 2], 1), "ends after 1 of the 2 bytes that its header announces"),
        (file(&[LABELS, 2], 3), "goes on after the 2 bytes that its header announces"),
        (vec![0, 0, 8], "ends within its header"),
        (vec![], "ends within its header"),
        (
            file(&[IMAGES, 1], 784),
            "starts with 0x00000803; a file of labels starts with 0x00000801",
        ),
        (labels, "label 1 is 10; labels are 0 to 9"),
    ] {
        assert_eq!(refusal(read_labels(&labels[..])), expected);
    }
}

#[test]
fn gzip_files_are_whole_and_may_have_several_members() {
    let labels = file(&[LABELS, 700], 700);
    let expected = read_labels(&labels[..]).unwrap();
    let (first, second) = labels.split_at(100);
    let members = [gzip(first), gzip(b""), gzip(second)];
    for bytes in [members.concat(), gzip(&labels)] {
        assert_eq!(read_labels(&bytes[..]).unwrap(), expected);
        // A reader that has one byte at a time.
        assert_eq!(read_labels(BufReader::with_capacity(2, &bytes[..])).unwrap(), expected);
    }
    for garbage in [&b"x"[..], b"\0\0\0x", b"\n", b"many bytes that are not gzip"] {
        let bytes = [&members.concat(), garbage].concat();
        assert_eq!(refusal(read_labels(&bytes[..])), "cannot be read");
    }
    // A file that is cut in its only member, and in a later one; and a member too many.
    let few = gzip(&file(&[LABELS, 12], 12));
    assert_eq!(refusal(read_labels(&few[..few.len() / 2])), "cannot be read");
    let cut = [&members[0][..], &members[2][..members[2].len() / 2]].concat();
    assert_eq!(refusal(read_labels(&cut[..])), "cannot be read");
    let told = refusal(read_labels(&[members.concat(), gzip(b"!")].concat()[..]));
    assert_eq!(told, "goes on after the 700 bytes that its header announces");
    let told = refusal(read_labels(&members[0][..]));
    assert_eq!(told, "ends after 92 of the 700 bytes that its header announces");
}
