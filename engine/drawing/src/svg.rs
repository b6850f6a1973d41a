//! The writer of pictures.
//!
//! All shapes have `currentColor`. A class gives a shape its colour: the theme's, or the book's. There are no ids,
//! because the book prints all chapters on one page.

use std::fmt::Display;

/// The size of text in pixels.
pub const FONT: f64 = 13.0;
/// The height of a line of text.
pub const LINE: f64 = 20.0;
/// The distance between two things that belong together, such as a mark and its name.
pub const GAP: f64 = 8.0;

/// The style sheet of a file, with a light and a dark theme.
pub(crate) const STYLE: &str = include_str!("style.css");

/// The number of colours for series.
pub(crate) const COLOURS: usize = 5;

/// The marks of series: a circle, a square, a triangle, a diamond and a bar, as paths from their middle.
const MARKS: [&str; COLOURS] = [
    "m-4,0a4,4 0 1 0 8,0a4,4 0 1 0 -8,0",
    "m-4,-4h8v8h-8z",
    "m0,-5l5,9h-10z",
    "m0,-5.5l5.5,5.5l-5.5,5.5l-5.5,-5.5z",
    "m-5,-1.5h10v3h-10z",
];

/// The dashes of the first five series, of the next five, and so on.
const DASHES: [&str; 4] = ["none", "7 4", "2 3", "9 3 2 3"];

/// A point: right and down, in pixels.
pub type Point = (f64, f64);

/// The place of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A page of the book, whose style sheet has the colours. A page is nearly as wide as a phone.
    Page,
    /// A file, with a style sheet for a light and a dark theme. It is as wide as a phone held sideways.
    File,
}

/// The words of a picture. A file shows all of them. A page has a caption instead, and shows no heading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heading {
    /// The title.
    pub title: String,
    /// A reason to doubt the numbers, before everything that follows from the numbers.
    pub doubt: Option<String>,
    /// The sentences about the picture.
    pub conclusion: String,
}

/// The end of a text at which its position lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The left end.
    Start,
    /// The middle.
    Middle,
    /// The right end.
    End,
}

/// The look of a series. No two of twenty series look the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The class that has the colour.
    pub class: String,
    /// The dashes of a curve.
    pub dashes: &'static str,
    /// Empty for a look without a mark.
    mark: &'static str,
}

impl Look {
    /// The look of a series, by its number from 0, or the look of a line to compare the series with.
    pub fn of(series: impl Into<Option<usize>>) -> Self {
        let Some(series) = series.into() else {
            return Self { class: "axis".to_owned(), dashes: "5 5", mark: "" };
        };
        let (round, colour) = (series / COLOURS, series % COLOURS);
        // Series of one colour have different dashes and different marks.
        let (dashes, mark) = (DASHES[round % DASHES.len()], MARKS[(colour + round) % COLOURS]);
        Self { class: format!("series-{}", colour + 1), dashes, mark }
    }
}

/// The elements of a picture, in the order in which they are drawn.
#[derive(Debug)]
pub struct Svg {
    place: Place,
    /// All words of the heading.
    label: String,
    /// The lower end of the heading.
    top: f64,
    body: String,
}

impl Svg {
    /// The length of a sample in a legend.
    pub const SAMPLE: f64 = 26.0;

    /// A picture that has only the heading. A page shows none. Readers who cannot see the picture get the heading's words.
    pub fn new(place: Place, Heading { title, doubt, conclusion }: &Heading) -> Self {
        let words: [&str; 3] = [title, doubt.as_deref().unwrap_or_default(), conclusion];
        let label = words.into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join(". ");
        let mut svg = Self { place, label: escaped(&label), top: 0.0, body: String::new() };
        if place == Place::File {
            // Bold letters are wider.
            let looks = [("label strong", 0.9), ("label strong series-2", 0.9), ("label", 1.0)];
            for ((class, share), text) in looks.into_iter().zip(words) {
                svg.top = svg.paragraph(class, (0.0, svg.top), svg.width() * share, text);
            }
            svg.top += GAP;
        }
        svg
    }

    /// The width of the picture in pixels.
    pub fn width(&self) -> f64 {
        if self.place == Place::Page { 480.0 } else { 720.0 }
    }

