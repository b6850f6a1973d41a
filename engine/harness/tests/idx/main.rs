//! The IDX reader believes nothing. One of these tests reads how much memory this process has.

mod properties;

use std::io::{self, BufRead, BufReader, Read, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use harness::images::idx::{self, Items};

const IMAGES: u32 = 0x803;
const LABELS: u32 = 0x801;

fn read_images(file: impl BufRead) -> anyhow::Result<Vec<u8>> {
    idx::read(file, Items::Images, usize::MAX)
}

fn read_labels(file: impl BufRead) -> anyhow::Result<Vec<u8>> {
    idx::read(file, Items::Labels, usize::MAX)
}

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

/// Counts the bytes that are read.
struct Counted<'a>(&'a [u8], &'a mut usize);

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(into)?;
        *self.1 += read;
        Ok(read)
    }
}

#[test]
fn only_the_items_that_are_asked_for_are_read() {
    let plain = file(&[IMAGES, 400, 28, 28], 400 * 784);
    for (bytes, of_first) in [(&plain, 16 + 3 * 784), (&gzip(&plain), 1000)] {
        let counting = |read: &dyn Fn(BufReader<Counted<'_>>) -> anyhow::Result<usize>| {
            let mut seen = 0;
            let result = read(BufReader::with_capacity(16, Counted(bytes, &mut seen))).unwrap();
            (result, seen)
        };
        let first = |file: BufReader<Counted<'_>>| {
            let read = idx::read(file, Items::Images, 3)?;
            assert_eq!(read, plain[16..][..3 * 784]);
            Ok(read.len())
        };
        let (count, of_header) = counting(&|file| idx::count(file, Items::Images));
        assert!(count == 400 && of_header < 100, "{of_header} bytes of a header");
        let seen = counting(&first).1;
        assert!(seen <= of_first, "{seen} of {} bytes", bytes.len());
        // More than there are.
        assert_eq!(counting(&|file| Ok(idx::read(file, Items::Images, 500)?.len())).0, 400 * 784);
    }
    // What follows is not checked: labels that are no classes, a broken body, an end.
    let labels = [header(&[LABELS, 9]), vec![3, 99]].concat();
    assert_eq!(idx::read(&labels[..], Items::Labels, 1).unwrap(), [3]);
    assert_eq!(
        refusal(idx::read(&labels[..], Items::Labels, 2)),
        "label 1 is 99; labels are 0 to 9"
    );
    let short = refusal(idx::read(&labels[..], Items::Labels, 3));
    assert_eq!(short, "ends after 2 of the 9 bytes that its header announces");
}
