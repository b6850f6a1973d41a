//! Where to cut a list of layers into the parts of a pipeline, so that the largest part is as small as possible.
//!
//! Let best(s, i) be the largest part when layers i and later are cut best into s parts. The first of these
//! parts ends before some layer j, and the rest is a smaller question of the same kind:
//!
//! ```text
//! best(1, i) = cost(i..n)
//! best(s, i) = min over j of max(cost(i..j), best(s − 1, j))
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Device, ModuleT, Result as TensorResult, Tensor, Var};
use concise_wrapper::optimizer::Optimizer;
use concise_wrapper::{Network, Precision};
use ops::backward::{backward_from, backward_in_halves};
use ops::size_in_bytes;
use params_and_allreduce::communicator::SharedCommunicator;

use crate::Refused;
use crate::bytes::{Cost, activations};
use crate::check::Checked;
use crate::layers::{Layers, Silent};

// ANCHOR: cut
/// Cuts layers of these costs into stages with the smallest largest stage.
///
/// Costs have any unit, usually seconds. Every stage has at least one layer. Of equally good cuts the function returns
/// the one whose first stage has the fewest layers, then whose second stage has, and so on: in a pipeline the first
/// stages keep the most activations.
///
/// ```
/// use model_parallel::partition::cut;
///
/// assert_eq!(cut(&[3.0, 3.0, 3.0, 3.0, 3.0, 1.0], 3)?, [0..2, 2..4, 4..6]);
/// # Ok::<_, model_parallel::Refused>(())
/// ```
///
/// Fails when there are fewer layers than stages or no stages, or a cost is negative or not a finite number.
pub fn cut(costs: &[f64], stages: usize) -> Result<Vec<Range<usize>>, Refused> {
    let layers = costs.len();
    if stages == 0 || stages > layers {
        return Err(Refused(format!(
            "{layers} layers cannot be cut into {stages} stages: take 1 to {layers} stages, each with a layer"
        )));
    }
    if let Some(layer) = costs.iter().position(|cost| !cost.is_finite() || *cost < 0.0) {
        let cost = costs[layer];
        let text =
            format!("layer {layer} costs {cost}: a cost is a finite number, and not negative");
        return Err(Refused(text));
    }
    // best[s][i]. Without a stage there may be no layer.
    let mut best = vec![vec![f64::INFINITY; layers + 1]; stages + 1];
    best[0][layers] = 0.0;
    for s in 1..=stages {
        for i in 0..layers {
            let largest = ends(costs, i).map(|(j, cost)| cost.max(best[s - 1][j]));
            best[s][i] = largest.fold(f64::INFINITY, f64::min);
        }
    }
    let goal = best[stages][0];
    let mut begin = 0;
    let mut stage = |rest: usize| {
        let good = |&(j, cost): &(usize, f64)| cost.max(best[rest][j]) <= goal;
        let end = ends(costs, begin).find(good).map_or(layers, |(j, _)| j);
        std::mem::replace(&mut begin, end)..end
    };
    Ok((0..stages).rev().map(&mut stage).collect())
}

/// The possible ends of a stage that begins at layer `i`, each with the cost of the stage.
fn ends(costs: &[f64], i: usize) -> impl Iterator<Item = (usize, f64)> {
    let sums = costs[i..].iter().scan(0.0, |sum, cost| {
        *sum += cost;
        Some(*sum)
    });
    (i + 1..).zip(sums)
}
// ANCHOR_END: cut

// ANCHOR: by_hand
/// Cuts so many layers at `begins`, the layers at which a new stage begins: 3 and 7 make stages of layers 0..3, 3..7,
/// and 7 to the end. Fails when a stage would have no layer.
pub fn cut_by_hand(begins: &[usize], layers: usize) -> Result<Vec<Range<usize>>, Refused> {
    let borders = [&[0], begins, &[layers]].concat();
    let stages: Vec<Range<usize>> = borders.windows(2).map(|pair| pair[0]..pair[1]).collect();
    match stages.iter().any(Range::is_empty) {
        true => Err(Refused(format!(
            "stages begin at ever higher layers, from 1 to {}",
            layers.saturating_sub(1)
        ))),
        false => Ok(stages),
    }
}
// ANCHOR_END: by_hand

// ANCHOR: measure
/// How to measure: the shape of one sample, such as `[1, 28, 28]` or `[64]` tokens, the samples of a micro-batch, the
/// number of tries, and the number of ranks that share each layer. Of all tries, the least counts.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the lines above explain the fields")]
pub struct Setting<'a> {
    pub sample: &'a [usize],
    pub rows: usize,
    pub tries: usize,
    pub parts: usize,
}

/// Every one of so many layers as a unit.
pub fn each(layers: usize) -> Vec<Range<usize>> {
    (0..layers).map(|layer| layer..layer + 1).collect()
}

