//! Images and labels: downloaded, from a folder, or drawn.
//!
//! | module | content |
//! | --- | --- |
//! | `dataset` | all images with their labels, and the samples of one step |
//! | [`source`] | loads the images that `--data` asks for |
//! | [`fashion_mnist`] | reads a folder with the four files of a data set |
//! | [`idx`] | reads the file format of MNIST, and checks everything |
//! | [`download`] | downloads Fashion-MNIST into a folder |
//! | [`synthetic`] | draws garments, for machines without the real images |
//! | [`loader`] | shuffles an epoch, cuts it into batches, and makes them ahead of time |
//! | [`contact_sheet`] | writes images to a PNG |

pub mod contact_sheet;
mod dataset;
pub mod download;
pub mod fashion_mnist;
pub mod idx;
pub mod loader;
pub mod source;
pub mod synthetic;

pub use dataset::{Batch, Dataset, DatasetError};
pub use source::DataArguments;

/// The height and the width of an image in pixels.
pub const SIDE: usize = 28;

/// The number of pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;

/// The shape of an image in a batch, without the batch's axis: one channel.
pub const SAMPLE: [usize; 3] = [1, SIDE, SIDE];

/// The number of classes.
pub const CLASSES: usize = 10;

/// The accuracy of a network that guesses.
pub const GUESSING: f64 = 1.0 / CLASSES as f64;

/// The names of the classes with the labels 0 to 9.
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
    /// The images to train on.
    Train,
    /// The images to measure accuracy on. No run trains on them.
    Test,
}
