//! Cut anywhere, on one device: it goes on with the same bits.

use std::fs;

use checkpoints::Resume;
use tempfile::TempDir;

use super::files::names_in;
use super::run::{Cut, STEPS, Settings, assert_same, cut, file, hash, lenet, resnet18, steps};
use super::watched::Event;
use crate::prelude::*;

/// Interrupts a run after each of its steps, and goes on.
fn every_cut<M: ModuleT>(network: fn() -> Network<M>, change: fn(Settings) -> Settings) {
    let expected = change(Settings::new()).train(&network()).unwrap();
    for step in 1..=STEPS {
        let folder = TempDir::new().unwrap();
        let settings = change(Settings::keeping(&folder));
        let part = settings.train(&cut(network(), Cut(step, Event::Interrupt))).unwrap();
        assert_eq!(part.records.len(), step.div_ceil(3), "step {step}");
        assert_eq!(names_in(settings.folder()), ["lock", file(step).as_str()]);
        let rest = settings.resume(Resume::Newest).train(&network()).unwrap();
        assert_same(&rest, &expected, &format!("cut after step {step}"));
        assert_eq!(names_in(settings.folder()).last(), Some(&file(STEPS)));
    }
}

#[test]
fn a_signal_in_an_evaluation_leaves_a_checkpoint_before_it() {
    let expected = Settings::new().train(&lenet()).unwrap();
    let folder = TempDir::new().unwrap();
    let settings = Settings::keeping(&folder);
    let trained = settings.train(&cut(lenet(), Cut(3, Event::InterruptEvaluation))).unwrap();
    assert_eq!(trained.records.len(), 1, "one epoch, and no step of the next");
    assert!(trained.records[0].test_accuracy.is_nan());
    assert_eq!(names_in(settings.folder()), ["lock", &file(3)]);
    let rest = cut(lenet(), Cut::NEVER);
    let trained = settings.resume(Resume::Newest).train(&rest).unwrap();
    assert_same(&trained, &expected, "after the first epoch's last step");
    assert_eq!(steps(&rest), 3);
}

/// What the other tests call the expected run is itself compared with a loop by hand: a mistake in both of its
/// halves alike would not show otherwise.
#[test]
fn a_run_without_a_cut_is_what_it_says() {
    a_run_is_what_it_says(Settings::new());
    a_run_is_what_it_says(Settings::new().adamw());
}

fn a_run_is_what_it_says(settings: Settings) {
    let Settings { data, options, extras, .. } = &settings;
    let (model, mut optimizer) = (resnet18(), (settings.optimizer)(extras.constants));
    let schedule = Schedule { rate: options.learning_rate, warm_up: extras.warm_up };
    let shares = ShardLoader::new(&data.train, 7, options.seed, DType::F32, model.hosts());
    let batches = shares.epoch(1).chain(shares.epoch(2));
    for (step, share) in batches.enumerate() {
        let share = share.unwrap();
        let gradients = model.backward(&share).unwrap().gradients;
        let weights = Model::weights(&model);
        optimizer.step(weights, &gradients, schedule.rate(step), share.samples).unwrap();
    }
    let by_hand = WeightsHash::new(&Model::weights(&model).snapshot().unwrap()).unwrap();
    assert_eq!(hash(&settings.train(&resnet18()).unwrap()), by_hand);
}

#[test]
fn lenet_goes_on_after_any_step() {
    every_cut(lenet, |settings| settings);
    every_cut(lenet, Settings::adamw);
}

#[test]
fn resnet18_goes_on_after_any_step() {
    every_cut(resnet18, |settings| settings);
}

#[test]
fn in_bf16_too_what_was_learnt_is_in_the_checkpoint() {
    every_cut(|| crate::prelude::lenet(DType::BF16), |settings| settings);
    every_cut(|| crate::prelude::lenet(DType::BF16), Settings::adamw);
}

#[test]
fn writing_changes_nothing_and_a_crash_costs_the_steps_since() {
    let expected = Settings::new().train(&lenet()).unwrap();
    let folder = TempDir::new().unwrap();
    let settings = Settings::keeping(&folder).every(2);
    let error = settings.train(&cut(lenet(), Cut(6, Event::Crash))).unwrap_err();
    assert!(error.to_string().contains("crashed on purpose"), "{error}");
    assert_eq!(names_in(settings.folder()), ["lock", &file(2), &file(4)]);
    let rest = cut(lenet(), Cut::NEVER);
    assert_same(&settings.resume(Resume::Newest).train(&rest).unwrap(), &expected, "after 4");
    assert_eq!(steps(&rest), 2);
    // A run that has ended goes on after its last step, and for longer if it is asked to.
    let nothing = cut(lenet(), Cut::NEVER);
    assert_same(&settings.resume(Resume::Newest).train(&nothing).unwrap(), &expected, "after 6");
    assert_eq!(steps(&nothing), 0);
    let longer = |mut settings: Settings| {
        settings.options.epochs = 3;
        settings.train(&lenet()).unwrap()
    };
    let three = longer(settings.resume(Resume::Newest));
    assert_eq!(hash(&three), hash(&longer(Settings::new())));
    let whole = Settings::keeping(&TempDir::new().unwrap()).every(1).train(&lenet()).unwrap();
    assert_same(&whole, &expected, "with a checkpoint after every step");
}

#[test]
fn without_momentum_there_are_no_velocities() {
    let folder = TempDir::new().unwrap();
    let plain = |mut settings: Settings| {
        settings.extras.constants = Momentum::default();
        settings
    };
    let expected = plain(Settings::new()).train(&lenet()).unwrap();
    let settings = plain(Settings::keeping(&folder));
    settings.train(&cut(lenet(), Cut(2, Event::Interrupt))).unwrap();
    let bytes = fs::read(settings.folder().join(file(2))).unwrap();
    assert!(!String::from_utf8_lossy(&bytes).contains("velocity/"));
    assert_same(&settings.resume(Resume::Newest).train(&lenet()).unwrap(), &expected, "plain");
}

#[test]
fn data_parallel_goes_on_too() {
    let model = || {
        let plan = DevicePlan::slices(2).unwrap();
        DataParallel::new(resnet18(), &plan, WAIT).unwrap()
    };
    let expected = Settings::new().train(&model()).unwrap();
    let folder = TempDir::new().unwrap();
    let settings = Settings::keeping(&folder);
    settings.train(&cut(model(), Cut(4, Event::Interrupt))).unwrap();
    assert_same(&settings.resume(Resume::Newest).train(&model()).unwrap(), &expected, "scattered");
}
