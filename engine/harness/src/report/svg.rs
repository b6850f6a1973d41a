//! A small writer of SVG pictures, in the colours of the book.
//!
//! A picture follows the theme of its reader: a style sheet has the colours of a light and of a dark page. The rules
//! name the colours themselves. A CSS variable would be black in viewers such as librsvg, which do not read variables.

use std::fmt::{Display, Write as _};

/// The width of a picture in pixels.
pub(super) const WIDTH: f64 = 960.0;

/// The size of text in pixels.
pub(super) const FONT_SIZE: f64 = 13.0;

/// The distance between two things that belong together, such as a colour and its meaning.
pub(super) const GAP: f64 = 8.0;

/// The height of a line of text.
pub(super) const LINE: f64 = 20.0;

/// The distance of text from the edge of the picture.
pub(super) const MARGIN: f64 = 16.0;

/// The number of colours for series.
pub(super) const SERIES: usize = 6;

/// A colour: red, green and blue.
type Rgb = [u8; 3];

/// The colours of a page.
struct Theme {
    page: Rgb,
    text: Rgb,
    axis: Rgb,
    grid: Rgb,
    /// The book's colours `series-1` to `series-5`, and its colour for warnings.
    series: [Rgb; SERIES],
}

const LIGHT: Theme = Theme {
    page: [0xff, 0xff, 0xff],
    text: [0x1d, 0x21, 0x26],
    axis: [0x5f, 0x66, 0x72],
    grid: [0xdc, 0xdf, 0xe4],
    series: [
        [0x00, 0x68, 0xa8],
        [0xb8, 0x5c, 0x00],
        [0x00, 0x78, 0x5a],
        [0x8a, 0x3f, 0x80],
        [0x5f, 0x66, 0x72],
        [0xb3, 0x40, 0x1f],
    ],
};

const DARK: Theme = Theme {
    page: [0x16, 0x19, 0x23],
    text: [0xcc, 0xd0, 0xdc],
    axis: [0xa3, 0xa9, 0xb8],
    grid: [0x37, 0x3c, 0x49],
    series: [
        [0x6c, 0xb8, 0xf0],
        [0xf0, 0xa8, 0x48],
        [0x4f, 0xc7, 0xa0],
        [0xdd, 0x92, 0xc9],
        [0xa3, 0xa9, 0xb8],
        [0xf0, 0x8c, 0x66],
    ],
};

/// How much of its series' colour a bar has, and a pale bar. The page has the rest.
const BARS: [(&str, f64); 2] = [("bar", 0.5), ("pale", 0.25)];

impl Theme {
    /// The rules of the style sheet. Every element is drawn in the `color` of its class.
    fn rules(&self) -> String {
        let mut rules = String::new();
        let mut rule = |class: &str, [red, green, blue]: Rgb| {
            let _ = writeln!(rules, ".{class}{{color:#{red:02x}{green:02x}{blue:02x}}}");
        };
        rule("page", self.page);
        rule("text", self.text);
        rule("axis", self.axis);
        rule("grid", self.grid);
        for (index, &series) in self.series.iter().enumerate() {
            rule(&format!("series-{}", index + 1), series);
            for (bar, share) in BARS {
                let fill = mixed(series, self.page, share);
                let ink = [[0; 3], [255; 3]]
                    .into_iter()
                    .max_by(|a, b| contrast(*a, fill).total_cmp(&contrast(*b, fill)));
                rule(&format!("{bar}-{}", index + 1), fill);
                rule(&format!("on-{bar}-{}", index + 1), ink.unwrap_or(self.text));
            }
        }
        rules
    }
}

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

/// The end of a text at which its position lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// The elements of a picture, in the order in which they are drawn.
#[derive(Default)]
pub(super) struct Svg {
    body: String,
}

impl Svg {
    /// Adds a bar of a series, with a tooltip. `kind` is `bar` or `pale`.
    pub(super) fn bar(
        &mut self,
        (kind, series): (&str, usize),
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        tooltip: &str,
    ) {
        let (series, tooltip) = (series + 1, escaped(tooltip));
        self.add(format_args!(
            "<rect class=\"{kind}-{series}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\" fill=\"currentColor\"><title>{tooltip}</title></rect>"
        ));
    }

