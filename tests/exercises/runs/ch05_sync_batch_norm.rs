//! ResNet-18 trained on two devices, with the learner's statistics in every batch norm.

use std::error::Error;
use std::sync::Arc;

use candle_core::{Error as TensorError, Tensor};
use concise_wrapper::resnet::ResNet18;
use concise_wrapper::{Ddp, Error as ModelError, Model as _};
use harness::records::TrainOptions;
use harness::report::{Table, columns, line, paragraph};
use ops::batch_norm::Statistics;
use ops::difference::largest_difference;
use params_and_allreduce::communicator::{self, SharedCommunicator};

use super::Peer;
use super::ddp::{REDUCTION, distance, explained, train_on};

/// A rank and its images; the statistics of all images.
pub type Answer = fn(&Peer, &Tensor) -> Result<Statistics, communicator::Error>;

/// A network on one of the ranks.
type Wrapped = Ddp<ResNet18>;

const OPTIONS: TrainOptions =
    TrainOptions { epochs: 2, batch_size: 64, learning_rate: 0.1, seed: 1 };

/// Weights whose difference after one step is at most this are equal up to rounding in f32.
const ROUNDING: f64 = 1e-2;

/// Shows accuracy and weights beside one device and other batch norms. Fails when the answer does.
pub fn run(answer: Answer) -> Result<(), Box<dyn Error>> {
    let train = |devices, norms: &(dyn Fn(Wrapped) -> Result<Wrapped, ModelError> + Sync)| {
        train_on(devices, "", None, (1024, &OPTIONS), |network, comm| {
            norms(Ddp::new(network, comm, REDUCTION)?)
        })
    };
    let yours = train(2, &|model| {
        let model = model.synchronise_norms()?;
        let comm = model.rank().expect("DDP has ranks").clone();
        let merge = move |comm: &SharedCommunicator, images: &Tensor, counts| {
            let own = if counts { images.detach() } else { images.detach().narrow(0, 0, 0)? };
            answer(&Peer(comm.clone()), &own).map_err(TensorError::wrap)
        };
        model.network().norms().synchronise_by(comm, Arc::new(merge));
        Ok(model)
    });
    let yours = match yours {
        Err(error) => return Ok(paragraph(explained(error)?)?),
        Ok(trained) => trained,
    };
    let alone = train(1, &Ok)?;
    let rows = [
        ("2 devices, yours", &yours),
        ("2 devices, ours", &train(2, &|model| model.synchronise_norms())?),
        ("2 devices, local", &train(2, &Ok)?),
        ("1 device", &alone),
    ];
    let mut table = Table::new("batch norm").column("loss", 0).column("test accuracy", 0);
    for name in ["s", "weights after a step"] {
        table = table.column(name, 0);
    }
    for (name, (trained, first)) in rows {
        let Some(last) = trained.records.last() else { continue };
        let seconds = trained.records.iter().map(|record| record.seconds).sum::<f64>();
        let apart = largest_difference(first, &alone.1)?;
        table.row([
            name.to_owned(),
            format!("{:.4}", last.train_loss),
            format!("{:.3}", last.test_accuracy),
            format!("{seconds:.1}"),
            if apart == 0.0 { "–".to_owned() } else { format!("{apart:.0e} away") },
        ]);
    }
    line(table.text(columns()))?;
    let apart = largest_difference(&yours.1, &alone.1)?;
    Ok(paragraph(format_args!(
        "\nAfter the first step, {}",
        distance(apart, ROUNDING, "the weights of one device")
    ))?)
}
