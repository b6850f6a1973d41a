//! The interpreter of `garments.txt`, which explains its language.

use super::Draws;

/// A point (x, y). x grows to the right and y down.
pub type Point = (f32, f32);
/// A closed polygon: the last point is connected to the first.
pub type Outline = Vec<Point>;
/// A part of a garment: its outline, and the factor of the fabric's shade or, with `true`, a shade of its own.
pub type Part = (Outline, f32, bool);

/// A garment, row by row.
pub struct Pattern(Vec<Row>);

type Row = Box<dyn Fn(&mut Sewing<'_>) + Send + Sync>;
type Number = Box<dyn Fn(&mut Sewing<'_>) -> f32 + Send + Sync>;

/// The state of a garment that is sewn.
struct Sewing<'a> {
    draws: &'a mut Draws,
    measures: Vec<f32>,
    parts: Vec<Part>,
}

impl Pattern {
    /// Reads a garment. Panics when a row is wrong.
    pub fn read(garment: &str) -> Self {
        let text = include_str!("garments.txt").replace("\n    ", " ");
        let rows = text.lines().skip_while(|line| *line != garment).skip(1);
        let rows = rows.take_while(|row| !row.is_empty());
        let mut reader = Reader { rest: "", names: vec!["class"] };
        let read = |row| {
            reader.rest = row;
            let read = reader.row();
            assert_eq!(reader.rest, "");
            read
        };
        Self(rows.filter(|row| !row.trim().starts_with('#')).map(read).collect())
    }

    /// Returns the parts of a random garment, from the back to the front.
    pub fn sew(&self, draws: &mut Draws, class: usize) -> Vec<Part> {
        // The first measure is the class. No garment has more measures than 64.
        let mut sewing = Sewing { draws, measures: vec![class as f32; 64], parts: Vec::new() };
        self.0.iter().for_each(|row| row(&mut sewing));
        sewing.parts
    }
}

/// The rest of a row, and the names of the measures so far.
struct Reader<'a> {
    rest: &'a str,
    names: Vec<&'a str>,
}

type Operator = (&'static str, fn(&mut Sewing<'_>, f32, f32) -> f32);

/// The operators and their functions. Those of a later line bind more tightly.
const OPERATORS: [&[Operator]; 4] = [
    &[("==", |_, a, b| f32::from(a == b)), ("<", |_, a, b| f32::from(a < b))],
    &[("+", |_, a, b| a + b), ("-", |_, a, b| a - b)],
    &[("*", |_, a, b| a * b), ("/", |_, a, b| a / b)],
    &[("~", |sewing, low, high| sewing.draws.between(low, high))],
];

impl<'a> Reader<'a> {
    /// Takes a symbol if the row goes on with it.
    fn takes(&mut self, symbol: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(symbol);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, symbol: &str) {
        assert!(self.takes(symbol), "{symbol:?} is not in front of {:?}", self.rest);
    }

