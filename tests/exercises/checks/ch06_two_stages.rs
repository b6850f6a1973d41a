//! Chapter 6, `book/src/ch06-model-parallel.md`: the forward and the backward pass of one stage.
//!
//! First the answer is one stage, between neighbours that send and expect the right tensors. So a message names the stage
//! that has made the mistake. Then the answer is all stages, and the gradients are compared with one device.

use candle_core::{Shape, Var};
use concise_wrapper::Network;
use datasets::Batch;
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

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    a_stage_computes_and_sends,
    stages_have_the_gradients_of_one_device,
    errors_are_passed_on
];

const MESSAGES: &str = "forward, a stage sends its activation to the next stage; backward, it sends the gradient of its input \
                        to the stage before";
const ACTIVATION: &str = "a stage sends the result of its layers";
const LOSS: &str = "the loss is the sum over the samples, on the last stage";
const INPUT: &str =
    "the gradient of the input goes to the stage before, which starts its backward pass there";
const PARAMETERS: &str = "a backward pass starts from the derivative of the loss by the stage's result, which the next stage \
                          sends; the last stage has the loss";

/// One micro-batch on one device, stage after stage.
#[derive(Clone)]
struct Pass {
    batch: Batch,
    /// The result of each stage: the activation that it sends, and at last the loss.
    results: Vec<Tensor>,
    /// The gradient of each stage's input. The first stage has none.
    inputs: Vec<Option<Tensor>>,
    /// The gradients of each stage's parameters, and from ones in place of the gradient that has arrived.
    parameters: Vec<[Vec<Tensor>; 2]>,
    /// The gradient of each stage's input from ones in place of the gradient that has arrived.
    from_ones: Vec<Option<Tensor>>,
}

/// A model with a layer for each stage, and micro-batches.
#[derive(Clone)]
struct Case {
    told: String,
    layers: Layers,
    widths: Vec<usize>,
    passes: Vec<Pass>,
}

/// What a rank has: of each micro-batch the result, the activation and the gradient that have arrived, and the gradients.
#[derive(Default)]
struct Found {
    result: Option<Tensor>,
    activation: Option<Tensor>,
    gradient: Option<Tensor>,
    parameters: Vec<Tensor>,
}

impl Case {
    fn new(widths: &[usize], batches: &[usize]) -> Result<Self> {
        let layers = Layers::dense(widths)?;
        let stages = layers.len();
        let told = format!("{}, widths {widths:?}, batches of {batches:?}", counted_stages(stages));
        let mut case = Self { told, layers, widths: widths.to_vec(), passes: Vec::new() };
        let networks = (0..stages).map(|it| case.network(it, &Device::Cpu));
        let networks = networks.collect::<Result<Vec<_>>>()?;
        for &samples in batches {
            let images = (whole_numbers(&[samples, widths[0]], samples)? / 3.0)?;
            let classes = widths[stages] as u32;
            let labels = (0..samples as u32).map(|it| (it * it + 1) % classes);
            let labels = Tensor::from_vec(labels.collect(), samples, &Device::Cpu)?;
            case.passes.push(Pass::new(Batch { images, labels }, &networks)?);
        }
        Ok(case)
    }

    fn network(&self, stage: usize, device: &Device) -> Result<Network<Stage>> {
        self.layers.build(stage..stage + 1, 1, DType::F64, device)
    }

    fn stages(&self) -> usize {
        self.layers.len()
    }

    /// Runs the answer on the ranks of `who`. The other ranks send what the right stages send, and receive.
    fn run(&self, answer: Answer, who: Vec<usize>) -> Vec<Vec<Found>> {
        let case = self.clone();
        let ours = format!(
            "{}: ",
            if who.len() == 1 { format!("stage {}", who[0]) } else { "all stages".to_owned() }
        );
        let outcome = ranks::attempt(self.stages(), Sends::Buffered, move |rank| {
            let own = rank.rank();
            if who.contains(&own) { case.answers(answer, rank) } else { case.plays(rank, &who) }
        });
        outcome.unwrap_or_else(|failure| {
            let what = format!("{}: {ours}no result", self.told);
            ranks::fail(&what, "a result on every rank", &failure, MESSAGES, false)
        })
    }

