//! f32 on GPUs that round the operands of products to TF32: k replicas are one device but for that rounding.
//!
//! A program of its own, as TF32 is a switch of the whole process. Without a GPU all is skipped, and says so.
//!
//! TF32 has eleven binary digits, and a tensor core may cut the others off: each operand of a product changes by at most
//! 2⁻¹⁰ of it. From the images to the logits there are four products of two operands each, so the logits change by at most
//! 8 · 2⁻¹⁰. What that does to the gradients, by relus that are on the other side of zero, is derived in `precision.rs`.

#![cfg(feature = "cuda")]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::f64::consts::PI;
use std::time::Duration;

use candle_core::cuda::set_gemm_reduced_precision_f32;
use candle_core::{DType, Device, Tensor};
use course_tests::distance::distance;
use course_tests::lenet::{local_batch, with_large_weights};
use course_tests::on_the_cpu;
use datasets::{Batch, Split, synthetic};
use devices::{DeviceKind, DevicePlan};
use ops::difference::relative_difference;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::run_ranks;
use params_and_allreduce::{Algorithm, get_params};
use scratch_data_parallel::{Error, train_batch};
use single_gpu::lenet::Lenet;
use single_gpu::train;

const SAMPLES: u32 = 50;
const RATE: f64 = 0.2;
const WAIT: Duration = Duration::from_secs(60);

/// The logits of a step, and all ranks' gradients, in CPU memory.
type Found = (Tensor, Vec<Tensor>);

fn on_gpus(plan: &DevicePlan, start: &Lenet, batch: &Batch) -> Found {
    let found = run_ranks(plan, WAIT, |rank| {
        let model = Lenet::with_parameters(get_params(start.parameters(), rank.device())?)?;
        let logits = model.forward(&batch.images.to_device(rank.device())?)?;
        let step = train_batch(
            rank,
            &model,
            &local_batch(batch, plan.len(), [rank.rank()])?,
            RATE,
            Algorithm::Ring,
        )?;
        let logits = logits.detach().to_device(&Device::Cpu)?;
        Ok::<_, Error>((logits, on_the_cpu(&step.gradients)?))
    });
    found.unwrap().swap_remove(0)
}

#[test]
fn with_tf32_or_without_k_replicas_are_the_cpu_in_f64_but_for_rounding() {
    let data = synthetic::dataset(Split::Train, SAMPLES as usize);
    let batch = |dtype| data.batch(&(0..SAMPLES).collect::<Vec<_>>(), dtype).unwrap();
    let (exact, whole) = (with_large_weights(DType::F64), batch(DType::F64));
    let logits = exact.forward(&whole.images).unwrap().detach();
    let gradients = train::local_gradients(&exact, &whole).unwrap().gradients;
    let bound = 8.0 * 2f64.powi(-10);
    for replicas in [1, 2, 4] {
        let plan = match DevicePlan::new(DeviceKind::Cuda, replicas, None) {
            Ok(plan) => plan,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let found = |tf32| {
            set_gemm_reduced_precision_f32(tf32);
            on_gpus(&plan, &with_large_weights(DType::F32), &batch(DType::F32))
        };
        let (rounded, of_rounded) = found(true);
        let forward = distance([&rounded], [&logits]);
        assert!(forward <= bound, "{replicas} replicas: logits {forward:.1e}");
        let backward = distance(&of_rounded, &gradients);
        let relus = 3.0;
        let allowed = (2.0 * relus * bound / PI).sqrt();
        assert!(backward <= allowed, "{replicas} replicas: gradients {backward:.1e}");
        println!("{replicas} replicas, TF32: logits {forward:.1e}, gradients {backward:.1e}");
        // Without it, each number is as near as f32, and as an algorithm of Winograd's: `equivalence.rs` has the bound.
        let (plain, of_plain) = found(false);
        let all =
            [&plain].into_iter().chain(&of_plain).zip([&logits].into_iter().chain(&gradients));
        for (found, truth) in all {
            let error = relative_difference(found, truth).unwrap();
            assert!(error <= 1e-3, "{replicas} replicas in f32: {error:.1e}");
        }
    }
}
