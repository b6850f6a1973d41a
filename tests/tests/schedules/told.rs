//! The stored file, read as a browser reads it.

use std::collections::BTreeMap;

use course_tests::stored::in_the_book;
use serde_json::Value;

/// Every time in the file is a multiple of this.
pub const GRID: f64 = 0.5;

/// A pass of a stage, in steps of [`GRID`].
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub letter: char,
    pub micro_batch: u64,
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

    pub fn chunk(&self) -> usize {
        usize::from(self.letter.is_ascii_lowercase())
    }
}

/// What the file says of one schedule.
#[derive(Clone, Debug)]
pub struct Told {
    pub what: String,
    pub kind: String,
    pub stages: usize,
    pub micro_batches: usize,
    pub chunks: usize,
    pub letters: Vec<char>,
    /// In steps of [`GRID`].
    pub time: usize,
    pub plan: Value,
    pub rows: Vec<Vec<Span>>,
}

pub fn steps(units: &Value) -> usize {
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
            let micro_batches = numbers(&row[1]);
            assert!(letters.len() == micro_batches.len() && letters.len() == starts.len());
            let spans = letters.into_iter().zip(micro_batches).zip(starts);
            let span = |((letter, micro_batch), start): ((char, u64), &Value)| {
                let start = steps(start);
                Span { letter, micro_batch, start, end: start + lengths[&letter] }
            };
            spans.map(span).collect()
        };
        let rows = plan.get("rows")?.as_array().unwrap().iter().map(row).collect();
        Some(Self {
            what: format!("{kind}, {} × {}", number("stages"), number("micro_batches")),
            stages: number("stages"),
            micro_batches: number("micro_batches"),
            chunks: shape["chunks"].as_u64().unwrap() as usize,
            letters: lengths.keys().copied().collect(),
            time: steps(&plan["units"]),
            plan: plan.clone(),
            kind,
            rows,
        })
    }

    /// The only span that is so.
    pub fn one(&self, stage: usize, is: impl Fn(&Span) -> bool) -> Result<&Span, String> {
        let found: Vec<&Span> = self.rows[stage].iter().filter(|span| is(span)).collect();
        match found[..] {
            [one] => Ok(one),
            _ => Err(format!("stage {stage}: {} spans for {found:?}", found.len())),
        }
    }

    /// The forward or backward pass of a micro-batch through a part of the model.
    pub fn pass(&self, part: usize, micro_batch: u64, forward: bool) -> Result<&Span, String> {
        let (stage, chunk) = (part % self.stages, part / self.stages);
        self.one(stage, |span| {
            (if forward { span.forward() } else { span.backward() })
                && span.chunk() == chunk
                && span.micro_batch == micro_batch
        })
    }

    /// What is wrong with it as a pipeline, first of all.
    pub fn keeps_the_laws(&self) -> Result<(), String> {
        for (stage, row) in self.rows.iter().enumerate() {
            if let Some(pair) = row.windows(2).find(|pair| pair[0].end > pair[1].start) {
                return Err(format!("stage {stage}: {:?} and {:?} at once", pair[0], pair[1]));
            }
            let passes = self.micro_batches * self.letters.len();
            if row.len() != passes {
                return Err(format!("stage {stage}: {} of {passes} passes", row.len()));
            }
            if row.iter().any(|span| span.end > self.time) {
                return Err(format!("stage {stage} goes on after the end"));
            }
        }
        let parts = self.stages * self.chunks;
        for micro_batch in 0..self.micro_batches as u64 {
            for part in 0..parts {
                let forward = self.pass(part, micro_batch, true)?;
                let backward = self.pass(part, micro_batch, false)?;
                let mut order = vec![(forward, backward)];
                if part + 1 < parts {
                    order.push((forward, self.pass(part + 1, micro_batch, true)?));
                    order.push((self.pass(part + 1, micro_batch, false)?, backward));
                }
                if self.letters.contains(&'W') {
                    let weights =
                        |span: &Span| span.letter == 'W' && span.micro_batch == micro_batch;
                    order.push((backward, self.one(part % self.stages, weights)?));
                }
                if let Some((before, after)) = order.iter().find(|(a, b)| a.end > b.start) {
                    return Err(format!("part {part}: {after:?} before {before:?}"));
                }
            }
        }
        Ok(())
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

/// Every schedule in the book's file.
pub fn told() -> Vec<Told> {
    let file: Value =
        serde_json::from_str(&in_the_book("data/pipeline-schedules.json").unwrap()).unwrap();
    let shapes = file["shapes"].as_array().unwrap();
    file["plans"].as_array().unwrap().iter().filter_map(|plan| Told::read(shapes, plan)).collect()
}
