//! Images and labels: downloaded, from a folder, or drawn.
//!
//! | module | what it does |
//! | --- | --- |
//! | `dataset`, `batch` | images with their labels: all of them, and some as a network is given them |
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
mod arguments;
mod batch;
pub mod cache;
pub mod contact_sheet;
mod dataset;
pub mod download;
pub mod fashion_mnist;
mod fingerprint;
pub mod idx;
pub mod loader;
pub mod mirrors;
pub mod source;
pub mod synthetic;

pub use arguments::DataArguments;
pub use batch::Batch;
pub use dataset::{Dataset, DatasetError};

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
