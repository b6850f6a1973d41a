//! One dense layer on two ranks: whole on each rank, then in chunks:
//! `cargo run --release -p sharded-state --example one_unit`.

use std::error::Error;

use candle_core::{DType, Result as TensorResult, Tensor, Var, bail};
use datasets::source::LoadedData;
use datasets::{Batch, CLASSES, PIXELS};
use devices::{DeviceKind, DevicePlan};
use harness::report::{line, thousands};
use ops::backward::backward;
use ops::{cross_entropy, flatten, linear, size_in_bytes};
use params_and_allreduce::Algorithm;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{self, Communicator as _};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, run_ranks};

const SAMPLES: usize = 256;
const STEPS: usize = 100;
const LEARNING_RATE: f64 = 0.1;
const MOMENTUM: f64 = 0.9;

/// The row of all parameters at the end, and the bytes that a rank holds between two steps.
struct Trained {
    row: Tensor,
    parameters: usize,
    velocity: usize,
}

// ANCHOR: whole
/// Forward and backward on this rank's images: the gradient of the row of all parameters.
fn gradient(row: &Tensor, Batch { images, labels }: &Batch) -> TensorResult<Tensor> {
    let row = Var::from_tensor(row)?;
    let weight = row.narrow(0, 0, PIXELS * CLASSES)?.reshape((PIXELS, CLASSES))?;
    let bias = row.narrow(0, PIXELS * CLASSES, CLASSES)?;
    let loss = cross_entropy(&linear(images, &weight, &bias)?, labels)?;
    match backward(&loss)?.get(&row) {
        Some(gradient) => Ok(gradient.clone()),
        None => bail!("the loss does not depend on the row"),
    }
}

/// SGD with momentum.
fn update(values: &mut Tensor, velocity: &mut Tensor, gradient: &Tensor) -> TensorResult<()> {
    *velocity = ((&*velocity * MOMENTUM)? + gradient)?;
    *values = (&*values - (&*velocity * (LEARNING_RATE / SAMPLES as f64))?)?;
    Ok(())
}

/// Every rank holds the whole row and its velocity.
fn whole(comm: &Rank, mut row: Tensor, share: &Batch) -> Result<Trained, communicator::Error> {
    let mut velocity = row.zeros_like()?;
    for _ in 0..STEPS {
        let sum = comm.all_reduce(&gradient(&row, share)?, Algorithm::Ring)?;
        update(&mut row, &mut velocity, &sum)?;
    }
    let (parameters, velocity) = (size_in_bytes(&row), size_in_bytes(&velocity));
    Ok(Trained { row, parameters, velocity })
}
// ANCHOR_END: whole

// ANCHOR: chunks
/// Every rank holds its chunk of the row, and the velocity of the chunk.
fn chunks(comm: &Rank, row: Tensor, share: &Batch) -> Result<Trained, communicator::Error> {
    let (len, own) = (row.elem_count(), chunk_range(row.elem_count(), 2, comm.rank()));
    let mut chunk = row.narrow(0, own.start, own.len())?.copy()?;
    let mut velocity = chunk.zeros_like()?;
    drop(row);
    for _ in 0..STEPS {
        let row = comm.all_gather(&chunk, len)?;
        let gradient = gradient(&row, share)?;
        drop(row);
        let sum = comm.reduce_scatter(&gradient)?;
        update(&mut chunk, &mut velocity, &sum)?;
    }
    let (parameters, velocity) = (size_in_bytes(&chunk), size_in_bytes(&velocity));
    Ok(Trained { row: comm.all_gather(&chunk, len)?, parameters, velocity })
}
// ANCHOR_END: chunks

fn main() -> Result<(), Box<dyn Error>> {
    harness::cli::prepare(); // before anything else: each device computes on its own cores
    let garments = LoadedData::draw((Some(SAMPLES), Some(1))).train;
    let share = |rank: &Rank| {
        let own = chunk_range(SAMPLES, 2, rank.rank()).map(|it| it as u32);
        let mut batch = garments.batch(&own.collect::<Vec<_>>(), DType::F32)?;
        batch.images = flatten(&batch.images)?.to_device(rank.device())?;
        batch.labels = batch.labels.to_device(rank.device())?;
        Ok::<_, communicator::Error>(batch)
    };
    let plan = DevicePlan::new(DeviceKind::Auto, 2, None)?;
    let zeros = |rank: &Rank| Tensor::zeros((PIXELS + 1) * CLASSES, DType::F32, rank.device());
    let ways = [
        ("whole", run_ranks(&plan, DEFAULT_TIMEOUT, |it| whole(it, zeros(it)?, &share(it)?))?),
        ("chunks", run_ranks(&plan, DEFAULT_TIMEOUT, |it| chunks(it, zeros(it)?, &share(it)?))?),
    ];
    line("each of two ranks   bytes of parameters   of velocity   sum of all parameters")?;
    for (name, ranks) in ways {
        let Trained { row, parameters, velocity } = &ranks[0];
        let (parameters, velocity) = (thousands(*parameters), thousands(*velocity));
        let sum = row.to_dtype(DType::F64)?.abs()?.sum_all()?.to_scalar::<f64>()?;
        line(format_args!("{name:19} {parameters:>20} {velocity:>13} {sum:>23}"))?;
    }
    Ok(())
}
