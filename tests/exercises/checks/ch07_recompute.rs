//! Chapter 7, `book/src/ch07-sharded-state.md`: the units to recompute, for a budget of bytes.
//!
//! The simulator weighs the step with the answer's units. The check tries all choices to find the best.

use model_parallel::{Cost, Schedule, Timeline};
use sharded_state::Sharing;
use sharded_state::strategies::{alone, passes, recomputed};

use crate::prelude::*;
use crate::sharded::{checked, step};

/// The µs of forward passes, the bytes of activations and of inputs, and the budget; the units to recompute.
pub type Answer = fn(&[u64], &[u64], &[u64], u64) -> Vec<usize>;

pub const LAWS: &[Law<Answer>] = laws![
    the_units_exist in cases(),
    the_step_fits_into_the_budget in cases(),
    no_choice_adds_less in cases(),
];

const EXISTS: &str =
    "each unit is named once; the last unit goes backward at once, and is never recomputed";
const FITS: &str = "the simulator weighs the step: right before its backward pass, a recomputed unit has its input and all activations";
const LEAST: &str = "of all choices that fit into the budget, one adds the least time";

/// A model and a budget.
pub struct Case {
    forward: Vec<u64>,
    activations: Vec<u64>,
    inputs: Vec<u64>,
    budget: u64,
}

shown!(Case { forward, activations, inputs, budget } =>
    "forward {} µs, activations {}, inputs {}, budget {budget}", in_a_row(forward), in_a_row(activations), in_a_row(inputs));

impl Case {
    fn new(forward: &[u64], activations: &[u64], inputs: &[u64], budget: u64) -> Self {
        let [forward, activations, inputs] = [forward, activations, inputs].map(<[u64]>::to_vec);
        Self { forward, activations, inputs, budget }
    }

    /// Bytes at most, and added µs, if the units of this bit set are recomputed.
    fn of(&self, set: u32) -> (u64, u64) {
        let is_in = |unit: &usize| set >> unit & 1 == 1;
        let (mut kept, mut most) = (0, 0);
        for unit in 0..self.forward.len() {
            let (input, all) = (self.inputs[unit], self.activations[unit]);
            let again = is_in(&unit);
            most = most.max(kept + all + if again { input } else { 0 });
            kept += if again { input } else { all };
        }
        (most, (0..self.forward.len()).filter(is_in).map(|unit| self.forward[unit]).sum())
    }

    /// The bytes and the added µs of all choices.
    fn choices(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..1 << (self.forward.len() - 1)).map(|set| self.of(set))
    }

    /// The added µs of the best choice.
    fn best(&self) -> u64 {
        let fits = self.choices().filter(|(bytes, _)| *bytes <= self.budget);
        fits.map(|(_, micros)| micros).min().expect("a choice fits")
    }

    fn answered(&self, answer: Answer) -> Vec<usize> {
        answer(&self.forward, &self.activations, &self.inputs, self.budget)
    }

    /// The simulated step in which these units are recomputed.
    fn step(&self, units: &[usize]) -> Outcome<Timeline> {
        let count = self.forward.len();
        let list = alone(recomputed(passes(count, 1), |unit| units.contains(&unit)));
        let of_one = Sharing::Ddp.plain().schedule(count, 1, 1);
        let schedule = Schedule { lists: vec![list], ..of_one };
        let cost = |unit: usize| Cost {
            forward: self.forward[unit] as f64,
            activations: self.activations[unit] as usize,
            input: self.inputs[unit] as usize,
            ..Cost::default()
        };
        let costs: Vec<Cost> = (0..count).map(cost).collect();
        Ok(step(&checked(schedule, EXISTS)?, &costs))
    }
}

/// The example; equal units; a cheap unit among expensive ones; then random models, each with four budgets.
fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new(&[5, 3, 4], &[20, 20, 10], &[4, 4, 4], 40),
        Case::new(&[5; 6], &[30; 6], &[5; 6], 100),
        Case::new(&[9, 9, 1, 9, 9], &[20; 5], &[4; 5], 90),
        Case::new(&[1, 9, 1, 1, 1], &[5, 60, 5, 5, 5], &[2; 5], 80),
        Case::new(&[3], &[8], &[2], 8),
    ];
    let mut state = 7u64;
    let mut below = |bound: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    for units in 2..=9usize {
        let mut of = |least, bound| (0..units).map(|_| least + below(bound)).collect::<Vec<_>>();
        let (forward, inputs, more) = (of(1, 20), of(1, 8), of(1, 60));
        let activations: Vec<u64> =
            inputs.iter().zip(more).map(|(input, more)| input + more).collect();
        let model = Case::new(&forward, &activations, &inputs, 0);
        let bytes: Vec<u64> = model.choices().map(|(bytes, _)| bytes).collect();
        let (least, most) = (bytes.iter().min().unwrap_or(&0), bytes[0]);
        for quarter in 0..=3 {
            let budget = least + (most.saturating_sub(*least)) * quarter / 4;
            cases.push(Case::new(&forward, &activations, &inputs, budget));
        }
    }
    cases
}

fn the_units_exist(answer: Answer, case: &Case) -> Outcome {
    let mut units = case.answered(answer);
    let (got, last) = (in_a_row(&units), case.forward.len() - 1);
    units.sort_unstable();
    units.dedup();
    let right = in_a_row(&units).len() == got.len() && units.iter().all(|&unit| unit < last);
    let expected = format!("units below {last}, each once");
    expect(right, "the units to recompute", (expected, got), EXISTS)
}

fn the_step_fits_into_the_budget(answer: Answer, case: &Case) -> Outcome {
    let units = case.answered(answer);
    let bytes = case.step(&units)?.held(0).peak.activations as u64;
    let got = format!("{bytes} bytes with units {}", in_a_row(&units));
    let expected = format!("at most {} bytes", case.budget);
    expect(bytes <= case.budget, "the most bytes at one time", (expected, got), FITS)
}

fn no_choice_adds_less(answer: Answer, case: &Case) -> Outcome {
    let units = case.answered(answer);
    let [without, with] = [&[][..], &units].map(|units| case.step(units).map(|it| it.makespan()));
    let (added, best) = ((with? - without?).round() as u64, case.best());
    let got = format!("{added} µs with units {}", in_a_row(&units));
    expect(added <= best, "the added time", (format!("{best} µs"), got), LEAST)
}
