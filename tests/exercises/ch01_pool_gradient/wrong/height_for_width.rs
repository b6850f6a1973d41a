// expect: the gradient of a plane of 6×4 is wrong at

/// Counts rows of y by its height. In square planes nobody notices.
pub fn pool_gradient(dy: &[f64], height: usize, width: usize) -> Vec<f64> {
    let (rows, columns) = (height / 2, width / 2);
    let mut dx = vec![0.0; height * width];
    for row in 0..2 * rows {
        for column in 0..2 * columns {
            let window = ((row / 2) * rows + column / 2) % dy.len();
            dx[row * width + column] = dy[window] / 4.0;
        }
    }
    dx
}