    /// Takes a name or a number.
    fn word(&mut self) -> &'a str {
        let rest = self.rest.trim_start();
        let sign = usize::from(rest.starts_with('-'));
        let end = rest[sign..].find(|c: char| !(c.is_alphanumeric() || "._".contains(c)));
        let (word, rest) = rest.split_at(end.map_or(rest.len(), |end| sign + end));
        self.rest = rest;
        word
    }

    /// Returns the place of a measure.
    fn place(&mut self, name: &'a str) -> usize {
        self.names.iter().position(|other| *other == name).unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }

    fn row(&mut self) -> Row {
        let word = self.word();
        match word {
            "sew" | "pair" | "trim" => self.part(word == "pair", word == "trim"),
            "if" | "for" => {
                // A condition is a limit, 0 or 1, of a count without a name.
                let name = if word == "for" { self.word() } else { "" };
                self.takes("<");
                let (place, limit) = (self.place(name), self.number(0));
                self.expect(":");
                let row = self.row();
                Box::new(move |sewing| {
                    for count in 0..limit(sewing) as usize {
                        sewing.measures[place] = count as f32;
                        row(sewing);
                    }
                })
            }
            name => {
                self.expect("=");
                let (number, place) = (self.number(0), self.place(name));
                Box::new(move |sewing| sewing.measures[place] = number(sewing))
            }
        }
    }

    fn part(&mut self, paired: bool, flat: bool) -> Row {
        let is_rounded = self.takes("rounded");
        let shape: fn(&[f32]) -> Outline = match self.word() {
            "polygon" => points,
            "flipped" => |n| flipped(&points(n)),
            "halves" => |n| [points(n), flipped(&points(n)).into_iter().rev().collect()].concat(),
            "box" => |n| {
                let corners = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)];
                corners.map(|(x, y)| (n[0] + x * n[2], n[1] + y * n[3])).to_vec()
            },
            "stroke" => |n| stroke((n[0], n[1]), (n[2], n[3]), n[4]),
            other => panic!("no shape is {other}"),
        };
        let numbers = self.numbers();
        Box::new(move |sewing| {
            let mut numbers: Vec<f32> = numbers.iter().map(|number| number(sewing)).collect();
            let tone = numbers.pop().expect("a list has a last number");
            let outline = shape(&numbers);
            let outline = if is_rounded { rounded(&outline) } else { outline };
            if paired {
                sewing.parts.push((flipped(&outline), tone, flat));
            }
            sewing.parts.push((outline, tone, flat));
        })
    }

    fn numbers(&mut self) -> Vec<Number> {
        let mut numbers = vec![self.number(0)];
        while self.takes(",") || self.takes(";") {
            numbers.push(self.number(0));
        }
        numbers
    }

    /// Reads a number with the operators of this line of [`OPERATORS`] and of all later ones.
    fn number(&mut self, line: usize) -> Number {
        let Some(operators) = OPERATORS.get(line) else { return self.operand() };
        let mut number = self.number(line + 1);
        while let Some((_, apply)) = operators.iter().find(|(symbol, _)| self.takes(symbol)) {
            let (left, right) = (number, self.number(line + 1));
            number = Box::new(move |sewing| {
                let (left, right) = (left(sewing), right(sewing));
                apply(sewing, left, right)
            });
        }
        number
    }

    fn operand(&mut self) -> Number {
        let word = self.word();
        if let Ok(number) = word.parse::<f32>() {
            return Box::new(move |_| number);
        }
        if !self.takes("(") {
            let place = self.place(word);
            return Box::new(move |sewing| sewing.measures[place]);
        }
        let function: fn(&mut Sewing<'_>, &[Number]) -> f32 = match word {
            "" => |sewing, n| n[0](sewing),
            "along" => |sewing, n| along(n[0](sewing), n[1](sewing), n[2](sewing)),
            "chance" => |sewing, n| f32::from(sewing.draws.between(0.0, 1.0) < n[0](sewing)),
            "of" => |sewing, n| n[1 + n[0](sewing) as usize](sewing),
            "pick" => |sewing, n| {
                let probabilities: Vec<f32> = n.iter().map(|number| number(sewing)).collect();
                sewing.draws.pick(&probabilities) as f32
            },
            "sqrt" => |sewing, n| n[0](sewing).sqrt(),
            _ => panic!("no function is {word}"),
        };
        let numbers = self.numbers();
        self.expect(")");
        Box::new(move |sewing| function(sewing, &numbers))
    }
}

fn points(numbers: &[f32]) -> Outline {
    numbers.as_chunks::<2>().0.iter().map(|&[x, y]| (x, y)).collect()
}

fn flipped(outline: &[Point]) -> Outline {
    outline.iter().map(|&(x, y)| (-x, y)).collect()
}

fn along(from: f32, to: f32, part: f32) -> f32 {
    from + (to - from) * part
}

/// Cuts the corners of an outline: each side keeps its middle half.
fn rounded(outline: &[Point]) -> Outline {
    let sides = outline.iter().zip(outline.iter().cycle().skip(1));
    let ends = |(a, b): (&Point, &Point)| {
        [0.25, 0.75].map(|part| (along(a.0, b.0, part), along(a.1, b.1, part)))
    };
    sides.flat_map(ends).collect()
}

/// Returns a straight stroke. If its ends are equal, the outline is empty.
fn stroke(from: Point, to: Point, width: f32) -> Outline {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = (dx * dx + dy * dy).sqrt();
    if length == 0.0 {
        return Outline::new();
    }
    // From the middle line of the stroke to its side.
    let (x, y) = (-dy / length * width / 2.0, dx / length * width / 2.0);
    let beside = |point: Point, side: f32| (point.0 + side * x, point.1 + side * y);
    vec![beside(from, 1.0), beside(to, 1.0), beside(to, -1.0), beside(from, -1.0)]
}