/// Measures the cost of units, which are runs of layers from the first layer on: seconds of each pass and of the
/// update, and bytes. There is one device, so the time of the sum over replicas is the time of one addition of the
/// gradients. With parts, the costs are those of the first part, and messages take no time.
///
/// The function builds one unit at a time, so the whole model need not fit on the device. The optimizer makes no
/// change: its rate is 0. Call it on the threads of the device ([`ComputeDevice::run`](devices::ComputeDevice::run)).
/// Fails when a layer cannot be made, or does not fit the output of the layer before.
pub fn measure(
    layers: &Layers,
    units: &[Range<usize>],
    setting: Setting<'_>,
    precision: impl Into<Precision>,
    device: &Device,
    optimizer: &mut dyn Optimizer,
) -> TensorResult<Vec<Cost>> {
    let (precision, Setting { sample, rows, tries, parts }) = (precision.into(), setting);
    let group: SharedCommunicator = Arc::new(Silent { parts, device: device.clone() });
    let shape = [&[rows], sample].concat();
    let mut x = match layers.takes_tokens() {
        true => Tensor::zeros(shape, DType::U32, device)?,
        false => Tensor::randn(0f32, 1.0, shape, device)?.to_dtype(precision.weights())?,
    };
    let of_unit = |unit: &Range<usize>| {
        let network = layers.build_for(unit.clone(), 0, precision, device, &group)?.0;
        let (output, mut least) = once(&network, &x, unit.start == 0, optimizer)?;
        for _ in 1..tries {
            least = least.with(&once(&network, &x, unit.start == 0, optimizer)?.1, f64::min);
        }
        x = output;
        Ok(least)
    };
    units.iter().map(of_unit).collect()
}

/// The result of a unit, and its cost. The first unit's input is data, and needs no gradient.
fn once<M: ModuleT>(
    unit: &Network<M>,
    x: &Tensor,
    first: bool,
    optimizer: &mut dyn Optimizer,
) -> TensorResult<(Tensor, Cost)> {
    let (input, weights) =
        (if first { x.clone() } else { Var::from_tensor(x)?.into_inner() }, unit.weights());
    unit.device().synchronize()?;
    let mut start = Instant::now();
    let mut seconds = || -> TensorResult<f64> {
        unit.device().synchronize()?;
        let end = Instant::now();
        Ok((end - std::mem::replace(&mut start, end)).as_secs_f64())
    };
    let output = unit.forward_training(&input)?;
    let forward = seconds()?;
    let gradient = output.ones_like()?;
    let activations = activations(&output, &input, weights);
    seconds()?;
    let gradients = unit.parameter_gradients(&backward_from(&output, &gradient)?)?;
    let backward = seconds()?;
    gradients.iter().try_for_each(|it| ops::sum(it, it).map(drop))?;
    let all_reduce = seconds()?;
    if !gradients.is_empty() {
        optimizer.step(weights, &gradients, 0.0, x.dim(0)?)?;
    }
    let update = seconds()?;
    let (mut found, second) = backward_in_halves(&output, &gradient)?;
    let backward_input = seconds()?;
    let of_input = if first { 0 } else { size_in_bytes(&input) };
    let halves = (found.bytes() + second.bytes()).saturating_sub(of_input);
    seconds()?;
    found.extend(second.run()?);
    unit.parameter_gradients(&found)?;
    let backward_weight = seconds()?;
    let state = optimizer.state(weights)?;
    let cost = Cost {
        forward,
        backward,
        backward_input,
        backward_weight,
        all_reduce,
        handling: 0.0,
        update,
        parameters: weights.parameter_bytes(),
        optimizer: state.iter().map(|(_, tensor)| size_in_bytes(tensor)).sum(),
        activations,
        halves,
        input: size_in_bytes(&input),
        output: size_in_bytes(&output),
    };
    Ok((output.detach(), cost))
}
// ANCHOR_END: measure