    /// Adds a curve through some points.
    pub fn curve(&mut self, class: &str, width: f64, dashes: &str, points: &[Point]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!(
            "<polyline class=\"{class}\" points=\"{}\" fill=\"none\" stroke=\"currentColor\" \
             stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\" stroke-linejoin=\"round\"/>",
            points.join(" ")
        ));
    }

    /// Adds a thin line, for example of a grid.
    pub fn line(&mut self, class: &str, from: Point, to: Point) {
        self.curve(class, 1.0, "none", &[from, to]);
    }

    /// Adds a rectangle. `opacity` is the share of its colour; the page has the rest. A tooltip may be empty.
    pub fn rect(&mut self, class: &str, at: Point, size: Point, opacity: f64, tooltip: &str) {
        let ((x, y), (width, height), title) = (at, size, tooltip_element(tooltip));
        let outline =
            if opacity < 1.0 { " stroke=\"currentColor\" stroke-width=\"0.5\"" } else { "" };
        self.add(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"currentColor\" fill-opacity=\"{opacity}\"{outline}>{title}</rect>"
        ));
    }

    /// Adds the mark of a series, if the look has one. A tooltip may be empty.
    pub fn mark(&mut self, Look { class, mark, .. }: &Look, (x, y): Point, tooltip: &str) {
        if !mark.is_empty() {
            let title = tooltip_element(tooltip);
            self.add(format_args!(
                "<path class=\"{class}\" d=\"M{x:.1},{y:.1}{mark}\" fill=\"currentColor\">{title}</path>"
            ));
        }
    }

    /// Adds a line of text, unless the text is empty. `at` is the middle of its height, and one of its ends or its middle.
    pub fn text(&mut self, class: &str, at: Point, anchor: Anchor, text: impl Display) {
        let text = escaped(&text.to_string());
        if text.is_empty() {
            return;
        }
        let anchor = ["start", "middle", "end"][anchor as usize];
        // A third of the size lies below the middle of small letters.
        let (x, y) = (at.0, at.1 + FONT / 3.0);
        self.add(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" \
             fill=\"currentColor\">{text}</text>"
        ));
    }

    /// Adds a text in as many lines of at most `room` pixels as needed, below a corner. Returns the lower end.
    pub fn paragraph(&mut self, class: &str, (x, mut y): Point, room: f64, text: &str) -> f64 {
        for line in lines(text, room) {
            self.text(class, (x, y + LINE / 2.0), Anchor::Start, line);
            y += LINE;
        }
        y
    }

    /// Adds a legend below the heading in as many lines as needed. `sample` draws an entry's sample at a point, within
    /// [`Self::SAMPLE`]. Returns the lower end.
    pub fn legend<T>(
        &mut self,
        entries: &[(T, String)],
        mut sample: impl FnMut(&mut Self, &T, Point),
    ) -> f64 {
        let (mut x, mut y) = (0.0, self.top);
        for (entry, text) in entries {
            let text = shortened(text, self.width() - Self::SAMPLE - GAP);
            let length = Self::SAMPLE + GAP + width(&text);
            if x > 0.0 && x + length > self.width() {
                (x, y) = (0.0, y + LINE);
            }
            sample(self, entry, (x, y + LINE / 2.0));
            self.text("label", (x + Self::SAMPLE + GAP, y + LINE / 2.0), Anchor::Start, text);
            x += length + 2.0 * GAP;
        }
        if entries.is_empty() { y } else { y + LINE + GAP }
    }

    fn add(&mut self, element: impl Display) {
        self.body += &format!("{element}\n");
    }

    /// Returns the whole picture. A picture in a page has no blank line, where Markdown would take the picture to end.
    pub fn finish(self, height: f64) -> String {
        // A page sets the font, and a telephone's is larger than [`FONT`].
        let margin = if self.place == Place::Page { 2.0 } else { 16.0 };
        let (right, bottom) = (self.width() + 2.0 * margin, height.ceil() + 2.0 * margin);
        let Self { label, body, .. } = self;
        let about = format!(
            "viewBox=\"-{margin} -{margin} {right} {bottom}\" role=\"img\" aria-label=\"{label}\" \
             font-size=\"{FONT}\" stroke-width=\"1\""
        );
        if self.place == Place::Page {
            return format!("<svg class=\"measured\" {about}>\n{body}</svg>\n");
        }
        let area = format!("width=\"{right}\" height=\"{bottom}\"");
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" {area} {about} font-family=\"system-ui, sans-serif\">\n\
             <style>\n{STYLE}</style>\n\
             <rect class=\"page\" x=\"-{margin}\" y=\"-{margin}\" {area} fill=\"currentColor\"/>\n{body}</svg>\n"
        )
    }
}

