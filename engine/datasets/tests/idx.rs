//! The IDX reader believes nothing.

use std::io::Write as _;

use datasets::idx::{Error, read_images, read_labels};
use flate2::Compression;
use flate2::write::GzEncoder;

const IMAGES: u32 = 0x803;
const LABELS: u32 = 0x801;

fn file(header: &[u32], body: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_be_bytes()).collect();
    bytes.extend((0..body).map(|i| (i % 10) as u8));
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

#[test]
fn whole_files_are_read_plain_and_compressed() {
    let images = file(&[IMAGES, 3, 28, 28], 3 * 784);
    let labels = file(&[LABELS, 12], 12);
    for (images, labels) in [(images.clone(), labels.clone()), (gzip(&images), gzip(&labels))] {
        let images = read_images(&images[..]).unwrap();
        assert_eq!(images.len(), 3);
        assert_eq!(images[1][..3], [4, 5, 6]);
        assert_eq!(read_labels(&labels[..]).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
    }
}

#[test]
fn a_header_that_promises_billions_costs_nothing() {
    for count in [0, 1_000_001, u32::MAX] {
        let images = read_images(&file(&[IMAGES, count, 28, 28], 784)[..]);
        assert!(matches!(images, Err(Error::Count(c)) if c == count));
        let labels = read_labels(&file(&[LABELS, count], 10)[..]);
        assert!(matches!(labels, Err(Error::Count(c)) if c == count));
    }
}

#[test]
fn lengths_must_be_exact() {
    let error = read_images(&file(&[IMAGES, 2, 28, 28], 1567)[..]).unwrap_err();
    assert!(matches!(error, Error::Truncated { found: 1567, expected: 1568 }), "{error}");
    assert!(matches!(
        read_images(&file(&[IMAGES, 2, 28, 28], 1569)[..]),
        Err(Error::Trailing(1568))
    ));
    assert!(matches!(read_labels(&file(&[LABELS, 2], 1)[..]), Err(Error::Truncated { .. })));
    assert!(matches!(read_labels(&file(&[LABELS, 2], 3)[..]), Err(Error::Trailing(2))));
    assert!(matches!(read_labels(&[0, 0, 8][..]), Err(Error::Header)));
    assert!(matches!(read_labels(&[][..]), Err(Error::Header)));
}

#[test]
fn the_kind_of_file_and_the_size_of_images_are_checked() {
    assert!(matches!(read_images(&file(&[LABELS, 1], 1)[..]), Err(Error::Magic { .. })));
    assert!(matches!(read_labels(&file(&[IMAGES, 1, 28, 28], 784)[..]), Err(Error::Magic { .. })));
    let error = read_images(&file(&[IMAGES, 1, 32, 32], 1024)[..]).unwrap_err();
    assert!(matches!(error, Error::ImageSize { rows: 32, cols: 32 }), "{error}");
}

#[test]
fn labels_must_be_classes() {
    let mut labels = file(&[LABELS, 3], 3);
    labels[9] = 10;
    let error = read_labels(&labels[..]).unwrap_err();
    assert!(matches!(error, Error::Label { position: 1, label: 10 }), "{error}");
}

#[test]
fn damaged_compression_is_an_error() {
    let mut bytes = gzip(&file(&[LABELS, 12], 12));
    let middle = bytes.len() / 2;
    bytes.truncate(middle);
    assert!(read_labels(&bytes[..]).is_err());
    let mut bytes = gzip(&file(&[LABELS, 12], 12));
    bytes.push(0);
    assert!(matches!(read_labels(&bytes[..]), Err(Error::TrailingCompressed)));
}
