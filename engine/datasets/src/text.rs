//! Text: the course's pages, or a file, cut into a training and a validation part.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use clap::Args;
use harness::cli::UsageError;
pub use harness::records::bits_per_byte;

use super::Dataset;
use super::source::{LoadedData, Sizes, last_name};

/// The book's pages of November 2026, in the order of their file names. A form feed is between two pages.
const PAGES: &[u8] = include_bytes!("../text/pages.txt");

/// SHA-256 of [`PAGES`].
#[cfg(test)]
const SHA256: &str = "261c606c7891344e7fc7f523882f327c55d5881d685442d0aa1cb0ea426ea2b2";

/// The byte between two pages.
const FORM_FEED: u8 = 0x0c;

/// Of a number of pages or of bytes, one in so many is for validation.
const OF: usize = 10;

/// The place among ten pages of the one that is for validation.
const VALIDATION: usize = 7;

/// The most tokens of a batch in an evaluation, unless a window has more.
const TOKENS: usize = 8192;

/// The number that a bigram model adds to the count of each pair, also of a pair that never occurs. Of the usual numbers, this one
/// gives the fewest bits per byte on the course's pages: 0.04 fewer than 1.
const SMOOTHING: f64 = 0.05;

/// The number of tokens that there are.
pub const VOCABULARY: usize = 256;

/// The windows of `context` tokens that an evaluation computes at a time.
pub fn at_once(context: usize) -> usize {
    (TOKENS / context).max(1)
}

/// A flag that chooses the text.
#[derive(Args, Clone, Debug, Default)]
pub struct TextArguments {
    /// Train on the bytes of this file; its last tenth is for validation [default: the course's pages]
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
}

impl TextArguments {
    /// Loads the text in windows of `context` bytes, of which the first `sizes` are used. `fits` refuses numbers of training and
    /// validation windows, before a file is read. Fails with the error of `fits`, and with a [`UsageError`] when the file cannot be
    /// read, or is too short for a window.
    pub fn load(
        &self,
        context: usize,
        sizes: Sizes,
        fits: impl Fn((usize, usize)) -> Result<(), UsageError>,
    ) -> Result<LoadedData, UsageError> {
        let (name, training, validation) = match &self.text {
            None => {
                let (training, validation) = split_pages(PAGES);
                ("the course's pages".to_owned(), training, validation)
            }
            Some(path) => {
                let refusal =
                    |why: &str| UsageError::new(format_args!("--text {}: {why}", path.display()));
                let described = fs::metadata(path).map_err(|error| match error.kind() {
                    ErrorKind::NotFound => refusal("there is no such file"),
                    _ => refusal(&error.to_string()),
                })?;
                let (bytes, least) = (described.len() as usize, OF * (context + 1));
                match () {
                    () if described.is_dir() => Err(refusal("this is a folder; name a file")),
                    () if !described.is_file() => Err(refusal("this is no regular file")),
                    () if bytes == 0 => Err(refusal("this file is empty")),
                    () if bytes < least => Err(refusal(&format!(
                        "{bytes} bytes are too few: for windows of {context} bytes, a text needs at least {least}"
                    ))),
                    () => fits((bytes / context, bytes / OF / context)),
                }?;
                let mut training = fs::read(path).map_err(|error| refusal(&error.to_string()))?;
                let validation = training.split_off(training.len() - training.len() / OF);
                (last_name(path), training, validation)
            }
        };
        let windows = |text, size: Option<usize>| {
            let mut windows = Dataset::text(text, context)
                .map_err(|error| UsageError::new(format_args!("{name}: {error}")))?;
            windows.truncate(size.unwrap_or(usize::MAX));
            Ok(windows)
        };
        let (train, test) = (windows(training, sizes.0)?, windows(validation, sizes.1)?);
        fits((train.len(), test.len()))?;
        Ok(LoadedData { name, train, test })
    }
}

/// Splits pages into those to train on and those for validation: every tenth page, from the eighth on.
fn split_pages(pages: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let pages = pages.split(|&byte| byte == FORM_FEED).enumerate();
    let (validation, training): (Vec<_>, Vec<_>) =
        pages.partition(|(number, _)| number % OF == VALIDATION);
    let join = |pages: Vec<(usize, &[u8])>| {
        pages.into_iter().map(|(_, page)| page).collect::<Vec<_>>().join(&FORM_FEED)
    };
    (join(training), join(validation))
}

/// The bits per byte of a bigram model on `validation`. The model predicts a byte from the byte before, by the counts of such pairs
/// in `training`, each raised by 0.05. The first byte is not predicted. NaN without a pair.
pub fn bigram_bits_per_byte(training: &[u8], validation: &[u8]) -> f64 {
    let pairs = |text: &[u8]| {
        let places = text.windows(2).map(|pair| usize::from(pair[0]) << 8 | usize::from(pair[1]));
        places.fold(vec![0.0; VOCABULARY * VOCABULARY], |mut counts: Vec<f64>, place| {
            counts[place] += 1.0;
            counts
        })
    };
    let (known, asked) = (pairs(training), pairs(validation));
    let mut bits = 0.0;
    for (known, asked) in known.chunks(VOCABULARY).zip(asked.chunks(VOCABULARY)) {
        let all = known.iter().sum::<f64>() + VOCABULARY as f64 * SMOOTHING;
        let of_pairs = known.iter().zip(asked);
        bits +=
            of_pairs.map(|(known, asked)| asked * (all / (known + SMOOTHING)).log2()).sum::<f64>();
    }
    bits / asked.iter().sum::<f64>()
}

