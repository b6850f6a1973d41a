//! Chapter 1, `book/src/ch01-single-gpu.md`: the gradient of average pooling.
//!
//! Check your answer: `cargo course check ch01_pool_gradient`

/// The way back through average pooling with 2×2 windows that do not overlap.
///
/// On the way there, a window's four elements of x become one element of y: their mean. Only whole windows
/// count, so of an odd number of rows or columns the last is in none. A plane of 5×5 becomes 2×2:
///
/// ```text
/// a a b b ·
/// a a b b ·         A B
/// c c d d ·   →     C D
/// c c d d ·
/// · · · · ·
/// ```
///
/// Either size may be 1: then no window fits, and all is 0.
///
/// On the way back the gradient of the loss with respect to y is known, and with respect to x is asked for.
///
/// | name | what | shape |
/// | --- | --- | --- |
/// | `dy` | the loss's gradient with respect to y | `[height / 2, width / 2]`, divisions rounded down |
/// | result | the loss's gradient with respect to x | `[height, width]` |
///
/// Both lie row by row: the element in row r and column c of a plane of width w is number `r * w + c`.
pub fn pool_gradient(dy: &[f64], height: usize, width: usize) -> Vec<f64> {
    // TODO: give each element of x what it adds to the loss when it grows by 1.
    todo!("the gradient of average pooling")
}
