//! Pictures as SVG. The programs write them into files, and `cargo xtask` writes them into the pages of the book.
//!
//! | module | content |
//! | --- | --- |
//! | [`svg`] | the writer: shapes, text that fits, a heading, a picture for a file or for a page |
//! | [`axis`] | axes with round numbers, in steps or in factors of ten |
//! | [`chart`] | curves in panels, with a legend |
//! | [`dots`] | a dot for each number, in rows |
//! | [`gantt`] | bars along a common time axis, in rows |

pub mod axis;
pub mod chart;
pub mod dots;
pub mod gantt;
pub mod svg;

#[cfg(test)]
mod tests;

pub use axis::Axis;
pub use svg::{Heading, Place, Svg};