/// The accuracy of guessing: the share of the most frequent byte of `training` among the bytes to predict.
pub(crate) fn guessing(training: &[u8], predicted: &[u8]) -> f64 {
    let mut counts = [0_usize; VOCABULARY];
    training.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let most = (0..=u8::MAX).max_by_key(|&byte| counts[usize::from(byte)]);
    let right = predicted.iter().filter(|&&byte| Some(byte) == most).count();
    right as f64 / predicted.len() as f64
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use base16ct::HexDisplay;
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn the_pages_are_those_of_the_digest_and_a_tenth_of_them_is_for_validation() {
        assert_eq!(format!("{:x}", HexDisplay(&Sha256::digest(PAGES))), SHA256);
        let (training, validation) = split_pages(PAGES);
        // One form feed joined a training page to one for validation, and is gone.
        let joints = 2 * validation.split(|&byte| byte == FORM_FEED).count() - 1;
        assert_eq!(training.len() + validation.len() + joints.min(1), PAGES.len());
        let share = validation.len() as f64 / PAGES.len() as f64;
        assert!((0.09..0.11).contains(&share), "{share}");
        // What a small model has to beat.
        let bits = bigram_bits_per_byte(&training, &validation);
        assert!((3.77..3.79).contains(&bits), "{bits}");
        let uniform = guessing(&training, &validation);
        assert!((0.14..0.16).contains(&uniform), "{uniform}");
    }

    #[test]
    fn every_tenth_page_from_the_eighth_on_is_for_validation() {
        let pages: Vec<_> = (b'a'..=b'z').map(|page| [page; 2]).collect();
        let (training, validation) = split_pages(&pages.join(&FORM_FEED));
        assert_eq!(validation, b"hh\x0crr");
        assert_eq!(training.iter().filter(|&&byte| byte != FORM_FEED).count(), 2 * 24);
    }

    #[test]
    fn a_bigram_model_knows_pairs_and_nothing_else() {
        // a is always before b, with one exception in a hundred.
        let text = [b"ab".repeat(99), b"aa".to_vec()].concat();
        let [b, other] = [99.0, 1.0].map(|count: f64| {
            // The last a has no byte after it.
            ((100.0 + 256.0 * SMOOTHING) / (count + SMOOTHING)).log2()
        });
        approx::assert_relative_eq!(bigram_bits_per_byte(&text, b"ab"), b, max_relative = 1e-12);
        let both = bigram_bits_per_byte(&text, b"aab");
        approx::assert_relative_eq!(both, (b + other) / 2.0, max_relative = 1e-12);
        // Nothing is known of x, so every byte is as likely.
        approx::assert_relative_eq!(bigram_bits_per_byte(&text, b"xy"), 8.0, max_relative = 1e-12);
        approx::assert_relative_eq!(bits_per_byte(256f64.ln()), 8.0, max_relative = 1e-12);
        assert_eq!(guessing(b"aab", b"bbab"), 0.25);
    }

    fn load(path: &Path, context: usize) -> Result<LoadedData, String> {
        let arguments = TextArguments { text: Some(path.to_owned()) };
        arguments.load(context, (None, Some(2)), |_| Ok(())).map_err(|error| error.to_string())
    }

    #[test]
    fn the_last_tenth_of_a_file_is_for_validation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("any bytes.bin");
        let bytes: Vec<u8> = (0..=255).cycle().take(1003).collect();
        fs::write(&path, &bytes).unwrap();
        let LoadedData { name, train, test } = load(&path, 9).unwrap();
        assert_eq!((&*name, train.len(), test.len()), ("any bytes.bin", 99, 2));
        assert_eq!((train.bytes(), test.bytes()), (&bytes[..=891], &bytes[903..=921]));
        let refused = |fits: (usize, usize)| Err(UsageError::new(format_args!("{fits:?}")));
        let arguments = TextArguments { text: Some(path) };
        let refusal = arguments.load(9, (None, None), refused).unwrap_err();
        assert_eq!(refusal.to_string(), "(111, 11)");
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: usize| {
            let path = folder.path().join(name);
            fs::write(&path, vec![0; bytes]).unwrap();
            path
        };
        let short = "649 bytes are too few: for windows of 64 bytes, a text needs at least 650";
        for (path, why) in [
            (folder.path().join("none"), "there is no such file"),
            (folder.path().to_owned(), "this is a folder; name a file"),
            (file("empty", 0), "this file is empty"),
            (file("short", 649), short),
            #[cfg(unix)]
            ("/dev/null".into(), "this is no regular file"),
        ] {
            let expected = format!("--text {}: {why}", path.display());
            assert_eq!(load(&path, 64).unwrap_err(), expected);
        }
        assert!(load(&file("long enough", 650), 64).is_ok());
        let refused = TextArguments::default().load(100_000, (None, None), |_| Ok(()));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.starts_with("the course's pages: a text of "), "{refused}");
    }
}
