//! Every element of a window has a quarter of the window's mean, so it gets a quarter of its gradient.

pub fn pool_gradient(dy: &[f64], height: usize, width: usize) -> Vec<f64> {
    let (rows, columns) = (height / 2, width / 2);
    // What is in no window keeps this zero.
    let mut dx = vec![0.0; height * width];
    for row in 0..rows {
        for column in 0..columns {
            let share = dy[row * columns + column] / 4.0;
            for (down, right) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                dx[(2 * row + down) * width + 2 * column + right] = share;
            }
        }
    }
    dx
}

exercises::check!(ch01_pool_gradient, pool_gradient, run);
