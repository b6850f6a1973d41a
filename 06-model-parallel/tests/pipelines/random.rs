//! Random pipelines have the bits of one device on the same micro-batches.

use super::numbers::{kinds, same};
use super::training::{Case, checked_on, dense, lenet, pooled, resnet18};
use crate::prelude::*;
use crate::random_numbers::Random;

fn coin(random: &mut Random) -> bool {
    random.below(2) == 1
}

/// A training in a pipeline.
struct Drawn {
    case: Case,
    cut: Vec<Range<usize>>,
    kind: Kind,
    mesh: Mesh,
    /// The micro-batches of each replica. There may be more than samples.
    micro_batches: usize,
    samples: usize,
    by_shards: bool,
}

impl Drawn {
    /// Draws a model, frozen layers, a cut, a schedule and a batch.
    fn new(random: &mut Random) -> Self {
        let models = [lenet, dense, dense, pooled, pooled, resnet18];
        let mut case = models[random.below(models.len())]();
        case.steps = 2;
        case.dtype = if coin(random) { DType::F32 } else { DType::F64 };
        let layers = case.layers.len();
        let trained = random.below(layers);
        case.frozen = match random.below(3) {
            0 => Vec::new(),
            // The first layers, as in fine-tuning.
            1 => (0..trained).collect(),
            _ => (0..layers).filter(|&layer| layer != trained && coin(random)).collect(),
        };
        // The layer may be one of those that have nothing to train.
        if case
            .build(0..layers, &Alone(Device::Cpu).into())
            .unwrap()
            .weights()
            .parameters
            .is_empty()
        {
            case.frozen.clear();
        }
        let units = 1 + random.below(layers.min(6));
        let mut begins: Vec<usize> = (1..layers).collect();
        while begins.len() + 1 > units {
            begins.remove(random.below(begins.len()));
        }
        let cut = model_parallel::partition::cut_by_hand(&begins, layers).unwrap();
        let (samples, by_shards) = (1 + random.below(9), coin(random));
        let data = if by_shards { 1 + random.below(2) } else { 1 };
        let (kind, stages, micro_batches) = loop {
            let micro_batches = 1 + random.below(6);
            let mut kinds = kinds(units, micro_batches);
            kinds.retain(|&(_, stages)| stages <= 4);
            if !kinds.is_empty() {
                let (kind, stages) = kinds[random.below(kinds.len())];
                break (kind, stages, micro_batches);
            }
        };
        let mesh = Mesh { data, ..Mesh::pipeline(stages) };
        Self { case, cut, kind, mesh, micro_batches, samples, by_shards }
    }

    fn check(&self, what: &str) {
        let Self { case, cut, kind, mesh, micro_batches, samples, by_shards } = self;
        let expected = match by_shards {
            true => case.data_parallel(1, *samples, micro_batches * mesh.data),
            false => case.on_micro_batches(*samples, *micro_batches),
        };
        let checked = checked_on(*mesh, *kind, *micro_batches);
        let (weights, losses, _) = case.on_mesh(*mesh, &checked, cut, *samples, *by_shards);
        let what = format!(
            "{what}: {}, {:?}, frozen {:?}, cut {cut:?}, {kind}, {mesh}, {micro_batches} micro-batches, {samples} samples, by \
             shards: {by_shards}",
            case.name, case.dtype, case.frozen
        );
        same(&(weights, losses), &expected, &what);
    }
}

fn check(seeds: Range<u64>) {
    for seed in seeds {
        Drawn::new(&mut Random(seed)).check(&format!("seed {seed}"));
    }
}

#[test]
fn random_pipelines_have_the_bits_of_one_device() {
    check(0..if std::env::var_os("FULL").is_some() { 1000 } else { 60 });
}

/// The later stages would compute the gradient of an image or of a frozen activation, and a convolution that does has other
/// bits than one that does not.
#[test]
fn nobody_computes_a_gradient_behind_layers_with_nothing_to_train() {
    // ResNet-18 with `conv1`, `bn1` and `layer1` frozen.
    let frozen = |steps| Case { frozen: (0..3).collect(), dtype: DType::F32, steps, ..resnet18() };
    let pooled = || Case { dtype: DType::F32, ..pooled() };
    for (case, begins, first) in [
        (pooled(), &[1][..], 1),
        (pooled(), &[1, 2], 1),
        (pooled(), &[2], 0),
        (frozen(3), &[2], 1),
        (frozen(3), &[3], 1),
        (frozen(3), &[2, 3, 6], 2),
        (frozen(3), &[1, 2, 3, 6], 3),
    ] {
        let layers = case.layers.len();
        let cut = model_parallel::partition::cut_by_hand(begins, layers).unwrap();
        for (kind, stages) in kinds(cut.len(), 4) {
            let what = format!("{}, cut {begins:?}, {kind}", case.name);
            let checked = checked_on(Mesh::pipeline(stages), kind, 4);
            let (weights, losses, measured) = case.pipeline(&checked, &cut, 7);
            same(&(weights, losses), &case.on_micro_batches(7, 4), &what);
            let all = measured.iter().flat_map(|stage| &stage.steps[0]).map(|it| it.instruction);
            let goes_back = |it: &Instruction| {
                it.action.adds_gradients()
                    || matches!(it.action, Action::SendGradient(_) | Action::RecvGradient(_))
            };
            let gradients = all.filter(goes_back).map(|it| match it.action {
                Action::SendGradient(_) => it.unit - 1,
                _ => it.unit,
            });
            assert_eq!(gradients.min(), Some(first), "{what}: the first unit with a gradient");
        }
    }
}
