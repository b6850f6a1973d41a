//! The conclusion from the numbers of the runs, in plain sentences.

use harness::report::summary::Summary;
use harness::report::{accuracy, counted, number, thousands};
use harness::verdict::{Accuracies, Doubt, Speed, of_one, ranked, rounding_test, speed_up};

/// The settings of the runs, as far as the conclusion depends on them.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// The number of runs that the program was to make.
    pub(crate) planned: usize,
    /// The wrapper's name, such as `DDP`.
    pub(crate) wrapper: &'static str,
    /// The difference between the run on several devices and the run on one.
    pub(crate) difference: Difference,
    /// The bandwidth of `--slow-link`, in MB/s.
    pub(crate) slow_link: Option<f64>,
    /// The bug of `--break`.
    pub(crate) bug: Option<String>,
    /// Whether all replicas ended with the same weights. `None` without replicas.
    pub(crate) replicas_agree: Option<bool>,
    /// Whether the runs can be resumed from a checkpoint.
    pub(crate) resumable: bool,
}

/// The difference between the run on several devices and the run on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// None: both add up the gradients of so many shards in the same order.
    Shards(u32),
    /// The rounding.
    Rounding,
    /// The images of each batch norm.
    BatchNorm,
    /// The batch and the learning rate; with batch norms their images, too.
    BatchAndRate {
        /// Whether the network has local batch norms.
        local_norms: bool,
    },
}

impl Setting {
    /// Returns the conclusion from the finished runs: from one run, or from one device and several.
    pub(crate) fn conclusion(&self, runs: &[&Summary]) -> String {
        let interrupted = runs.iter().any(|run| run.interrupted);
        let mut sentences = match runs {
            _ if interrupted || runs.len() < self.planned => vec![self.not_complete(interrupted)],
            [one, several] => match &self.bug {
                Some(bug) => vec![self.broken(bug, one, several), self.speed(one, several)],
                None => vec![self.speed(one, several), self.accuracies(one, several)],
            },
            _ => runs.iter().map(|run| of_one(run)).collect(),
        };
        if self.replicas_agree == Some(false) && self.bug.is_none() {
            let wrong = "The replicas differ although no bug was asked for: do not trust this run.";
            sentences.push(wrong.to_owned());
        }
        sentences.retain(|sentence| !sentence.is_empty());
        sentences.join(" ")
    }

    fn not_complete(&self, interrupted: bool) -> String {
        let why = if interrupted { "The training was interrupted" } else { "Not every run ended" };
        let no = match self.planned {
            1 => "its accuracy is not the final one",
            _ => "there is no comparison of one device and several",
        };
        let resume = match self.resumable && interrupted {
            true => " The same command with --resume continues it.",
            false => "",
        };
        format!("{why}, so {no}.{resume}")
    }

    /// Compares the times. The speed of a bug means nothing, but the program has printed times.
    fn speed(&self, one: &Summary, several: &Summary) -> String {
        let (count, wrapper) = (several.devices.len(), self.wrapper);
        let ratio = one.seconds_per_epoch / several.seconds_per_epoch;
        let mut doubts = Doubt::about(&[one, several]);
        doubts.extend(Doubt::of_speed_up(wrapper, ratio, count, 0.0));
        let ranking = || {
            let devices = format!("{} under {wrapper}", counted(count, "device"));
            let link = |speed| format!(" over a link of {} MB/s", number(speed));
            let link = self.slow_link.map_or_else(String::new, link);
            let text = speed_up(&devices, count, &link, ratio);
            match Speed::of(ratio) {
                Speed::Faster => format!("In an epoch, {text}"),
                _ => text,
            }
        };
        ranked(&doubts, || if self.bug.is_none() { ranking() } else { String::new() })
    }

    /// Compares the accuracies, and names the cause of a difference.
    fn accuracies(&self, one: &Summary, several: &Summary) -> String {
        let count = several.devices.len();
        if let Difference::Shards(shards) = self.difference {
            let devices = counted(count, "device");
            return match one.weights_hash == several.weights_hash {
                true => format!(
                    "With {} in each batch, one device and {devices} end with the same weights, to the last bit.",
                    counted(shards as usize, "shard")
                ),
                false => format!(
                    "One device and {devices} end with different weights. They should be equal to the last bit."
                ),
            };
        }
        let [before, after] = [one, several].map(|run| accuracy(run.test_accuracy));
        match Accuracies::of(one, several) {
            Accuracies::Unknown => String::new(),
            Accuracies::Guesses(text) => text,
            Accuracies::Chance => {
                let with = match self.difference {
                    Difference::BatchAndRate { .. } => format!(
                        " with {count} times the batch and the learning rate, and so with fewer steps"
                    ),
                    _ => String::new(),
                };
                let images = thousands(several.images.1);
                format!(
                    "Test accuracy is {after}{with}, and {before} on one device: {images} test images show no clear \
                     difference."
                )
            }
            Accuracies::Differ(direction) => format!(
                "Test accuracy is {after}, {direction} than {before} on one device. {}",
                self.cause(count, &several.dtype)
            ),
        }
    }

