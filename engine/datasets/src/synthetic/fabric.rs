//! The fabric of a garment: a shade for every point. Light, noise and objects in front of the garment belong to the camera.

use super::Draws;
use super::pattern::Point;

/// The probabilities of a gradient, stripes, checks and a print on the chest: smooth fabrics, light clothes, T-shirts, shirts.
pub const PLAIN: [f32; 4] = [0.25, 0.08, 0.05, 0.02];
pub const MIXED: [f32; 4] = [0.18, 0.2, 0.1, 0.15];
pub const PRINTED: [f32; 4] = [0.12, 0.18, 0.02, 0.4];
pub const WOVEN: [f32; 4] = [0.12, 0.25, 0.28, 0.08];

/// Draws a fabric: its shade at a point of the garment, before light. The shade can be below 0 or above 1.
pub fn fabric(draws: &mut Draws, odds: &[f32; 4]) -> impl Fn(Point) -> f32 + use<> {
    let base = draws.between(0.48, 1.0);
    // The second shade is visibly darker or lighter than the main shade.
    let step = draws.between(0.15, 0.5);
    let second = if base > 0.65 { base - step } else { base + step * 0.8 };
    let (pattern, mut spots) = (draws.pick(odds), Vec::new());
    let [a, b, width] = match pattern {
        0 => [draws.between(-0.5, 0.5), draws.between(-0.5, 0.5), 0.0],
        1 => {
            // The direction across the stripes, whose length is the number of stripes per unit. Most stripes are level.
            let frequency = draws.between(1.6, 3.6);
            let (dx, dy) = match draws.pick(&[0.6, 0.3]) {
                0 => (0.0, frequency),
                1 => (frequency, 0.0),
                _ if draws.between(0.0, 1.0) < 0.5 => (frequency * 0.6, frequency * 0.8),
                _ => (-frequency * 0.6, frequency * 0.8),
            };
            [dx, dy, draws.between(0.3, 0.6)]
        }
        2 => {
            let frequency = draws.between(1.5, 3.2);
            [frequency, frequency, draws.between(0.25, 0.5)]
        }
        3 => {
            // A few spots around the chest: the centres and the radii of upright ellipses.
            let ranges = [(-0.3, 0.3), (-0.4, 0.5), (0.1, 0.35), (0.08, 0.3)];
            for _ in 0..1 + draws.pick(&[0.4, 0.3, 0.2]) {
                spots.push(ranges.map(|(low, high)| draws.between(low, high)));
            }
            [0.0; 3]
        }
        _ => [0.0; 3],
    };
    // The loss of light at the sides of the garment, which face away from the light.
    let rounding = draws.between(0.0, 0.3);
    move |(x, y)| {
        let is_in = |[centre_x, centre_y, width, height]: &[f32; 4]| {
            let (dx, dy) = ((x - centre_x) / width, (y - centre_y) / height);
            dx * dx + dy * dy < 1.0
        };
        let share = match pattern {
            0 => (0.5 + a * x + b * y).clamp(0.0, 1.0),
            1 => stripe(a * x + b * y, width),
            // The second shade is stronger where stripes cross.
            2 => (stripe(a * x, width) + stripe(b * y, width)) / 2.0,
            3 => f32::from(spots.iter().any(is_in)),
            _ => 0.0,
        };
        (base + (second - base) * share) * (1.0 - rounding * x * x)
    }
}

/// Returns 1 in the first `width` of every period of length 1, and 0 elsewhere.
fn stripe(phase: f32, width: f32) -> f32 {
    f32::from(phase - phase.floor() < width)
}
