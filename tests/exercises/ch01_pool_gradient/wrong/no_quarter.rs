// expect: that is the whole gradient of the window

/// Copies a window's gradient to its elements: the gradient of a sum, not of a mean.
pub fn pool_gradient(dy: &[f64], height: usize, width: usize) -> Vec<f64> {
    let (rows, columns) = (height / 2, width / 2);
    let mut dx = vec![0.0; height * width];
    for row in 0..2 * rows {
        for column in 0..2 * columns {
            dx[row * width + column] = dy[(row / 2) * columns + column / 2];
        }
    }
    dx
}
