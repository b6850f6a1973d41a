//! Cross-entropy, and answers counted.

use super::*;
use crate::gpu::cross_entropy::Batch;

#[test]
fn cross_entropy_and_its_gradient() {
    let Some(machine) = emulator() else { return };
    // Losses are not taken in bf16.
    for ((dtype, bound), [rows, classes]) in
        TYPES.into_iter().take(2).cartesian_product([[5, 7], [THREADS + 44, 10]])
    {
        let logits = rounded("logits", &[rows, classes], dtype);
        // Where exponentials would overflow.
        let logits = (logits * 100.0).unwrap();
        let labels: Vec<u32> = (0..).map(|row: u32| row * 3 % 7).take(rows).collect();
        let labels = Tensor::new(labels, &Device::Cpu).unwrap();
        let variable = exact(&logits);
        let loss = crate::cross_entropy(&variable, &labels).unwrap();
        let (logits, labels) = (held(&logits), held(&labels));
        let batch = Batch { classes, logits: logits.operand(), labels: labels.operand() };
        let found = cross_entropy::loss(machine, &batch).unwrap();
        assert_close(&tensor(found, ()), &loss, bound);

        let upstream = rounded("upstream", &[], dtype);
        let expected = gradients(&loss, &upstream, &[&variable]);
        let upstream = held(&upstream);
        let found = cross_entropy::gradient(machine, &batch, upstream.operand()).unwrap();
        assert_close(&tensor(found, (rows, classes)), &expected[0], bound);
    }
}

#[test]
fn a_label_that_is_no_class_makes_the_loss_no_number() {
    let Some(machine) = emulator() else { return };
    let logits = held(&rounded("logits", &[3, 4], DType::F32));
    let labels = held(&Tensor::new(&[1u32, 4, 0], &Device::Cpu).unwrap());
    let batch = Batch { classes: 4, logits: logits.operand(), labels: labels.operand() };
    let loss = cross_entropy::loss(machine, &batch).unwrap();
    assert!(tensor(loss, ()).to_scalar::<f64>().unwrap().is_nan());
}

#[test]
fn right_answers_are_counted() {
    let Some(machine) = emulator() else { return };
    for (dtype, _) in TYPES {
        // One row has two largest logits, of which the first counts. In the last two it is a NaN.
        const NAN: f64 = f64::NAN;
        let logits = Tensor::new(
            &[
                [0.5, 2.0, -1.0],
                [0.0, 1.0, 3.0],
                [4.0, 1.0, 3.0],
                [2.0, 1.0, 2.0],
                [1.0, NAN, f64::INFINITY],
                [NAN, 1.0, NAN],
            ],
            &Device::Cpu,
        );
        let logits = held(&logits.unwrap().to_dtype(dtype).unwrap());
        let loss = held(&Tensor::new(0.75, &Device::Cpu).unwrap().to_dtype(dtype).unwrap());
        for (labels, right) in
            [([1u32, 2, 0, 0, 1, 0], 6.0), ([0, 2, 0, 2, 2, 0], 3.0), ([2, 0, 1, 1, 0, 2], 0.0)]
        {
            let labels = held(&Tensor::new(&labels, &Device::Cpu).unwrap());
            let batch = Batch { classes: 3, logits: logits.operand(), labels: labels.operand() };
            let found = cross_entropy::loss_and_correct(machine, &batch, loss.operand());
            assert_eq!(tensor(found.unwrap(), 2).to_vec1::<f64>().unwrap(), [0.75, right]);
        }
    }
}
