//! A data set in CPU memory, and the batches that are made of it.

use std::sync::{Arc, OnceLock};

use base16ct::HexDisplay;
use candle_core::{DType, Device, Error, Result, Tensor, bail};
use rand::RngExt as _;
use sha2::{Digest as _, Sha256};

use super::{CLASSES, PIXELS, SAMPLE};
use devices::move_view;
use harness::random;

/// The number of bytes of the hash that a fingerprint has.
const FINGERPRINT: usize = 8;

/// Samples in CPU memory: images, each with a label, or windows of a text. Clones share the memory.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The pixels of all images, image after image, or the text.
    bytes: Arc<Vec<u8>>,
    /// The labels of images. A text has none: the label of each byte is the byte after it.
    labels: Arc<Vec<u8>>,
    /// `[channels, height, width]` of an image, or `[context]` of a window.
    shape: Vec<usize>,
    /// The byte of a text that the first window begins at.
    offset: usize,
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
            _ => return Ok(Self::of(pixels, labels, shape.to_vec())),
        };
        Err(Error::Msg(refusal))
    }

    /// Makes a data set of the windows of a text: `context` bytes each, one after the other, none twice. Fails when the text has no
    /// window with a byte after it, and when `context` is 0.
    pub fn text(text: Vec<u8>, context: usize) -> Result<Self> {
        if context == 0 || text.len() <= context {
            let bytes = text.len();
            return Err(Error::Msg(format!("{bytes} bytes are too few for a window of {context}")));
        }
        Ok(Self::of(text, Vec::new(), vec![context]))
    }

    fn of(bytes: Vec<u8>, labels: Vec<u8>, shape: Vec<usize>) -> Self {
        let (bytes, labels) = (Arc::new(bytes), Arc::new(labels));
        Self { bytes, labels, shape, offset: 0, fingerprint: Arc::default() }
    }

    /// Returns the samples of an epoch. The windows of a text begin elsewhere in each epoch, at an offset that depends on the seed
    /// and the epoch alone; their number is always the same. Images are the same in all epochs.
    #[must_use]
    pub fn of_epoch(&self, seed: u64, epoch: usize) -> Self {
        let offset = self.context().map_or(0, |context| {
            let most = (context - 1).min(self.bytes.len() - 1 - context * self.len());
            random::generator(seed, &format!("windows/{epoch}")).random_range(0..=most)
        });
        Self { offset, ..self.clone() }
    }

    /// The number of samples: of images, or of windows.
    #[expect(clippy::len_without_is_empty, reason = "a data set has at least one sample")]
    pub fn len(&self) -> usize {
        // Every offset below the context leaves so many windows, unless there is only one.
        let windows = |context: usize| (self.bytes.len() / context - 1).max(1);
        self.context().map_or(self.labels.len(), windows)
    }

    /// The shape of a sample: `[channels, height, width]` of an image, or `[context]` of a window.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bytes of a window of a text. `None` for images.
    pub fn context(&self) -> Option<usize> {
        if let [context] = self.shape[..] { Some(context) } else { None }
    }

    /// The number of labels of so many samples: an image has one, and a window has one for each byte.
    pub fn count_labels(&self, samples: usize) -> usize {
        samples * self.context().unwrap_or(1)
    }

    /// The samples that an evaluation computes at a time: so many images, or windows of 32 times as many tokens.
    pub fn at_once(&self, images: usize) -> usize {
        at_once(images, self.count_labels(1))
    }

    /// The pixels of all images, one byte per pixel, image after image, each channel by channel and row by row. Of a text, the bytes
    /// of all windows and the byte after the last.
    pub fn bytes(&self) -> &[u8] {
        let size = self.context().map_or(self.bytes.len(), |context| context * self.len() + 1);
        &self.bytes[self.offset..][..size]
    }

    /// The labels: the classes of all images, or the byte after each byte of all windows.
    pub fn labels(&self) -> &[u8] {
        if self.context().is_some() { &self.bytes()[1..] } else { &self.labels }
    }

    /// Keeps the first `count` samples, and frees the memory of the others. At least one stays.
    pub fn truncate(&mut self, count: usize) {
        if count < self.len() {
            let (count, size) = (count.max(1), self.size());
            // Windows need room to begin elsewhere in each epoch.
            let room = usize::from(self.context().is_some());
            for (kept, part) in
                [((count + room) * size, &mut self.bytes), (count, &mut self.labels)]
            {
                let part = Arc::make_mut(part);
                part.truncate(kept);
                part.shrink_to_fit();
            }
            self.fingerprint = Arc::default();
        }
    }

    /// Returns the first 16 hexadecimal digits of SHA-256 over the samples and the labels, computed once for all clones.
    pub fn fingerprint(&self) -> &str {
        self.fingerprint.get_or_init(|| {
            let mut hash = Sha256::new();
            // The number of samples separates the images from the labels.
            hash.update((self.len() as u64).to_le_bytes());
            hash.update(&*self.bytes);
            hash.update(&*self.labels);
            // The same bytes can be samples of another shape.
            if self.shape != SAMPLE {
                self.shape.iter().for_each(|&size| hash.update((size as u64).to_le_bytes()));
            }
            format!("{:x}", HexDisplay(&hash.finalize()[..FINGERPRINT]))
        })
    }

    fn size(&self) -> usize {
        self.shape.iter().product()
    }

    /// Makes a batch of the samples with these indices, in CPU memory. Pixels are scaled to 0..=1. Fails when an index is out of
    /// range, and for images when `dtype` is not a floating-point type.
    pub fn batch(&self, indices: &[u32], dtype: DType) -> Result<Batch> {
        if let Some(index) = indices.iter().find(|&&index| index as usize >= self.len()) {
            bail!("sample {index} of a data set of {}", self.len());
        }
        let (size, cpu) = (self.size(), &Device::Cpu);
        let shape = |of_sample: &[usize]| [&[indices.len()], of_sample].concat();
        let images = if self.context().is_some() {
            let tokens = take(self.bytes(), size, indices, u32::from);
            Tensor::from_vec(tokens, shape(&self.shape), cpu)?
        } else if dtype.is_float() {
            let pixels = take(self.bytes(), size, indices, |pixel| f32::from(pixel) / 255.0);
            Tensor::from_vec(pixels, shape(&self.shape), cpu)?.to_dtype(dtype)?
        } else {
            bail!("pixels from 0 to 1 need a floating-point type, not {}", dtype.as_str());
        };
        let labels = take(self.labels(), self.count_labels(1), indices, u32::from);
        let labels = Tensor::from_vec(labels, shape(self.context().as_slice()), cpu)?;
        Ok(Batch { images, labels })
    }
}

