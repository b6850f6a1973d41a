// expect: that was pool_gradient of a plane of 5×5

/// Looks for a window behind the last one, where an odd row or column is.
pub fn pool_gradient(dy: &[f64], height: usize, width: usize) -> Vec<f64> {
    let mut dx = vec![0.0; height * width];
    for row in 0..height {
        for column in 0..width {
            dx[row * width + column] = dy[row / 2 * (width / 2) + column / 2] / 4.0;
        }
    }
    dx
}
