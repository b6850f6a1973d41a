//! Chapter 1, `book/src/ch01-single-gpu.md`: the gradient of average pooling.
//!
//! The gradient of average pooling, against its drawing, its own derivative, and stage 1.

use std::fmt;

use crate::prelude::*;

/// `dy`, height and width of x; the gradient of x.
pub type Answer = fn(&[f64], usize, usize) -> Vec<f64>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    a_window_gives_each_of_its_elements_a_quarter in [Plane(4, 4)],
    what_is_in_no_window_gets_nothing in [Plane(9, 9)],
    nothing_is_lost_and_nothing_added in [Plane(9, 9)],
    it_is_the_derivative in PLANES,
    stage_1_has_the_same in PLANES
];

/// Height and width.
#[derive(Clone, Copy)]
struct Plane(usize, usize);

/// Even, odd, not square, both poolings of LeNet, larger, and too small for any window.
const PLANES: [Plane; 12] = [
    Plane(2, 2),
    Plane(4, 4),
    Plane(6, 4),
    Plane(5, 5),
    Plane(5, 8),
    Plane(4, 7),
    Plane(9, 9),
    Plane(26, 26),
    Plane(3, 41),
    Plane(1, 5),
    Plane(3, 1),
    Plane(1, 4),
];

impl fmt::Display for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a plane of {}×{}", self.0, self.1)
    }
}

impl Plane {
    /// A gradient that f32 cannot hold exactly.
    fn dy(self) -> Vec<f64> {
        let Self(height, width) = self;
        (0..(height / 2) * (width / 2))
            .map(|i| f64::from((i * 37 % 11) as u32) / 3.0 - 1.4)
            .collect()
    }

    fn gradient(self) -> Expectation<'static> {
        let Self(_, width) = self;
        let place = move |index| format!("row {}, column {}", index / width, index % width);
        Expectation::of("the gradient").at(place)
    }

    /// The loss that grows by the gradient of each output: the outputs, weighted by `dy`.
    fn loss(self, x: &[f64], dy: &[f64]) -> f64 {
        let Self(height, width) = self;
        let windows =
            (0..height / 2).flat_map(|row| (0..width / 2).map(move |column| (row, column)));
        let mean = |(row, column)| {
            let first = 2 * row * width + 2 * column;
            (x[first] + x[first + 1] + x[first + width] + x[first + width + 1]) / 4.0
        };
        windows.map(mean).zip(dy).map(|(mean, dy)| mean * dy).sum()
    }
}

fn a_window_gives_each_of_its_elements_a_quarter(answer: Answer, plane: &Plane) -> Outcome {
    let windows = [4.0, 8.0, 12.0, 16.0];
    let expected: Vec<f64> =
        (0..16).map(|index| windows[index / 8 * 2 + index % 4 / 2] / 4.0).collect();
    plane
        .gradient()
        .law("an element has a quarter of its window's mean, and so a quarter of its gradient")
        .guess(|expected, got| {
            (got == 4.0 * expected).then(|| "that is the whole gradient of the window".into())
        })
        .compare(&expected, &answer(&windows, plane.0, plane.1))
}

/// Every element of `dy` is 1.
fn what_is_in_no_window_gets_nothing(answer: Answer, plane: &Plane) -> Outcome {
    let dx = answer(&[1.0; 16], plane.0, plane.1);
    let outside = |index: usize| index / 9 == 8 || index % 9 == 8;
    let expected = |(index, &got)| if outside(index) { 0.0 } else { got };
    let expected: Vec<f64> = dx.iter().enumerate().map(expected).collect();
    plane
        .gradient()
        .law(
            "row 8 and column 8 are in no window: they do not change the loss, their gradient is 0",
        )
        .compare(&expected, &dx)
}

/// The elements of a window share its gradient, so the sum of all gradients stays 16.
fn nothing_is_lost_and_nothing_added(answer: Answer, plane: &Plane) -> Outcome {
    let total = answer(&[1.0; 16], plane.0, plane.1).iter().sum();
    Expectation::of("the sum of the gradient, with gradient 1 in each of 16 windows,")
        .law("a window's four quarters are as much as the window")
        .up_to(1e-12)
        .compare(&[16.0], &[total])
}

/// Pooling is linear, so the difference that 1 more makes is the exact derivative.
fn it_is_the_derivative(answer: Answer, plane: &Plane) -> Outcome {
    let (Plane(height, width), dy) = (*plane, plane.dy());
    let slope = |index| {
        let mut x = vec![0.0; height * width];
        x[index] = 1.0;
        plane.loss(&x, &dy)
    };
    let expected: Vec<f64> = (0..height * width).map(slope).collect();
    plane
        .gradient()
        .law("a gradient is what the loss gains when this element of x grows by 1")
        .up_to(1e-12)
        .compare(&expected, &answer(&dy, height, width))
}

fn stage_1_has_the_same(answer: Answer, plane: &Plane) -> Outcome {
    let (Plane(height, width), dy) = (*plane, plane.dy());
    if dy.is_empty() {
        return Ok(());
    }
    let x = Var::zeros((1, 1, height, width), DType::F64, &Device::Cpu)?;
    let weights = Tensor::from_slice(&dy, (1, 1, height / 2, width / 2), &Device::Cpu)?;
    let gradients = (ops::avg_pool2d(&x, 2, 2)? * weights)?.sum_all()?.backward()?;
    let theirs = numbers(gradients.get(&x).expect("x is part of the loss"))?;
    plane
        .gradient()
        .law("it is what ops::avg_pool2d computes")
        .up_to(1e-12)
        .compare(&theirs, &answer(&dy, height, width))
}
