//! Estimates the memory of a training run, and refuses a run that cannot fit, before the run takes any.
//!
//! The estimates come from the sizes of networks, and from the peaks of the programs on slices of the CPU, which
//! `tests/cli/memory.rs` of stage 6 measures. A GPU reports that its memory is full, so for GPUs only the images count.

use candle_core::DType;
use datasets::{CLASSES, PIXELS, at_once};
use devices::DevicePlan;
use harness::cli::UsageError;
use harness::machine::{self, Amount, gigabytes};
use harness::report::counted;
use itertools::Itertools as _;

/// The images of an evaluation's batch.
const EVALUATED: usize = 256;

/// The batches of images in memory: one in use, one that waits, and one that is made.
const BATCHES: usize = 3;

/// The bytes that a program takes without data, weights and activations.
const PROGRAM: f64 = 45e6;

/// A run is refused if this part of its estimate exceeds the free memory, because an estimate may be too large.
const CERTAIN: f64 = 0.9;

/// The sizes of a network that decide its memory, as numbers of its element type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSize {
    /// The flag that decides the network's size, with its value.
    pub cause: String,
    /// The smaller network or run to take if the weights do not fit.
    pub advice: &'static str,
    /// The parameters.
    pub parameters: usize,
    /// The numbers that a training step holds for each sample.
    pub training: usize,
    /// The numbers that an evaluation holds for each sample.
    pub evaluation: usize,
}

impl NetworkSize {
    /// LeNet with its fast layers. Its weights are small, and each device has a copy.
    pub fn lenet() -> Self {
        let (cause, advice) = ("LeNet".to_owned(), "fewer --devices");
        Self { cause, advice, parameters: 129_068, training: 12_000, evaluation: 5_000 }
    }

    /// ResNet-18 with `width` planes in the first group.
    pub fn resnet18(width: usize) -> Self {
        let of_group = |group: usize| -> usize {
            let (planes, inputs) = (width << group, width << group >> 1);
            match group {
                0 => 4 * (9 * planes * planes + 2 * planes),
                _ => 3 * 9 * planes * planes + 10 * inputs * planes + 5 * 2 * planes,
            }
        };
        let groups = (0..4).map(of_group).sum::<usize>();
        Self {
            cause: format!("--width {width}"),
            advice: "a smaller --width",
            parameters: 11 * width + groups + 8 * width * CLASSES + CLASSES,
            training: 22_000 * width,
            evaluation: 2_400 * width,
        }
    }

    /// Dense layers. `features` are the inputs of the first layer, and the outputs of every layer.
    pub fn dense(features: &[usize]) -> Self {
        let outputs = features.get(1..).unwrap_or_default();
        let hidden = &outputs[..outputs.len().saturating_sub(1)];
        Self {
            cause: format!("--widths {}", hidden.iter().join(",")),
            advice: "smaller --widths",
            parameters: features.windows(2).map(|pair| (pair[0] + 1) * pair[1]).sum(),
            training: outputs.iter().sum::<usize>() * 8 / 5,
            evaluation: 2 * outputs.iter().max().unwrap_or(&0),
        }
    }
}

/// The parts of a run that hold memory, on this machine.
#[derive(Clone, Debug)]
pub struct Footprint {
    /// The network.
    pub network: NetworkSize,
    /// The copies of all weights at a time: weights, gradients, buckets, messages, scratch memory, and results.
    pub weights: usize,
    /// The copies of a batch's activations at a time, on all devices together.
    pub activations: usize,
    /// The samples of the largest batch for each sample of `--batch-size`.
    pub batches: f64,
    /// The devices of this machine.
    pub devices: usize,
    /// Whether the devices are slices of the CPU.
    pub on_cpu: bool,
}

/// The sizes of a run, from its flags.
#[derive(Clone, Copy, Debug)]
pub struct RunSize {
    /// The samples of a batch, as `--batch-size` has it.
    pub batch_size: usize,
    /// The training and the test images, or windows of a text.
    pub images: (usize, usize),
    /// The bytes of a window. `None` for images.
    pub context: Option<usize>,
    /// The element type of weights and activations.
    pub dtype: DType,
}

/// The estimated bytes of a run.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    activations: f64,
    /// The activations of an evaluation, which no `--batch-size` changes.
    evaluation: f64,
    batches: f64,
    data_set: f64,
    weights: f64,
}

