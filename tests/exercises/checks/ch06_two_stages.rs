//! Chapter 6, `book/src/ch06-model-parallel.md`: the forward and the backward pass of one stage.
//!
//! First the answer is one stage, between neighbours that send and receive the right tensors. So a message names the stage
//! that has made the mistake. Then the answer is all stages, and the gradients are compared with one device.

use std::fmt;

use candle_core::Shape;
use concise_wrapper::Network;
use datasets::Batch;
use model_parallel::layers::{Layers, Stage};
use ops::backward::backward_from;
use ops::cross_entropy;
use ops::difference::relative_difference;

use crate::prelude::*;
use crate::stages::Passed;
use crate::two_layers::whole_numbers;

/// The two passes of a stage.
#[derive(Clone, Copy)]
pub struct Answer {
    /// A rank, its layers, the shape of the activation that arrives, and the batch.
    pub forward: fn(&Rank, &Network<Stage>, &Shape, &Batch) -> Result<Passed, Error>,
    /// A rank, its layers, and the result of its forward pass; the gradients of its parameters.
    pub backward: fn(&Rank, &Network<Stage>, &Passed) -> Result<Vec<Tensor>, Error>,
}

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    a_stage_computes_and_sends in cases(),
    stages_have_the_gradients_of_one_device in cases(),
    errors_are_passed_on,
];

const MESSAGES: &str = "forward, a stage sends its activation to the next stage; backward, it sends the gradient of its input \
                        to the stage before";
const ACTIVATION: &str = "a stage sends the result of its layers";
const LOSS: &str = "the loss is the sum over the samples, on the last stage";
const INPUT: &str =
    "the gradient of the input goes to the stage before, which starts its backward pass there";
const GRADIENTS: &str = "a backward pass starts from the derivative of the loss by the stage's result, which the next stage \
                         sends; the last stage has the loss";
const EACH: &str = "a gradient for each parameter of the stage, in the order of its parameters";

/// A tensor that a stage makes of a micro-batch. The number is the place of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Activation,
    Loss,
    InputGradient,
    Gradient(usize),
}

/// A tensor of an answer: the micro-batch, the stage, and the thing.
type Found = (usize, usize, Thing, Tensor);

/// The tensors of a stage on one device.
#[derive(Clone)]
struct Right {
    /// The activation, or the loss.
    result: Tensor,
    /// The gradients of the input and of the parameters: right, and from ones in place of the gradient that arrives.
    input: [Option<Tensor>; 2],
    parameters: [Vec<Tensor>; 2],
}

/// A model with a layer for each stage, and micro-batches with the right tensors of each stage.
#[derive(Clone)]
struct Case {
    dtype: DType,
    widths: Vec<usize>,
    layers: Layers,
    passes: Vec<(Batch, Vec<Right>)>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<usize> = self.passes.iter().map(|(batch, _)| batch.len()).collect();
        let stages = counted(self.layers.len(), "stage");
        let Self { dtype, widths, .. } = self;
        write!(f, "{stages}, widths {widths:?}, micro-batches of {sizes:?}, {dtype:?}")
    }
}

impl Case {
    fn new(dtype: DType, widths: &[usize], batches: &[usize]) -> Result<Self> {
        let layers = Layers::dense(widths)?;
        let mut case = Self { dtype, widths: widths.to_vec(), layers, passes: Vec::new() };
        let stages = case.layers.len();
        for &samples in batches {
            let images = (whole_numbers(&[samples, widths[0]], samples)? / 3.0)?.to_dtype(dtype)?;
            let labels = (0..samples as u32).map(|it| (it * it + 1) % widths[stages] as u32);
            let labels = Tensor::from_vec(labels.collect(), samples, &Device::Cpu)?;
            let batch = Batch { images, labels };
            let right = case.on_one_device(&batch)?;
            case.passes.push((batch, right));
        }
        Ok(case)
    }

    fn network(&self, stage: usize, device: &Device) -> Result<Network<Stage>> {
        self.layers.build(stage..stage + 1, 1, self.dtype, device)
    }

