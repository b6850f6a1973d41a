//! Chapter 1, `book/src/ch01-single-gpu.md`: the gradient of average pooling.
//!
//! The gradient of average pooling, against stage 1.

use crate::prelude::*;

/// `dy`, height and width of x; the gradient of x.
pub type Answer = fn(&[f64], usize, usize) -> Vec<f64>;

pub const LAWS: &[Law<Answer>] = laws![
    what_is_in_no_window_gets_nothing in [Plane(9, 9)],
    an_element_has_a_quarter_of_its_window in PLANES
];

/// Height and width.
#[derive(Clone, Copy)]
struct Plane(usize, usize);

/// Even, odd, not square, both poolings of LeNet, larger, and too small for any window.
#[rustfmt::skip]
const PLANES: [Plane; 12] = [
    Plane(2, 2), Plane(4, 4), Plane(6, 4), Plane(5, 5), Plane(5, 8), Plane(4, 7), Plane(9, 9), Plane(26, 26), Plane(3, 41),
    Plane(1, 5), Plane(3, 1), Plane(1, 4),
];

shown!(Plane(height, width) => "a plane of {height}×{width}");

fn gradient(width: usize) -> Expectation<'static> {
    let place = move |index| format!("row {}, column {}", index / width, index % width);
    Expectation::of("the gradient").at(place)
}

/// Every element of `dy` is 1.
fn what_is_in_no_window_gets_nothing(answer: Answer, plane: &Plane) -> Outcome {
    let dx = answer(&[1.0; 16], plane.0, plane.1);
    let outside = |index: usize| index / 9 == 8 || index % 9 == 8;
    let expected = |(index, &got)| if outside(index) { 0.0 } else { got };
    let expected: Vec<f64> = dx.iter().enumerate().map(expected).collect();
    let law = "row 8 and column 8 are in no window, so their gradient is 0";
    gradient(9).law(law).compare(&expected, &dx)
}

/// f32 cannot hold `dy` exactly.
fn an_element_has_a_quarter_of_its_window(answer: Answer, plane: &Plane) -> Outcome {
    let (&Plane(height, width), windows) = (plane, (plane.0 / 2, plane.1 / 2));
    let dy = (0..windows.0 * windows.1).map(|i| f64::from((i * 37 % 11) as u32) / 3.0 - 1.4);
    let dy: Vec<f64> = dy.collect();
    let mut expected = vec![0.0; height * width];
    if !dy.is_empty() {
        let x = Var::zeros((1, 1, height, width), DType::F64, &Device::Cpu)?;
        let weights = Tensor::from_slice(&dy, (1, 1, windows.0, windows.1), &Device::Cpu)?;
        let gradients = (ops::avg_pool2d(&x, 2, 2)? * weights)?.sum_all()?.backward()?;
        expected = numbers(gradients.get(&x).expect("x is part of the loss"))?;
    }
    let whole = |expected: f64, got: f64| (got - 4.0 * expected).abs() < 1e-9;
    gradient(width)
        .law("an element counts for a quarter in its window's mean, and so gets a quarter of the mean's gradient")
        .guess(|expected, got| {
            whole(expected, got).then(|| "that is the whole gradient of the window".into())
        })
        .up_to(1e-12)
        .compare(&expected, &answer(&dy, height, width))
}
