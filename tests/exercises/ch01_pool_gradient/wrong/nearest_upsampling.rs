// expect: row 8 and column 8 are in no window: they do not change the loss, their gradient is 0

/// Enlarges `dy` to the whole plane. Stock candle does this.
pub fn pool_gradient(dy: &[f64], height: usize, width: usize) -> Vec<f64> {
    let (rows, columns) = (height / 2, width / 2);
    let mut dx = vec![0.0; height * width];
    for row in 0..height {
        for column in 0..width {
            if rows > 0 && columns > 0 {
                let window = (row * rows / height) * columns + column * columns / width;
                dx[row * width + column] = dy[window] / 4.0;
            }
        }
    }
    dx
}
