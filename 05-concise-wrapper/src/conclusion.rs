//! The conclusion from the numbers of the runs, in plain sentences.

use datasets::GUESSING;
use harness::load::why_no_speed_up;
use harness::report::summary::Summary;
use harness::report::{accuracy, counted, number, thousands};
use harness::statistics::{chance, chance_explains};

/// Two times that differ by less than this share count as equal.
const EQUAL_TIMES: f64 = 0.03;

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
        let sentences = match runs {
            _ if interrupted || runs.len() < self.planned => vec![self.not_complete(interrupted)],
            [one, several] if self.bug.is_some() => self.broken(one, several),
            [one, several] => vec![self.speed(one, several), self.accuracies(one, several)],
            _ => runs.iter().map(|run| of_one(run)).collect(),
        };
        let wrong = "The replicas differ although no bug was asked for: do not trust this run.";
        let wrong = (self.replicas_agree == Some(false) && self.bug.is_none()).then_some(wrong);
        let all = sentences.iter().map(String::as_str).chain(wrong);
        all.filter(|sentence| !sentence.is_empty()).collect::<Vec<_>>().join(" ")
    }

    fn not_complete(&self, interrupted: bool) -> String {
        let why = if interrupted { "The training was interrupted" } else { "Not every run ended" };
        let no = if self.planned > 1 {
            "there is no comparison of one device and several"
        } else {
            "its accuracy is not the final one"
        };
        let resume = if self.resumable && interrupted {
            " The same command with --resume continues it."
        } else {
            ""
        };
        format!("{why}, so {no}.{resume}")
    }

    /// Compares the times.
    fn speed(&self, one: &Summary, several: &Summary) -> String {
        let count = several.devices.len();
        let busy = one.busy.is_some() || several.busy.is_some();
        if let Some(reason) = why_no_speed_up(count, several.shared, busy) {
            return reason;
        }
        let devices = format!("{} under {}", counted(count, "device"), self.wrapper);
        let link = self.slow_link.map(|speed| format!(" over a link of {} MB/s", number(speed)));
        let link = link.unwrap_or_default();
        let ratio = one.seconds_per_epoch / several.seconds_per_epoch;
        if ratio > 1.0 + EQUAL_TIMES {
            format!(
                "In an epoch, {devices} are {ratio:.2} times as fast as one{link}; {count} times is ideal."
            )
        } else if ratio < 1.0 - EQUAL_TIMES {
            let longer = 1.0 / ratio;
            format!(
                "{devices} are slower than one{link}: an epoch takes {longer:.2} times as long."
            )
        } else if ratio.is_finite() {
            format!(
                "{devices} are no faster than one{link}: messages cost as much time as they save."
            )
        } else {
            String::new()
        }
    }

    /// Compares the accuracies, and names the cause of a difference.
    fn accuracies(&self, one: &Summary, several: &Summary) -> String {
        let devices = counted(several.devices.len(), "device");
        if let Difference::Shards(shards) = self.difference {
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
        let [before, after] = [one, several].map(|run| run.test_accuracy);
        if before.is_nan() || after.is_nan() {
            return String::new();
        }
        if [one, several].iter().all(|run| is_guess(run)) {
            return guessing("Neither run is");
        }
        let [before_text, after_text] = [before, after].map(accuracy);
        if chance_explains([before, after], several.images.1) {
            let images = thousands(several.images.1);
            let with = match self.difference {
                Difference::BatchAndRate { .. } => format!(
                    " with {} times the batch and the learning rate, and so with fewer steps",
                    several.devices.len()
                ),
                _ => String::new(),
            };
            return format!(
                "Test accuracy is {after_text}{with}, and {before_text} on one device: {images} test images show no clear \
                 difference."
            );
        }
        let direction = if after > before { "higher" } else { "lower" };
        let result =
            format!("Test accuracy is {after_text}, {direction} than {before_text} on one device.");
        format!("{result} {}", self.cause(several))
    }

    fn cause(&self, several: &Summary) -> String {
        let times = several.devices.len();
        match self.difference {
            Difference::BatchAndRate { local_norms } => {
                let cause = format!(
                    "The batch and the rate are {times} times as large, so there are fewer steps"
                );
                match local_norms {
                    true => format!(
                        "{cause}, and each batch norm uses one device's images. --compare 3 separates the causes."
                    ),
                    false => format!("{cause}. --scale none keeps the batch and the rate."),
                }
            }
            Difference::BatchNorm => format!(
                "Each batch norm uses one device's images, 1/{times} of a batch. With --bn sync both runs are equal up to rounding."
            ),
            Difference::Rounding | Difference::Shards(_) => {
                let cause =
                    "Both compute the same up to rounding, and training amplifies rounding.";
                match several.dtype.as_str() {
                    "f64" => cause.to_owned(),
                    _ => format!("{cause} --dtype f64 tests whether rounding is the only cause."),
                }
            }
        }
    }

    /// Describes the effect of a bug.
    fn broken(&self, one: &Summary, several: &Summary) -> Vec<String> {
        let bug = self.bug.as_deref().unwrap_or_default();
        let shows = match self.replicas_agree {
            Some(false) => {
                format!("The bug {bug} shows in the weights: the replicas drifted apart.")
            }
            _ => format!("The bug {bug} does not show in the weights: the replicas are equal."),
        };
        let [before, after] = [one, several].map(|run| accuracy(run.test_accuracy));
        let compare =
            format!("Test accuracy is {after}, and {before} on one device without the bug.");
        let fair = match self.difference {
            Difference::BatchAndRate { .. } => "With --scale none, only the bug differs.",
            Difference::BatchNorm => {
                "A correct run would have nearly the same losses as one device."
            }
            Difference::Rounding | Difference::Shards(_) => {
                "A correct run would have the same losses as one device."
            }
        };
        vec![shows, compare, fair.to_owned()]
    }
}

