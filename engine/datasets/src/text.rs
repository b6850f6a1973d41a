//! Text: the course's pages, or a file, cut into a training and a validation part.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use clap::Args;
use harness::cli::UsageError;
pub use harness::records::bits_per_byte;

use super::Dataset;
use super::source::{LoadedData, Sizes, last_name};

/// The book's pages of November 2026, in the order of their file names, with a form feed between two pages.
const PAGES: &[u8] = include_bytes!("../text/pages.txt");

const FORM_FEED: u8 = 0x0c;

/// The number that a bigram model adds to the count of each pair. It gives 0.04 fewer bits per byte on the pages than 1.
const SMOOTHING: f64 = 0.05;

/// The flag that chooses the text.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct TextArguments {
    /// Train on the bytes of this file; its last tenth is for validation [default: the course's pages]
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
}

impl TextArguments {
    /// Loads the text in windows of `context` bytes, at least one. The first `sizes` are used. `fits` refuses numbers of training and
    /// validation windows, before a file is read. Fails with the error of `fits`, and with a [`UsageError`] when the file cannot be
    /// read, or is too short for a window.
    pub fn load(
        &self,
        context: usize,
        sizes: Sizes,
        fits: impl Fn((usize, usize)) -> Result<(), UsageError>,
    ) -> Result<LoadedData, UsageError> {
        let (name, (training, validation)) = match &self.text {
            None => ("the course's pages".to_owned(), split_pages(PAGES)),
            Some(path) => {
                let refusal =
                    |why| UsageError::new(format_args!("--text {}: {why}", path.display()));
                let failed = |error: io::Error| match error.kind() {
                    io::ErrorKind::NotFound => refusal("there is no such file".to_owned()),
                    _ => refusal(error.to_string()),
                };
                let file = fs::metadata(path).map_err(failed)?;
                let (bytes, least) = (file.len() as usize, 10 * (context + 1));
                match () {
                    () if !file.is_file() => Err(refusal("this is no file to read".to_owned())),
                    () if bytes < least => Err(refusal(format!(
                        "{bytes} bytes are too few: windows of {context} bytes need a text of {least}"
                    ))),
                    () => {
                        let most = |all: usize, size: Option<usize>| all.min(size.unwrap_or(all));
                        fits((most(bytes / context, sizes.0), most(bytes / 10 / context, sizes.1)))
                    }
                }?;
                let first = |begin: usize, end: usize, size: Option<usize>| {
                    // Windows need room to begin elsewhere in each epoch.
                    let used = |size: usize| size.saturating_add(1).saturating_mul(context);
                    let part = (end - begin).min(size.map_or(usize::MAX, used));
                    read_part(path, begin as u64, part as u64).map_err(failed)
                };
                let validation = bytes - bytes / 10;
                let texts = (first(0, validation, sizes.0)?, first(validation, bytes, sizes.1)?);
                (last_name(path), texts)
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

/// Reads the bytes of a file from `begin` on, at most `most`.
fn read_part(path: &Path, begin: u64, most: u64) -> io::Result<Vec<u8>> {
    let (mut file, mut bytes) = (File::open(path)?, Vec::new());
    file.seek(SeekFrom::Start(begin))?;
    // Bytes in memory that grows would take up to twice their size.
    bytes.try_reserve_exact(most as usize)?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Splits pages into those to train on and those for validation: every tenth page, from the eighth on.
fn split_pages(pages: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let pages = pages.split(|&byte| byte == FORM_FEED).enumerate();
    let (validation, training): (Vec<_>, Vec<_>) = pages.partition(|(number, _)| number % 10 == 7);
    let join = |pages: Vec<(usize, &[u8])>| {
        pages.into_iter().map(|(_, page)| page).collect::<Vec<_>>().join(&FORM_FEED)
    };
    (join(training), join(validation))
}

/// The bits per byte of a bigram model on `validation`. The model predicts a byte from the byte before, by the counts of such pairs
/// in `training`, each raised by 0.05. The first byte is not predicted.
pub fn bigram_bits_per_byte(training: &[u8], validation: &[u8]) -> f64 {
    let pairs = |text| <[u8]>::windows(text, 2).map(|pair| [pair[0], pair[1]].map(usize::from));
    let mut counts = vec![[SMOOTHING; 256]; 256];
    pairs(training).for_each(|[byte, next]| counts[byte][next] += 1.0);
    let all: Vec<f64> = counts.iter().map(|row| row.iter().sum()).collect();
    let bits = pairs(validation).map(|[byte, next]| (all[byte] / counts[byte][next]).log2());
    bits.sum::<f64>() / (validation.len() as f64 - 1.0)
}

#[cfg(test)]
mod tests {
    use base16ct::HexDisplay;
    use sha2::{Digest as _, Sha256};

    use super::*;

    /// SHA-256 of [`PAGES`].
    const SHA256: &str = "261c606c7891344e7fc7f523882f327c55d5881d685442d0aa1cb0ea426ea2b2";

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
        let pages = TextArguments::default().load(64, (None, None), |_| Ok(())).unwrap();
        assert!((0.14..0.16).contains(&pages.guessing()), "{}", pages.guessing());
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
        let text = |bytes: &[u8]| Dataset::text(bytes.to_vec(), 1).unwrap();
        let (train, test) = (text(b"aaabx"), text(b"bbaabx"));
        assert_eq!(LoadedData { name: String::new(), train, test }.guessing(), 0.4);
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
    fn of_a_large_file_only_the_windows_that_a_run_uses_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        // A file of 400 MB with nothing but a hole.
        File::create(&path).unwrap().set_len(400_000_000).unwrap();
        let arguments = TextArguments { text: Some(path) };
        let fits = |counts| match counts {
            (64, 9) => Ok(()),
            counts => Err(UsageError::new(format_args!("{counts:?} do not fit"))),
        };
        // On Linux, the bytes that this thread has read.
        let read = || {
            let said = fs::read_to_string("/proc/thread-self/io").unwrap_or_default();
            let bytes = said.lines().find_map(|line| line.strip_prefix("rchar: "));
            bytes.map_or(0, |bytes| bytes.parse::<u64>().unwrap())
        };
        let before = read();
        let LoadedData { train, test, .. } = arguments.load(8, (Some(64), Some(9)), fits).unwrap();
        assert_eq!([&train, &test].map(Dataset::len), [64, 9]);
        let read = read() - before;
        assert!(read < 10_000, "{read} bytes");
        let refused = arguments.load(8, (None, Some(9)), fits).unwrap_err().to_string();
        assert_eq!(refused, "(50000000, 9) do not fit");
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: usize| {
            let path = folder.path().join(name);
            fs::write(&path, vec![0; bytes]).unwrap();
            path
        };
        let short = "bytes are too few: windows of 64 bytes need a text of 650";
        for (path, why) in [
            (folder.path().join("none"), "there is no such file"),
            (folder.path().to_owned(), "this is no file to read"),
            (file("empty", 0), &format!("0 {short}")),
            (file("short", 649), &format!("649 {short}")),
            ("/dev/null".into(), "this is no file to read"),
        ] {
            let expected = format!("--text {}: {why}", path.display());
            assert_eq!(load(&path, 64).unwrap_err(), expected);
        }
        assert!(load(&file("long enough", 650), 64).is_ok());
        let refused = TextArguments::default().load(100_000, (None, None), |_| Ok(()));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.starts_with("the course's pages: 47"), "{refused}");
    }
}
