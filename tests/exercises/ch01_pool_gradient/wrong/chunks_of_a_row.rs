// expect: that was pool_gradient of a plane of 3×1

/// Cuts `dy` into its rows: of no window there are none, and chunks of 0 are refused.
pub fn pool_gradient(dy: &[f64], height: usize, width: usize) -> Vec<f64> {
    let mut dx = vec![0.0; height * width];
    for (row, shares) in dy.chunks(width / 2).enumerate() {
        for (column, share) in shares.iter().enumerate() {
            for (down, right) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                dx[(2 * row + down) * width + 2 * column + right] = share / 4.0;
            }
        }
    }
    dx
}
