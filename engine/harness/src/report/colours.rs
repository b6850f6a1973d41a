//! The colours of pictures.

use plotters::style::RGBColor;

/// The colour of text and axes.
pub(super) const TEXT: RGBColor = RGBColor(40, 40, 40);

/// The colour of grid lines.
pub(super) const GRID: RGBColor = RGBColor(225, 225, 225);

/// A colour of Okabe and Ito's palette, which colour-blind readers can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Computing, or a forward pass.
    Blue,
    /// Sending and waiting.
    Orange,
    /// A backward pass, or work in the background.
    Green,
    /// An update.
    Purple,
    /// No fixed meaning.
    Sky,
    /// No fixed meaning.
    Vermilion,
}

impl Colour {
    /// All colours, for curves that need different ones.
    pub(super) const ALL: [Self; 6] =
        [Self::Blue, Self::Orange, Self::Green, Self::Purple, Self::Sky, Self::Vermilion];

    pub(super) fn rgb(self) -> RGBColor {
        match self {
            Self::Blue => RGBColor(0, 114, 178),
            Self::Orange => RGBColor(230, 159, 0),
            Self::Green => RGBColor(0, 158, 115),
            Self::Purple => RGBColor(204, 121, 167),
            Self::Sky => RGBColor(86, 180, 233),
            Self::Vermilion => RGBColor(213, 94, 0),
        }
    }
}