// ANCHOR: shorten
/// Moves the borders of a cut, a layer at a time, as long as that makes the predicted step shorter.
///
/// [`cut`] makes the largest part small. Under an interleaved schedule a device has several parts, and their sum
/// counts. `layers` has the cost of every layer. Fails as [`Checked::simulate`] does. Panics when the cut has other
/// layers.
pub fn shorten(
    checked: &Checked,
    layers: &[Cost],
    cut: Vec<Range<usize>>,
) -> Result<Vec<Range<usize>>, Refused> {
    let seconds =
        |cut: &[Range<usize>]| Ok(checked.simulate(&Cost::of_parts(layers, cut), 0.0)?.makespan());
    let (mut shortest, mut best) = (seconds(&cut)?, cut);
    loop {
        let cut = best.clone();
        for border in 1..cut.len() {
            for begin in [cut[border].start - 1, cut[border].start + 1] {
                let mut moved = cut.clone();
                (moved[border - 1].end, moved[border].start) = (begin, begin);
                if moved.iter().any(Range::is_empty) {
                    continue;
                }
                let seconds = seconds(&moved)?;
                if seconds < shortest {
                    (shortest, best) = (seconds, moved);
                }
            }
        }
        if best == cut {
            return Ok(best);
        }
    }
}
// ANCHOR_END: shorten

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use concise_wrapper::optimizer::{Momentum, Sgd};
    use datasets::SAMPLE;

    use super::*;
    use crate::{Kind, UNBOUNDED, check};

    fn largest(costs: &[f64], ranges: &[Range<usize>]) -> f64 {
        ranges.iter().map(|range| costs[range.clone()].iter().sum()).fold(0.0, f64::max)
    }

    /// All cuts, in the order of the first stage's length, then the second's, …
    fn all(layers: Range<usize>, stages: usize) -> Vec<Vec<Range<usize>>> {
        if stages == 1 {
            return vec![vec![layers]];
        }
        let of_first = |end| {
            all(end..layers.end, stages - 1).into_iter().map(move |mut cut| {
                cut.insert(0, layers.start..end);
                cut
            })
        };
        (layers.start + 1..layers.end).flat_map(of_first).collect()
    }

    /// Goes on until a stage has its share, and leaves a layer for each stage that comes.
    fn by_share(costs: &[f64], stages: usize) -> Vec<Range<usize>> {
        let share = costs.iter().sum::<f64>() / stages as f64;
        let mut ranges = Vec::new();
        let mut begin = 0;
        for rest in (1..stages).rev() {
            let fits = |&(j, cost): &(usize, f64)| cost <= share && j + rest <= costs.len();
            let end = ends(costs, begin).take_while(fits).last().map_or(begin + 1, |(j, _)| j);
            ranges.push(begin..end);
            begin = end;
        }
        ranges.push(begin..costs.len());
        ranges
    }

    #[test]
    fn no_cut_is_better_and_of_equals_it_is_the_first() {
        let mut cuts = 0;
        for layers in 1..=6usize {
            for number in 0..4usize.pow(layers as u32) {
                let cost = |i| (number / 4usize.pow(i as u32) % 4) as f64;
                let costs: Vec<f64> = (0..layers).map(cost).collect();
                for stages in 1..=layers {
                    let all = all(0..layers, stages);
                    let smallest =
                        all.iter().map(|cut| largest(&costs, cut)).fold(f64::INFINITY, f64::min);
                    let first = all.iter().find(|cut| largest(&costs, cut) == smallest);
                    assert_eq!(Some(&cut(&costs, stages).unwrap()), first, "{costs:?} / {stages}");
                    cuts += 1;
                }
            }
        }
        assert_eq!(cuts, 4 + 2 * 16 + 3 * 64 + 4 * 256 + 5 * 1024 + 6 * 4096);
    }

    #[test]
    fn costs_whose_sums_round_have_a_best_cut_too() {
        let costs: Vec<f64> = (1..12).map(|i| 0.1 * f64::from(i * 7 % 5) + 1e-3).collect();
        for stages in 1..=11 {
            let smallest =
                all(0..11, stages).iter().map(|cut| largest(&costs, cut)).reduce(f64::min);
            assert_eq!(Some(largest(&costs, &cut(&costs, stages).unwrap())), smallest);
        }
    }

    #[test]
    fn taking_a_fair_share_in_turn_is_worse() {
        let costs = [3.0, 3.0, 3.0, 3.0, 3.0, 1.0];
        assert_eq!(by_share(&costs, 3), [0..1, 1..2, 2..6]);
        assert_eq!(largest(&costs, &by_share(&costs, 3)), 10.0);
        assert_eq!(largest(&costs, &cut(&costs, 3).unwrap()), 6.0);
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        for (costs, stages) in [(&[1.0, 2.0][..], 3), (&[1.0, 2.0], 0), (&[], 1)] {
            let told = cut(costs, stages).unwrap_err().to_string();
            let expected = format!("{} layers cannot be cut into {stages} stages", costs.len());
            assert!(told.starts_with(&expected), "{told}");
        }
        for cost in [-1.0, f64::NAN, f64::INFINITY] {
            let told = cut(&[1.0, cost], 1).unwrap_err().to_string();
            assert!(told.starts_with(&format!("layer 1 costs {cost}: ")), "{told}");
        }
    }

    #[test]
    fn a_cut_names_the_first_layer_of_each_stage_but_the_first() {
        assert_eq!(cut_by_hand(&[1, 4], 5).unwrap(), [0..1, 1..4, 4..5]);
        assert_eq!(cut_by_hand(&[], 5).unwrap().first(), Some(&(0..5)));
    }

    #[test]
    fn cuts_that_make_no_sense_are_refused() {
        for begins in [&[0][..], &[0, 3], &[3, 3], &[7, 3], &[9, 3], &[3, 9], &[12]] {
            let told = cut_by_hand(begins, 9).unwrap_err().to_string();
            assert_eq!(told, "stages begin at ever higher layers, from 1 to 8", "{begins:?}");
        }
    }

    /// The costs of a model whose units are its layers.
    fn costs(layers: &Layers, sample: &[usize], rows: usize) -> TensorResult<Vec<Cost>> {
        let (setting, mut sgd) =
            (Setting { sample, rows, tries: 3, parts: 1 }, Sgd::new(Momentum::default()));
        measure(layers, &each(layers.len()), setting, DType::F32, &Device::Cpu, &mut sgd)
    }

    #[test]
    fn lenets_convolutions_cost_more_than_flattening() {
        let layers = Layers::lenet();
        let costs = costs(&layers, &SAMPLE, 8).unwrap();
        assert_eq!(costs.len(), 5);
        let totals: Vec<f64> = costs.iter().map(Cost::total).collect();
        assert!(totals[1] > totals[2], "{costs:?}");
        assert_eq!(cut(&totals, 2).unwrap().len(), 2);
    }

    #[test]
    fn of_several_tries_the_least_counts_and_a_part_costs_what_its_layers_cost() {
        let cost = |times: [f64; 4]| {
            let [forward, backward, backward_input, backward_weight] = times;
            Cost { forward, backward, backward_input, backward_weight, ..Cost::default() }
        };
        let (one, other) = (cost([1.0, 4.0, 2.0, 1.0]), cost([2.0, 3.0, 1.0, 2.0]));
        assert_eq!(one.with(&other, f64::min), cost([1.0, 3.0, 1.0, 1.0]));
        assert_eq!(one.total(), 5.0);
        let layers: Vec<Cost> =
            (1..=4).map(|n| cost([1.0, 10.0, 5.0, 7.0].map(|each| each * f64::from(n)))).collect();
        let parts = [cost([1.0, 10.0, 5.0, 7.0]), cost([9.0, 90.0, 45.0, 63.0])];
        assert_eq!(Cost::of_parts(&layers, &[0..1, 1..4]), parts);
    }

    #[test]
    fn a_sample_that_does_not_fit_is_refused() {
        let layers = Layers::dense(&[6, 4, 2]).unwrap();
        assert!(costs(&layers, &[5], 2).is_err());
    }

    /// Layers whose passes take so long.
    fn layers(seconds: &[f64]) -> Vec<Cost> {
        let cost = |&it: &f64| Cost { forward: it, backward: 2.0 * it, ..Cost::default() };
        seconds.iter().map(cost).collect()
    }

    #[test]
    fn devices_of_interleaved_chunks_get_equal_work() {
        let schedule = Kind::Interleaved { chunks: 2 }.schedule(2, 8).expect("a schedule");
        let checked = check(schedule, UNBOUNDED).expect("a schedule without mistakes");
        // The default run's layers. The first stage gets 66 of 101, although no chunk can be smaller than 34.
        let layers = layers(&[15.0, 17.0, 17.0, 17.0, 17.0, 17.0, 1.0]);
        let uneven = vec![0..2, 2..3, 3..5, 5..7];
        let cut = shorten(&checked, &layers, uneven.clone()).expect("a cut");
        let of = |part: usize| layers[cut[part].clone()].iter().map(|it| it.forward).sum::<f64>();
        assert_eq!([of(0) + of(2), of(1) + of(3)], [49.0, 52.0], "{cut:?}");
        // A cut that no step makes shorter stays.
        assert_eq!(shorten(&checked, &layers, cut.clone()).expect("a cut"), cut);
        let seconds = |cut: &[Range<usize>]| {
            checked.simulate(&Cost::of_parts(&layers, cut), 0.0).expect("a step").makespan()
        };
        assert!(seconds(&cut) < 0.9 * seconds(&uneven), "{} {}", seconds(&cut), seconds(&uneven));
    }

    #[test]
    fn a_part_keeps_a_layer() {
        let checked = check(Kind::OneFOneB.schedule(2, 4).expect("a schedule"), UNBOUNDED);
        let checked = checked.expect("a schedule without mistakes");
        // The last layer is nearly everything.
        let layers = layers(&[1.0, 1.0, 1.0, 90.0]);
        let cut = shorten(&checked, &layers, vec![0..1, 1..4]).expect("a cut");
        assert_eq!(cut, super::cut(&[1.0, 1.0, 1.0, 90.0], 2).expect("a cut"));
        assert_eq!(cut, [0..3, 3..4]);
        assert_eq!(shorten(&checked, &layers[..2], vec![0..1, 1..2]).expect("a cut"), [0..1, 1..2]);
    }
}
