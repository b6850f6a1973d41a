// expect: the gradient of a plane of 5×5 is wrong at row 0, column 4

/// Takes a row of x to be as long as a row of windows, which it is in even planes only.
pub fn pool_gradient(dy: &[f64], height: usize, width: usize) -> Vec<f64> {
    let (rows, columns) = (height / 2, width / 2);
    let mut dx = vec![0.0; height * width];
    for row in 0..2 * rows {
        for column in 0..2 * columns {
            dx[row * 2 * columns + column] = dy[(row / 2) * columns + column / 2] / 4.0;
        }
    }
    dx
}
