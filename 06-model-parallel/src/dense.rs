//! A stack of dense layers: what its tensors are called, and where they begin.
//!
//! Whoever cuts the stack, between its layers or through them, asks here. So one seed gives the same weights in
//! either case.

use candle_core::{Result, bail};
use candle_nn::init::{Init, ZERO};

/// A tensor that a layer will ask for.
#[derive(Clone, Debug)]
pub struct PlannedTensor {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The distribution of its initial values.
    pub init: Init,
}

/// The initial weights of a layer with this many inputs: N(0, 2 / inputs) (He et al., "Delving deep into
/// rectifiers", 2015).
pub fn init(inputs: usize) -> Init {
    Init::Randn { mean: 0.0, stdev: (2.0 / inputs as f64).sqrt() }
}

/// Weight and bias of each layer of a stack, `[B, widths[0]]` → `[B, widths[last]]`, the first layer first.
///
/// Layer i has a weight `dense{i}.weight` of `[widths[i], widths[i + 1]]`, from [`init`], and a bias
/// `dense{i}.bias` of `[widths[i + 1]]`, zeros.
///
/// # Errors
///
/// When there are fewer than two widths, or one is 0.
pub fn plan(widths: &[usize]) -> Result<Vec<[PlannedTensor; 2]>> {
    if widths.len() < 2 || widths.contains(&0) {
        bail!("a dense stack has at least two widths, none of them 0; got {widths:?}");
    }
    let layer = |(number, pair): (usize, &[usize])| {
        let tensor = |kind: &str, shape: &[usize], init| {
            let name = format!("dense{number}.{kind}");
            PlannedTensor { name, shape: shape.to_vec(), init }
        };
        [tensor("weight", pair, init(pair[0])), tensor("bias", &pair[1..], ZERO)]
    };
    Ok(widths.windows(2).enumerate().map(layer).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_planned_layer_by_layer() {
        let layers = plan(&[8, 50, 3]).unwrap();
        let planned = layers.iter().flatten().map(|PlannedTensor { name, shape, init }| {
            let std = match init {
                Init::Randn { mean: 0.0, stdev } => *stdev,
                Init::Const(0.0) => 0.0,
                _ => panic!("{name} begins at {init:?}"),
            };
            (name.as_str(), shape.as_slice(), std)
        });
        let expected = [
            ("dense0.weight", &[8, 50][..], 0.5),
            ("dense0.bias", &[50], 0.0),
            ("dense1.weight", &[50, 3], 0.2),
            ("dense1.bias", &[3], 0.0),
        ];
        assert_eq!(planned.collect::<Vec<_>>(), expected);
    }
}
