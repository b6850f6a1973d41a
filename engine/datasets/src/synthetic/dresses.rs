//! Dresses.

use super::draws::Draws;
use super::fabric::{Fabric, MIXED};
use super::garment::Garment;
use super::outline::{mirrored, rectangle, stroke};

/// A dress: a narrow bodice over a skirt that widens, down to the bottom of the frame.
pub fn dress(draws: &mut Draws) -> Garment {
    let mut garment = Garment::of(Fabric::draw(draws, MIXED));
    let top = draws.between(-0.98, -0.86);
    let neck = draws.between(0.12, 0.2);
    let shoulder = neck + draws.between(0.06, 0.2);
    // Few dresses are as wide and as straight as a long T-shirt.
    let wide = if draws.chance(0.12) { 0.12 } else { 0.0 };
    let chest = wide + draws.between(0.3, 0.46);
    let waist = chest * draws.between(0.7, 1.0);
    let waist_y = draws.between(-0.25, 0.1);
    let hem = waist + draws.between(0.0, 0.38);
    let bottom = draws.between(0.82, 1.0);
    let neckline = top + draws.between(0.1, 0.4);
    let armpit = top + 0.48;

    let sleeve_tone = draws.between(0.8, 1.0);
    // No sleeves, short ones, long ones: how far out and how far down from the armpit they reach.
    let reach = match draws.pick(&[0.4, 0.33]) {
        0 => None,
        1 => Some((0.2, draws.between(0.05, 0.3))),
        _ => Some((draws.between(0.12, 0.26), draws.between(0.7, 1.05))),
    };
    if let Some((out, down)) = reach {
        let sleeve = vec![
            (shoulder - 0.08, top + 0.04),
            (shoulder + 0.06, top + 0.1),
            (chest + out + 0.06, armpit + down),
            (chest + out - 0.12, armpit + down + 0.04),
            (chest - 0.04, armpit),
        ];
        garment.sew_pair(sleeve, sleeve_tone);
    }
    garment.sew(mirrored(&[
        (0.0, neckline),
        (neck * 0.8, neckline - 0.04),
        (neck, top),
        (shoulder, top + 0.06),
        (shoulder * 0.95, top + 0.28),
        (chest, armpit),
        (waist, waist_y),
        ((waist + hem) / 2.0 + 0.03, (waist_y + bottom) / 2.0),
        (hem, bottom),
    ]));
    if draws.chance(0.5) {
        garment.sew_toned(rectangle((0.0, waist_y), waist, 0.05), draws.between(0.4, 1.2));
    }
    if draws.chance(0.35) {
        // A fold down each side of the skirt.
        let fold = stroke((waist * 0.4, waist_y + 0.1), (hem * 0.55, bottom), 0.06);
        let tone = draws.between(0.65, 0.9);
        garment.sew_pair(fold, tone);
    }
    garment
}
