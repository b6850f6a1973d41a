//! What was measured: the numbers of the outputs and of the data files.

use std::io;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::super::Book;
use super::quantity::{Kind, Number, Quantity};

/// From so many digits on, a number fits by chance hardly ever.
const TELLING: usize = 2;

/// Everything that a page may tell.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// With their units, from outputs.
    told: Vec<Quantity>,
    /// With decimals and no unit, from outputs: of tables, whose heads have the units.
    plain: Vec<f64>,
    /// From data files, in seconds, bytes, and so on.
    stored: Vec<(Kind, f64)>,
}

static DECIMAL: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b\d+\.\d+(?:e-?\d+)?\b").expect("a valid expression"));

impl Measured {
    /// Reads all outputs and all data.
    pub(super) fn load(book: &Book) -> io::Result<Self> {
        let mut measured = Self::default();
        for path in book.files("outputs", "txt")? {
            let text = std::fs::read_to_string(path)?;
            // The command was typed; what it printed was measured.
            let printed = text.split_once('\n').map_or("", |(_, printed)| printed);
            measured.told.extend(Quantity::all_in(printed));
            let plain = DECIMAL.find_iter(printed).filter_map(|n| n.as_str().parse::<f64>().ok());
            measured.plain.extend(plain);
        }
        for path in book.files("data", "json")? {
            let data: Value = serde_json::from_slice(&std::fs::read(path)?)?;
            measured.store(&data, None);
        }
        Ok(measured)
    }

    /// Whether a number is one of these, or one of these rounded.
    pub(super) fn has(&self, quantity: &Quantity) -> bool {
        if self.told.iter().any(|told| quantity.is_written_like(told)) {
            return true;
        }
        let Quantity { number, kind, scale, .. } = quantity;
        if number.digits() < TELLING {
            return false;
        }
        let told = self.told.iter().filter(|told| told.kind == *kind);
        let mut rounded = told.map(|told| told.number.value * told.scale / scale);
        let mut stored = self.stored.iter().filter(|(stored, _)| stored == kind);
        rounded.any(|value| number.rounds(value))
            || stored.any(|(_, value)| number.rounds(value / scale))
            || self.plain.iter().any(|value| fits_plain(number, *kind, *scale, *value))
    }

    /// Whether an output has a number without a unit, or one that rounds to it.
    pub(super) fn has_exact(&self, number: &Number) -> bool {
        self.plain.iter().any(|value| number.rounds(*value))
    }

    /// Takes in the numbers of a value, of a kind that names around it tell.
    fn store(&mut self, value: &Value, kind: Option<Kind>) {
        match value {
            Value::Number(number) => {
                let (Some(kind), Some(number)) = (kind, number.as_f64()) else { return };
                self.stored.push((kind, number));
                if kind == Kind::Ratio && number > 0.0 {
                    // A ratio of times can be told as a speed-up.
                    self.stored.push((kind, 1.0 / number));
                }
            }
            Value::Array(values) => values.iter().for_each(|value| self.store(value, kind)),
            Value::Object(fields) => {
                let unit = fields.get("unit").and_then(Value::as_str);
                let kind = unit.map_or(kind, kind_of);
                for (name, value) in fields {
                    match name.as_str() {
                        "gb_per_s" => self.store_rates(value),
                        name => self.store(value, kind_of(name).or(kind)),
                    }
                }
            }
            _ => {}
        }
    }

    fn store_rates(&mut self, value: &Value) {
        self.stored.extend(value.as_f64().map(|rate| (Kind::Rate, rate * 1e9)));
    }
}

/// What a word of a field's name says about its numbers. A part of a word says nothing: calibrations are no ratios.
fn kind_of(name: &str) -> Option<Kind> {
    let name = format!("_{name}_");
    let kinds = [
        ("per_second", Kind::Rate),
        ("seconds", Kind::Time),
        ("bytes", Kind::Size),
        ("ratio", Kind::Ratio),
        ("accuracy", Kind::Ratio),
    ];
    kinds.iter().find(|(words, _)| name.contains(&format!("_{words}_"))).map(|(_, kind)| *kind)
}

/// A number of a table can be told with its head's unit; an accuracy of 0.873 as 87.3 %.
fn fits_plain(number: &Number, kind: Kind, scale: f64, value: f64) -> bool {
    let percent = kind == Kind::Ratio && scale != 1.0;
    number.rounds(if percent { value / scale } else { value })
}
