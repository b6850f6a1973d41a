//! Chapter 6, `book/src/ch06-model-parallel.md`: the forward and the backward pass of one stage.
//!
//! First the answer is one stage, between neighbours that send and receive the right tensors. So a message names the stage
//! that has made the mistake. Then the answer is all stages, and the gradients are compared with one device.

use concise_wrapper::Network;
use model_parallel::layers::{Layers, Stage};
use ops::backward::backward_from;
use ops::cross_entropy;

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

pub const LAWS: &[Law<Answer>] = laws![
    a_stage_computes_and_sends in CASES.map(Case::new),
    stages_have_the_gradients_of_one_device in CASES.map(Case::new),
    errors_are_passed_on => (3, Sends::Buffered)
        |answer, rank| Case::new((DType::F64, &[4, 5, 6, 3], &[3])).answers(answer, rank),
];

const MESSAGES: &str = "forward, a stage sends its activation to the next stage; backward, it sends the gradient of its input \
                        to the stage before";
const ACTIVATION: &str = "a stage sends the result of its layers";
const LOSS: &str = "the loss is the sum over the samples, on the last stage";
const BACK: &str = "the gradient of the input goes to the stage before, which starts there";
const GRADIENTS: &str = "a backward pass starts from the derivative of the loss by the stage's result, which the next stage \
                         sends; the last stage has the loss";
const ARRIVED: &str = "the gradient of the stage's result, which has arrived there";
const ONES: &str = "from ones in place of the gradient that has arrived";
const MEAN: &str = "divided by the number of samples: the loss is a sum";
const EACH: &str = "a gradient for each parameter of the stage, in the order of its parameters";

/// Element type, widths and micro-batches. Widths that differ, and widths that do not: an activation and its gradient then fit
/// anywhere. A single stage is `[5, 7]`. Two micro-batches are on their way at a time.
type Sizes = (DType, &'static [usize], &'static [usize]);
const CASES: [Sizes; 5] = [
    (DType::F64, &[6, 5, 4], &[3, 2]),
    (DType::F64, &[5, 7], &[3, 2]),
    (DType::F64, &[4, 4, 4, 4], &[3, 2]),
    (DType::F64, &[3, 5, 7, 2], &[3, 2]),
    (DType::F32, &[6, 5, 4], &[3, 2]),
];

/// A tensor of an answer: the micro-batch, the stage, the place among the stage's right tensors, and the tensor.
type Found = (usize, usize, usize, Tensor);

/// A tensor that a stage makes of a micro-batch, on one device: right, from ones in place of the gradient that arrives, and that
/// gradient.
#[derive(Clone)]
struct Thing {
    what: String,
    law: &'static str,
    right: Tensor,
    from_ones: Tensor,
    arrived: Tensor,
}

/// The places of the activation or the loss, of the gradient of the input, and of the first parameter's gradient.
const RESULT: usize = 0;
const INPUT: usize = 1;
const GRADIENT: usize = 2;

/// A model with a layer for each stage, and micro-batches with the right tensors of each stage.
#[derive(Clone)]
struct Case {
    sizes: Sizes,
    layers: Layers,
    passes: Vec<(Batch, Vec<Vec<Thing>>)>,
}

shown!(Case { sizes: (dtype, widths, sizes), layers, .. } =>
    "{}, widths {widths:?}, micro-batches of {sizes:?}, {dtype:?}", counted(layers.len(), "stage"));

impl Case {
    fn new(sizes: Sizes) -> Self {
        let (dtype, widths, batches) = sizes;
        let computed = || {
            let layers = Layers::dense(widths)?;
            let mut case = Self { sizes, layers, passes: Vec::new() };
            for &samples in batches {
                let images = (whole_numbers(&[samples, widths[0]], samples)? / 3.0)?;
                let classes = widths[case.layers.len()] as u32;
                let labels = (0..samples as u32).map(|it| (it * it + 1) % classes).collect();
                let labels = Tensor::from_vec(labels, samples, &Device::Cpu)?;
                let batch = Batch { images: images.to_dtype(dtype)?, labels };
                let right = case.on_one_device(&batch)?;
                case.passes.push((batch, right));
            }
            Ok::<_, candle_core::Error>(case)
        };
        computed().expect("one device computes")
    }

    fn network(&self, stage: usize, device: &Device) -> Result<Network<Stage>> {
        self.layers.build(stage..stage + 1, 1, self.sizes.0, device)
    }

    fn is_last(&self, stage: usize) -> bool {
        stage + 1 == self.layers.len()
    }