    fn cause(&self, count: usize, dtype: &str) -> String {
        match self.difference {
            Difference::BatchAndRate { local_norms } => {
                let rest = match local_norms {
                    true => {
                        ", and each batch norm uses one device's images. --compare 3 separates the causes."
                    }
                    false => ". --scale none keeps the batch and the rate.",
                };
                format!(
                    "The batch and the rate are {count} times as large, so there are fewer steps{rest}"
                )
            }
            Difference::BatchNorm => format!(
                "Each batch norm uses one device's images, 1/{count} of a batch. With --bn sync both runs are equal up to rounding."
            ),
            Difference::Rounding | Difference::Shards(_) => format!(
                "Both compute the same up to rounding, and training amplifies rounding.{}",
                rounding_test(dtype)
            ),
        }
    }

    /// Describes the effect of a bug.
    fn broken(&self, bug: &str, one: &Summary, several: &Summary) -> String {
        let shows = match self.replicas_agree {
            Some(false) => "shows in the weights: the replicas drifted apart",
            _ => "does not show in the weights: the replicas are equal",
        };
        let fair = match self.difference {
            Difference::BatchAndRate { .. } => "With --scale none, only the bug differs.",
            Difference::BatchNorm => {
                "A correct run would have nearly the same losses as one device."
            }
            Difference::Rounding | Difference::Shards(_) => {
                "A correct run would have the same losses as one device."
            }
        };
        let [before, after] = [one, several].map(|run| accuracy(run.test_accuracy));
        format!(
            "The bug {bug} {shows}. Test accuracy is {after}, and {before} on one device without the bug. {fair}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run on so many devices, with 2,000 test images.
    fn run(devices: usize, test_accuracy: f64, seconds_per_epoch: f64) -> Summary {
        Summary {
            images: (12_288, 2_000),
            dtype: "f32".to_owned(),
            devices: vec!["cpu".to_owned(); devices],
            epochs_trained: 5.0,
            test_accuracy,
            guessing: 0.1,
            seconds_per_epoch,
            weights_hash: "0".repeat(64),
            ..Summary::default()
        }
    }

    const LINEAR: Setting = Setting {
        planned: 2,
        wrapper: "DDP",
        difference: Difference::BatchAndRate { local_norms: true },
        slow_link: None,
        bug: None,
        replicas_agree: Some(true),
        resumable: false,
    };

    const BATCH_NORM: Setting = Setting { difference: Difference::BatchNorm, ..LINEAR };
    const SHARDS: Setting = Setting { difference: Difference::Shards(8), ..LINEAR };

    fn with_bug(agree: bool, setting: Setting) -> Setting {
        Setting { bug: Some("same-shard".to_owned()), replicas_agree: Some(agree), ..setting }
    }

    #[test]
    fn one_device_and_several_are_compared() {
        let not_tested = || run(1, f64::NAN, 2.0);
        let (one, two) = (|| run(1, 0.62, 2.0), |accuracy| run(2, accuracy, 1.0));
        let rounding = Setting { difference: Difference::Rounding, ..LINEAR };
        let without_norms =
            Setting { difference: Difference::BatchAndRate { local_norms: false }, ..LINEAR };
        let other = Summary { weights_hash: "1".repeat(64), ..two(0.5) };
        let slow_link = Setting { slow_link: Some(1e7), ..LINEAR };
        let fault = Setting { replicas_agree: Some(false), ..LINEAR };
        for (setting, one, several, expected) in [
            (
                &LINEAR,
                run(1, 0.894, 36.0),
                run(4, 0.893, 10.0),
                "^In an epoch, 4 devices under DDP are 3.60 times as fast as one; 4 times is ideal. Test accuracy is 0.893 with \
                 4 times the batch and the learning rate, and so with fewer steps, and 0.894 on one device: 2,000 test images \
                 show no clear difference.$",
            ),
            (
                &slow_link,
                run(1, 0.894, 36.0),
                run(4, 0.893, 72.0),
                "^4 devices under DDP are slower than one over a link of 1e7 MB/s: an epoch takes 2.00 times as long. Test",
            ),
            (&LINEAR, run(1, 0.894, 36.0), run(4, 0.893, f64::NAN), "^Test accuracy"),
            // A difference in accuracy has its cause.
            (
                &LINEAR,
                one(),
                two(0.28),
                "Test accuracy is 0.280, lower than 0.620 on one device. The batch and the rate are 2 times as large, so there \
                 are fewer steps, and each batch norm uses one device's images. --compare 3 separates the causes.$",
            ),
            (&without_norms, one(), two(0.28), "so there are fewer steps. --scale none keeps"),
            (&BATCH_NORM, one(), two(0.28), "images, 1/2 of a batch. With --bn sync"),
            (&rounding, one(), two(0.7), "0.700, higher than 0.620 on one device. Both compute"),
            (&rounding, one(), two(0.7), " --dtype f64 tests whether rounding is the only cause.$"),
            (
                &rounding,
                one(),
                two(0.63),
                "0.630, and 0.620 on one device: 2,000 test images show no",
            ),
            (&LINEAR, run(1, 0.11, 2.0), two(0.09), "Neither run is clearly better than guessing"),
            (&LINEAR, not_tested(), two(0.5), "2 times is ideal.$"),
            // With shards, the weights are compared.
            (
                &SHARDS,
                run(1, 0.5, 2.0),
                two(0.5),
                "8 shards in each batch, one device and 2 devices end with the same weights, to the last bit.$",
            ),
            (&SHARDS, run(1, 0.5, 2.0), other, "end with different weights"),
            // Replicas and bugs.
            (&fault, one(), two(0.62), "do not trust this run.$"),
            (
                &with_bug(false, BATCH_NORM),
                run(1, 0.8, 2.0),
                two(0.5),
                "^The bug same-shard shows in the weights: the replicas drifted apart. Test accuracy is 0.500, and 0.800 on one \
                 device without the bug. A correct run would have nearly the same losses as one device.$",
            ),
            (
                &with_bug(true, LINEAR),
                run(1, 0.8, 2.0),
                two(0.5),
                "^The bug same-shard does not show in the weights: the replicas are equal.",
            ),
            (
                &with_bug(true, LINEAR),
                run(1, 0.8, 2.0),
                two(0.5),
                "bug. With --scale none, only the bug differs.$",
            ),
        ] {
            let text = format!("^{}$", setting.conclusion(&[&one, &several]));
            assert!(text.contains(expected), "{expected:?} is not in {text:?}");
        }
    }

    #[test]
    fn with_a_doubt_about_times_nothing_is_ranked() {
        let busy = Summary { busy: Some("busy".to_owned()), ..run(1, 0.894, 36.0) };
        let two = run(2, 0.893, 18.0);
        let said = LINEAR.conclusion(&[&busy, &two]);
        assert!(said.starts_with(&format!("{} Test", Doubt::Busy)), "{said}");
        assert!(!said.contains("as fast"), "{said}");
        let broken = with_bug(true, LINEAR).conclusion(&[&busy, &two]);
        assert!(broken.ends_with(&Doubt::Busy.to_string()), "{broken}");
        // Four devices are not ten times as fast as one.
        let said = LINEAR.conclusion(&[&run(1, 0.894, 36.0), &run(4, 0.893, 3.6)]);
        assert!(
            said.starts_with("The speed-up of DDP is 10.00, and 4 devices that are idle"),
            "{said}"
        );
    }

    #[test]
    fn runs_that_did_not_end_are_not_compared() {
        let whole = run(1, 0.5, 2.0);
        let cut = Summary { interrupted: true, ..run(2, 0.4, 1.0) };
        for runs in [&[&whole][..], &[&whole, &cut], &[&cut]] {
            let said = LINEAR.conclusion(runs);
            assert!(said.ends_with("there is no comparison of one device and several."), "{said}");
        }
        let alone = Setting { planned: 1, resumable: true, ..LINEAR };
        assert_eq!(
            alone.conclusion(&[&cut]),
            "The training was interrupted, so its accuracy is not the final one. The same command with --resume \
             continues it."
        );
        assert_eq!(alone.conclusion(&[&whole]), of_one(&whole));
    }
}
