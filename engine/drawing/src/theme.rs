//! The colours of pictures. The page of a picture decides between a light and a dark theme.
//!
//! A picture in the book takes the colours of the book's style sheet, `book/theme/course.css`. A file has a style sheet
//! with the same classes and the same colours. The rules of the file name the colours themselves. A CSS variable would be
//! black in viewers such as librsvg, which do not read variables.

use std::fmt::Write as _;

/// The number of colours for series.
pub(crate) const COLOURS: usize = 5;

/// A colour: red, green and blue.
type Rgb = [u8; 3];

/// The colours of a page.
struct Theme {
    page: Rgb,
    text: Rgb,
    /// The text on bars.
    on_bar: Rgb,
    series: [Rgb; COLOURS],
}

const LIGHT: Theme = Theme {
    page: [0xff, 0xff, 0xff],
    text: [0x1d, 0x21, 0x26],
    on_bar: [0; 3],
    series: [
        [0x00, 0x68, 0xa8],
        [0xb8, 0x5c, 0x00],
        [0x00, 0x78, 0x5a],
        [0x8a, 0x3f, 0x80],
        [0x5f, 0x66, 0x72],
    ],
};

const DARK: Theme = Theme {
    page: [0x16, 0x19, 0x23],
    text: [0xcc, 0xd0, 0xdc],
    on_bar: [0xff; 3],
    series: [
        [0x6c, 0xb8, 0xf0],
        [0xf0, 0xa8, 0x48],
        [0x4f, 0xc7, 0xa0],
        [0xdd, 0x92, 0xc9],
        [0xa3, 0xa9, 0xb8],
    ],
};

/// The classes of both themes.
const CLASSES: &str = "\
:root{color-scheme:light dark;max-width:100%;height:auto}
.grid{opacity:.14}
.axis{opacity:.6}
.quiet{opacity:.8}
.strong{font-weight:600}
.on-lines{paint-order:stroke;stroke-width:4px;stroke-linejoin:round}
";

/// Returns the style sheet of a file.
pub(crate) fn style_sheet() -> String {
    let (light, dark) = (LIGHT.rules(), DARK.rules());
    format!("{CLASSES}{light}@media (prefers-color-scheme:dark){{\n{dark}}}\n")
}

impl Theme {
    fn rules(&self) -> String {
        let mut rules = String::new();
        let mut rule = |selector: &str, property: &str, [red, green, blue]: Rgb| {
            let _ = writeln!(rules, "{selector}{{{property}:#{red:02x}{green:02x}{blue:02x}}}");
        };
        rule("svg", "color", self.text);
        rule(".page", "color", self.page);
        rule(".on-lines", "stroke", self.page);
        rule(".on-bar", "color", self.on_bar);
        for (index, &series) in self.series.iter().enumerate() {
            rule(&format!(".series-{}", index + 1), "color", series);
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gantt::SHADES;

    /// Mixes two colours. `share` is the part of the first.
    fn mixed(first: Rgb, second: Rgb, share: f64) -> Rgb {
        std::array::from_fn(|i| {
            (f64::from(first[i]) * share + f64::from(second[i]) * (1.0 - share)).round() as u8
        })
    }

    /// The contrast of two colours from 1 to 21, as WCAG 2 defines it.
    fn contrast(first: Rgb, second: Rgb) -> f64 {
        let luminance = |colour: Rgb| {
            let [red, green, blue] = colour.map(|channel| match f64::from(channel) / 255.0 {
                low if low <= 0.04045 => low / 12.92,
                high => ((high + 0.055) / 1.055).powf(2.4),
            });
            0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05
        };
        let (first, second) = (luminance(first), luminance(second));
        first.max(second) / first.min(second)
    }

    #[test]
    fn contrast_is_the_one_of_wcag() {
        assert!((contrast([0; 3], [255; 3]) - 21.0).abs() < 1e-9);
        assert!((contrast([0x76; 3], [255; 3]) - 4.54).abs() < 0.005);
    }

    #[test]
    fn every_text_and_every_curve_stands_out() {
        for Theme { page, text, on_bar, series } in [LIGHT, DARK] {
            assert!(contrast(mixed(text, page, 0.8), page) >= 4.5, "quiet text");
            for colour in series {
                assert!(contrast(colour, page) >= 4.5, "a curve of {colour:?}");
                for shade in SHADES.into_iter().flatten() {
                    let found = contrast(on_bar, mixed(colour, page, shade));
                    assert!(found >= 4.5, "{found:.2} on a bar of {colour:?}, shade {shade}");
                }
            }
        }
    }

    /// The figures of the book have the colours of the files.
    #[test]
    fn the_book_has_the_same_colours() {
        let book = include_str!("../../../book/theme/course.css");
        for Theme { series, on_bar, .. } in [LIGHT, DARK] {
            for (index, [red, green, blue]) in series.into_iter().enumerate() {
                let rule = format!("--series-{}: #{red:02x}{green:02x}{blue:02x};", index + 1);
                assert!(book.contains(&rule), "{rule}");
            }
            let ink = if on_bar == [0; 3] { "--on-bar: #000;" } else { "--on-bar: #fff;" };
            assert!(book.contains(ink), "{ink}");
        }
    }
}
