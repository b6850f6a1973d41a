//! The conclusion from the numbers of a run, in plain sentences.

use datasets::CLASSES;
use harness::records::EpochRecord;
use harness::report::summary::Summary;
use harness::report::{accuracy, counted, seconds};
use harness::statistics::{chance, chance_explains};
use harness::verdict::{Speed, of_one};

/// A loss this close to the loss of guessing has not moved.
const UNMOVED: f64 = 0.02;

/// The loss of a network that guesses: ln 10.
const LOSS: f64 = std::f64::consts::LN_10;

/// An accuracy on training images that is higher by as much shows overfitting.
const OVERFIT: f64 = 0.05;

/// Compares the accuracy after the last epoch with guessing, and explains it.
pub(crate) fn training(run: &Summary, records: &[EpochRecord]) -> String {
    let Some(last) = records.last() else {
        return "The program was interrupted before the first step.".to_owned();
    };
    let mut text = if run.has_learned() { learned(run, records, last) } else { guesses(run, last) };
    if run.interrupted {
        text += " The training was interrupted, so this is not the final result.";
    }
    text
}

fn learned(run: &Summary, records: &[EpochRecord], last: &EpochRecord) -> String {
    let mut text = of_one(run);
    let flat = records.iter().take_while(|it| (it.train_loss - LOSS).abs() < UNMOVED).count();
    if flat > 0 {
        text += &format!(
            " For {} the loss stayed at the loss of guessing, ln {CLASSES} = {LOSS:.3}.",
            counted(flat, "epoch")
        );
    }
    let (test, train, images) = (last.test_accuracy, last.train_accuracy, run.images.1);
    let before = records.iter().rev().nth(1).map_or(test, |it| it.test_accuracy);
    if train - test > chance(test, images).max(OVERFIT) {
        let percent = 100.0 * train;
        text += &format!(" It overfits: of the training images it classifies {percent:.0} %.");
    } else if test > before && !chance_explains([before, test], images) {
        text += " The last epoch still raised the accuracy, so more epochs may help.";
    }
    text
}

/// Says why the network guesses, and what to change.
fn guesses(run: &Summary, last: &EpochRecord) -> String {
    let of_guessing = format!("that of guessing, ln {CLASSES} = {LOSS:.3}");
    let reason = match last.train_loss - LOSS {
        difference if difference.abs() < UNMOVED => format!(
            "The loss has not moved from {of_guessing}: train for more epochs, on more images, or with a larger --lr."
        ),
        ..0.0 => "The loss falls already: train for more epochs.".to_owned(),
        _ => format!("The loss is above {of_guessing}: take a smaller --lr."),
    };
    format!(
        "The network is not better than guessing: test accuracy {}, and guessing gives {:.3}. {reason}",
        accuracy(last.test_accuracy),
        run.guessing
    )
}

/// Compares the seconds of a step with plain layers and with fast layers.
pub(crate) fn layers(images: usize, plain: f64, fast: f64) -> String {
    let compared = match Speed::of(plain / fast) {
        Speed::Faster => format!("which are {:.1}× as fast", plain / fast),
        _ => "which are not faster here".to_owned(),
    };
    format!(
        "A step on {} takes {} s with the plain layers and {} s with the fast layers, {compared}. Both compute the same \
         step up to rounding.",
        counted(images, "image"),
        seconds(plain),
        seconds(fast)
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
        let late = [&[epoch(2.3, 0.1, 0.1), epoch(2.31, 0.1, 0.1)][..], &epochs].concat();
        let flat = "guessing gives 10 %. For 2 epochs the loss stayed at the loss of guessing, ln 10 = 2.303.";
        assert!(said(&late, 10_000, false).contains(flat));
        for (epochs, test_images, interrupted, ends) in [
            // The same numbers on few images are chance.
            (&epochs[..], 50, false, "guessing gives 10 %."),
            (&epochs[1..], 10_000, false, "guessing gives 10 %."),
            (
                &[epoch(0.01, 0.99, 0.873)],
                10_000,
                false,
                "It overfits: of the training images it classifies 99 %.",
            ),
            (
                &epochs[1..],
                10_000,
                true,
                "10 %. The training was interrupted, so this is not the final result.",
            ),
        ] {
            let text = said(epochs, test_images, interrupted);
            assert!(text.ends_with(ends), "{ends:?} is not the end of {text:?}");
        }
    }

    #[test]
    fn a_network_that_guesses() {
        for (loss, test_images, accuracy, expected) in [
            (2.3028, 10_000, 0.1, "has not moved from that of guessing, ln 10 = 2.303: train for"),
            (2.2, 10_000, 0.1, "The loss falls already: train for more epochs."),
            (4.0, 10_000, 0.1, "take a smaller --lr."),
            (2.2, 20, 0.2, "test accuracy 0.200, and guessing gives 0.100. The loss falls"),
            (2.2, 20, f64::NAN, "not better than guessing: test accuracy –"),
        ] {
            let text = said(&[epoch(loss, 0.1, accuracy)], test_images, false);
            assert!(text.contains(expected), "{expected:?} is not in {text:?}");
        }
        assert!(said(&[], 20, true).contains("before the first step"));
    }

    #[test]
    fn plain_layers_are_slower_or_not() {
        let text = layers(256, 3.7, 0.063);
        assert!(
            text.starts_with(
                "A step on 256 images takes 3.7 s with the plain layers and 0.063 s with the fast layers, which are 58.7× as fast."
            ),
            "{text}"
        );
        assert!(layers(1, 0.1, 0.1).contains("A step on 1 image takes"));
        assert!(layers(1, 0.1, 0.1).contains("which are not faster here."));
    }
}
