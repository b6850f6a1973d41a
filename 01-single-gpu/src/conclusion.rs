//! The conclusion from the numbers of a run, in plain sentences.

use datasets::{CLASSES, GUESSING};
use harness::records::EpochRecord;
use harness::report::{accuracy, counted, seconds};
use harness::statistics::chance;

/// A loss this close to the loss of guessing has not moved.
const UNMOVED: f64 = 0.02;

/// The loss of a network that guesses: ln 10.
const LOSS: f64 = std::f64::consts::LN_10;

/// Compares the accuracy after the last epoch with guessing, and explains it.
pub(crate) fn training(records: &[EpochRecord], test_images: usize, interrupted: bool) -> String {
    let Some(last) = records.last() else {
        return "The program was interrupted before the first step.".to_owned();
    };
    let margin = |accuracy| chance(accuracy, test_images);
    let (test, train) = (last.test_accuracy, last.train_accuracy);
    let mut text = if test > GUESSING + margin(GUESSING) {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let mut text = format!(
            "The network classifies {} of the test images correctly; guessing gives {}.",
            percent(test),
            percent(GUESSING)
        );
        let flat = records.iter().take_while(|it| (it.train_loss - LOSS).abs() < UNMOVED).count();
        if flat > 0 {
            text += &format!(
                " For {} the loss stayed at the loss of guessing, ln {CLASSES} = {LOSS:.3}.",
                counted(flat, "epoch")
            );
        }
        let before = records.iter().rev().nth(1);
        if train - test > margin(test).max(0.05) {
            text +=
                &format!(" It overfits: of the training images it classifies {}.", percent(train));
        } else if before.is_some_and(|before| test - before.test_accuracy > margin(test)) {
            text += " The last epoch still raised the accuracy, so more epochs may help.";
        }
        text
    } else {
        not_learned(last)
    };
    if interrupted {
        text += " The training was interrupted, so this is not the final result.";
    }
    text
}

/// Says why the network guesses, and what to change.
fn not_learned(last: &EpochRecord) -> String {
    let loss = last.train_loss;
    let result = format!(
        "The network is not better than guessing: test accuracy {}, and guessing gives {GUESSING:.3}.",
        accuracy(last.test_accuracy)
    );
    let reason = if (loss - LOSS).abs() < UNMOVED {
        format!(
            "The loss has not moved from that of guessing, ln {CLASSES} = {LOSS:.3}: train for more epochs, on more images, or \
             with a larger --lr."
        )
    } else if loss < LOSS {
        "The loss falls already: train for more epochs.".to_owned()
    } else {
        format!(
            "The loss is above that of guessing, ln {CLASSES} = {LOSS:.3}: take a smaller --lr."
        )
    };
    format!("{result} {reason}")
}

/// Compares the seconds of a step with plain layers and with fast layers.
pub(crate) fn layers(images: usize, plain: f64, fast: f64) -> String {
    let ratio = plain / fast;
    let compared = if ratio > 1.0 {
        format!("which are {ratio:.1}× as fast")
    } else {
        "which are not faster here".to_owned()
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

    #[test]
    fn a_network_that_learns() {
        let epochs = [epoch(0.8, 0.6, 0.79), epoch(0.4, 0.84, 0.873)];
        let text = training(&epochs, 10_000, false);
        assert_eq!(
            text,
            "The network classifies 87 % of the test images correctly; guessing gives 10 %. The last epoch still raised \
             the accuracy, so more epochs may help."
        );
        let late = [&[epoch(2.3, 0.1, 0.1), epoch(2.31, 0.1, 0.1)][..], &epochs].concat();
        let said = "guessing gives 10 %. For 2 epochs the loss stayed at the loss of guessing, ln 10 = 2.303.";
        assert!(training(&late, 10_000, false).contains(said));
        // The same numbers on few images are chance.
        assert!(training(&epochs, 50, false).ends_with("guessing gives 10 %."));
        assert!(training(&epochs[1..], 10_000, false).ends_with("guessing gives 10 %."));
        let by_heart = training(&[epoch(0.01, 0.99, 0.873)], 10_000, false);
        assert!(by_heart.ends_with("It overfits: of the training images it classifies 99 %."));
        let interrupted = training(&epochs[1..], 10_000, true);
        assert!(
            interrupted
                .ends_with("10 %. The training was interrupted, so this is not the final result.")
        );
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
            let text = training(&[epoch(loss, 0.1, accuracy)], test_images, false);
            assert!(text.contains(expected), "{expected:?} is not in {text:?}");
        }
        assert!(training(&[], 20, true).contains("before the first step"));
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
