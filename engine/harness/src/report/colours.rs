//! The colours of pictures.

use plotters::style::RGBColor;

/// Of text, and of axes.
pub(super) const TEXT: RGBColor = RGBColor(40, 40, 40);

/// Of the lines behind what is drawn.
pub(super) const GRID: RGBColor = RGBColor(225, 225, 225);

/// A colour that is told apart from the others by everybody: of Okabe and Ito's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// As for computing, or a forward pass.
    Blue,
    /// As for sending and waiting.
    Orange,
    /// As for a backward pass, or what runs in the background.
    Green,
    /// As for an update.
    Purple,
    /// As for nothing in particular.
    Sky,
    /// As for nothing in particular.
    Vermilion,
}

impl Colour {
    /// All of them, for things that have no colour of their own.
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