    /// Adds a dot, with a tooltip.
    pub(super) fn dot(&mut self, class: &str, (x, y): (f64, f64), radius: f64, tooltip: &str) {
        let tooltip = escaped(tooltip);
        self.add(format_args!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" \
             fill=\"currentColor\"><title>{tooltip}</title></circle>"
        ));
    }

    /// Adds a curve through some points.
    pub(super) fn curve(&mut self, class: &str, width: f64, dashed: bool, points: &[(f64, f64)]) {
        let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>();
        let (points, dashes) = (points.join(" "), if dashed { "6 5" } else { "none" });
        self.add(format_args!(
            "<polyline class=\"{class}\" points=\"{points}\" fill=\"none\" stroke=\"currentColor\" \
             stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\" stroke-linejoin=\"round\"/>"
        ));
    }

    /// Adds a line of text. `at` is the middle of its height, and one of its ends or its middle.
    pub(super) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        // A third of the size lies below the middle of small letters.
        let (x, y, text) = (at.0, at.1 + FONT_SIZE / 3.0, escaped(text));
        self.add(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" \
             fill=\"currentColor\">{text}</text>"
        ));
    }

    /// Adds the title and the conclusion, from the top of the picture. Returns the height of both.
    pub(super) fn heading(&mut self, title: &str, conclusion: &str) -> f64 {
        let mut y = MARGIN;
        // The letters of a title are bold, and so wider.
        for (class, text, share) in [("text title", title, 0.9), ("text", conclusion, 1.0)] {
            for line in lines(text, (WIDTH - 2.0 * MARGIN) * share) {
                self.text(class, (MARGIN, y), Anchor::Start, &line);
                y += LINE;
            }
        }
        y
    }

    fn add(&mut self, element: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    /// Returns the whole picture. The title is for readers who cannot see the picture.
    pub(super) fn finish(self, title: &str, height: f64) -> String {
        let (title, height) = (escaped(title), height.ceil());
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"{FONT_SIZE}\">\n\
             <style>\n:root{{color-scheme:light dark}}\n.title{{font-weight:600}}\n{}\
             @media (prefers-color-scheme: dark) {{\n{}}}\n</style>\n\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" fill=\"currentColor\"/>\n{}</svg>\n",
            LIGHT.rules(),
            DARK.rules(),
            self.body
        )
    }
}

/// Escapes a text for SVG, between tags and in quotes. XML allows no control characters.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace(|letter: char| letter.is_control(), "\u{fffd}")
}

/// Breaks a text into lines of at most `room` pixels: at spaces, and within longer words.
pub(super) fn lines(text: &str, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line) + width(" ") + width(word) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => {
                let mut line = String::new();
                for letter in word.chars() {
                    if width(&line) + width(letter.encode_utf8(&mut [0; 4])) > room {
                        lines.push(std::mem::take(&mut line));
                    }
                    line.push(letter);
                }
                lines.push(line);
            }
        }
    }
    lines
}

/// Returns the width of a text in pixels in the widest common font, DejaVu Sans, or a little more.
pub(super) fn width(text: &str) -> f64 {
    let em = |letter: char| match letter {
        ' ' | '!' | '\'' | ',' | '.' | ':' | ';' | 'I' | 'i' | 'j' | 'l' | '|' => 0.34,
        '(' | ')' | '-' | '/' | '[' | ']' | 'f' | 'r' | 't' => 0.42,
        'a'..='l' | 'n'..='v' | 'x'..='z' | '0'..='9' => 0.64,
        'A'..='L' | 'N'..='V' | 'X'..='Z' => 0.79,
        _ => 1.0,
    };
    FONT_SIZE * text.chars().map(em).sum::<f64>()
}

/// Cuts the end of a text that is wider than `room` pixels.
pub(super) fn shortened(text: &str, room: f64) -> String {
    let mut text = text.to_owned();
    if width(&text) > room {
        while width(&text) + width("…") > room && text.pop().is_some() {}
        text.push('…');
    }
    text
}