    fn on_one_device(&self, batch: &Batch) -> Result<Vec<Vec<Thing>>> {
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
        let (mut arrived, mut all) = (x.ones_like()?, Vec::new());
        for (stage, (network, input, result)) in passed.iter().enumerate().rev() {
            let (what, law) = match self.is_last(stage) {
                true => ("the loss", LOSS),
                false => ("the activation that it sends", ACTIVATION),
            };
            let here = arrived.clone();
            let thing = |what: &str, law, [right, from_ones]: [&Tensor; 2]| {
                let [right, from_ones] = [right, from_ones].map(Tensor::detach);
                Thing { what: what.to_owned(), law, right, from_ones, arrived: here.clone() }
            };
            let mut things = vec![thing(what, law, [result, result])];
            let [right, ones] =
                [&arrived, &result.ones_like()?].map(|from| backward_from(result, from));
            let (right, ones) = (right?, ones?);
            let both = [&right, &ones].map(|it| it.get(input).expect("the input has a gradient"));
            arrived = both[0].clone();
            things.push(thing("the gradient that it sends", BACK, both));
            let [right, ones] = [&right, &ones].map(|it| network.parameter_gradients(it));
            for ((right, ones), name) in right?.iter().zip(&ones?).zip(["weight", "bias"]) {
                let what = format!("the gradient of dense{stage}.{name}");
                things.push(thing(&what, GRADIENTS, [right, ones]));
            }
            all.insert(0, things);
        }
        Ok(all)
    }

    /// All forward passes, then all backward passes.
    fn answers(&self, answer: Answer, rank: &Rank) -> Result<Vec<Found>, Error> {
        let (stage, mut found) = (rank.rank(), Vec::new());
        let network = self.network(stage, rank.device())?;
        let forward = |(batch, _): &(Batch, _)| {
            let arrives = Shape::from((batch.len(), self.sizes.1[stage]));
            (answer.forward)(rank, &network, &arrives, batch)
        };
        let passed = self.passes.iter().map(forward).collect::<Result<Vec<_>, _>>()?;
        for (index, passed) in passed.iter().enumerate() {
            if self.is_last(stage) {
                found.push((index, stage, RESULT, passed.result.detach()));
            }
            let gradients = (answer.backward)(rank, &network, passed)?.into_iter();
            found.extend(gradients.zip(GRADIENT..).map(|(it, place)| (index, stage, place, it)));
        }
        Ok(found)
    }

    /// A right stage before or after the stage of the answer. Returns the tensors that the answer has sent.
    fn plays(&self, rank: &Rank, who: usize) -> Result<Vec<Found>, Error> {
        let (own, mut found) = (rank.rank(), Vec::new());
        let (before, behind) = (own + 1 == who, own == who + 1);
        // The neighbour sends in one direction, and receives in the other.
        for (place, sends) in [(RESULT, before), (INPUT, behind)] {
            for (index, (_, right)) in self.passes.iter().enumerate() {
                if sends {
                    rank.send(who, &right[own][place].right)?;
                } else if before || behind {
                    let like = right[own.min(who)][RESULT].right.shape();
                    found.push((index, who, place, rank.recv(who, like, self.sizes.0)?));
                }
            }
        }
        Ok(found)
    }

    /// Judges everything that the answer makes on one rank between right stages, or on all ranks.
    fn judge(&self, answer: Answer, who: Option<usize>) -> Outcome {
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
        found.sort_by_key(|&(index, stage, place, _)| (index, stage, place));
        for (index, stage, place, got) in &found {
            let (batch, right) = &self.passes[*index];
            let at = format!("micro-batch {index}, stage {stage}");
            let Some(Thing { what, law, right, from_ones, arrived }) = right[*stage].get(*place)
            else {
                return Err(Finding::new(format!("{at}: more gradients than parameters")).law(EACH));
            };
            let (arrived, from_ones) = (Ok(arrived.clone()), Ok(from_ones.clone()));
            let mean = right / batch.len() as f64;
            Expectation::of(format!("{at}: {what}"))
                .law(*law)
                .up_to(if self.sizes.0 == DType::F64 { 1e-10 } else { 1e-4 })
                .known(vec![(ARRIVED, arrived), (ONES, from_ones), (MEAN, mean)])
                .compare_tensors(right, got)?;
        }
        let gradients = found.iter().filter(|(_, _, place, _)| *place >= GRADIENT).count();
        let stages = who.map_or(self.layers.len(), |_| 1);
        let expected = 2 * stages * self.passes.len();
        same("the number of gradients", expected, gradients, EACH)
    }
}

fn a_stage_computes_and_sends(answer: Answer, case: &Case) -> Outcome {
    (0..case.layers.len()).try_for_each(|stage| case.judge(answer, Some(stage)))
}

fn stages_have_the_gradients_of_one_device(answer: Answer, case: &Case) -> Outcome {
    case.judge(answer, None)
}
