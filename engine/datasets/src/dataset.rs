//! A data set in CPU memory.

use std::sync::{Arc, OnceLock};

use candle_core::{DType, Device, Result, Tensor, bail};

use super::{Batch, CLASSES, PIXELS, SAMPLE};

/// The most classes: a label is a byte.
const MOST_CLASSES: usize = 1 << u8::BITS;

/// Why images and labels are not a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatasetError {
    /// The number of images differs from the number of labels.
    #[error("{images} images, but {labels} labels")]
    Counts {
        /// The number of images.
        images: usize,
        /// The number of labels.
        labels: usize,
    },
    /// There are no images.
    #[error("a data set needs at least one image")]
    Empty,
    /// The pixels are not a whole number of images, or an image has no pixels.
    #[error("{pixels} pixels are not whole images of {shape:?}")]
    Pixels {
        /// The number of pixels.
        pixels: usize,
        /// The shape of an image.
        shape: [usize; 3],
    },
    /// There are more classes than values of a label.
    #[error("{classes} classes: a label is a byte, which tells {MOST_CLASSES} apart")]
    Classes {
        /// The number of classes.
        classes: usize,
    },
    /// A label is not a class.
    #[error("label {position} is {label}, but there are {classes} classes, counted from 0")]
    Label {
        /// The position of the label, from 0.
        position: usize,
        /// The value of the label.
        label: u8,
        /// The number of classes.
        classes: usize,
    },
}

/// Images and their labels, in CPU memory, with one byte per pixel. Clones share the memory.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The pixels of all images, image after image.
    pixels: Arc<Vec<u8>>,
    labels: Arc<Vec<u8>>,
    shape: [usize; 3],
    /// Computed by the first use.
    pub(super) fingerprint: Arc<OnceLock<String>>,
}

impl Dataset {
    /// Makes a data set of grey 28×28 images and labels of [`CLASSES`] classes.
    ///
    /// # Errors
    ///
    /// - The number of images differs from the number of labels.
    /// - There are no images.
    /// - A label is not below [`CLASSES`].
    pub fn new(
        images: Vec<[u8; PIXELS]>,
        labels: Vec<u8>,
    ) -> std::result::Result<Self, DatasetError> {
        Self::of_shape(images.into_flattened(), SAMPLE, labels, CLASSES)
    }

    /// Makes a data set of images of any shape `[channels, height, width]`, and labels of `classes` classes.
    ///
    /// `pixels` has the images one after the other, each channel by channel and row by row.
    ///
    /// # Errors
    ///
    /// - There are more than 256 classes, because a label is a byte.
    /// - The pixels are not a whole number of images.
    /// - The number of images differs from the number of labels.
    /// - There are no images.
    /// - A label is not below `classes`.
    pub fn of_shape(
        pixels: Vec<u8>,
        shape: [usize; 3],
        labels: Vec<u8>,
        classes: usize,
    ) -> std::result::Result<Self, DatasetError> {
        if classes > MOST_CLASSES {
            return Err(DatasetError::Classes { classes });
        }
        let image = shape.iter().try_fold(1_usize, |all, &size| all.checked_mul(size));
        let Some(image) = image.filter(|&image| image > 0 && pixels.len().is_multiple_of(image))
        else {
            return Err(DatasetError::Pixels { pixels: pixels.len(), shape });
        };
        let images = pixels.len() / image;
        if images != labels.len() {
            return Err(DatasetError::Counts { images, labels: labels.len() });
        }
        if images == 0 {
            return Err(DatasetError::Empty);
        }
        if let Some(position) = labels.iter().position(|&label| usize::from(label) >= classes) {
            return Err(DatasetError::Label { position, label: labels[position], classes });
        }
        let (pixels, labels) = (Arc::new(pixels), Arc::new(labels));
        Ok(Self { pixels, labels, shape, fingerprint: Arc::default() })
    }