/// The conclusion from a run without a comparison.
fn of_one(run: &Summary) -> String {
    if run.test_accuracy.is_nan() {
        "No test image was evaluated, so nothing is known of the accuracy.".to_owned()
    } else if is_guess(run) {
        guessing("The network is not")
    } else {
        format!(
            "The network classifies {:.0} % of the test images correctly; guessing gives {:.0} %.",
            100.0 * run.test_accuracy,
            100.0 * GUESSING
        )
    }
}

fn guessing(subject: &str) -> String {
    format!(
        "{subject} clearly better than guessing ({GUESSING:.3}): train for more epochs, or with another --lr."
    )
}

/// Whether guessing would have this accuracy, too.
fn is_guess(run: &Summary) -> bool {
    run.test_accuracy < GUESSING + chance(GUESSING, run.images.1)
}

#[cfg(test)]
mod tests {
    use harness::records::TrainOptions;
    use harness::report::summary::Versions;

    use super::*;

    /// A run on so many devices, with 2,000 test images.
    fn run(devices: usize, test_accuracy: f64, seconds_per_epoch: f64) -> Summary {
        Summary {
            run: "run".to_owned(),
            data: "garments".to_owned(),
            images: (12_288, 2_000),
            options: TrainOptions { epochs: 5, batch_size: 256, learning_rate: 0.1, seed: 1 },
            dtype: "f32".to_owned(),
            devices: vec!["cpu".to_owned(); devices],
            note: None,
            shared: false,
            busy: None,
            method: None,
            epochs_trained: 5.0,
            interrupted: false,
            test_accuracy,
            seconds_per_epoch,
            weights_hash: "0".repeat(64),
            versions: Versions::of_this_binary(),
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

    #[test]
    fn times_are_compared() {
        let said = |seconds: f64, setting: Setting| {
            setting.conclusion(&[&run(1, 0.894, 36.0), &run(4, 0.893, seconds)])
        };
        let faster = said(10.0, LINEAR);
        assert_eq!(
            faster,
            "In an epoch, 4 devices under DDP are 3.60 times as fast as one; 4 times is ideal. Test accuracy is 0.893 with 4 times the \
             batch and the learning rate, and so with fewer steps, and 0.894 on one device: 2,000 test images show no clear difference."
        );
        assert!(said(36.5, LINEAR).contains("are no faster than one: messages cost"));
        let slow = said(72.0, Setting { slow_link: Some(1e7), ..LINEAR });
        assert!(
            slow.starts_with(
                "4 devices under DDP are slower than one over a link of 1e7 MB/s: an epoch takes 2.00 times as long."
            ),
            "{slow}"
        );
        assert!(said(f64::NAN, LINEAR).starts_with("Test accuracy"));
    }

    #[test]
    fn unreliable_times_are_not_compared() {
        let one = run(1, 0.894, 36.0);
        let shared = Summary { shared: true, ..run(4, 0.893, 36.0) };
        let said = LINEAR.conclusion(&[&one, &shared]);
        assert!(said.starts_with("The 4 devices share hardware, so the times show"), "{said}");
        let busy = Summary { busy: Some("busy".to_owned()), ..run(1, 0.894, 36.0) };
        let said = LINEAR.conclusion(&[&busy, &run(2, 0.893, 18.0)]);
        assert!(said.starts_with("Other programs used the cores"), "{said}");
        assert!(!said.contains("times as fast"), "{said}");
    }

    #[test]
    fn a_difference_in_accuracy_has_its_cause() {
        let said = |difference, accuracy| {
            let setting = Setting { difference, ..LINEAR };
            setting.conclusion(&[&run(1, 0.62, 2.0), &run(2, accuracy, 1.0)])
        };
        for (difference, cause) in [
            (LINEAR.difference, "--compare 3 separates the causes"),
            (Difference::BatchAndRate { local_norms: false }, "--scale none keeps"),
            (Difference::BatchNorm, "1/2 of a batch. With --bn sync"),
            (Difference::Rounding, "--dtype f64"),
        ] {
            let lower = said(difference, 0.28);
            assert!(lower.contains("Test accuracy is 0.280, lower than 0.620"), "{lower}");
            assert!(lower.contains(cause), "{lower}");
            let higher = said(difference, 0.7);
            assert!(higher.contains("0.700, higher than 0.620"), "{higher}");
            let equal = said(difference, 0.63);
            assert!(!equal.contains(cause) && equal.ends_with("no clear difference."), "{equal}");
        }
        // Both accuracies are chance.
        let chance = LINEAR.conclusion(&[&run(1, 0.11, 2.0), &run(2, 0.09, 1.0)]);
        assert!(chance.contains("Neither run is clearly better than guessing (0.100)"), "{chance}");
        let untested = LINEAR.conclusion(&[&run(1, f64::NAN, 2.0), &run(2, 0.5, 1.0)]);
        assert!(!untested.contains("accuracy"), "{untested}");
    }

    #[test]
    fn with_shards_the_weights_are_compared() {
        let setting = Setting { difference: Difference::Shards(8), ..LINEAR };
        let (one, two) = (run(1, 0.5, 2.0), run(2, 0.5, 1.0));
        let said = setting.conclusion(&[&one, &two]);
        assert!(said.ends_with("8 shards in each batch, one device and 2 devices end with the same weights, to the last bit."), "{said}");
        let other = Summary { weights_hash: "1".repeat(64), ..two };
        let said = setting.conclusion(&[&one, &other]);
        assert!(said.contains("end with different weights"), "{said}");
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
        let said = alone.conclusion(&[&cut]);
        assert_eq!(
            said,
            "The training was interrupted, so its accuracy is not the final one. The same command with --resume \
             continues it."
        );
    }

    #[test]
    fn a_single_run_is_compared_with_guessing() {
        let alone = Setting { planned: 1, ..LINEAR };
        let said = |accuracy| alone.conclusion(&[&run(1, accuracy, 2.0)]);
        assert_eq!(
            said(0.894),
            "The network classifies 89 % of the test images correctly; guessing gives 10 %."
        );
        assert!(said(0.11).contains("not clearly better than guessing (0.100)"));
        assert!(said(f64::NAN).starts_with("No test image was evaluated"));
    }

    #[test]
    fn a_bug_shows_in_the_weights_or_not() {
        let said = |agree, difference| {
            let setting = Setting {
                bug: Some("same-shard".to_owned()),
                replicas_agree: Some(agree),
                difference,
                ..LINEAR
            };
            setting.conclusion(&[&run(1, 0.8, 2.0), &run(2, 0.5, 1.0)])
        };
        let drifted = said(false, Difference::BatchNorm);
        assert!(drifted.starts_with("The bug same-shard shows in the weights"), "{drifted}");
        assert!(!drifted.contains("do not trust"), "{drifted}");
        let hidden = said(true, LINEAR.difference);
        assert!(hidden.contains("does not show in the weights"), "{hidden}");
        assert!(hidden.ends_with("With --scale none, only the bug differs."), "{hidden}");
        let fault = Setting { replicas_agree: Some(false), ..LINEAR };
        let said = fault.conclusion(&[&run(1, 0.8, 2.0), &run(2, 0.8, 1.0)]);
        assert!(said.ends_with("do not trust this run."), "{said}");
    }
}
