//! Images and labels: downloaded, from a folder, or drawn.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`idx`] | reads the file format of MNIST and its successors, and trusts none of it |
//! | [`fashion_mnist`] | the four files of a folder as two data sets |
//! | [`mirrors`] | what Fashion-MNIST's files are, and who has them |
//! | [`download`] | one file from one mirror, verified |
//! | [`cache`] | the folder that downloads are kept in |
//! | [`synthetic`] | draws garments, for machines without the real images |
//! | [`source`] | which of these `--data` means |
//! | `fingerprint` | whether two data sets are the same |
//! | [`loader`] | shuffles an epoch and cuts it into batches |
//! | [`mod@ahead`] | makes the next batch while a device works on this one |
//! | [`contact_sheet`] | writes images to a PNG, to be looked at |

pub mod ahead;
pub mod cache;
pub mod contact_sheet;
pub mod download;
pub mod fashion_mnist;
mod fingerprint;
pub mod idx;
pub mod loader;
pub mod mirrors;
pub mod source;
pub mod synthetic;

use std::sync::{Arc, OnceLock};

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::device::move_view;

/// Height and width of an image in pixels.
pub const SIDE: usize = 28;

/// Pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;

/// The shape of an image as a network is given it, without the batch's axis: one channel.
pub const SAMPLE: [usize; 3] = [1, SIDE, SIDE];

/// Number of classes.
pub const CLASSES: usize = 10;

/// What the labels 0 to 9 mean.
pub const CLASS_NAMES: [&str; CLASSES] = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
];

/// The two parts of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The images that are trained on.
    Train,
    /// The images that accuracy is measured on, and nothing else.
    Test,
}

/// Images and labels that are no data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatasetError {
    /// Not one label for each image.
    #[error("{images} images, but {labels} labels")]
    Counts {
        /// The number of images.
        images: usize,
        /// The number of labels.
        labels: usize,
    },
    /// Nothing in it.
    #[error("a data set needs at least one image")]
    Empty,
    /// A label that is not a class.
    #[error("label {position} is {label}, not one of 0 to {}", CLASSES - 1)]
    Label {
        /// Its position, from 0.
        position: usize,
        /// Its value.
        label: u8,
    },
}

/// Images and their labels, in CPU memory, one byte a pixel. A clone shares them.
#[derive(Clone, Debug)]
pub struct Dataset {
    images: Arc<Vec<[u8; PIXELS]>>,
    labels: Arc<Vec<u8>>,
    /// Computed when it is first asked for.
    fingerprint: Arc<OnceLock<String>>,
}

impl Dataset {
    /// Joins images and labels.
    ///
    /// # Errors
    ///
    /// When their numbers differ, when there are none, or when a label is not below [`CLASSES`].
    pub fn new(
        images: Vec<[u8; PIXELS]>,
        labels: Vec<u8>,
    ) -> std::result::Result<Self, DatasetError> {
        if images.len() != labels.len() {
            let (images, labels) = (images.len(), labels.len());
            return Err(DatasetError::Counts { images, labels });
        }
        if images.is_empty() {
            return Err(DatasetError::Empty);
        }
        if let Some(position) = labels.iter().position(|&label| usize::from(label) >= CLASSES) {
            return Err(DatasetError::Label { position, label: labels[position] });
        }
        let (images, labels) = (Arc::new(images), Arc::new(labels));
        Ok(Self { images, labels, fingerprint: Arc::default() })
    }

    /// How many images there are.
    #[expect(clippy::len_without_is_empty, reason = "a data set has at least one image")]
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// The images, one byte a pixel, row by row.
    pub fn images(&self) -> &[[u8; PIXELS]] {
        &self.images
    }

    /// The labels.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// Keeps the first `count` images, at least one, or all if there are fewer.
    pub fn truncate(&mut self, count: usize) {
        if count < self.len() {
            Arc::make_mut(&mut self.images).truncate(count.max(1));
            Arc::make_mut(&mut self.labels).truncate(count.max(1));
            self.fingerprint = Arc::default();
        }
    }

    /// The batch of the samples with these indices, in CPU memory, pixels scaled to 0..=1.
    ///
    /// # Errors
    ///
    /// When an index is out of range or `dtype` is not a floating-point type.
    pub fn batch(&self, indices: &[u32], dtype: DType) -> Result<Batch> {
        if !dtype.is_float() {
            bail!("pixels from 0 to 1 need a floating-point type, not {}", dtype.as_str());
        }
        let mut pixels = Vec::with_capacity(indices.len() * PIXELS);
        let mut labels = Vec::with_capacity(indices.len());
        for &index in indices {
            let index = index as usize;
            let Some(image) = self.images.get(index) else {
                bail!("sample {index} of a data set of {}", self.len());
            };
            pixels.extend(image.iter().map(|&pixel| f32::from(pixel) / 255.0));
            labels.push(u32::from(self.labels[index]));
        }
        let shape = (indices.len(), 1, SIDE, SIDE);
        Ok(Batch {
            images: Tensor::from_vec(pixels, shape, &Device::Cpu)?.to_dtype(dtype)?,
            labels: Tensor::from_vec(labels, indices.len(), &Device::Cpu)?,
        })
    }
}

/// Some images and their labels, as a model takes them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[B, 1, 28, 28]`, 0 (black) to 1 (white).
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

    /// The same batch on another device; on the CPU it goes on sharing its memory.
    ///
    /// # Errors
    ///
    /// When the copy fails.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        // A shard is a view of its batch.
        Ok(Self {
            images: move_view(&self.images, device)?,
            labels: move_view(&self.labels, device)?,
        })
    }
}
