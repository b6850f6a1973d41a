//! Chapter 1, `book/src/ch01-single-gpu.md`: the gradient of average pooling.
//!
//! The gradient of average pooling, against its drawing, its own derivative, and stage 1.

use crate::prelude::*;
use ops::avg_pool2d;

/// `dy`, height and width of x; the gradient of x.
pub type Answer = fn(&[f64], usize, usize) -> Vec<f64>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    a_window_gives_each_of_its_elements_a_quarter,
    what_is_in_no_window_gets_nothing,
    nothing_is_lost_and_nothing_added,
    it_is_the_derivative,
    stage_1_has_the_same
];

/// Heights and widths: even, odd, not square, LeNet's second pooling, and too small for any window.
const PLANES: [(usize, usize); 10] =
    [(2, 2), (4, 4), (6, 4), (5, 5), (5, 8), (4, 7), (9, 9), (1, 5), (3, 1), (1, 4)];

fn call(answer: Answer, dy: Vec<f64>, height: usize, width: usize) -> Vec<f64> {
    let input = format!("pool_gradient of a plane of {height}×{width}");
    within(&input, move || answer(&dy, height, width))
}

fn some_gradient(height: usize, width: usize) -> Vec<f64> {
    (0..(height / 2) * (width / 2)).map(|i| f64::from((i * 37 % 11) as u32) - 4.5).collect()
}

fn dx_of(height: usize, width: usize) -> Expectation<'static> {
    Expectation::of(format!("the gradient of a plane of {height}×{width}"))
        .at(move |index| format!("row {}, column {}", index / width, index % width))
}

/// The loss: the sum of the pooled plane, weighted by `dy`.
fn loss(x: &[f64], dy: &[f64], height: usize, width: usize) -> f64 {
    let mut loss = 0.0;
    for row in 0..height / 2 {
        for column in 0..width / 2 {
            let first = 2 * row * width + 2 * column;
            let sum = x[first] + x[first + 1] + x[first + width] + x[first + width + 1];
            loss += dy[row * (width / 2) + column] * sum / 4.0;
        }
    }
    loss
}

fn a_window_gives_each_of_its_elements_a_quarter(answer: Answer) {
    #[rustfmt::skip]
    let expected = [
        1.0, 1.0, 2.0, 2.0,
        1.0, 1.0, 2.0, 2.0,
        3.0, 3.0, 4.0, 4.0,
        3.0, 3.0, 4.0, 4.0,
    ];
    dx_of(4, 4)
        .law("an element has a quarter of its window's mean, and so a quarter of its gradient")
        .guess(|expected, got| {
            (got == 4.0 * expected).then(|| "that is the whole gradient of the window".into())
        })
        .check(&expected, &call(answer, vec![4.0, 8.0, 12.0, 16.0], 4, 4));
}

/// LeNet's second pooling, 9×9 to 4×4, where every element of `dy` is 1.
fn what_is_in_no_window_gets_nothing(answer: Answer) {
    let dx = call(answer, vec![1.0; 16], 9, 9);
    let outside = |index: usize| index / 9 == 8 || index % 9 == 8;
    let expected: Vec<f64> =
        dx.iter().enumerate().map(|(i, &got)| if outside(i) { 0.0 } else { got }).collect();
    dx_of(9, 9)
        .law(
            "row 8 and column 8 are in no window: they do not change the loss, their gradient is 0",
        )
        .check(&expected, &dx);
}

/// The elements of a window share its gradient, so the sum of all gradients stays 16.
fn nothing_is_lost_and_nothing_added(answer: Answer) {
    let total = call(answer, vec![1.0; 16], 9, 9).iter().sum();
    Expectation::of(
        "the sum of the gradient of a plane of 9×9, with gradient 1 in each of its 16 windows,",
    )
    .law("a window's four quarters are as much as the window")
    .up_to(1e-12)
    .check(&[16.0], &[total]);
}

/// Pooling is linear, so the difference that 1 more makes is the exact derivative.
fn it_is_the_derivative(answer: Answer) {
    for (height, width) in PLANES {
        let dy = some_gradient(height, width);
        let unit = |index| {
            let mut x = vec![0.0; height * width];
            x[index] = 1.0;
            x
        };
        let expected: Vec<f64> =
            (0..height * width).map(|index| loss(&unit(index), &dy, height, width)).collect();
        dx_of(height, width)
            .law("a gradient is what the loss gains when this element of x grows by 1")
            .up_to(1e-12)
            .check(&expected, &call(answer, dy, height, width));
    }
}

fn stage_1_has_the_same(answer: Answer) {
    for (height, width) in PLANES.into_iter().filter(|&(height, width)| height > 1 && width > 1) {
        let dy = some_gradient(height, width);
        let theirs = gradient_of_stage_1(&dy, height, width).expect("stage 1 pools this plane");
        dx_of(height, width)
            .law("it is what ops::avg_pool2d computes")
            .up_to(1e-12)
            .check(&theirs, &call(answer, dy, height, width));
    }
}

fn gradient_of_stage_1(dy: &[f64], height: usize, width: usize) -> Result<Vec<f64>> {
    let x = Var::zeros((1, 1, height, width), DType::F64, &Device::Cpu)?;
    let dy = Tensor::from_slice(dy, (1, 1, height / 2, width / 2), &Device::Cpu)?;
    let loss = (avg_pool2d(&x, 2, 2)? * dy)?.sum_all()?;
    let gradients = loss.backward()?;
    numbers(gradients.get(&x).expect("x is part of the loss"))
}
