//! Pictures as SVG. The programs write them into files, and `cargo xtask` writes them into the pages of the book.

pub mod axis;
pub mod chart;
pub mod dots;
pub mod gantt;
pub mod svg;

#[cfg(test)]
mod tests;

pub use axis::Axis;
pub use svg::{Heading, Place, Svg};