    /// All forward passes, then all backward passes.
    fn answers(&self, answer: Answer, rank: &Rank) -> Result<Vec<Found>, Error> {
        let stage = rank.rank();
        let network = self.network(stage, rank.device())?;
        let forward = |pass: &Pass| {
            let arrives = Shape::from((pass.batch.len(), self.widths[stage]));
            (answer.forward)(rank, &network, &arrives, &pass.batch)
        };
        let passed = self.passes.iter().map(forward).collect::<Result<Vec<_>, _>>()?;
        let backward = |passed: &Passed| {
            let parameters = (answer.backward)(rank, &network, passed)?;
            Ok(Found { result: Some(passed.result.detach()), parameters, ..Found::default() })
        };
        passed.iter().map(backward).collect()
    }

    /// A neighbour of the stage that the answer is.
    fn plays(&self, rank: &Rank, who: &[usize]) -> Result<Vec<Found>, Error> {
        let (stage, mut all) = (rank.rank(), Vec::new());
        for pass in &self.passes {
            let mut found = Found::default();
            if who.contains(&(stage + 1)) {
                rank.send(stage + 1, &pass.results[stage])?;
            } else if stage > 0 && who.contains(&(stage - 1)) {
                let like = &pass.results[stage - 1];
                found.activation = Some(rank.recv(stage - 1, like.shape(), DType::F64)?);
            }
            all.push(found);
        }
        for (pass, found) in self.passes.iter().zip(&mut all) {
            if who.contains(&(stage + 1)) {
                let shape = pass.results[stage].shape();
                found.gradient = Some(rank.recv(stage + 1, shape, DType::F64)?);
            } else if let Some(gradient) =
                pass.inputs[stage].as_ref().filter(|_| found.activation.is_some())
            {
                rank.send(stage - 1, gradient)?;
            }
        }
        Ok(all)
    }

    fn compare(
        &self,
        what: &str,
        law: &str,
        [expected, got]: [&Tensor; 2],
        known: &[(&str, Option<Tensor>)],
    ) {
        let guess =
            known.iter().find(|(_, wrong)| wrong.as_ref().is_some_and(|wrong| same(wrong, got)));
        Expectation::of(format!("{}: {what}", self.told))
            .law(law)
            .up_to(1e-10)
            .guess(|_, _| guess.map(|(text, _)| format!("that is {text}")))
            .check_tensor(expected, got);
    }

    /// The answer is one stage.
    fn check_stage(&self, answer: Answer, stage: usize) {
        let found = self.run(answer, vec![stage]);
        for (index, pass) in self.passes.iter().enumerate() {
            let of = |what: &str| format!("micro-batch {index}: {what} stage {stage}");
            let samples = pass.batch.len() as f64;
            if let Some(activation) =
                found.get(stage + 1).and_then(|it| it[index].activation.as_ref())
            {
                self.compare(
                    &of("the activation that arrives from"),
                    ACTIVATION,
                    [&pass.results[stage], activation],
                    &[],
                );
            }
            let own = &found[stage][index];
            if let Some(loss) = own.result.as_ref().filter(|_| stage + 1 == self.stages()) {
                let known = [("the mean over the samples", (&pass.results[stage] / samples).ok())];
                self.compare(&of("the loss of"), LOSS, [&pass.results[stage], loss], &known);
            }
            let before = stage.checked_sub(1).and_then(|it| found[it][index].gradient.as_ref());
            if let Some((expected, got)) = pass.inputs[stage].as_ref().zip(before) {
                let known = [
                    (
                        "the gradient of the stage's result, which has arrived there",
                        pass.inputs.get(stage + 1).cloned().flatten(),
                    ),
                    (
                        "from ones in place of the gradient that has arrived",
                        pass.from_ones[stage].clone(),
                    ),
                    (
                        "divided by the number of samples: the loss is a sum",
                        (expected / samples).ok(),
                    ),
                ];
                self.compare(&of("the gradient that arrives from"), INPUT, [expected, got], &known);
            }
            self.compare_parameters(index, stage, &own.parameters);
        }
    }

