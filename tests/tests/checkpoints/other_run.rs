//! A whole checkpoint of another run is refused, with the first difference.

use checkpoints::Resume;
use tempfile::TempDir;

use super::damage::stored;
use super::run::{Cut, Settings, cut, file, lenet, resnet18};
use super::watched::Event;
use crate::prelude::*;

type Change = dyn Fn(&mut Settings);

#[test]
fn another_run_s_checkpoint_is_refused_with_the_difference() {
    let (_folder, settings, _) = stored();
    let refused = |other: &Settings, network| {
        let error = other.train(&cut(network, Cut(1, Event::Crash))).unwrap_err().to_string();
        let path = other.folder().join(file(2)).display().to_string();
        error.strip_prefix(&format!("checkpoint {path} is ")).unwrap_or(&error).to_owned()
    };
    let told = |change: &dyn Fn(&mut Settings)| {
        let mut other = settings.clone();
        change(&mut other);
        refused(&other, lenet())
    };
    let precision = |dtype| refused(&settings, crate::prelude::lenet(dtype));
    assert_eq!(precision(DType::F64), "of dtype f32, this run's is f64: resume with --dtype f32");
    assert_eq!(
        precision(DType::BF16),
        "of precision f32, this run's is bf16: resume with --dtype f32"
    );
    let changes: [(&Change, &str); 9] = [
        (
            &|run| run.options.batch_size = 8,
            "batch size 7, this run's is 8: resume with --batch-size 7",
        ),
        (
            &|run| run.options.learning_rate = 0.1,
            "learning rate 0.05, this run's is 0.1: resume with --lr 0.05",
        ),
        (&|run| run.options.seed = 6, "seed 5, this run's is 6: resume with --seed 5"),
        (
            &|run| run.extras.constants.momentum = 0.0,
            "momentum 0.9, this run's is 0.0: resume with --momentum 0.9",
        ),
        (
            &|run| run.extras.constants.weight_decay = 0.0,
            "weight decay 0.001, this run's is 0.0: resume with --weight-decay 0.001",
        ),
        (&|run| *run = run.clone().adamw(), "AdamW's β₁ none, this run's is 0.9"),
        (&|run| run.extras.warm_up = 4, "warm-up 5, this run's is 4: resume with --warm-up 5"),
        (&|run| run.data.name = "silence".to_owned(), "data noise, this run's is silence"),
        (
            &|run| run.data.train = run.data.test.clone(),
            "training images 16, this run's is 5: resume with --train-size 16",
        ),
    ];
    for (change, difference) in changes {
        assert_eq!(told(change), format!("of {difference}"));
    }
    // A folder of the same name with as many images, of which one has another pixel.
    let pixel = told(&|run| {
        let train = &mut run.data.train;
        let mut pixels = train.bytes().to_vec();
        pixels[9 * PIXELS + 400] ^= 1;
        *train = Dataset::of_shape(pixels, SAMPLE, train.labels().to_vec(), CLASSES).unwrap();
    });
    let hashes = pixel.strip_prefix("of training images with hash ").unwrap_or(&pixel);
    let (there, here) = hashes.split_once(", this run's is ").unwrap();
    assert!(there != here && there.len() == 16 && here.len() == 16, "{pixel}");
    // Skipping such a file would be wrong too: the run is not the one that was asked for.
    let valid = told(&|run| {
        run.options.batch_size = 8;
        run.checkpoints.as_mut().unwrap().resume = Some(Resume::LatestValid);
    });
    assert_eq!(valid, "of batch size 7, this run's is 8: resume with --batch-size 7");

    let folder = TempDir::new().unwrap();
    let adamw = Settings::keeping(&folder).adamw();
    adamw.train(&cut(lenet(), Cut(2, Event::Interrupt))).unwrap();
    let adamw = adamw.resume(Resume::Newest);
    let mut other = adamw.clone();
    other.extras.constants.weight_decay = 0.1;
    assert_eq!(
        refused(&other, lenet()),
        "of weight decay 0.001, this run's is 0.1: resume with --weight-decay 0.001"
    );
    let other = Settings { optimizer: settings.optimizer, ..adamw };
    assert_eq!(refused(&other, lenet()), "of momentum none, this run's is 0.9");

    let error = settings.train(&resnet18()).unwrap_err().to_string();
    let expected = "has tensor bn1.bias none, this run's network has F32 [4]";
    assert!(error.ends_with(expected), "{error}");
    let mut longer = settings.clone();
    longer.options.epochs = 1;
    settings.train(&lenet()).unwrap();
    let error = longer.train(&lenet()).unwrap_err().to_string();
    assert!(error.contains("is in epoch 2, this run ends after 1: ask for more"), "{error}");
}
