//! Chapter 1, `book/src/ch01-single-gpu.md`: the gradient of average pooling.
//!
//! Check your answer: `cargo course check ch01_pool_gradient`

/// The backward pass of average pooling with 2×2 windows that do not overlap.
///
/// In the forward pass, the four elements of a window of x become one element of y: their mean. Only whole windows count, so
/// the last row or column is in no window if their number is odd. A plane of 5×5 becomes 2×2:
///
/// ```text
/// a a b b ·
/// a a b b ·         A B
/// c c d d ·   →     C D
/// c c d d ·
/// · · · · ·
/// ```
///
/// Either size may be 1: then no window fits, and `dy` is empty.
///
/// The backward pass computes the gradient of the loss with respect to x from the gradient with respect to y.
///
/// | name | what | shape |
/// | --- | --- | --- |
/// | `dy` | the loss's gradient with respect to y | `[height / 2, width / 2]`, divisions rounded down |
/// | result | the loss's gradient with respect to x | `[height, width]` |
///
/// Both lie row by row: the element in row r and column c of a plane of width w is number `r * w + c`.
pub fn pool_gradient(dy: &[f64], height: usize, width: usize) -> Vec<f64> {
    // TODO: the gradient of every element of x.
    todo!("the gradient of average pooling")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch01_pool_gradient, pool_gradient, run);