    /// The number of images.
    #[expect(clippy::len_without_is_empty, reason = "a data set has at least one image")]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// The shape of an image, `[channels, height, width]`.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// The pixels of all images, one byte per pixel. The images are one after the other, each channel by channel and row by
    /// row.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The labels.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// Keeps the first `count` images. At least one image stays.
    pub fn truncate(&mut self, count: usize) {
        if count < self.len() {
            let (count, image) = (count.max(1), self.image());
            Arc::make_mut(&mut self.pixels).truncate(count * image);
            Arc::make_mut(&mut self.labels).truncate(count);
            self.fingerprint = Arc::default();
        }
    }

    /// The number of pixels of one image.
    fn image(&self) -> usize {
        self.shape.iter().product()
    }

    /// Makes a batch of the samples with these indices, in CPU memory. Pixels are scaled to 0..=1.
    ///
    /// # Errors
    ///
    /// When an index is out of range or `dtype` is not a floating-point type.
    pub fn batch(&self, indices: &[u32], dtype: DType) -> Result<Batch> {
        if !dtype.is_float() {
            bail!("pixels from 0 to 1 need a floating-point type, not {}", dtype.as_str());
        }
        let image = self.image();
        let mut pixels = Vec::with_capacity(indices.len() * image);
        let mut labels = Vec::with_capacity(indices.len());
        for &index in indices {
            let index = index as usize;
            let Some(&label) = self.labels.get(index) else {
                bail!("sample {index} of a data set of {}", self.len());
            };
            let image = &self.pixels[index * image..][..image];
            pixels.extend(image.iter().map(|&pixel| f32::from(pixel) / 255.0));
            labels.push(u32::from(label));
        }
        let [channels, height, width] = self.shape;
        let shape = (indices.len(), channels, height, width);
        Ok(Batch {
            images: Tensor::from_vec(pixels, shape, &Device::Cpu)?.to_dtype(dtype)?,
            labels: Tensor::from_vec(labels, indices.len(), &Device::Cpu)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_any_shape_are_a_data_set() {
        let pixels: Vec<u8> = (0..2 * 3 * 4 * 5).collect();
        let mut data = Dataset::of_shape(pixels, [3, 4, 5], vec![0, 255], 256).unwrap();
        assert_eq!((data.len(), data.shape()), (2, [3, 4, 5]));
        let Batch { images, labels } = data.batch(&[1, 0, 1], DType::F64).unwrap();
        assert_eq!(images.dims(), [3, 3, 4, 5]);
        let first = images.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        assert_eq!(first[..3], [60, 61, 62].map(|pixel| f64::from(pixel as f32 / 255.0)));
        assert_eq!(labels.to_vec1::<u32>().unwrap(), [255, 0, 255]);
        data.truncate(1);
        assert_eq!((data.len(), data.pixels().len()), (1, 60));
        assert!(data.batch(&[1], DType::F32).is_err());
    }

    #[test]
    fn what_is_no_data_set_is_refused() {
        let refused = |pixels, shape, labels: &[u8], classes| {
            Dataset::of_shape(vec![0; pixels], shape, labels.to_vec(), classes)
                .unwrap_err()
                .to_string()
        };
        let all = [
            (refused(7, [1, 2, 3], &[0], 2), "7 pixels are not whole images of [1, 2, 3]"),
            (refused(0, [1, 0, 3], &[0], 2), "0 pixels are not whole images of [1, 0, 3]"),
            (
                refused(2, [(1 << 63) + 1, 2, 1], &[0], 2),
                "2 pixels are not whole images of [9223372036854775809, 2, 1]",
            ),
            (
                refused(6, [1, 2, 3], &[0], 257),
                "257 classes: a label is a byte, which tells 256 apart",
            ),
            (refused(6, [1, 2, 3], &[0, 1], 2), "1 images, but 2 labels"),
            (refused(0, [1, 2, 3], &[], 2), "a data set needs at least one image"),
            (
                refused(12, [1, 2, 3], &[1, 2], 2),
                "label 1 is 2, but there are 2 classes, counted from 0",
            ),
        ];
        for (message, expected) in all {
            assert_eq!(message, expected);
        }
    }
}
