//! The rules of every picture, for tests: contrast, sizes, tooltips, and room.

use super::svg::{FONT_SIZE, WIDTH, width};

/// A box: left, top, right and bottom.
type Area = [f64; 4];

/// Panics unless the picture obeys the rules. Contrast is at least 4.5 on a light and on a dark page, text has at least
/// 11 pixels, bars and dots have tooltips, and no text is cut off or overlaps another text.
pub(super) fn check(svg: &str) {
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
    for number in ["NaN", "\"inf", ",inf", " inf,"] {
        assert!(!svg.contains(number), "{number} in {svg}");
    }
    let (style, body) = svg.split_once("</style>").expect("a style sheet");
    let (light, dark) =
        style.split_once("@media (prefers-color-scheme: dark)").expect("a dark theme");
    for theme in [light, dark] {
        check_contrast(theme, body);
    }
    let sizes = svg.split("font-size=\"").skip(1).map(|rest| rest.split_once('"').unwrap().0);
    let sizes: Vec<f64> = sizes.map(|size| size.parse().unwrap()).collect();
    assert!(!sizes.is_empty() && sizes.iter().all(|size| *size >= 11.0), "{sizes:?}");
    assert!(!svg.contains("font-size:"));
    for line in body.lines().filter(|line| line.starts_with("<rect") || line.starts_with("<circle"))
    {
        let page = class(line) == "page";
        assert_eq!(line.matches("<title>").count(), usize::from(!page), "{line}");
    }
    check_room(svg, body);
}

/// The number of elements that begin with `tag`.
pub(super) fn count(svg: &str, tag: &str) -> usize {
    svg.lines().filter(|line| line.starts_with(tag)).count()
}

/// The contents of all texts, in their order.
pub(super) fn texts(svg: &str) -> Vec<&str> {
    svg.lines().filter(|line| line.starts_with("<text")).map(content).collect()
}

/// A text's contrast is with the last bar below its middle, or with the page. Axes and curves lie on the page.
fn check_contrast(theme: &str, body: &str) {
    let mut bars: Vec<(Area, [u8; 3])> = Vec::new();
    for line in body.lines() {
        if line.starts_with("<rect") {
            bars.push((area(line), colour(theme, line)));
        } else if line.starts_with("<text") {
            let [left, top, right, bottom] = text_area(line);
            let (x, y) = ((left + right) / 2.0, (top + bottom) / 2.0);
            let behind = bars.iter().rfind(|([left, top, right, bottom], _)| {
                (*left..*right).contains(&x) && (*top..*bottom).contains(&y)
            });
            let contrast = contrast(
                colour(theme, line),
                behind.unwrap_or_else(|| panic!("no page behind {line}")).1,
            );
            assert!(contrast >= 4.5, "{contrast:.2} of {line}");
        } else if line.starts_with("<polyline") && class(line) != "grid" {
            let contrast = contrast(colour(theme, line), bars[0].1);
            assert!(contrast >= 4.5, "{contrast:.2} of {line}");
        }
    }
}

/// Panics if a text leaves the picture or overlaps another text.
fn check_room(svg: &str, body: &str) {
    let height: f64 = attribute(svg, "height").parse().unwrap();
    let texts: Vec<(Area, &str)> = body
        .lines()
        .filter(|line| line.starts_with("<text"))
        .map(|line| (text_area(line), line))
        .collect();
    for (i, ([left, top, right, bottom], line)) in texts.iter().enumerate() {
        let inside = *left >= 0.0 && *right <= WIDTH && *top >= 0.0 && *bottom <= height;
        assert!(inside, "cut off: {line}");
        for ([l, t, r, b], other) in &texts[..i] {
            let apart = r <= left || right <= l || b <= top || bottom <= t;
            assert!(apart, "{line} overlaps {other}");
        }
    }
}

fn area(line: &str) -> Area {
    let number = |name| attribute(line, name).parse::<f64>();
    let (x, y) = (number("x").unwrap_or(0.0), number("y").unwrap_or(0.0));
    [x, y, x + number("width").unwrap(), y + number("height").unwrap()]
}

