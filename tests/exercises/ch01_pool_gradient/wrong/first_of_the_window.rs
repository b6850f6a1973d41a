// expect: an element has a quarter of its window's mean, and so a quarter of its gradient

/// Gives all of a window's gradient to its first element: the gradient of leaving the others out.
pub fn pool_gradient(dy: &[f64], height: usize, width: usize) -> Vec<f64> {
    let (rows, columns) = (height / 2, width / 2);
    let mut dx = vec![0.0; height * width];
    for row in 0..rows {
        for column in 0..columns {
            dx[2 * row * width + 2 * column] = dy[row * columns + column];
        }
    }
    dx
}
