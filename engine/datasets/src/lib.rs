//! Images and labels: downloaded, from a folder, or drawn. Windows of a text: the course's pages, or a file.

pub mod contact_sheet;
mod dataset;
pub mod download;
pub mod loader;
pub mod source;
pub mod synthetic;
pub mod text;

pub use dataset::{Batch, Dataset, at_once};
pub use harness::images::{CLASSES, PIXELS, SIDE, Split};
pub use source::DataArguments;
pub use text::TextArguments;

/// The shape of an image in a batch, without the batch's axis: one channel.
pub const SAMPLE: [usize; 3] = [1, SIDE, SIDE];

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