fn text_area(line: &str) -> Area {
    let [x, y] = ["x", "y"].map(|name| attribute(line, name).parse::<f64>().unwrap());
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&amp;", "&")];
    let text = entities
        .iter()
        .fold(content(line).to_owned(), |text, (entity, letter)| text.replace(entity, letter));
    let width = width(&text);
    let left = match attribute(line, "text-anchor") {
        "start" => x,
        "middle" => x - width / 2.0,
        _ => x - width,
    };
    let middle = y - FONT_SIZE / 3.0;
    [left, middle - FONT_SIZE / 2.0, left + width, middle + FONT_SIZE / 2.0]
}

fn content(line: &str) -> &str {
    line.split_once('>').unwrap().1.split_once("</text>").unwrap().0
}

fn class(line: &str) -> &str {
    attribute(line, "class").split(' ').next().unwrap_or_default()
}

fn attribute<'a>(line: &'a str, name: &str) -> &'a str {
    let (_, value) = line.split_once(&format!(" {name}=\"")).unwrap_or_default();
    value.split_once('"').unwrap_or_default().0
}

/// The colour of an element's class in a theme.
fn colour(theme: &str, line: &str) -> [u8; 3] {
    let rule = format!("\n.{}{{color:#", class(line));
    let (_, colour) =
        theme.split_once(&rule).unwrap_or_else(|| panic!("no rule {rule} for {line}"));
    std::array::from_fn(|i| u8::from_str_radix(&colour[2 * i..2 * i + 2], 16).unwrap())
}

/// The contrast of two colours by WCAG 2, without the code that chose the colours.
fn contrast(first: [u8; 3], second: [u8; 3]) -> f64 {
    let linear = |channel: u8| {
        let share = f64::from(channel) / 255.0;
        if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
    };
    let luminance =
        |[r, g, b]: [u8; 3]| 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    let (a, b) = (luminance(first), luminance(second));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn contrast_is_the_one_of_wcag() {
    let grey = [0x76; 3];
    assert_eq!(contrast([0; 3], [255; 3]), 21.0);
    assert!((contrast(grey, [255; 3]) - 4.54).abs() < 0.005);
}

#[test]
fn labels_of_all_series_can_be_read() {
    let mut svg = super::svg::Svg::default();
    let mut top = svg.heading("title", "conclusion");
    for series in 0..super::svg::SERIES {
        for kind in ["bar", "pale"] {
            svg.bar((kind, series), (0.0, top), (100.0, 20.0), "tooltip");
            let (class, at) = (format!("on-{kind}-{}", series + 1), (50.0, top + 10.0));
            svg.text(&class, at, super::svg::Anchor::Middle, "label");
            top += 20.0;
        }
        svg.curve(&format!("series-{}", series + 1), 1.0, false, &[(0.0, top), (9.0, top)]);
    }
    check(&svg.finish("title", top));
}

/// A check that accepts everything would be worth nothing.
#[test]
fn a_picture_that_breaks_a_rule_is_refused() {
    let mut svg = super::svg::Svg::default();
    let height = svg.heading("title", "conclusion");
    svg.bar(("bar", 1), (0.0, height), (100.0, 20.0), "tooltip");
    svg.text("on-bar-2", (50.0, height + 10.0), super::svg::Anchor::Middle, "label");
    let svg = svg.finish("title", height + 30.0);
    check(&svg);
    for (rule, broken) in [
        (".on-bar-2{color:#000000}", ".on-bar-2{color:#ffffff}"),
        (".on-bar-2{color:#ffffff}", ".on-bar-2{color:#000000}"),
        ("font-size=\"13\"", "font-size=\"10\""),
        ("<title>tooltip</title>", ""),
        ("x=\"50.0\"", "x=\"5.0\""),
        ("y=\"40.3\"", "y=\"30.3\""),
    ] {
        let broken = svg.replace(rule, broken);
        assert_ne!(svg, broken, "{rule} is not in {svg}");
        assert!(std::panic::catch_unwind(|| check(&broken)).is_err(), "{rule}");
    }
}
