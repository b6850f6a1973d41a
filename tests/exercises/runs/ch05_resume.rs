//! ResNet-18 trained by stage 5's loop, and by runs that are killed and resumed with the learner's checkpoints.

use std::time::{SystemTime, UNIX_EPOCH};

use concise_wrapper::optimizer::{Momentum, Schedule, Sgd};
use model_parallel::layers::Layers;

use super::prelude::*;
pub use crate::checks::ch05_resume::Answer;
use crate::training::Setup;

/// Steps between two checkpoints.
const EVERY: usize = 4;

/// Shows what the interruptions change. Fails with the answer.
pub fn run(answer: Answer) -> Run {
    let setup = Setup {
        data: synthetic::dataset(Split::Train, 96),
        epochs: 3,
        batch_size: 16,
        seed: 1,
        schedule: Schedule { rate: 0.05, warm_up: 9 },
        constants: Momentum { momentum: 0.9, weight_decay: 0.0005 },
        layers: Layers::resnet18(4),
    };
    let ours = by_stage_5(&setup)?;
    let steps = setup.epochs * setup.batches_per_epoch();
    let seed = SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos() as usize;
    // In two parts of the run, and never before the first checkpoint.
    let half = steps / 2;
    let mut kills = vec![half + seed / 7 % half, EVERY + seed % (half - EVERY)];
    let mut training = setup.begin()?;
    let (mut at, mut made, mut hash) = (0, 0, None);
    let (mut saved, mut saved_at) = ((answer.save)(&training)?, 0);
    while let Some(done) = training.step(&setup)? {
        (at, made, hash) = (at + 1, made + 1, Some(done.weights));
        if made > 3 * steps {
            return Ok(paragraph(format_args!(
                "Your training has made {made} steps in place of {steps}, and does not end."
            ))?);
        }
        if at % EVERY == 0 {
            (saved, saved_at) = ((answer.save)(&training)?, at);
        }
        if kills.pop_if(|kill| *kill == at).is_some() {
            line(format_args!("killed after step {at} of {steps}; resumed after step {saved_at}"))?;
            (training, at) = ((answer.resume)(&setup, &saved)?, saved_at);
        }
    }
    let yours = (training.losses, hash.map_or("none".to_owned(), |hash| hash.to_string()));
    let rows = [("stage 5, undisturbed", &ours), ("yours, killed twice", &yours)];
    let rows = rows.map(|(name, (losses, hash))| {
        let losses = in_a_row(losses.iter().map(|loss| format!("{loss:.6}")));
        vec![name.to_owned(), losses, hash.clone()]
    });
    table("ResNet-18", &["epochs' losses", "weights"], rows)?;
    Ok(paragraph(match (yours.1 == ours.1, yours.0 == ours.0) {
        (true, true) => "\nThe same losses and the same weights, to the last bit.",
        (true, _) => {
            "\nThe same weights, and other losses: the report of the resumed run is wrong."
        }
        _ => "\nOther weights. The run ends without an error all the same, and its loss falls.",
    })?)
}

/// The losses of the epochs, and the hash of the weights, after stage 5's loop without an interruption.
fn by_stage_5(setup: &Setup) -> Run<(Vec<f64>, String)> {
    let Setup { data, epochs, batch_size, seed, schedule, constants, .. } = setup.clone();
    let data = LoadedData { name: String::new(), train: data.clone(), test: data };
    let options = TrainOptions { epochs, batch_size, seed, learning_rate: schedule.rate };
    let (sgd, warm_up) = (&mut Sgd::new(constants), schedule.warm_up);
    let (network, report) = (setup.begin()?.network, &mut Report::silent());
    let it = concise_wrapper::train(
        &network,
        &data,
        &options,
        (sgd, warm_up),
        None,
        report,
        |_| Ok(()),
    )?;
    let losses = it.records.iter().map(|record| record.train_loss).collect();
    Ok((losses, WeightsHash::new(&it.weights)?.to_string()))
}
