//! The rules of all colours, for tests: text and curves stand out from what is behind them.

use crate::gantt::SHADES;
use crate::svg::{COLOURS, STYLE};

/// A colour: red, green and blue, from 0 to 1.
type Rgb = [f64; 3];

/// The colour of a class in a part of the style sheet.
fn colour(style: &str, selector: &str) -> Rgb {
    let (_, rest) = style.split_once(&format!("\n{selector}{{color:#")).unwrap();
    [0, 2, 4].map(|at| f64::from(u8::from_str_radix(&rest[at..at + 2], 16).unwrap()) / 255.0)
}

/// Mixes two colours. `share` is the part of the first.
fn mixed(first: Rgb, second: Rgb, share: f64) -> Rgb {
    std::array::from_fn(|i| first[i] * share + second[i] * (1.0 - share))
}

/// The contrast of two colours from 1 to 21, as WCAG 2 defines it.
fn contrast(first: Rgb, second: Rgb) -> f64 {
    let luminance = |colour: Rgb| {
        let [red, green, blue] = colour.map(|channel| {
            if channel <= 0.04045 { channel / 12.92 } else { ((channel + 0.055) / 1.055).powf(2.4) }
        });
        0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05
    };
    let (first, second) = (luminance(first), luminance(second));
    first.max(second) / first.min(second)
}

#[test]
fn contrast_is_the_one_of_wcag() {
    assert!((contrast([0.0; 3], [1.0; 3]) - 21.0).abs() < 1e-9);
    assert!((contrast([118.0 / 255.0; 3], [1.0; 3]) - 4.54).abs() < 0.005);
}

#[test]
fn every_text_and_every_curve_stands_out_in_colours_of_the_book() {
    let (light, dark) = STYLE.split_once("@media").unwrap();
    let book = include_str!("../../../book/theme/course.css");
    for style in [light, dark] {
        let page = colour(style, ".page");
        assert!(contrast(mixed(colour(style, "svg"), page, 0.8), page) >= 4.5, "quiet text");
        for class in (1..=COLOURS).map(|series| format!("series-{series}")) {
            let of_series = colour(style, &format!(".{class}"));
            assert!(contrast(of_series, page) >= 4.5, "a curve of {class}");
            for shade in SHADES.into_iter().flatten() {
                let found = contrast(colour(style, ".on-bar"), mixed(of_series, page, shade));
                assert!(found >= 4.5, "{found:.2} on a bar of {class}, shade {shade}");
            }
            let hex = of_series.map(|channel| format!("{:02x}", (channel * 255.0).round() as u8));
            let rule = format!("--{class}: #{};", hex.concat());
            assert!(book.contains(&rule), "{rule}");
        }
    }
    for ink in ["--on-bar: #000;", "--on-bar: #fff;"] {
        assert!(book.contains(ink), "{ink}");
    }
}
