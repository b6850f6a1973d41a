//! Two gradients of candle's own operations, beside finite differences and beside the course's.
//!
//! The first is that of average pooling where windows do not cover the whole image, as in LeNet's second
//! pooling; the second that of relu at zero.

use candle_core::{DType, Device, Result, Tensor, Var};
use harness::cli;
use harness::report::line;
use ops::{avg_pool2d, relu};
use single_gpu::gradient_check::finite_differences;

/// LeNet's second pooling: 9×9 → 4×4.
const SIZE: usize = 9;
const KERNEL: usize = 2;

fn main() -> std::process::ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

/// Show two gradients of candle's own operations, beside finite differences and the course's.
#[derive(Debug, clap::Parser)]
#[command(version)]
struct Arguments {}

fn run(_: Arguments) -> anyhow::Result<()> {
    line("gradient of the sum of a 9×9 image, average-pooled 2×2 to 4×4\n")?;
    line(format_args!(
        "{:<20}{:>14}{:>12}{:>12}{:>12}",
        "", "in a window", "last row", "corner", "all 81"
    ))?;
    #[expect(clippy::disallowed_methods, reason = "this is the one that is shown to be wrong")]
    let stock = |x: &Tensor| x.avg_pool2d(KERNEL);
    let ours = |x: &Tensor| avg_pool2d(x, KERNEL, KERNEL);
    let image = Tensor::arange(0f64, (SIZE * SIZE) as f64, &Device::Cpu)?;
    let image = image.reshape((1, 1, SIZE, SIZE))?;
    let x = Var::from_tensor(&image)?;
    let pixels: Vec<usize> = (0..SIZE * SIZE).collect();
    show("finite differences", &finite_differences(&x, &pixels, || ours(&x)?.sum_all())?)?;
    show("candle", &gradient(&image, stock)?)?;
    show("this course", &gradient(&image, ours)?)?;

    line("\ngradient of relu at exactly 0: PyTorch's choice is 0\n")?;
    let zero = Tensor::zeros((1, 1, 1, 1), DType::F64, &Device::Cpu)?;
    let stock = gradient(&zero, Tensor::relu)?[0];
    line(format_args!("{:<20}{stock:>14}", "candle"))?;
    line(format_args!("{:<20}{:>14}", "this course", gradient(&zero, relu)?[0]))?;
    Ok(())
}

/// What backward says of the sum of `f`'s outputs, element by element.
fn gradient(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<f64>> {
    let x = Var::from_tensor(x)?;
    let gradients = f(&x)?.sum_all()?.backward()?;
    match gradients.get(&x) {
        Some(gradient) => gradient.flatten_all()?.to_vec1(),
        None => candle_core::bail!("the sum does not depend on its input"),
    }
}

fn show(name: &str, gradient: &[f64]) -> anyhow::Result<()> {
    let corner = SIZE * SIZE - 1;
    let last_row = (SIZE - 1) * SIZE;
    let shown = [gradient[0], gradient[last_row], gradient[corner], gradient.iter().sum()];
    // Differences leave a last digit of rounding, which is not what is to be seen.
    let shown = shown.map(|value| format!("{:>12}", (value * 1e6).round() / 1e6 + 0.0));
    line(format_args!("{name:<20}  {}", shown.concat()))?;
    Ok(())
}
