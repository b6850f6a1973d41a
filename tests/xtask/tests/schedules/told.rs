//! The stored file, read as a browser reads it.

use std::collections::BTreeMap;

use crate::*;

/// Every time in the file is a multiple of this.
const GRID: f64 = 0.5;

/// A pass of a stage, in steps of [`GRID`].
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub letter: char,
    pub start: usize,
    pub end: usize,
}

impl Span {
    pub fn forward(&self) -> bool {
        self.letter.eq_ignore_ascii_case(&'F')
    }

    pub fn backward(&self) -> bool {
        self.letter.eq_ignore_ascii_case(&'B')
    }
}

#[derive(Clone, Debug)]
pub struct Told {
    pub what: String,
    pub stages: usize,
    pub letters: Vec<char>,
    pub time: usize,
    pub plan: Value,
    pub rows: Vec<Vec<Span>>,
}

fn steps(units: &Value) -> usize {
    let steps = units.as_f64().unwrap() / GRID;
    assert_eq!(steps.fract(), 0.0, "{units} is no multiple of {GRID}");
    steps as usize
}

pub fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

impl Told {
    pub fn read(shapes: &[Value], plan: &Value) -> Option<Self> {
        let number = |name: &str| plan[name].as_u64().unwrap() as usize;
        let kind = plan["kind"].as_str().unwrap().to_owned();
        let shape = shapes.iter().find(|shape| shape["kind"] == kind).unwrap();
        let letter = |pass: &Value| pass["letter"].as_str().unwrap().chars().next().unwrap();
        let passes = shape["passes"].as_array().unwrap().iter();
        let lengths: BTreeMap<char, usize> =
            passes.map(|pass| (letter(pass), steps(&pass["units"]))).collect();
        let row = |row: &Value| -> Vec<Span> {
            let letters: Vec<char> = row[0].as_str().unwrap().chars().collect();
            let starts = row[2].as_array().unwrap();
            assert!(letters.len() == numbers(&row[1]).len() && letters.len() == starts.len());
            let span = |(letter, start): (char, &Value)| {
                let start = steps(start);
                Span { letter, start, end: start + lengths[&letter] }
            };
            letters.into_iter().zip(starts).map(span).collect()
        };
        let rows = plan.get("rows")?.as_array().unwrap().iter().map(row).collect();
        Some(Self {
            what: format!("{kind}, {} × {}", number("stages"), number("micro_batches")),
            stages: number("stages"),
            letters: lengths.keys().copied().collect(),
            time: steps(&plan["units"]),
            plan: plan.clone(),
            rows,
        })
    }

    /// What is idle, counted step by step, as a part of all devices' time.
    pub fn idle(&self) -> f64 {
        let mut idle = 0;
        for row in &self.rows {
            idle += (0..self.time)
                .filter(|step| !row.iter().any(|span| (span.start..span.end).contains(step)))
                .count();
        }
        idle as f64 / (self.stages * self.time) as f64
    }

    /// How many activations are alive in a step, and how many wait for their weights' gradient.
    pub fn kept(&self, stage: usize, step: usize) -> (u64, u64) {
        let row = &self.rows[stage];
        let count = |is: &dyn Fn(&&Span) -> bool| row.iter().filter(is).count() as u64;
        let begun = count(&|span| span.forward() && span.start <= step);
        let back = count(&|span| span.backward() && span.end <= step);
        let done = count(&|span| span.letter == 'W' && span.end <= step);
        (begun - back, if self.letters.contains(&'W') { back - done } else { 0 })
    }
}

pub fn told() -> Vec<Told> {
    let file: Value =
        serde_json::from_str(&in_the_book("data/pipeline-schedules.json").unwrap()).unwrap();
    let shapes = file["shapes"].as_array().unwrap();
    file["plans"].as_array().unwrap().iter().filter_map(|plan| Told::read(shapes, plan)).collect()
}
