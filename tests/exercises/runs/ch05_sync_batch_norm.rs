//! ResNet-18 trained on two devices, with the learner's statistics in every batch norm.

use candle_core::Error as TensorError;
use ops::batch_norm::Statistics;

use super::ddp::{REDUCTION, train_on};
use super::prelude::*;
pub use crate::checks::ch05_sync_batch_norm::Answer;

/// A network on one of the ranks.
type Wrapped = Ddp<ResNet18>;

/// Batch norms add more rounding: weights whose difference after one step is at most this are equal up to rounding in f32.
const ROUNDING: f64 = 1e-2;

/// Shows accuracy and weights beside one device and other batch norms. Fails with the answer.
pub fn run(answer: Answer) -> Run {
    let yours = |model: Wrapped| {
        let model = model.synchronise_norms()?;
        let comm = model.rank().expect("DDP has ranks").clone();
        let merge = move |comm: &SharedCommunicator, images: &Tensor, counts| {
            let own = if counts { images.detach() } else { images.detach().narrow(0, 0, 0)? };
            answer(&Peer::new(comm.clone()), &own).map_err(TensorError::wrap)
        };
        model.network().norms().synchronise(comm, Arc::new(merge));
        Ok(model)
    };
    let train = |name, devices, norms: &(dyn Fn(Wrapped) -> Result<Wrapped, ModelError> + Sync)| {
        train_on(name, devices, (1024, options(2, 64, 0.1)), |network, comm| {
            norms(Ddp::new(network, comm, REDUCTION)?)
        })
    };
    let mut trained = [
        train("2 devices, yours", 2, &yours)?,
        train("2 devices, ours", 2, &Ddp::synchronise_norms)?,
        train("2 devices, local", 2, &Ok)?,
        train("1 device", 1, &Ok)?,
    ];
    let alone = trained[3].weights[0].clone();
    for training in &mut trained[..3] {
        let apart = largest_difference(&training.weights[0], &alone)?;
        training.more.push(format!("{apart:.0e} away"));
    }
    show("batch norm", &trained, &["after a step"])?;
    let difference = difference(&trained[0].weights[0], &alone, "one device's", ROUNDING);
    Ok(paragraph(format_args!("\nAfter the first step, {difference}"))?)
}
