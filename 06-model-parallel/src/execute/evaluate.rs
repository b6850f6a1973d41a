//! A data set through the pipeline: lists of forward passes alone.

use candle_core::Tensor;
use concise_wrapper::{Error, text};
use datasets::{Batch, Dataset};
use harness::interrupt;
use harness::records::BatchSums;
use harness::report::trace::COMPUTE;
use params_and_allreduce::Algorithm;
use single_gpu::evaluate::{BATCH, Part, SumsByBatch};
use tracing::info_span;

use super::step::StepState;
use super::unit::Unit;
use super::{Executor, doing, failed};

// ANCHOR: evaluate
/// The number of batches of a list, for each stage. A list holds up the slowest stage only, and all stages begin the
/// next list together: so no stage runs ahead by more than a list.
const AT_ONCE: usize = 4;

impl<U: Unit> Executor<U> {
    /// The sums of loss and correct answers over each batch of a part of a data set, by the running statistics of
    /// batch norms. The rank with the loss returns the sums, and all other ranks return zeros. Every rank counts a
    /// signal that has reached its process. All ranks call this together, those of a pipeline with the same part.
    ///
    /// Fails when the images do not fit the model, or another stage stops or stalls: the message names the stage.
    /// After a signal no list begins, and the sums are not used.
    pub fn evaluate_part(&self, images: &Dataset, part: Part) -> Result<SumsByBatch, Error> {
        let _span = info_span!(target: COMPUTE, "evaluate").entered();
        let (none, mut batches) = (BatchSums::of_no_samples(), Vec::new());
        part.evaluate(images.len(), images.at_once(BATCH), |samples| {
            batches.push(samples.to_vec());
            Ok::<_, Error>(none)
        })?;
        let mut lists: Vec<_> = batches.chunks(AT_ONCE * self.schedule().stages()).collect();
        // All replicas gather together, also a replica with fewer images.
        let most = text::values(&*self.all, &lists.len())?.into_iter().max();
        lists.resize(most.unwrap_or(0), &[]);
        let mut sums = Vec::new();
        for batches in lists {
            if self.is_cut()? {
                break;
            }
            let dtype = self.weights.precision.weights();
            let load = |samples: &Vec<u32>| images.batch(samples, dtype);
            let batches = batches.iter().map(load).collect::<Result<Vec<Batch>, _>>()?;
            let list = self.schedule().forward_only(batches.len());
            let mut state = StepState::new(self, &list, &batches, None);
            for &it in &list.lists[self.stage] {
                let named = |error| failed(self.stage, format!(", evaluating{}", doing(it)), error);
                state.execute(it).map_err(named)?;
            }
            sums.extend(state.sums()?);
            // Collectives of an evaluation are in no timeline.
            self.replicas.times();
        }
        let mut sums = sums.into_iter();
        part.evaluate(images.len(), images.at_once(BATCH), |_| Ok(sums.next().unwrap_or(none)))
    }

    /// Whether a signal has reached a rank. All ranks call this together, and return the same.
    fn is_cut(&self) -> Result<bool, Error> {
        let is_new = Tensor::new(&[f32::from(u8::from(interrupt::is_new()))], self.all.device())?;
        let of_all = self.all.all_reduce(&is_new, Algorithm::OneShot)?;
        Ok(of_all.to_vec1::<f32>()?[0] > 0.0)
    }
}
// ANCHOR_END: evaluate
