//! Networks in training against one device.

use crate::pipelines::numbers::SAMPLES;
use crate::pipelines::training::{Case, checked_on, close, cut};
use crate::prelude::*;

/// One to four layers: the last by columns, by rows, by columns, by rows; widths that do not divide; and replicas. In f32 five
/// steps prove nothing: one does.
#[test]
fn a_dense_stack_on_ranks_is_the_stack() {
    let all = ["1x1x1", "1x1x2", "1x1x3", "1x1x4", "2x1x2"];
    for (widths, dtype, steps, bound) in [
        (&[PIXELS, 33, 10][..], DType::F64, 5, 1e-10),
        (&[PIXELS, 30, 17, 10], DType::F64, 5, 1e-10),
        (&[PIXELS, 19, 23, 9, 10], DType::F64, 5, 1e-10),
        (&[PIXELS, 10], DType::F64, 5, 1e-10),
        (&[PIXELS, 33, 17, 10], DType::F32, 1, 1e-5),
    ] {
        let layers = Layers::dense(widths).unwrap();
        let case = Case { dtype, steps, rate: 0.05, ..Case::new("dense stack", layers, &[PIXELS]) };
        let expected = case.on_one_device(SAMPLES);
        let moved = largest_difference(&expected.0, &case.initial()).unwrap();
        assert!(moved > 1e-3, "training that changes nothing shows nothing: {moved:.1e}");
        let size = dtype.size_in_bytes();
        let of_layer = |pair: &[usize]| size * (pair[0] * pair[1] + pair[1]);
        let whole: usize = widths.windows(2).map(of_layer).sum();
        // The biases of the layers by rows.
        let replicated = size * widths[1..].iter().skip(1).step_by(2).sum::<usize>();
        for mesh in all {
            let mesh: Mesh = mesh.parse().unwrap();
            let (checked, cut) = (checked_on(mesh, Kind::Naive, 1), cut("", widths.len() - 1));
            let (found, losses, measured) = case.on_mesh(mesh, &checked, &cut, SAMPLES, false);
            close((&found, &losses), &expected, bound, &format!("{widths:?}, {mesh}"));
            let held: Vec<usize> = measured.iter().map(|it| it.held.peak.parameters).collect();
            let all_parts = whole + (mesh.tensor - 1) * replicated;
            assert_eq!(held.iter().sum::<usize>(), mesh.data * all_parts, "all parts, once");
            // 10 columns in 4 parts: 3.
            let widest = *held.iter().max().unwrap() as f64;
            assert!(widest <= 1.21 * whole as f64 / mesh.tensor as f64, "{held:?}");
        }
    }
}
