//! Contact sheets: many images in one grey PNG.

use std::io::{self, Write};
use std::iter;
use std::path::Path;

use super::{CLASSES, Dataset, PIXELS, SIDE};
use harness::report::file;

/// The side of an image pixel in sheet pixels.
const ZOOM: usize = 2;
/// The gap between images, and around them, in sheet pixels.
const GAP: usize = 2;
/// The shade of the gaps. It shows the black edge of an image.
const GAP_SHADE: u8 = 64;
/// The distance from one image to the next in sheet pixels.
const STEP: usize = SIDE * ZOOM + GAP;

/// Writes a sheet with a row for each class: the first `columns` images of the class, from left to right. If a class
/// has fewer images, the rest of its row is black. Fails when the file cannot be written.
pub fn write(path: &Path, images: &Dataset, columns: usize) -> io::Result<()> {
    let (width, height, sheet) = draw(images, columns);
    file::write(path, |file| encode(file, width, height, &sheet))
}

/// Returns the sheet's width and height in pixels, and its grey pixels row by row.
fn draw(images: &Dataset, columns: usize) -> (usize, usize, Vec<u8>) {
    let (pixels, _) = images.bytes().as_chunks::<PIXELS>();
    let (width, height) = (columns * STEP + GAP, CLASSES * STEP + GAP);
    let mut sheet = vec![GAP_SHADE; width * height];
    for class in 0..CLASSES {
        let labelled = pixels.iter().zip(images.labels());
        let of_class = labelled.filter(|(_, label)| usize::from(**label) == class);
        let row = of_class.map(|(image, _)| image).chain(iter::repeat(&[0; PIXELS]));
        for (column, image) in row.take(columns).enumerate() {
            for (y, x) in (0..SIDE * ZOOM).flat_map(|y| (0..SIDE * ZOOM).map(move |x| (y, x))) {
                let (row, column) = (class * STEP + GAP + y, column * STEP + GAP + x);
                sheet[row * width + column] = image[y / ZOOM * SIDE + x / ZOOM];
            }
        }
    }
    (width, height, sheet)
}

fn encode(file: &mut dyn Write, width: usize, height: usize, pixels: &[u8]) -> io::Result<()> {
    let mut encoder = png::Encoder::new(file, width as u32, height as u32);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    Ok(writer.finish()?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    /// The first `count` of images of the ten classes in turn. All pixels of image i have the value i + 1, but one pixel of
    /// image 13.
    fn images(count: u8) -> Dataset {
        let mut images: Vec<_> = (0..count).map(|i| [i + 1; PIXELS]).collect();
        if let Some(image) = images.get_mut(13) {
            image[SIDE + 3] = 200;
        }
        Dataset::new(images, (0..count).map(|i| i % 10).collect()).unwrap()
    }

    #[test]
    fn a_row_holds_one_class_and_an_image_lies_at_its_place() {
        let (width, height, sheet) = draw(&images(30), 2);
        assert_eq!((width, height), (2 * STEP + GAP, 10 * STEP + GAP));
        // The first two images of class 3, and the pixel (3, 1) of the second: a block of the sheet.
        let (top, left) = (3 * STEP + GAP, STEP + GAP);
        assert_eq!((sheet[top * width + GAP], sheet[top * width + left]), (4, 14));
        let bright: Vec<_> = (0..sheet.len()).filter(|&i| sheet[i] == 200).collect();
        assert_eq!(bright.len(), ZOOM * ZOOM);
        assert_eq!(bright[0], (top + ZOOM) * width + left + 3 * ZOOM);
        // With one image of each class, the second column is black.
        assert_eq!(draw(&images(10), 2).2[top * width + left], 0);
    }

    #[test]
    fn a_written_file_reads_back_and_leaves_nothing_else() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("sheet.png");
        let images = images(30);
        write(&path, &images, 2)?;
        let mut reader = png::Decoder::new(io::BufReader::new(File::open(&path)?)).read_info()?;
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels)?;
        assert_eq!(pixels, draw(&images, 2).2);
        // A picture of the wrong size is an error, and leaves no partial file behind.
        let wrong = folder.path().join("wrong.png");
        assert!(file::write(&wrong, |file| encode(file, 3, 2, &[0; 5])).is_err());
        assert_eq!(fs::read_dir(folder.path())?.count(), 1);
        Ok(())
    }
}
