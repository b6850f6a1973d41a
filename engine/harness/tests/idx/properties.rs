//! The IDX reader against random inputs, and whole files with something wrong in them. The fuzz target `idx` tries more.
//!
//! Nothing may panic, take memory that the file does not hold, or read a file as something it is not.

use std::io::{BufReader, Read};

use flate2::Compression;
use flate2::write::GzEncoder;
use harness::images::PIXELS;
use harness::images::idx::MAX_COUNT;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::{IMAGES, LABELS, gzip, header, read_images, read_labels};

fn labels_file(labels: &[u8]) -> Vec<u8> {
    [header(&[LABELS, labels.len() as u32]), labels.to_vec()].concat()
}

fn images_file(pixels: &[u8]) -> Vec<u8> {
    let images = (pixels.len() / PIXELS) as u32;
    [header(&[IMAGES, images, 28, 28]), pixels.to_vec()].concat()
}

/// Reads `bytes` both ways. What comes out must be what a file of that kind can hold.
fn check(bytes: &[u8]) {
    let images = read_images(bytes);
    let labels = read_labels(bytes);
    if let Ok(labels) = &labels {
        assert!((1..=MAX_COUNT as usize).contains(&labels.len()));
        assert!(labels.iter().all(|&label| label < 10));
    }
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        // A plain file has exactly the bytes that were read from it.
        if let Ok(images) = &images {
            assert_eq!(images_file(images), bytes);
        }
        if let Ok(labels) = &labels {
            assert_eq!(labels_file(labels), bytes);
        }
    }
    for error in [images.as_ref().err(), labels.as_ref().err()].into_iter().flatten() {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

/// Words that a header has, or should not have.
const WORDS: [u32; 8] = [0, 1, 28, LABELS, IMAGES, 1 << 31, u32::MAX, MAX_COUNT + 1];

proptest! {
    // A failing input is printed; it belongs into a test of its own, not into a file beside this one.
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes, alone, behind a header of any count, and behind the mark of gzip.
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>, magic in select(&[IMAGES, LABELS][..]), count: u32) {
        check(&bytes);
        check(&[header(&[magic, count]), bytes.clone()].concat());
        check(&[&[0x1f, 0x8b, 8][..], &bytes].concat());
    }

    /// A few bytes, a word of the header, the end.
    #[test]
    fn a_changed_file_is_read_or_refused(
        file in 0..4_usize,
        bytes in prop::collection::vec((any::<Index>(), any::<u8>()), 0..4),
        word in prop::option::of((0..4_usize, select(&WORDS[..]))),
        end in prop::option::of((any::<Index>(), prop::collection::vec(any::<u8>(), 0..7))),
    ) {
        let [labels, images] = [labels_file(&[3, 1, 4, 1, 5, 9, 2, 6]), images_file(&[7; 2 * PIXELS])];
        let mut file = [labels.clone(), images.clone(), gzip(&labels), gzip(&images)][file].clone();
        for (at, byte) in bytes {
            *at.get_mut(&mut file) = byte;
        }
        if let Some((at, word)) = word {
            file[4 * at..][..4].copy_from_slice(&word.to_be_bytes());
        }
        if let Some((at, more)) = end {
            file.truncate(at.index(file.len()));
            file.extend(more);
        }
        check(&file);
    }

    #[test]
    fn whole_files_come_back_as_they_were(
        labels in prop::collection::vec(0..10u8, 1..200),
        seeds in prop::collection::vec(any::<u8>(), 1..5),
    ) {
        let image = |&seed: &u8| (0..PIXELS).map(move |pixel| (pixel as u8).wrapping_mul(seed));
        let images: Vec<u8> = seeds.iter().flat_map(image).collect();
        for pack in [<[u8]>::to_vec, gzip] {
            prop_assert_eq!(&read_labels(&pack(&labels_file(&labels))[..]).unwrap(), &labels);
            prop_assert_eq!(&read_images(&pack(&images_file(&images))[..]).unwrap(), &images);
        }
    }

    #[test]
    fn no_part_of_a_file_is_a_file(
        labels in prop::collection::vec(0..10u8, 1..50),
        cut: Index,
        // Zeros behind a gzip member are padding.
        more in prop::collection::vec(1..=u8::MAX, 1..20),
    ) {
        for whole in [labels_file(&labels), gzip(&labels_file(&labels))] {
            prop_assert!(read_labels(&whole[..cut.index(whole.len())]).is_err());
            prop_assert!(read_labels(&[&whole[..], &more].concat()[..]).is_err());
        }
    }

    #[test]
    fn a_count_other_than_the_real_one_is_refused(
        labels in prop::collection::vec(0..10u8, 1..50),
        count: u32,
    ) {
        prop_assume!(count as usize != labels.len());
        prop_assert!(read_labels(&[header(&[LABELS, count]), labels].concat()[..]).is_err());
    }
}

/// The most memory that this process has had, in MB, where the system tells.
fn peak_megabytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kilobytes| kilobytes / 1000)
}

/// Whether a file of five labels was refused because it goes on.
fn is_too_long(read: &anyhow::Result<Vec<u8>>) -> bool {
    read.as_ref().is_err_and(|error| error.to_string().starts_with("goes on after the 5 bytes"))
}

/// Files that never end, plain and compressed to a thousandth of their size.
#[test]
fn endless_files_and_a_bomb_take_little_memory() {
    let endless = |header: Vec<u8>| std::io::Cursor::new(header).chain(std::io::repeat(0));
    let plain = read_labels(BufReader::new(endless(header(&[LABELS, 5]))));
    assert!(is_too_long(&plain));
    let bomb = {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        let mut unpacked = endless(header(&[LABELS, 5])).take(1 << 30);
        std::io::copy(&mut unpacked, &mut packed).expect("memory takes all");
        packed.finish().expect("memory takes all")
    };
    assert!(is_too_long(&read_labels(&bomb[..])));
    if let Some(peak) = peak_megabytes() {
        let size = bomb.len() / 1_000_000;
        println!("a bomb of {size} MB unpacks to 1,074 MB; peak memory {peak} MB");
        assert!(peak < 64, "{peak} MB");
    }
}
