//! Contact sheets: many images in one grey PNG.

use std::io::{self, Write};
use std::path::Path;

use super::{CLASSES, PIXELS, SIDE};
use harness::report::file;

/// The side of an image pixel in sheet pixels.
const ZOOM: usize = 2;
/// The gap between images, and around them, in sheet pixels.
const GAP: usize = 2;
/// The shade of the gaps. It shows the black edge of an image.
const GAP_SHADE: u8 = 64;
/// The distance from one image to the next in sheet pixels.
const STEP: usize = SIDE * ZOOM + GAP;

/// Returns the first `columns` images of each class, class after class: one row of a sheet per class. If a class has fewer
/// images, the rest of its row is black.
pub fn rows_of_classes<'a>(
    images: impl IntoIterator<Item = (&'a [u8; PIXELS], u8)>,
    columns: usize,
) -> Vec<[u8; PIXELS]> {
    let mut rows = vec![[0; PIXELS]; CLASSES * columns];
    let mut found = [0; CLASSES];
    for (image, label) in images {
        let class = usize::from(label);
        if class < CLASSES && found[class] < columns {
            rows[class * columns + found[class]] = *image;
            found[class] += 1;
        }
        if found.iter().all(|&count| count == columns) {
            break;
        }
    }
    rows
}

/// Lays images out from left to right and from top to bottom, `columns` in each row. Returns the sheet's width and height
/// in pixels, and its grey pixels row by row.
pub fn contact_sheet(images: &[[u8; PIXELS]], columns: usize) -> (usize, usize, Vec<u8>) {
    let columns = columns.max(1);
    let width = columns * STEP + GAP;
    let height = images.len().div_ceil(columns) * STEP + GAP;
    let mut sheet = vec![GAP_SHADE; width * height];
    for (place, image) in images.iter().enumerate() {
        let left = place % columns * STEP + GAP;
        let top = place / columns * STEP + GAP;
        for y in 0..SIDE * ZOOM {
            let row = &image[y / ZOOM * SIDE..][..SIDE];
            let line = &mut sheet[(top + y) * width + left..][..SIDE * ZOOM];
            for (x, pixel) in line.iter_mut().enumerate() {
                *pixel = row[x / ZOOM];
            }
        }
    }
    (width, height, sheet)
}

/// Writes a grey picture, given row by row, as a PNG file.
pub fn write_png(path: &Path, width: usize, height: usize, pixels: &[u8]) -> io::Result<()> {
    file::write(path, |file| encode(file, width, height, pixels))
}

fn encode(file: &mut dyn Write, width: usize, height: usize, pixels: &[u8]) -> io::Result<()> {
    let too_large = |_| io::Error::new(io::ErrorKind::InvalidInput, "the picture is too large");
    let width = u32::try_from(width).map_err(too_large)?;
    let height = u32::try_from(height).map_err(too_large)?;
    let mut encoder = png::Encoder::new(file, width, height);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn rows_hold_one_class_each() {
        let images: Vec<_> = (0..30).map(|i| ([i as u8 + 1; PIXELS], i as u8 % 10)).collect();
        let rows = rows_of_classes(images.iter().map(|(image, label)| (image, *label)), 2);
        assert_eq!(rows.len(), 20);
        assert_eq!((rows[6][0], rows[7][0]), (4, 14));
    }

    #[test]
    fn an_image_lies_at_its_place() {
        let mut images = [[0; PIXELS]; 3];
        images[2][SIDE + 3] = 200;
        let (width, height, sheet) = contact_sheet(&images, 2);
        assert_eq!((width, height), (2 * STEP + GAP, 2 * STEP + GAP));
        // The third image starts the second row; its pixel (3, 1) is a block of the sheet.
        let (left, top) = (GAP + 3 * ZOOM, STEP + GAP + ZOOM);
        let bright: Vec<_> = (0..sheet.len()).filter(|&i| sheet[i] == 200).collect();
        assert_eq!(bright.len(), ZOOM * ZOOM);
        assert_eq!(bright[0], top * width + left);
    }

    #[test]
    fn a_written_file_reads_back_and_leaves_nothing_else() -> io::Result<()> {
        let folder = std::env::temp_dir().join(format!("contact-sheet-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let path = folder.join("sheet.png");
        write_png(&path, 3, 2, &[1, 2, 3, 4, 5, 6])?;
        let mut reader = png::Decoder::new(io::BufReader::new(File::open(&path)?)).read_info()?;
        let mut pixels = [0; 6];
        reader.next_frame(&mut pixels)?;
        assert_eq!(pixels, [1, 2, 3, 4, 5, 6]);
        // A picture of the wrong size is an error, and leaves no partial file behind.
        assert!(write_png(&folder.join("wrong.png"), 3, 2, &[0; 5]).is_err());
        assert_eq!(fs::read_dir(&folder)?.count(), 1);
        fs::remove_dir_all(&folder)
    }
}