fn tooltip_element(tooltip: &str) -> String {
    if tooltip.is_empty() { String::new() } else { format!("<title>{}</title>", escaped(tooltip)) }
}

/// Escapes a text for SVG, between tags and in quotes. XML allows no control characters.
pub fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace(|letter: char| letter.is_control(), "\u{fffd}")
}

/// Breaks a text into lines of at most `room` pixels: at spaces, and within longer words.
pub fn lines(text: &str, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        if let Some(line) = lines.last_mut()
            && width(line) + width(" ") + width(word) <= room
        {
            *line += &format!(" {word}");
            continue;
        }
        let mut line = String::new();
        for letter in word.chars() {
            if width(&line) + width(&letter.to_string()) > room {
                lines.push(std::mem::take(&mut line));
            }
            line.push(letter);
        }
        lines.push(line);
    }
    lines
}

/// Returns the width of a text in pixels in the widest common font, DejaVu Sans, or a little more.
pub fn width(text: &str) -> f64 {
    let em = |letter: char| match letter {
        ' ' | '!' | '\'' | ',' | '.' | ':' | ';' | 'I' | 'i' | 'j' | 'l' | '|' | '·' => 0.34,
        '(' | ')' | '-' | '/' | '[' | ']' | 'f' | 'r' | 't' => 0.42,
        'a'..='l' | 'n'..='v' | 'x'..='z' | '0'..='9' => 0.64,
        'A'..='L' | 'N'..='V' | 'X'..='Z' => 0.79,
        _ => 1.0,
    };
    FONT * text.chars().map(em).sum::<f64>()
}

/// Cuts the end of a text that is wider than `room` pixels.
pub fn shortened(text: &str, room: f64) -> String {
    let mut text = text.to_owned();
    if width(&text) > room {
        while width(&text) + width("…") > room && text.pop().is_some() {}
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests as room;

    #[test]
    fn no_two_series_look_the_same() {
        let looks: Vec<Look> = (0..20).map(Look::of).collect();
        for (index, look) in looks.iter().enumerate() {
            for other in &looks[..index] {
                let differ = look.dashes != other.dashes && look.mark != other.mark;
                assert!(differ || look.class != other.class, "{index}");
            }
        }
    }

    #[test]
    fn text_is_escaped_and_whole_and_lies_in_the_picture() {
        let word = "<script>&\u{1}\"".repeat(30);
        for (place, text) in
            [Place::Page, Place::File].into_iter().zip([&word, &"word ".repeat(90)])
        {
            let doubt = Some(format!("no {text}"));
            let heading = Heading { title: text.clone(), doubt, conclusion: text.clone() };
            let mut svg = Svg::new(place, &heading);
            let entries =
                [((), text.clone()), ((), "short".to_owned()), ((), "shorter".to_owned())];
            let bottom = svg.legend(&entries, |svg, (), at| svg.mark(&Look::of(7), at, text));
            svg.rect("series-1", (0.0, bottom), (20.0, 20.0), 0.4, text);
            let svg = svg.finish(bottom + 30.0);
            room::check(&svg);
            assert!(!svg.contains("<script") && svg.lines().all(|line| !line.is_empty()), "{svg}");
            let shown = room::texts(&svg).concat().replace(' ', "");
            let times = if place == Place::File { 3 } else { 0 };
            assert_eq!(shown.matches(&text.replace(' ', "")).count(), times);
        }
    }

    #[test]
    fn a_page_gives_the_colours_and_a_file_has_its_own() {
        let heading = Heading { title: "a & b".to_owned(), ..Heading::default() };
        let page = Svg::new(Place::Page, &heading).finish(9.5);
        let start = "<svg class=\"measured\" viewBox=\"-2 -2 484 14\" role=\"img\"";
        assert!(page.starts_with(start), "{page}");
        assert!(page.contains("aria-label=\"a &amp; b\"") && !page.contains("<style"), "{page}");
        let file = Svg::new(Place::File, &heading).finish(9.5);
        let has = |style| file.contains(style);
        assert!(has("prefers-color-scheme:dark") && has("max-width:100%"), "{file}");
    }
}
