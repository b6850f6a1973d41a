//! The fabric of a garment: a shade for every point. Light, noise and objects in front of the garment belong to the camera.

use super::Draws;
use super::pattern::Point;

/// The probabilities of a gradient, stripes, checks and a print on the chest, in smooth fabrics such as wool. The rest is plain.
pub const PLAIN: [f32; 4] = [0.25, 0.08, 0.05, 0.02];
/// The same in fabrics for light clothes of any kind.
pub const MIXED: [f32; 4] = [0.18, 0.2, 0.1, 0.15];
/// The same in fabrics for T-shirts.
pub const PRINTED: [f32; 4] = [0.12, 0.18, 0.02, 0.4];
/// The same in fabrics for shirts.
pub const WOVEN: [f32; 4] = [0.12, 0.25, 0.28, 0.08];

/// Draws a fabric: its shade at a point of the garment, before light. The shade can be below 0 or above 1.
pub fn fabric(draws: &mut Draws, odds: &[f32; 4]) -> impl Fn(Point) -> f32 + use<> {
    let base = draws.between(0.48, 1.0);
    // The second shade is visibly darker or lighter than the main shade.
    let step = draws.between(0.15, 0.5);
    let second = if base > 0.65 { base - step } else { base + step * 0.8 };
    let share = share_of_second(draws, odds);
    // The loss of light at the sides of the garment, which face away from the light.
    let rounding = draws.between(0.0, 0.3);
    move |(x, y)| (base + (second - base) * share(x, y)) * (1.0 - rounding * x * x)
}

/// Draws a pattern: the share of the second shade at a point, from 0 to 1.
fn share_of_second(draws: &mut Draws, odds: &[f32; 4]) -> Box<dyn Fn(f32, f32) -> f32> {
    match draws.pick(odds) {
        0 => {
            let (dx, dy) = (draws.between(-0.5, 0.5), draws.between(-0.5, 0.5));
            Box::new(move |x, y| (0.5 + dx * x + dy * y).clamp(0.0, 1.0))
        }
        1 => {
            // The number of stripes per unit, and the direction across the stripes. Most stripes are level.
            let frequency = draws.between(1.6, 3.6);
            let (dx, dy) = match draws.pick(&[0.6, 0.3]) {
                0 => (0.0, frequency),
                1 => (frequency, 0.0),
                _ if draws.between(0.0, 1.0) < 0.5 => (frequency * 0.6, frequency * 0.8),
                _ => (-frequency * 0.6, frequency * 0.8),
            };
            let width = draws.between(0.3, 0.6);
            Box::new(move |x, y| stripe(dx * x + dy * y, width))
        }
        2 => {
            // Stripes in both directions. The second shade is stronger where they cross.
            let (frequency, width) = (draws.between(1.5, 3.2), draws.between(0.25, 0.5));
            let stripe = move |place: f32| stripe(frequency * place, width);
            Box::new(move |x, y| (stripe(x) + stripe(y)) / 2.0)
        }
        3 => {
            // A few spots around the chest: the centres and the radii of upright ellipses.
            let count = 1 + draws.pick(&[0.4, 0.3, 0.2]);
            let ranges = [(-0.3, 0.3), (-0.4, 0.5), (0.1, 0.35), (0.08, 0.3)];
            let mut spot = |_| ranges.map(|(low, high)| draws.between(low, high));
            let spots: Vec<_> = (0..count).map(&mut spot).collect();
            Box::new(move |x, y| {
                let covers = |[centre_x, centre_y, width, height]: &[f32; 4]| {
                    let (dx, dy) = ((x - centre_x) / width, (y - centre_y) / height);
                    dx * dx + dy * dy < 1.0
                };
                f32::from(spots.iter().any(covers))
            })
        }
        _ => Box::new(|_, _| 0.0),
    }
}

/// Returns 1 in the first `width` of every period of length 1, and 0 elsewhere.
fn stripe(phase: f32, width: f32) -> f32 {
    f32::from(phase - phase.floor() < width)
}
