// expect: is wrong at row 0, column 8 (17 wrong of 81)

/// Lets the last row and column of an odd plane share the window beside them.
pub fn pool_gradient(dy: &[f64], height: usize, width: usize) -> Vec<f64> {
    let (rows, columns) = (height / 2, width / 2);
    let mut dx = vec![0.0; height * width];
    for row in 0..height {
        for column in 0..width {
            if rows > 0 && columns > 0 {
                let window = (row / 2).min(rows - 1) * columns + (column / 2).min(columns - 1);
                dx[row * width + column] = dy[window] / 4.0;
            }
        }
    }
    dx
}
