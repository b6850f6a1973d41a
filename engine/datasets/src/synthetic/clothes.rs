//! Trousers, dresses and bags.

use super::draws::Draws;
use super::garment::Garment;
use super::outline::{flipped, mirrored, rectangle, rounded, stroke};

/// Trousers: two legs under a waistband.
pub fn trouser(garment: &mut Garment, draws: &mut Draws) {
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
    garment.sew(flipped(&leg), tone);
    garment.sew(leg, 1.0);
    // Fly, waistband and creases are light or dark.
    let detail = draws.between(0.6, 1.15);
    garment.sew(rectangle((0.0, top + 0.05), waist, 0.05), detail);
    garment.sew(rectangle((0.0, (top + crotch) / 2.0), 0.025, (crotch - top) / 2.0), detail);
    if draws.chance(0.3) {
        let crease = stroke((hip * 0.55, crotch), (gap + width / 2.0, foot), 0.06);
        garment.sew_pair(crease, detail);
    }
}

/// A dress: a narrow bodice over a skirt that widens, down to the bottom of the frame.
pub fn dress(garment: &mut Garment, draws: &mut Draws) {
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
    garment.sew(
        mirrored(&[
            (0.0, neckline),
            (neck * 0.8, neckline - 0.04),
            (neck, top),
            (shoulder, top + 0.06),
            (shoulder * 0.95, top + 0.28),
            (chest, armpit),
            (waist, waist_y),
            ((waist + hem) / 2.0 + 0.03, (waist_y + bottom) / 2.0),
            (hem, bottom),
        ]),
        1.0,
    );
    if draws.chance(0.5) {
        garment.sew(rectangle((0.0, waist_y), waist, 0.05), draws.between(0.4, 1.2));
    }
    if draws.chance(0.35) {
        // A fold down each side of the skirt.
        let fold = stroke((waist * 0.4, waist_y + 0.1), (hem * 0.55, bottom), 0.06);
        let tone = draws.between(0.65, 0.9);
        garment.sew_pair(fold, tone);
    }
}

/// A bag: a box, most often with a handle, a flap and a clasp.
pub fn bag(garment: &mut Garment, draws: &mut Draws) {
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
        garment.sew(rectangle((0.0, rise), foot * bow + width / 2.0, width / 2.0), tone);
    }
    let body = mirrored(&[(half_width * taper, top), (half_width, bottom)]);
    garment.sew(if draws.chance(0.6) { rounded(&body) } else { body }, 1.0);
    if draws.chance(0.55) {
        let drop = top + height * draws.between(0.25, 0.6);
        let tone = draws.between(0.6, 1.25);
        let inner = half_width * draws.between(0.5, 0.9);
        garment.sew(mirrored(&[(half_width * taper * 0.96, top), (inner, drop)]), tone);
        let edge = rectangle((0.0, drop), inner, 0.03);
        garment.sew(edge, draws.between(0.4, 0.7));
    }
    if draws.chance(0.5) {
        let shade = if draws.chance(0.5) { 0.1 } else { 1.0 };
        let size = draws.between(0.05, 0.12);
        garment.trim(rectangle((0.0, top + height * 0.5), size, size), shade);
    }
}
