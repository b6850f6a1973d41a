//! Trousers.

use super::draws::Draws;
use super::fabric::{Fabric, PLAIN};
use super::garment::Garment;
use super::outline::{flipped, rectangle, stroke};

/// Trousers: two legs under a waistband.
pub fn trouser(draws: &mut Draws) -> Garment {
    let mut garment = Garment::of(Fabric::draw(draws, PLAIN));
    let top = draws.between(-0.98, -0.85);
    // Half the width of the waistband, and of the hips.
    let waist = draws.between(0.26, 0.4);
    let hip = waist + draws.between(0.02, 0.12);
    let crotch = draws.between(-0.45, -0.15);
    let foot = draws.between(0.8, 1.0);
    // The lower end of a leg: its inner side and its width.
    let gap = draws.between(0.0, 0.2);
    let width = draws.between(0.18, 0.34);
    let leg = vec![
        (0.0, top),
        (waist, top),
        (hip, crotch - 0.15),
        (gap + width, foot),
        (gap, foot),
        (0.01, crotch),
        (0.0, crotch),
    ];
    let tone = draws.between(0.85, 1.0);
    garment.sew_toned(flipped(&leg), tone);
    garment.sew(leg);
    // Fly, waistband and creases are light or dark.
    let detail = draws.between(0.6, 1.15);
    garment.sew_toned(rectangle((0.0, top + 0.05), waist, 0.05), detail);
    garment.sew_toned(rectangle((0.0, (top + crotch) / 2.0), 0.025, (crotch - top) / 2.0), detail);
    if draws.chance(0.3) {
        let crease = stroke((hip * 0.55, crotch), (gap + width / 2.0, foot), 0.06);
        garment.sew_pair(crease, detail);
    }
    garment
}
