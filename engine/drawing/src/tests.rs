//! The rules of all pictures and colours: no text leaves the picture or covers another text, every number is finite, and
//! text and curves have a contrast to their background.

use crate::gantt::SHADES;
use crate::svg::{COLOURS, FONT, STYLE, width};

/// Panics unless the picture obeys the rules.
pub(crate) fn check(svg: &str) {
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
    assert!(!["NaN", "\"inf", ",inf", "\"-inf"].iter().any(|it| svg.contains(it)), "{svg}");
    let area: Vec<f64> =
        attribute(svg, "viewBox").split(' ').map(|number| number.parse().unwrap()).collect();
    let mut boxes: Vec<([f64; 4], &str)> = Vec::new();
    for line in svg.lines().filter(|line| line.starts_with("<text")) {
        let [x, y] = ["x", "y"].map(|name| attribute(line, name).parse::<f64>().unwrap());
        let width = width(&content(line));
        let left = match attribute(line, "text-anchor") {
            "start" => x,
            "middle" => x - width / 2.0,
            _ => x - width,
        };
        let middle = y - FONT / 3.0;
        let [top, right, bottom] = [middle - FONT / 2.0, left + width, middle + FONT / 2.0];
        let inside = left >= area[0] && right <= area[0] + area[2];
        assert!(
            inside && top >= area[1] && bottom <= area[1] + area[3],
            "cut off: {line} in {area:?}"
        );
        for ([l, t, r, b], other) in &boxes {
            let apart = *r <= left || right <= *l || *b <= top || bottom <= *t;
            assert!(apart, "{line} covers {other}");
        }
        boxes.push(([left, top, right, bottom], line));
    }
}

/// The contents of all texts, in their order.
pub(crate) fn texts(svg: &str) -> Vec<String> {
    svg.lines().filter(|line| line.starts_with("<text")).map(content).collect()
}

/// The number of elements that begin with `tag`.
pub(crate) fn count(svg: &str, tag: &str) -> usize {
    svg.lines().filter(|line| line.starts_with(tag)).count()
}

fn content(line: &str) -> String {
    let escaped = line.split_once('>').unwrap().1.split_once("</text>").unwrap().0;
    let letters =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("\u{fffd}", "\u{1}"), ("&amp;", "&")];
    letters.iter().fold(escaped.to_owned(), |text, (entity, letter)| text.replace(entity, letter))
}

fn attribute<'a>(line: &'a str, name: &str) -> &'a str {
    let (_, value) = line.split_once(&format!(" {name}=\"")).unwrap_or_default();
    value.split_once('"').unwrap_or_default().0
}

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
fn every_text_and_every_curve_stands_out_in_colours_of_the_book() {
    // The values of WCAG itself.
    assert!((contrast([0.0; 3], [1.0; 3]) - 21.0).abs() < 1e-9);
    assert!((contrast([118.0 / 255.0; 3], [1.0; 3]) - 4.54).abs() < 0.005);
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
