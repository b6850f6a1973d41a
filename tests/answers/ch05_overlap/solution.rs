//! The next bucket of the list starts when it is complete. A bucket that never becomes complete is an error.

use candle_core::Tensor;
use exercises::overlap::Pass;
use params_and_allreduce::communicator::Error;

pub fn backward(pass: &Pass<'_>, buckets: &[Vec<usize>]) -> Result<Vec<Tensor>, Error> {
    let mut gradients = vec![None; pass.shapes().len()];
    let mut next = 0;
    while let Some((parameter, gradient)) = pass.next_gradient() {
        gradients[parameter] = Some(gradient);
        // One gradient can complete a bucket for which complete buckets behind it wait.
        while let Some(bucket) = buckets.get(next)
            && bucket.iter().all(|&member| gradients[member].is_some())
        {
            pass.start(next, &row(bucket, &gradients)?)?;
            next += 1;
        }
    }
    // The other ranks wait for this rank, and their error names it.
    if let Some(missing) = gradients.iter().position(Option::is_none) {
        return Err(Error::Other(format!("parameter {missing} has no gradient")));
    }
    let mut sums = vec![None; gradients.len()];
    for bucket in buckets {
        let (row, mut start) = (pass.wait()?, 0);
        for &member in bucket {
            let shape = &pass.shapes()[member];
            let sum = row.narrow(0, start, shape.elem_count())?;
            sums[member] = Some(sum.reshape(shape)?);
            start += shape.elem_count();
        }
    }
    Ok(sums.into_iter().flatten().collect())
}

/// The gradients of a bucket in a row, in the order of the list, whatever the order in which they came.
fn row(bucket: &[usize], gradients: &[Option<Tensor>]) -> candle_core::Result<Tensor> {
    let come = bucket.iter().filter_map(|&member| gradients[member].as_ref());
    Tensor::cat(&come.map(Tensor::flatten_all).collect::<candle_core::Result<Vec<_>>>()?, 0)
}

exercises::check!(ch05_overlap, backward, run);