    fn compare_parameters(&self, index: usize, stage: usize, got: &[Tensor]) {
        let pass = &self.passes[index];
        let [expected, from_ones] = &pass.parameters[stage];
        let what = format!("{}: micro-batch {index}, stage {stage}: gradients", self.told);
        if got.len() != expected.len() {
            let law = "a gradient for each parameter of the stage, in the order of its parameters";
            fail(
                &what,
                &format!("{} tensors", expected.len()),
                &format!("{} tensors", got.len()),
                law,
            );
        }
        for (at, (expected, got)) in expected.iter().zip(got).enumerate() {
            let known = [
                ("from ones in place of the gradient that has arrived", from_ones.get(at).cloned()),
                (
                    "divided by the number of samples: the loss is a sum",
                    (expected / pass.batch.len() as f64).ok(),
                ),
            ];
            let name = ["weight", "bias"][at];
            self.compare(
                &format!("micro-batch {index}: the gradient of dense{stage}.{name}"),
                PARAMETERS,
                [expected, got],
                &known,
            );
        }
    }
}

impl Pass {
    fn new(batch: Batch, networks: &[Network<Stage>]) -> Result<Self> {
        let (last, mut x, mut results) = (networks.len() - 1, batch.images.clone(), Vec::new());
        let mut passed = Vec::new();
        for (stage, network) in networks.iter().enumerate() {
            let input = Var::from_tensor(&x.detach())?;
            let mut result = network.forward_training(&input)?;
            if stage == last {
                result = cross_entropy(&result, &batch.labels)?;
            }
            x = result.clone();
            results.push(result.detach());
            passed.push((input, result));
        }
        let (mut inputs, mut parameters) = (vec![None; last + 1], Vec::new());
        let mut from_ones = inputs.clone();
        let mut gradient = x.ones_like()?;
        for (stage, (input, result)) in passed.iter().enumerate().rev() {
            let found = backward_from(result, &gradient)?;
            let ones = backward_from(result, &result.ones_like()?)?;
            parameters.push([&found, &ones].map(|it| networks[stage].parameter_gradients(it)));
            if let Some(of_input) = found.get(input).filter(|_| stage > 0) {
                gradient = of_input.detach();
                inputs[stage] = Some(gradient.clone());
                from_ones[stage] = ones.get(input).filter(|_| stage < last).cloned();
            }
        }
        let parameters = parameters.into_iter().rev().map(|[one, other]| Ok([one?, other?]));
        let parameters = parameters.collect::<Result<_>>()?;
        Ok(Self { batch, results, inputs, parameters, from_ones })
    }
}

fn counted_stages(stages: usize) -> String {
    if stages == 1 { "1 stage".to_owned() } else { format!("{stages} stages") }
}

fn same(one: &Tensor, other: &Tensor) -> bool {
    ops::difference::relative_difference(one, other).is_ok_and(|apart| apart < 1e-9)
}

/// Widths that differ, and widths that do not: an activation and its gradient then fit anywhere. Two micro-batches are on
/// their way at a time.
fn cases() -> Result<Vec<Case>> {
    [&[6, 5, 4][..], &[5, 7], &[4, 4, 4, 4], &[3, 5, 7, 2]]
        .into_iter()
        .map(|widths| Case::new(widths, &[3, 2]))
        .collect()
}

fn a_stage_computes_and_sends(answer: Answer) -> Result<()> {
    for case in cases()? {
        (0..case.stages()).for_each(|stage| case.check_stage(answer, stage));
    }
    Ok(())
}

fn stages_have_the_gradients_of_one_device(answer: Answer) -> Result<()> {
    for case in cases()? {
        let found = case.run(answer, (0..case.stages()).collect());
        for (stage, found) in found.iter().enumerate() {
            found
                .iter()
                .enumerate()
                .for_each(|(index, it)| case.compare_parameters(index, stage, &it.parameters));
        }
    }
    Ok(())
}

fn errors_are_passed_on(answer: Answer) -> Result<()> {
    let case = Case::new(&[4, 5, 6, 3], &[3])?;
    let what = format!("{}: both passes", case.told);
    ranks::errors_are_passed_on(&what, 3, Sends::Buffered, move |rank| {
        case.answers(answer, rank).map(drop)
    });
    Ok(())
}
