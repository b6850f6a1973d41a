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

/// The two passes of a stage, which the exercise explains.
#[derive(Clone, Copy)]
pub struct Answer {
    pub forward: fn(&Rank, &Network<Stage>, &Shape, &Batch) -> Result<Passed, Error>,
    pub backward: fn(&Rank, &Network<Stage>, &Passed) -> Result<Vec<Tensor>, Error>,
}

pub const LAWS: &[Law<Answer>] = laws![
    a_stage_computes_and_sends in CASES.map(Case::new),
    stages_have_the_gradients_of_one_device in CASES.map(Case::new),
    errors_are_passed_on => (3, Sends::Buffered)
        |answer, rank| Case::new((DType::F64, &[4, 5, 6, 3], &[3])).answers(answer, rank),
];

const MESSAGES: &str = "forward, a stage sends its activation to the next stage; backward, it sends the gradient of its input back";
const ACTIVATION: &str = "a stage sends the result of its layers";
const LOSS: &str = "the loss is the sum over the samples, on the last stage";
const BACK: &str = "the gradient of the input goes to the stage before, which starts there";
const GRADIENTS: &str = "a backward pass starts from the derivative of the loss by the stage's result, which the next stage sends";
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

/// The tensors that a stage makes of a micro-batch, on one device: right ones, those from ones in place of the gradient that
/// arrives, and that gradient.
#[derive(Clone)]
struct Made {
    right: Vec<Tensor>,
    from_ones: Vec<Tensor>,
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
    passes: Vec<(Batch, Vec<Made>)>,
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

    fn on_one_device(&self, batch: &Batch) -> Result<Vec<Made>> {
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
        for (network, input, result) in passed.iter().rev() {
            let made = |from: &Tensor| {
                let found = backward_from(result, from)?;
                let of_input = found.get(input).expect("the input has a gradient").clone();
                let gradients = network.parameter_gradients(&found)?;
                Ok::<_, candle_core::Error>([vec![result.detach(), of_input], gradients].concat())
            };
            let (right, from_ones) = (made(&arrived)?, made(&result.ones_like()?)?);
            let next = right[INPUT].clone();
            all.push(Made { right, from_ones, arrived });
            arrived = next;
        }
        all.reverse();
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
                    rank.send(who, &right[own].right[place])?;
                } else if before || behind {
                    let like = right[own.min(who)].right[RESULT].shape();
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
            let (batch, stages) = &self.passes[*index];
            let Made { right, from_ones, arrived } = &stages[*stage];
            let at = format!("micro-batch {index}, stage {stage}");
            demand(*place < right.len(), || {
                Finding::new(format!("{at}: more gradients than parameters")).law(EACH)
            })?;
            let (what, law) = match *place {
                RESULT if self.is_last(*stage) => ("the loss", LOSS),
                RESULT => ("the activation that it sends", ACTIVATION),
                INPUT => ("the gradient that it sends", BACK),
                GRADIENT => ("the gradient of its weight", GRADIENTS),
                _ => ("the gradient of its bias", GRADIENTS),
            };
            let mean = &right[*place] / batch.len() as f64;
            let ones = (ONES, Ok(from_ones[*place].clone()));
            Expectation::of(format!("{at}: {what}"))
                .law(law)
                .up_to(if self.sizes.0 == DType::F64 { 1e-10 } else { 1e-4 })
                .known(vec![(ARRIVED, Ok(arrived.clone())), ones, (MEAN, mean)])
                .compare_tensors(&right[*place], got)?;
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