    fn is_last(&self, stage: usize) -> bool {
        stage + 1 == self.layers.len()
    }

    fn on_one_device(&self, batch: &Batch) -> Result<Vec<Right>> {
        let (mut x, mut passed) = (batch.images.clone(), Vec::new());
        for stage in 0..self.layers.len() {
            let network = self.network(stage, &Device::Cpu)?;
            let input = Var::from_tensor(&x.detach())?;
            x = network.forward_training(&input)?;
            if self.is_last(stage) {
                x = cross_entropy(&x, &batch.labels)?;
            }
            passed.push((network, input, x.clone()));
        }
        let (mut gradient, mut all) = (x.ones_like()?, Vec::new());
        for (network, input, result) in passed.iter().rev() {
            let found = [&gradient, &result.ones_like()?].map(|from| backward_from(result, from));
            let [right, from_ones] = found;
            let found = [right?, from_ones?];
            let [right, from_ones] = found.each_ref().map(|it| network.parameter_gradients(it));
            let of_input = found.each_ref().map(|it| it.get(input).cloned());
            gradient = of_input[0].clone().unwrap_or(gradient);
            let parameters = [right?, from_ones?];
            all.push(Right { result: result.detach(), input: of_input, parameters });
        }
        all.reverse();
        Ok(all)
    }

    /// Runs the answer on one rank between right stages, or on all ranks.
    fn run(&self, answer: Answer, who: Option<usize>) -> Outcome<Vec<Found>> {
        let case = self.clone();
        let found = ranks::run(self.layers.len(), Sends::Buffered, move |rank| match who {
            Some(who) if who != rank.rank() => case.plays(rank, who),
            _ => case.answers(answer, rank),
        });
        let found = found.map_err(ranks::all_take_part(MESSAGES, false));
        let mut found = found
            .map_err(|finding| match who {
                Some(stage) => finding.at(format!("your stage {stage}")),
                None => finding,
            })?
            .concat();
        found.sort_by_key(|&(index, stage, thing, _)| (index, stage, thing));
        Ok(found)
    }

    /// All forward passes, then all backward passes.
    fn answers(&self, answer: Answer, rank: &Rank) -> Result<Vec<Found>, Error> {
        let (stage, mut found) = (rank.rank(), Vec::new());
        let network = self.network(stage, rank.device())?;
        let forward = |(batch, _): &(Batch, _)| {
            let arrives = Shape::from((batch.len(), self.widths[stage]));
            (answer.forward)(rank, &network, &arrives, batch)
        };
        let passed = self.passes.iter().map(forward).collect::<Result<Vec<_>, _>>()?;
        for (index, passed) in passed.iter().enumerate() {
            if self.is_last(stage) {
                found.push((index, stage, Thing::Loss, passed.result.detach()));
            }
            let gradients = (answer.backward)(rank, &network, passed)?.into_iter().enumerate();
            found.extend(gradients.map(|(at, it)| (index, stage, Thing::Gradient(at), it)));
        }
        Ok(found)
    }

    /// A right stage before or after the stage of the answer. Returns the tensors that the answer has sent.
    fn plays(&self, rank: &Rank, who: usize) -> Result<Vec<Found>, Error> {
        let (own, mut found) = (rank.rank(), Vec::new());
        let like = |right: &[Right]| right[own.min(who)].result.shape().clone();
        for (index, (_, right)) in self.passes.iter().enumerate() {
            if own + 1 == who {
                rank.send(who, &right[own].result)?;
            } else if own == who + 1 {
                let activation = rank.recv(who, &like(right), self.dtype)?;
                found.push((index, who, Thing::Activation, activation));
            }
        }
        for (index, (_, right)) in self.passes.iter().enumerate() {
            if own + 1 == who {
                let gradient = rank.recv(who, &like(right), self.dtype)?;
                found.push((index, who, Thing::InputGradient, gradient));
            } else if let Some(gradient) = right[own].input[0].as_ref().filter(|_| own == who + 1) {
                rank.send(who, gradient)?;
            }
        }
        Ok(found)
    }

