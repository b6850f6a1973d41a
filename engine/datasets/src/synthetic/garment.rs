//! A garment: polygons of a fabric, from the back to the front.
//!
//! The fabric has a shade for every point. Light, noise and objects in front of the garment belong to the camera.

use super::canvas::Canvas;
use super::draws::Draws;
use super::outline::{Outline, Point, Pose, flipped};

/// A garment: its fabric, and its parts from the back to the front.
pub struct Garment {
    fabric: Fabric,
    parts: Vec<(Outline, Paint)>,
}

enum Paint {
    /// The garment's fabric, with its shade times this number.
    Fabric(f32),
    /// One shade, from 0 (black, like the background) to 1 (white).
    Flat(f32),
}

impl Garment {
    pub fn of(fabric: Fabric) -> Self {
        Self { fabric, parts: Vec::new() }
    }

    /// Adds a part of the fabric, in front of the other parts, with its shade times `tone`.
    pub fn sew(&mut self, outline: Outline, tone: f32) {
        self.parts.push((outline, Paint::Fabric(tone)));
    }

    /// Adds a part and its mirror image across the vertical axis.
    pub fn sew_pair(&mut self, outline: Outline, tone: f32) {
        self.sew(flipped(&outline), tone);
        self.sew(outline, tone);
    }

    /// Adds a part such as a button, with a shade from 0 (black) to 1 (white).
    pub fn trim(&mut self, outline: Outline, shade: f32) {
        self.parts.push((outline, Paint::Flat(shade)));
    }

    pub fn paint(&self, pose: &Pose, canvas: &mut Canvas) {
        for (outline, paint) in &self.parts {
            let pixels: Outline = outline.iter().map(|&point| pose.to_pixels(point)).collect();
            match *paint {
                Paint::Fabric(tone) => canvas.fill(&pixels, |place| {
                    (self.fabric.shade(pose.to_garment(place)) * tone).clamp(0.0, 1.0)
                }),
                Paint::Flat(shade) => canvas.fill(&pixels, |_| shade),
            }
        }
    }
}

/// The probabilities of patterns: a gradient, stripes, checks, a print on the chest. The rest is plain.
pub type Odds = [f32; 4];

/// Smooth fabrics such as wool.
pub const PLAIN: Odds = [0.25, 0.08, 0.05, 0.02];
/// Fabrics for light clothes of any kind.
pub const MIXED: Odds = [0.18, 0.2, 0.1, 0.15];
/// Fabrics for T-shirts.
pub const PRINTED: Odds = [0.12, 0.18, 0.02, 0.4];
/// Fabrics for shirts.
pub const WOVEN: Odds = [0.12, 0.25, 0.28, 0.08];

/// A shade for every point of a garment.
pub struct Fabric {
    /// The main shade, from 0 (black) to 1 (white).
    base: f32,
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
    /// Spots of the second shade: upright ellipses, each with its centre and its radii.
    Print(Vec<(Point, Point)>),
}

impl Fabric {
    pub fn draw(draws: &mut Draws, odds: &Odds) -> Self {
        let base = draws.between(0.48, 1.0);
        // The second shade is visibly darker or lighter than the main shade.
        let step = draws.between(0.15, 0.5);
        let second = if base > 0.65 { base - step } else { base + step * 0.8 };
        let pattern = match draws.pick(odds) {
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
    fn shade(&self, (x, y): Point) -> f32 {
        let share = match &self.pattern {
            Pattern::Plain => 0.0,
            Pattern::Gradient((dx, dy)) => (0.5 + dx * x + dy * y).clamp(0.0, 1.0),
            Pattern::Stripes { direction, width } => {
                stripe(direction.0 * x + direction.1 * y, *width)
            }
            Pattern::Checks { frequency, width } => {
                (stripe(frequency * x, *width) + stripe(frequency * y, *width)) / 2.0
            }
            Pattern::Print(spots) => f32::from(spots.iter().any(|(centre, radii)| {
                let (dx, dy) = ((x - centre.0) / radii.0, (y - centre.1) / radii.1);
                dx * dx + dy * dy < 1.0
            })),
        };
        (self.base + (self.second - self.base) * share) * (1.0 - self.rounding * x * x)
    }
}

/// Returns 1 in the first `width` of every period of length 1, and 0 elsewhere.
fn stripe(phase: f32, width: f32) -> f32 {
    f32::from(phase - phase.floor() < width)
}

/// Draws the direction across the stripes, whose length is the number of stripes per unit. Most stripes are level.
fn stripe_direction(draws: &mut Draws) -> Point {
    let frequency = draws.between(1.6, 3.6);
    match draws.pick(&[0.6, 0.3]) {
        0 => (0.0, frequency),
        1 => (frequency, 0.0),
        _ => {
            let side = if draws.chance(0.5) { 1.0 } else { -1.0 };
            (side * frequency * 0.6, frequency * 0.8)
        }
    }
}

/// Draws a few spots around the chest.
fn spots(draws: &mut Draws) -> Vec<(Point, Point)> {
    let count = 1 + draws.pick(&[0.4, 0.3, 0.2]);
    let mut point =
        |x: (f32, f32), y: (f32, f32)| (draws.between(x.0, x.1), draws.between(y.0, y.1));
    (0..count).map(|_| (point((-0.3, 0.3), (-0.4, 0.5)), point((0.1, 0.35), (0.08, 0.3)))).collect()
}