impl Estimate {
    /// The bytes of the whole run.
    pub fn total(&self) -> f64 {
        let Self { activations, evaluation, batches, data_set, weights } = self;
        PROGRAM + activations + evaluation + batches + data_set + weights
    }
}

impl Footprint {
    /// The memory of a run in which each device of a plan holds the network, and all devices share one batch.
    pub fn new(network: NetworkSize, plan: &DevicePlan) -> Self {
        let (devices, on_cpu) = (plan.len(), plan.is_of_slices());
        Self { network, weights: 6 * devices, activations: 1, batches: 1.0, devices, on_cpu }
    }

    /// Estimates the memory of a run.
    pub fn estimate(&self, run: RunSize) -> Estimate {
        let (training, test) = run.images;
        let (bytes, batch) = (run.dtype.size_in_bytes() as f64, self.largest_batch(run));
        let on_cpu = |numbers: usize| if self.on_cpu { numbers as f64 * bytes } else { 0.0 };
        let (numbers, stored, evaluated) = match run.context {
            None => (PIXELS, PIXELS + 1, EVALUATED),
            Some(context) => (2 * context, context, at_once(EVALUATED, context)),
        };
        let evaluated = self.devices * test.min(evaluated);
        Estimate {
            activations: batch * on_cpu(self.network.training * self.activations),
            evaluation: evaluated as f64 * on_cpu(self.network.evaluation),
            batches: batch * (BATCHES * numbers) as f64 * bytes,
            data_set: (training + test) as f64 * stored as f64,
            weights: on_cpu(self.network.parameters) * self.weights as f64,
        }
    }

    /// The samples of the largest batch of this machine.
    fn largest_batch(&self, run: RunSize) -> f64 {
        (run.batch_size as f64 * self.batches).min(run.images.0 as f64)
    }

    /// Refuses a run that clearly needs more memory than this process can still take. Runs anywhere but on Linux pass.
    pub fn check(&self, run: RunSize) -> Result<(), UsageError> {
        machine::memory().map_or(Ok(()), |memory| self.check_for(run, memory.free))
    }

    /// Refuses a run that clearly needs more memory than is free.
    fn check_for(&self, run: RunSize, amount: Amount) -> Result<(), UsageError> {
        let (estimate, free) = (self.estimate(run), amount.bytes as f64);
        let total = estimate.total();
        if CERTAIN * total <= free {
            return Ok(());
        }
        let Estimate { activations, evaluation, batches, data_set, weights } = estimate;
        let (images, batch) = (run.images.0 as f64, self.largest_batch(run));
        let (of_sample, of_image) = ((activations + batches) / batch, data_set / images);
        // The memory for samples: in batches, and in the data set.
        let room = free / CERTAIN - (total - activations - batches - data_set);
        let batch_size = (room - data_set) / of_sample / self.batches;
        // A batch has at most all training images.
        let with_batch = (room - activations - batches) / of_image;
        let all_in_batch = room / (of_sample + of_image);
        let train_size = if with_batch >= batch { with_batch } else { all_in_batch };
        let (cause, advice) = if batch_size >= 1.0 {
            let most = two_digits(batch_size);
            (format!("--batch-size {}", run.batch_size), format!("a batch of at most about {most}"))
        } else if train_size >= 1.0 {
            let most = two_digits(train_size);
            (format!("--train-size {images}"), format!("--train-size {most} or less"))
        } else {
            (self.network.cause.clone(), self.network.advice.to_owned())
        };
        let data = if run.context.is_some() { "text" } else { "images" };
        Err(UsageError::new(format_args!(
            "{cause} needs about {} on {} (activations {}, {data} {}, weights {}), and {amount} are free: take {advice}",
            gigabytes(total),
            counted(self.devices, "device"),
            gigabytes(activations + evaluation),
            gigabytes(batches + data_set),
            gigabytes(weights)
        )))
    }
}

