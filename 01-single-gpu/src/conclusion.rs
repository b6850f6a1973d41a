//! The conclusion from the numbers of a run, in plain sentences.

use harness::records::EpochRecord;
use harness::report::summary::Summary;
use harness::report::{counted, seconds};
use harness::statistics::{chance, chance_explains};
use harness::verdict::{Speed, of_one};

/// The loss of a network that guesses: ln 10.
const LOSS: f64 = std::f64::consts::LN_10;

/// A loss this close to the loss of guessing has not moved.
const UNMOVED: f64 = 0.02;

/// An accuracy on training images that is higher by as much shows overfitting.
const OVERFIT: f64 = 0.05;

/// Compares the accuracy after the last epoch with guessing, and says what to do next.
pub(crate) fn training(run: &Summary, records: &[EpochRecord]) -> String {
    let Some(last) = records.last() else {
        return "The program was interrupted before the first step.".to_owned();
    };
    let (test, images, moved) = (last.test_accuracy, run.images.1, last.train_loss - LOSS);
    let before = records.iter().rev().nth(1).map_or(test, |it| it.test_accuracy);
    let next = match run.has_learned() {
        _ if run.interrupted => "The training was interrupted, so this is not the final result.",
        false if moved.abs() < UNMOVED => {
            "The loss has not moved from that of guessing, ln 10 = 2.303."
        }
        false if moved < 0.0 => "The loss falls already.",
        false => "The loss is above that of guessing, ln 10 = 2.303: take a smaller --lr.",
        true if last.train_accuracy - test > chance(test, images).max(OVERFIT) => {
            "It overfits: it knows the training images better."
        }
        true if test > before && !chance_explains([before, test], images) => {
            "The last epoch still raised the accuracy, so more epochs may help."
        }
        true => "",
    };
    format!("{} {next}", of_one(run)).trim_end().to_owned()
}

/// Compares the seconds of a step with plain layers and with fast layers.
pub(crate) fn layers(images: usize, plain: f64, fast: f64) -> String {
    let (images, ratio) = (counted(images, "image"), plain / fast);
    let compared = match Speed::of(ratio) {
        Speed::Faster => format!("which are {ratio:.1}× as fast"),
        _ => "which are not faster here".to_owned(),
    };
    let [plain, fast] = [plain, fast].map(seconds);
    format!(
        "A step on {images} takes {plain} s with the plain layers and {fast} s with the fast layers, {compared}. Both compute \
         the same step up to rounding."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(train_loss: f64, train_accuracy: f64, test_accuracy: f64) -> EpochRecord {
        EpochRecord { train_loss, train_accuracy, test_accuracy, ..EpochRecord::default() }
    }

    fn said(records: &[EpochRecord], test_images: usize, interrupted: bool) -> String {
        let test_accuracy = records.last().map_or(f64::NAN, |last| last.test_accuracy);
        let images = (60_000, test_images);
        let run =
            Summary { images, interrupted, test_accuracy, guessing: 0.1, ..Summary::default() };
        training(&run, records)
    }

    #[test]
    fn a_network_that_learns() {
        let epochs = [epoch(0.8, 0.6, 0.79), epoch(0.4, 0.84, 0.873)];
        assert_eq!(
            said(&epochs, 10_000, false),
            "The network classifies 87 % of the test images correctly; guessing gives 10 %. The last epoch still raised \
             the accuracy, so more epochs may help."
        );
        let overfits = "It overfits: it knows the training images better.";
        let cut = "10 %. The training was interrupted, so this is not the final result.";
        for (epochs, test_images, interrupted, ends) in [
            // The same numbers on few images are chance.
            (&epochs[..], 50, false, "guessing gives 10 %."),
            (&epochs[1..], 10_000, false, "guessing gives 10 %."),
            (&[epoch(0.01, 0.99, 0.873)], 10_000, false, overfits),
            (&epochs[1..], 10_000, true, cut),
        ] {
            let text = said(epochs, test_images, interrupted);
            assert!(text.ends_with(ends), "{ends:?} is not the end of {text:?}");
        }
    }

    #[test]
    fn a_network_that_guesses() {
        let guesses = "The network is not clearly better than guessing (0.100): train for more epochs, or with another --lr.";
        let above = " The loss is above that of guessing, ln 10 = 2.303: take a smaller --lr.";
        for (loss, test_images, accuracy, expected) in [
            (2.3028, 10_000, 0.1, " The loss has not moved from that of guessing, ln 10 = 2.303."),
            (2.2, 10_000, 0.1, " The loss falls already."),
            (4.0, 10_000, 0.1, above),
            (2.2, 20, 0.2, " The loss falls already."),
        ] {
            let text = said(&[epoch(loss, 0.1, accuracy)], test_images, false);
            assert_eq!(text, format!("{guesses}{expected}"));
        }
        let untested = said(&[epoch(2.2, 0.1, f64::NAN)], 20, false);
        assert!(untested.starts_with("No test image was evaluated"), "{untested}");
        assert!(said(&[], 20, true).contains("before the first step"));
    }

    #[test]
    fn plain_layers_are_slower_or_not() {
        let text = layers(256, 3.7, 0.063);
        let expected = "A step on 256 images takes 3.7 s with the plain layers and 0.063 s with the fast layers, which are 58.7× as fast.";
        assert!(text.starts_with(expected), "{text}");
        assert!(layers(1, 0.1, 0.1).contains("A step on 1 image takes"));
        assert!(layers(1, 0.1, 0.1).contains("which are not faster here."));
    }
}