    /// Compares a tensor of an answer with one device.
    fn compare(&self, (index, stage, thing, got): &Found) -> Outcome {
        let (batch, all) = &self.passes[*index];
        let Right { result, input, parameters } = &all[*stage];
        let (what, law, both) = match thing {
            Thing::Activation => {
                ("the activation that it sends".to_owned(), ACTIVATION, [Some(result), None])
            }
            Thing::Loss => ("the loss".to_owned(), LOSS, [Some(result), None]),
            Thing::InputGradient => (
                "the gradient that it sends".to_owned(),
                INPUT,
                input.each_ref().map(Option::as_ref),
            ),
            Thing::Gradient(at) => {
                let name = ["weight", "bias"].get(*at).unwrap_or(&"more");
                let both = parameters.each_ref().map(|it| it.get(*at));
                (format!("the gradient of dense{stage}.{name}"), GRADIENTS, both)
            }
        };
        let what = format!("micro-batch {index}, stage {stage}: {what}");
        let [Some(expected), from_ones] = both else {
            let count = parameters[0].len();
            return Err(Finding::new(what).expected(counted(count, "gradient"), "more").law(EACH));
        };
        let arrived = all.get(stage + 1).and_then(|next| next.input[0].clone());
        let known = [
            ("the gradient of the stage's result, which has arrived there", arrived),
            ("from ones in place of the gradient that has arrived", from_ones.cloned()),
            (
                "divided by the number of samples: the loss is a sum",
                (expected / batch.len() as f64).ok(),
            ),
        ];
        let is = |wrong: &Tensor| relative_difference(wrong, got).is_ok_and(|apart| apart < 1e-9);
        let guess = known.iter().find(|(_, wrong)| wrong.as_ref().is_some_and(is));
        Expectation::of(what)
            .law(law)
            .up_to(if self.dtype == DType::F64 { 1e-10 } else { 1e-4 })
            .guess(|_, _| guess.map(|(text, _)| format!("that is {text}")))
            .compare_tensors(expected, got)
    }

    /// Compares everything that the answer has made.
    fn judge(&self, answer: Answer, who: Option<usize>) -> Outcome {
        let found = self.run(answer, who)?;
        found.iter().try_for_each(|it| self.compare(it))?;
        let gradients = found.iter().filter(|it| matches!(it.2, Thing::Gradient(_))).count();
        let stages = who.map_or(0..self.layers.len(), |who| who..who + 1);
        let expected: usize = self
            .passes
            .iter()
            .flat_map(|(_, all)| &all[stages.clone()])
            .map(|it| it.parameters[0].len())
            .sum();
        same("the number of gradients", expected, gradients, EACH)
    }
}

/// Widths that differ, and widths that do not: an activation and its gradient then fit anywhere. A single stage is `[5, 7]`; then another element type.
/// Two micro-batches are on their way at a time.
fn cases() -> impl Iterator<Item = Case> {
    let cases: [(DType, &[usize]); 5] = [
        (DType::F64, &[6, 5, 4]),
        (DType::F64, &[5, 7]),
        (DType::F64, &[4, 4, 4, 4]),
        (DType::F64, &[3, 5, 7, 2]),
        (DType::F32, &[6, 5, 4]),
    ];
    let case = |(dtype, widths)| Case::new(dtype, widths, &[3, 2]).expect("one device computes");
    cases.into_iter().map(case)
}

fn a_stage_computes_and_sends(answer: Answer, case: &Case) -> Outcome {
    (0..case.layers.len()).try_for_each(|stage| case.judge(answer, Some(stage)))
}

fn stages_have_the_gradients_of_one_device(answer: Answer, case: &Case) -> Outcome {
    case.judge(answer, None)
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    let case = Case::new(DType::F64, &[4, 5, 6, 3], &[3])?;
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| case.answers(answer, rank))
}