/// [`Dataset::at_once`], of samples with so many labels each.
pub fn at_once(images: usize, labels: usize) -> usize {
    (32 * images / labels).clamp(1, images)
}

/// Takes samples of `size` bytes each, byte by byte as `value`.
fn take<T>(bytes: &[u8], size: usize, samples: &[u32], value: impl Fn(u8) -> T) -> Vec<T> {
    let mut values = Vec::with_capacity(samples.len() * size);
    for &sample in samples {
        let sample = &bytes[sample as usize * size..][..size];
        values.extend(sample.iter().map(|&byte| value(byte)));
    }
    values
}

/// Samples in the memory of one device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Images `[B, channels, height, width]`, for garments `[B, 1, 28, 28]`: 0 (black) to 1 (white). Or windows of a text: their
    /// bytes as tokens `[B, context]`, u32.
    pub images: Tensor,
    /// The classes of images, `[B]`, or the next byte of each byte, `[B, context]`; u32.
    pub labels: Tensor,
}

impl Batch {
    /// The number of samples, B: of images, or of windows.
    pub fn samples(&self) -> usize {
        self.labels.dims().first().copied().unwrap_or(0)
    }

    /// The number of labels, which the loss is a sum over: one for each image, or for each token.
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
        assert_eq!((data.len(), data.shape()), (2, &[3, 4, 5][..]));
        let Batch { images, labels } = data.batch(&[1, 0, 1], DType::F64).unwrap();
        assert_eq!(images.dims(), [3, 3, 4, 5]);
        let first = images.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        assert_eq!(first[..3], [60, 61, 62].map(|pixel| f64::from(pixel as f32 / 255.0)));
        assert_eq!(labels.to_vec1::<u32>().unwrap(), [255, 0, 255]);
        data.truncate(1);
        assert_eq!((data.len(), data.bytes().len()), (1, 60));
        assert!([&data.bytes, &data.labels].iter().all(|part| part.capacity() == part.len()));
        assert!(data.batch(&[1], DType::F32).is_err());
    }

    /// The bytes 0, 1, 2 and so on, as a text.
    fn counted(bytes: u8, context: usize) -> Dataset {
        Dataset::text((0..bytes).collect(), context).unwrap()
    }

    #[test]
    fn a_window_has_the_next_bytes_as_labels() {
        let text = counted(23, 4);
        assert_eq!((text.len(), text.shape(), text.count_labels(3)), (4, &[4][..], 12));
        let batch = text.batch(&[2, 0], DType::F32).unwrap();
        assert_eq!((batch.samples(), batch.len()), (2, 8));
        let values = |tokens: &Tensor| tokens.to_vec2::<u32>().unwrap();
        assert_eq!(values(&batch.images), [[8, 9, 10, 11], [0, 1, 2, 3]]);
        assert_eq!(values(&batch.labels), [[9, 10, 11, 12], [1, 2, 3, 4]]);
        let none = text.batch(&[], DType::F32).unwrap();
        assert_eq!((none.images.dims(), none.samples(), none.is_empty()), (&[0, 4][..], 0, true));
        assert!(text.batch(&[4], DType::F32).is_err());
        for (bytes, context) in [(4, 4), (0, 1), (4, 0)] {
            assert!(Dataset::text(vec![0; bytes], context).is_err());
        }
    }

    #[test]
    fn windows_begin_elsewhere_in_each_epoch_and_their_number_stays() {
        for (bytes, context, windows) in [(23, 4, 4), (24, 4, 5), (5, 4, 1), (9, 4, 1), (7, 1, 6)] {
            let text = counted(bytes, context);
            let mut offsets = Vec::new();
            for epoch in 0..50 {
                let of_epoch = text.of_epoch(7, epoch);
                assert_eq!(of_epoch.bytes(), text.of_epoch(7, epoch).bytes());
                assert_eq!((text.len(), of_epoch.len()), (windows, windows));
                let last = of_epoch.batch(&[windows as u32 - 1], DType::F32).unwrap();
                let last = last.labels.flatten_all().unwrap().to_vec1::<u32>().unwrap();
                let offset = of_epoch.bytes()[0];
                assert_eq!(last[context - 1] as usize, usize::from(offset) + windows * context);
                offsets.push(offset);
            }
            offsets.sort_unstable();
            offsets.dedup();
            let all = context.min(usize::from(bytes) - windows * context);
            assert_eq!(offsets, (0..all as u8).collect::<Vec<_>>(), "{bytes} bytes");
        }
        let (text, first) =
            (counted(200, 50), |seed| counted(200, 50).of_epoch(seed, 0).bytes()[0]);
        assert!((0..9).any(|seed| first(seed) != first(9)));
        assert_eq!(text.bytes()[0], 0, "an evaluation begins with the text");
        let mut shorter = text.clone();
        shorter.truncate(2);
        assert_eq!((shorter.len(), shorter.bytes()), (2, &text.bytes()[..=100]));
        let other = counted(200, 49);
        let others = [&text, &shorter, &other].map(Dataset::fingerprint);
        assert!(others[0] != others[1] && others[0] != others[2]);
        assert_eq!(text.of_epoch(1, 2).fingerprint(), others[0]);
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
