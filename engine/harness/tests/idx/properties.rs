//! The IDX reader against a million inputs: random ones, and whole files with something wrong in them.
//!
//! Nothing may panic, take memory that the file does not hold, or read a file as something it is not.

use std::io::{BufReader, Read};

use flate2::Compression;
use flate2::write::GzEncoder;
use harness::images::PIXELS;
use harness::images::idx::MAX_COUNT;
use proptest::prelude::*;
use proptest::sample::Index;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{IMAGES, LABELS, gzip, header, read_images, read_labels};

fn labels_file(labels: &[u8]) -> Vec<u8> {
    [header(&[LABELS, labels.len() as u32]), labels.to_vec()].concat()
}

fn images_file(pixels: &[u8]) -> Vec<u8> {
    let images = (pixels.len() / PIXELS) as u32;
    [header(&[IMAGES, images, 28, 28]), pixels.to_vec()].concat()
}

/// Reads `bytes` both ways. What comes out must be what a file of that kind can hold.
fn check(bytes: &[u8]) -> (bool, bool) {
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
    (images.is_ok(), labels.is_ok())
}

proptest! {
    // A failing input is printed; it belongs into a test of its own, not into a file beside this one.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        check(&bytes);
    }

    #[test]
    fn any_body_behind_a_right_magic_number(images: bool, count: u32, body: Vec<u8>) {
        let magic = if images { IMAGES } else { LABELS };
        check(&[header(&[magic, count]), body].concat());
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

/// Changes a file in one to three places: a byte, a word of the header, the end.
fn mutate(file: &mut Vec<u8>, random: &mut ChaCha8Rng) {
    const WORDS: [u32; 8] = [0, 1, 28, LABELS, IMAGES, 1 << 31, u32::MAX, MAX_COUNT + 1];
    for _ in 0..random.random_range(1..=3) {
        let at = random.random_range(0..file.len().max(1));
        match random.random_range(0..5) {
            0 => file.truncate(at),
            1 => file.extend((0..at % 7).map(|i| i as u8)),
            2 => {
                let word = at % 4 * 4;
                if let Some(bytes) = file.get_mut(word..word + 4) {
                    bytes.copy_from_slice(&WORDS[random.random_range(0..8)].to_be_bytes());
                }
            }
            3 => {
                if let Some(byte) = file.get_mut(at) {
                    *byte ^= 1 << random.random_range(0..8);
                }
            }
            _ => {
                if let Some(byte) = file.get_mut(at % 20) {
                    *byte = random.random();
                }
            }
        }
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

#[test]
fn a_million_inputs_and_a_bomb_take_little_memory() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let whole = [
        labels_file(&[3, 1, 4, 1, 5, 9]),
        images_file(&[[7; PIXELS], [8; PIXELS]].concat()),
        gzip(&labels_file(&[2, 7, 1, 8])),
        gzip(&images_file(&[9; PIXELS])),
    ];
    let (mut inputs, mut images, mut labels) = (0, 0, 0);
    let mut count = |bytes: &[u8]| {
        let (as_images, as_labels) = check(bytes);
        inputs += 1;
        images += u32::from(as_images);
        labels += u32::from(as_labels);
    };
    let mut bytes = Vec::new();
    for round in 0..1_000_000 {
        bytes.clear();
        match round % 8 {
            0 => {
                bytes.resize(random.random_range(0..64), 0);
                random.fill_bytes(&mut bytes);
            }
            // Random behind the first two bytes of gzip: whatever the decoder makes of it.
            1 => {
                bytes.resize(random.random_range(3..64), 0);
                random.fill_bytes(&mut bytes);
                bytes[..3].copy_from_slice(&[0x1f, 0x8b, 8]);
            }
            _ => {
                bytes.extend_from_slice(&whole[round % 4]);
                mutate(&mut bytes, &mut random);
            }
        }
        count(&bytes);
    }
    println!("{inputs} inputs: {images} read as images, {labels} as labels, the rest refused");
    assert!(images > 0 && labels > 0, "some mutations leave a file whole");

    // Files that never end, plain and compressed to a thousandth of their size.
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
        println!(
            "a bomb of {} MB unpacks to 1,074 MB; peak memory {peak} MB",
            bomb.len() / 1_000_000
        );
        assert!(peak < 64, "{peak} MB");
    }
}
