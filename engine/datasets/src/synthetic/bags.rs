//! Bags.

use super::draws::Draws;
use super::fabric::{Fabric, MIXED};
use super::garment::Garment;
use super::outline::{mirrored, rectangle, rounded, stroke};

/// A bag: a box, most often with a handle, a flap and a clasp.
pub fn bag(draws: &mut Draws) -> Garment {
    let mut garment = Garment::of(Fabric::draw(draws, MIXED));
    let half_width = draws.between(0.6, 0.97);
    let height = draws.between(0.7, 1.25);
    let bottom = draws.between(0.55, 0.85);
    let top = bottom - height;
    let taper = draws.between(0.78, 1.05);

    if draws.chance(0.82) {
        // A handle as a bow of three strokes, up to the top of the frame at most.
        let rise = (top - draws.between(0.2, 0.75)).max(-0.95);
        let (foot, bow) = (half_width * draws.between(0.35, 0.8), draws.between(0.4, 0.9));
        let width = draws.between(0.07, 0.16);
        let tone = draws.between(0.55, 1.1);
        let side = stroke((foot, top + 0.1), (foot * bow, rise), width);
        garment.sew_pair(side, tone);
        garment.sew_toned(rectangle((0.0, rise), foot * bow + width / 2.0, width / 2.0), tone);
    }
    let body = mirrored(&[(half_width * taper, top), (half_width, bottom)]);
    garment.sew(if draws.chance(0.6) { rounded(&body) } else { body });
    if draws.chance(0.55) {
        let drop = top + height * draws.between(0.25, 0.6);
        let tone = draws.between(0.6, 1.25);
        let inner = half_width * draws.between(0.5, 0.9);
        garment.sew_toned(mirrored(&[(half_width * taper * 0.96, top), (inner, drop)]), tone);
        let edge = rectangle((0.0, drop), inner, 0.03);
        garment.sew_toned(edge, draws.between(0.4, 0.7));
    }
    if draws.chance(0.5) {
        let shade = if draws.chance(0.5) { 0.1 } else { 1.0 };
        let size = draws.between(0.05, 0.12);
        garment.trim(rectangle((0.0, top + height * 0.5), size, size), shade);
    }
    garment
}
