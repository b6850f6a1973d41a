//! The camera: objects in front of the garment, light, noise, rounding.

use super::canvas::Canvas;
use super::draws::Draws;
use super::outline::{rectangle, rounded, stroke};
use crate::{PIXELS, SIDE};

/// The fraction of pictures with an object in front of the garment.
const OCCLUDED: f32 = 0.3;

/// Puts a dark or grey strip or patch in front of some garments.
pub fn occlude(canvas: &mut Canvas, draws: &mut Draws) {
    if !draws.chance(OCCLUDED) {
        return;
    }
    let side = SIDE as f32;
    let mut place = || (draws.between(0.0, side), draws.between(0.0, side));
    let (from, to) = (place(), place());
    let outline = if draws.chance(0.5) {
        stroke(from, to, draws.between(1.5, 4.0))
    } else {
        rounded(&rectangle(from, draws.between(1.5, 5.0), draws.between(1.5, 5.0)))
    };
    let shade = if draws.chance(0.6) { 0.0 } else { draws.between(0.1, 0.6) };
    canvas.fill(&outline, |_| shade);
}

/// Exposes a canvas and rounds it to the grey values 0 to 255. Black pixels stay black, like the background of a cut-out
/// photograph. All other pixels get light and noise.
pub fn develop(canvas: &Canvas, draws: &mut Draws) -> [u8; PIXELS] {
    let gain = draws.between(0.85, 1.1);
    let noise = draws.between(0.01, 0.08);
    canvas.shades().map(|shade| {
        if shade <= 0.0 {
            return 0;
        }
        // Noise grows with the light, as in a camera. So soft edges stay soft.
        let grain = noise * draws.bell() * (0.3 + shade);
        // The cast rounds down and stops at 0 and 255.
        ((gain * shade + grain) * 255.0 + 0.5) as u8
    })
}