/// Rounds a count down to two digits.
fn two_digits(count: f64) -> u64 {
    let unit = 10f64.powf(count.log10().floor() - 1.0).max(1.0);
    ((count / unit).floor() * unit) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(devices: usize) -> DevicePlan {
        DevicePlan::slices(devices).expect("slices")
    }

    fn free(bytes: f64) -> Amount {
        Amount { bytes: bytes as u64, limit: None }
    }

    fn refused(footprint: &Footprint, run: RunSize, bytes: f64) -> String {
        footprint.check_for(run, free(bytes)).expect_err("a refusal").to_string()
    }

    fn run(batch_size: usize, images: usize) -> RunSize {
        RunSize { batch_size, images: (images, 10_000), context: None, dtype: DType::F32 }
    }

    #[test]
    fn a_refusal_has_both_numbers_and_a_batch_that_fits() {
        let lenet = Footprint::new(NetworkSize::lenet(), &slices(2));
        assert_eq!(
            refused(&lenet, run(1_000_000, 1_000_000), 22e9),
            "--batch-size 1000000 needs about 58 GB on 2 devices (activations 48 GB, images 10 GB, weights 6 MB), and 22 GB \
             are free: take a batch of at most about 410000"
        );
        // The batch of the advice fits, and a clearly larger batch does not.
        assert!(lenet.check_for(run(410_000, 1_000_000), free(22e9)).is_ok());
        assert!(lenet.check_for(run(420_000, 1_000_000), free(22e9)).is_err());
        // A batch has at most all images.
        assert!(lenet.check_for(run(1_000_000, 60_000), free(22e9)).is_ok());
        // The batch of 512 images is what does not fit, so a smaller one is advised, and not more images.
        let resnet18 = Footprint::new(NetworkSize::resnet18(64), &slices(1));
        let message = refused(&resnet18, run(999_999, 512), 1.5e9);
        assert!(
            message.starts_with("--batch-size 999999 needs about 3.4 GB on 1 device"),
            "{message}"
        );
        assert!(message.ends_with("take a batch of at most about 210"), "{message}");
        assert!(resnet18.check_for(run(210, 512), free(1.5e9)).is_ok());
        assert!(resnet18.check_for(run(999_999, 512), free(4e9)).is_ok());
        // With twice the batch, the advice is half as large.
        let twice = Footprint { batches: 2.0, ..lenet };
        assert!(refused(&twice, run(1_000_000, 1_000_000), 22e9).ends_with("about 200000"));
    }

    #[test]
    fn a_refusal_names_what_is_too_large() {
        let lenet = Footprint::new(NetworkSize::lenet(), &slices(1));
        let message = refused(&lenet, run(1, 1_000_000), 500e6);
        assert!(message.starts_with("--train-size 1000000 needs about 84"), "{message}");
        assert!(
            message.ends_with("and 500 MB are free: take --train-size 630000 or less"),
            "{message}"
        );
        let dense = NetworkSize::dense(&[784, 30_000, 30_000, 10]);
        for (network, cause, advice) in [
            (NetworkSize::resnet18(1024), "--width 1024", "a smaller --width"),
            (dense, "--widths 30000,30000", "smaller --widths"),
            (NetworkSize::lenet(), "LeNet", "fewer --devices"),
        ] {
            let message = refused(&Footprint::new(network, &slices(2)), run(8, 8), 40e6);
            assert!(message.starts_with(&format!("{cause} needs about ")), "{message}");
            assert!(message.ends_with(&format!(" and 40 MB are free: take {advice}")), "{message}");
        }
    }

    #[test]
    fn double_precision_takes_twice_the_memory_for_weights_and_batches() {
        let lenet = Footprint::new(NetworkSize::lenet(), &slices(1));
        let [single, double] = [DType::F32, DType::F64].map(|dtype| {
            let estimate = lenet.estimate(RunSize { dtype, ..run(4096, 8192) });
            estimate.total() - estimate.data_set - PROGRAM
        });
        assert_eq!(double, 2.0 * single);
    }

    #[test]
    fn windows_of_a_text_are_small_and_their_activations_are_not() {
        let network = NetworkSize { training: 1_000_000, ..NetworkSize::dense(&[8, 8]) };
        let text = Footprint::new(network, &slices(1));
        let run = RunSize { context: Some(64), ..run(10_000, 10_000) };
        let Estimate { batches, data_set, .. } = text.estimate(run);
        assert_eq!((batches, data_set), (3.0 * 10_000.0 * 128.0 * 4.0, 20_000.0 * 64.0));
        let message = refused(&text, run, 10e9);
        assert!(message.contains("(activations 40 GB, text 17 MB, weights"), "{message}");
    }

    #[test]
    fn counts_have_about_two_digits() {
        assert_eq!([1.9, 9.0, 99.9, 178_999.0].map(two_digits), [1, 9, 99, 170_000]);
    }
}
