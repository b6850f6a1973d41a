//! The fabric of a garment: a shade for every point, with a pattern.
//!
//! The fabric does not depend on the garment's outline. Light, noise and objects in front of the garment belong to the
//! camera.

use super::canvas::Point;
use super::draws::Draws;

/// The probability of each pattern. The rest is plain.
#[derive(Clone, Copy)]
pub struct Odds {
    /// A gradient from one end to the opposite end.
    pub gradient: f32,
    /// Stripes.
    pub stripes: f32,
    /// Checks.
    pub checks: f32,
    /// A print on the chest.
    pub print: f32,
}

/// Smooth fabrics such as wool.
pub const PLAIN: Odds = Odds { gradient: 0.25, stripes: 0.08, checks: 0.05, print: 0.02 };
/// Fabrics for light clothes of any kind.
pub const MIXED: Odds = Odds { gradient: 0.18, stripes: 0.2, checks: 0.1, print: 0.15 };
/// Fabrics for T-shirts.
pub const PRINTED: Odds = Odds { gradient: 0.12, stripes: 0.18, checks: 0.02, print: 0.4 };
/// Fabrics for shirts.
pub const WOVEN: Odds = Odds { gradient: 0.12, stripes: 0.25, checks: 0.28, print: 0.08 };

/// A shade for every point of a garment.
pub struct Fabric {
    /// The main shade, from 0 (black) to 1 (white).
    base: f32,
    /// The second shade of the pattern.
    second: f32,
    pattern: Pattern,
    /// The loss of light at the sides of the garment, which face away from the light.
    rounding: f32,
}

/// The places of the second shade. A width is a fraction of a period, and a frequency is the number of periods per unit.
enum Pattern {
    Plain,
    /// The shade changes along this direction.
    Gradient(Point),
    /// Stripes of the second shade across this direction. The length of the direction is the frequency.
    Stripes {
        direction: Point,
        width: f32,
    },
    /// Stripes in both directions. The second shade is stronger where they cross.
    Checks {
        frequency: f32,
        width: f32,
    },
    /// Spots of the second shade.
    Print(Vec<Spot>),
}

/// An upright ellipse.
struct Spot {
    centre: Point,
    radii: (f32, f32),
}

impl Fabric {
    /// Draws a random fabric.
    pub fn draw(draws: &mut Draws, odds: Odds) -> Self {
        let base = draws.between(0.48, 1.0);
        // The second shade is visibly darker or lighter than the main shade.
        let step = draws.between(0.15, 0.5);
        let second = if base > 0.65 { base - step } else { base + step * 0.8 };
        let pattern = match draws.pick(&[odds.gradient, odds.stripes, odds.checks, odds.print]) {
            0 => Pattern::Gradient((draws.between(-0.5, 0.5), draws.between(-0.5, 0.5))),
            1 => Pattern::Stripes {
                direction: stripe_direction(draws),
                width: draws.between(0.3, 0.6),
            },
            2 => Pattern::Checks {
                frequency: draws.between(1.5, 3.2),
                width: draws.between(0.25, 0.5),
            },
            3 => Pattern::Print(spots(draws)),
            _ => Pattern::Plain,
        };
        Self { base, second, pattern, rounding: draws.between(0.0, 0.3) }
    }

    /// Returns the shade at a point of the garment, before light. It can be below 0 or above 1.
    pub fn shade(&self, (x, y): Point) -> f32 {
        let share = match &self.pattern {
            Pattern::Plain => 0.0,
            Pattern::Gradient((dx, dy)) => (0.5 + dx * x + dy * y).clamp(0.0, 1.0),
            Pattern::Stripes { direction, width } => {
                stripe(direction.0 * x + direction.1 * y, *width)
            }
            Pattern::Checks { frequency, width } => {
                (stripe(frequency * x, *width) + stripe(frequency * y, *width)) / 2.0
            }
            Pattern::Print(spots) => f32::from(spots.iter().any(|spot| spot.contains((x, y)))),
        };
        (self.base + (self.second - self.base) * share) * (1.0 - self.rounding * x * x)
    }
}

impl Spot {
    fn contains(&self, (x, y): Point) -> bool {
        let (dx, dy) = ((x - self.centre.0) / self.radii.0, (y - self.centre.1) / self.radii.1);
        dx * dx + dy * dy < 1.0
    }
}

/// Returns 1 in the first `width` of every period of length 1, and 0 elsewhere.
fn stripe(phase: f32, width: f32) -> f32 {
    f32::from(phase - phase.floor() < width)
}

/// Draws the direction across the stripes. Its length is the number of stripes per unit. Most stripes are level, some are
/// upright, and a few are slanted.
fn stripe_direction(draws: &mut Draws) -> Point {
    let frequency = draws.between(1.6, 3.6);
    match draws.pick(&[0.6, 0.3]) {
        0 => (0.0, frequency),
        1 => (frequency, 0.0),
        _ => (draws.sign() * frequency * 0.6, frequency * 0.8),
    }
}

/// A few spots around the chest.
fn spots(draws: &mut Draws) -> Vec<Spot> {
    let count = 1 + draws.pick(&[0.4, 0.3, 0.2]);
    (0..count)
        .map(|_| Spot {
            centre: (draws.between(-0.3, 0.3), draws.between(-0.4, 0.5)),
            radii: (draws.between(0.1, 0.35), draws.between(0.08, 0.3)),
        })
        .collect()
}
