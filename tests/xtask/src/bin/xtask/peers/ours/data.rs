//! Images drawn, and files of images decoded.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use datasets::source::LoadedData;
use datasets::{Dataset, SIDE, Split, fashion_mnist};
use flate2::Compression;
use flate2::write::GzEncoder;
use harness::machine::data_folder;

use super::{Answer, Arguments, in_seconds, times};

const WHOLE: usize = 60_000;

/// Seconds for all images, drawn once: there are enough of them.
pub(super) fn drawing(arguments: &Arguments) -> anyhow::Result<Answer> {
    let device = arguments.plan(1)?.slots()[0].open()?;
    let seconds = device.run(|| {
        let warm_up = garments(arguments.images.get() / 100, 1);
        drop(warm_up);
        let start = std::time::Instant::now();
        let drawn = garments(arguments.images.get(), 1);
        anyhow::ensure!(drawn.train.len() == arguments.images.get());
        anyhow::Ok(start.elapsed().as_secs_f64())
    })?;
    Ok(in_seconds([("drawing", vec![seconds])]))
}

/// Seconds for reading training and test images, compressed as they are downloaded.
pub(super) fn decoding(arguments: &Arguments) -> anyhow::Result<Answer> {
    // The folder lives as long as the files are read.
    let made = tempfile::tempdir()?;
    let (folder, note) = match real_files(arguments.images) {
        Some(folder) => (folder, "Fashion-MNIST's own files"),
        None => {
            write_garments(made.path(), arguments.images.get())?;
            (made.path().to_owned(), "files of synthetic garments")
        }
    };
    let seconds = times(arguments.repetitions, Duration::ZERO, || {
        [Split::Train, Split::Test].iter().try_for_each(|split| {
            fashion_mnist::read(&folder, *split)?;
            anyhow::Ok(())
        })
    })?;
    Ok(Answer { note: Some(note.to_owned()), ..in_seconds([("decoding", seconds)]) })
}

/// The folder that downloads are kept in, if all of Fashion-MNIST is asked for and there, compressed.
fn real_files(images: NonZeroUsize) -> Option<PathBuf> {
    let folder = data_folder()?;
    let unpacked = ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte"];
    let packed = unpacked.iter().all(|file| !folder.join(file).exists());
    let train = fashion_mnist::read(&folder, Split::Train).ok()?;
    let test = fashion_mnist::read(&folder, Split::Test).ok()?;
    let whole = train.len() == WHOLE && test.len() == WHOLE / 6 && images.get() == WHOLE;
    (packed && whole).then_some(folder)
}

pub(super) fn garments(train: usize, test: usize) -> LoadedData {
    LoadedData::draw((Some(train), Some(test)))
}

/// Writes the four files of a data set, a sixth as many test images as training images.
fn write_garments(folder: &Path, images: usize) -> anyhow::Result<()> {
    let LoadedData { train, test, .. } = garments(images, images / 6);
    write(folder, "train", &train)?;
    write(folder, "t10k", &test)
}

fn write(folder: &Path, part: &str, data: &Dataset) -> anyhow::Result<()> {
    let count = u32::try_from(data.len())?;
    let side = u32::try_from(SIDE)?;
    let file = |name: &str, header: &[u32], body: &[u8]| {
        let path = folder.join(format!("{part}-{name}.gz"));
        let file = BufWriter::new(File::create(&path).with_context(|| path.display().to_string())?);
        let mut packed = GzEncoder::new(file, Compression::default());
        for number in header {
            packed.write_all(&number.to_be_bytes())?;
        }
        packed.write_all(body)?;
        packed.finish()?.flush()?;
        anyhow::Ok(())
    };
    file("images-idx3-ubyte", &[0x803, count, side, side], data.pixels())?;
    file("labels-idx1-ubyte", &[0x801, count], data.labels())
}
