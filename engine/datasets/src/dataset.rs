//! A data set in CPU memory, and the batches that are made of it.

use std::sync::{Arc, OnceLock};

use base16ct::HexDisplay;
use candle_core::{DType, Device, Error, Result, Tensor, bail};
use sha2::{Digest as _, Sha256};

use super::{CLASSES, PIXELS, SAMPLE};
use devices::move_view;

/// The number of bytes of the hash that a fingerprint has.
const FINGERPRINT: usize = 8;

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
    /// Makes a data set of grey 28×28 images and labels of [`CLASSES`] classes. Fails like [`of_shape`](Self::of_shape).
    pub fn new(images: Vec<[u8; PIXELS]>, labels: Vec<u8>) -> Result<Self> {
        Self::of_shape(images.into_flattened(), SAMPLE, labels, CLASSES)
    }

    /// Makes a data set of images of any shape `[channels, height, width]`, and labels of `classes` classes. `pixels` has the images
    /// one after the other, each channel by channel and row by row. Fails when there are more than 256 classes, when the pixels are
    /// not a whole number of images, without images, with another number of labels, and when a label is not below `classes`.
    pub fn of_shape(
        pixels: Vec<u8>,
        shape: [usize; 3],
        labels: Vec<u8>,
        classes: usize,
    ) -> Result<Self> {
        let image = shape.iter().try_fold(1_usize, |all, &size| all.checked_mul(size));
        let image = image.filter(|&image| image > 0 && pixels.len().is_multiple_of(image));
        let (images, count) = (image.map(|image| pixels.len() / image), labels.len());
        let is_outside = |label: &u8| usize::from(*label) >= classes;
        let refusal = match (images, labels.iter().position(is_outside)) {
            _ if classes > 256 => {
                format!("{classes} classes: a label is a byte, which tells 256 apart")
            }
            (None, _) => format!("{} pixels are not whole images of {shape:?}", pixels.len()),
            (Some(images), _) if images != count => format!("{images} images, but {count} labels"),
            (Some(0), _) => "a data set needs at least one image".to_owned(),
            (_, Some(at)) => {
                let label = labels[at];
                format!("label {at} is {label}, but there are {classes} classes, counted from 0")
            }
            _ => {
                let (pixels, labels) = (Arc::new(pixels), Arc::new(labels));
                return Ok(Self { pixels, labels, shape, fingerprint: Arc::default() });
            }
        };
        Err(Error::Msg(refusal))
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

    /// The pixels of all images, one byte per pixel, image after image, each channel by channel and row by row.
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

    /// Returns the first 16 hexadecimal digits of SHA-256 over the images and the labels, computed once for all clones.
    pub fn fingerprint(&self) -> &str {
        self.fingerprint.get_or_init(|| {
            let mut hash = Sha256::new();
            // The number of images separates the images from the labels.
            hash.update((self.len() as u64).to_le_bytes());
            hash.update(self.pixels());
            hash.update(self.labels());
            // The same number of pixels can be images of another shape.
            if self.shape != SAMPLE {
                self.shape.iter().for_each(|&size| hash.update((size as u64).to_le_bytes()));
            }
            format!("{:x}", HexDisplay(&hash.finalize()[..FINGERPRINT]))
        })
    }

    fn image(&self) -> usize {
        self.shape.iter().product()
    }

    /// Makes a batch of the samples with these indices, in CPU memory. Pixels are scaled to 0..=1. Fails when an index
    /// is out of range or `dtype` is not a floating-point type.
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

/// Samples in the memory of one device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[B, channels, height, width]`, for garments `[B, 1, 28, 28]`: 0 (black) to 1 (white).
    pub images: Tensor,
    /// `[B]`, u32.
    pub labels: Tensor,
}

impl Batch {
    /// The number of samples, B.
    pub fn len(&self) -> usize {
        self.labels.elem_count()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves the batch to another device. On the CPU both batches share their memory. Fails when the copy fails.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        // The batch may be a shard: a view of a larger batch.
        Ok(Self {
            images: move_view(&self.images, device)?,
            labels: move_view(&self.labels, device)?,
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
        let huge = [(1 << 63) + 1, 2, 1];
        for (pixels, shape, labels, classes, refusal) in [
            (7, [1, 2, 3], &[0][..], 2, "7 pixels are not whole images of [1, 2, 3]"),
            (0, [1, 0, 3], &[0], 2, "0 pixels are not whole images of [1, 0, 3]"),
            (2, huge, &[0], 2, "2 pixels are not whole images of [9223372036854775809, 2, 1]"),
            (6, [1, 2, 3], &[0], 257, "257 classes: a label is a byte, which tells 256 apart"),
            (6, [1, 2, 3], &[0, 1], 2, "1 images, but 2 labels"),
            (0, [1, 2, 3], &[], 2, "a data set needs at least one image"),
            (12, [1, 2, 3], &[1, 2], 2, "label 1 is 2, but there are 2 classes, counted from 0"),
        ] {
            let made = Dataset::of_shape(vec![0; pixels], shape, labels.to_vec(), classes);
            assert_eq!(made.unwrap_err().to_string(), refusal);
        }
    }

    #[test]
    fn a_fingerprint_is_of_every_pixel_and_label_and_of_nothing_else() {
        let images = vec![[7; PIXELS]; 3];
        let of = |images: &[[u8; PIXELS]], labels: [u8; 3]| {
            Dataset::new(images.to_vec(), labels.to_vec()).unwrap()
        };
        let data = of(&images, [1, 2, 3]);
        assert_eq!(data.fingerprint().len(), 2 * FINGERPRINT);
        assert_eq!(of(&images, [1, 2, 3]).fingerprint(), data.fingerprint());
        let mut others = vec![of(&images, [1, 2, 4])];
        for (image, pixel) in [(0, 0), (1, 400), (2, PIXELS - 1)] {
            let mut images = images.clone();
            images[image][pixel] ^= 1;
            others.push(of(&images, [1, 2, 3]));
        }
        // A clone shares the fingerprint until it is truncated.
        let mut shorter = data.clone();
        shorter.truncate(3);
        assert_eq!(shorter.fingerprint(), data.fingerprint());
        shorter.truncate(2);
        others.push(shorter);
        for shape in [[28, 1, 28], [1, 14, 56]] {
            let (pixels, labels) = (images.as_flattened().to_vec(), vec![1, 2, 3]);
            others.push(Dataset::of_shape(pixels, shape, labels, 10).unwrap());
        }
        let mut all: Vec<_> = others.iter().map(Dataset::fingerprint).collect();
        all.push(data.fingerprint());
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8);
    }
}
