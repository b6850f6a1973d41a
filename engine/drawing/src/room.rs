//! The rules of all pictures, for tests: no text leaves the picture or covers another text, and every number is finite.

use crate::svg::{FONT, width};

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

#[test]
fn a_picture_that_breaks_a_rule_is_refused() {
    let text = |x, y| format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"start\">some text</text>\n");
    let svg = |body: String| format!("<svg viewBox=\"0 0 100 50\">\n{body}</svg>\n");
    check(&svg(text(5, 20) + &text(5, 40)));
    for broken in
        [text(5, 20) + &text(9, 25), text(60, 20), text(5, 5), text(5, 50), "NaN".to_owned()]
    {
        assert!(std::panic::catch_unwind(|| check(&svg(broken.clone()))).is_err(), "{broken}");
    }
}
