//! Sandals, sneakers and ankle boots, seen from the side with the toe to the left.

use super::draws::Draws;
use super::garment::Garment;
use super::outline::{along, rounded, stroke};

/// A sandal: a sole, flat or on a heel, and a few straps with nothing between them.
pub fn sandal(garment: &mut Garment, draws: &mut Draws) {
    let ground = draws.between(0.3, 0.7);
    // The height of the back of the sole above its front: small for flat sandals, and large for heels.
    let heel = if draws.chance(0.4) { draws.between(0.0, 0.15) } else { draws.between(0.25, 0.8) };
    let thick = draws.between(0.1, 0.2);
    // The top of the sole: level under the toes, then up to the heel.
    let toe = (-0.95, ground - thick);
    let ball = (-0.35, ground - thick);
    let back = (0.9, ground - thick - heel);
    garment.sew(
        vec![toe, ball, back, (0.9, back.1 + thick), (-0.3, ground), (-0.92, ground)],
        draws.between(0.6, 1.2),
    );
    let tone = draws.between(0.6, 1.1);
    if draws.chance(0.3) {
        // A wedge fills the room under the heel.
        garment.sew(vec![(-0.3, ground), (0.9, back.1), (0.85, ground)], tone);
    } else {
        let width = draws.between(0.08, 0.25);
        garment.sew(
            stroke((0.84 - width / 2.0, back.1 + 0.04), (0.86 - width / 2.0, ground), width),
            tone,
        );
    }
    let width = draws.between(0.1, 0.26);
    // Over the toes: one to three straps rising to a common side.
    let peak = (draws.between(-0.4, -0.15), ground - thick - draws.between(0.25, 0.42));
    for strap in 0..1 + draws.pick(&[0.3, 0.4]) {
        let foot = along(toe, ball, 0.15 + 0.42 * strap as f32);
        garment.sew(stroke((foot.0, foot.1 + 0.03), peak, width), 1.0);
    }
    garment.sew(stroke(peak, along(ball, back, 0.25), width), 1.0);
    if draws.chance(0.25) {
        // A closed toe, as on a clog.
        garment.sew(
            vec![(-0.93, toe.1 + 0.03), (-0.7, peak.1 + 0.08), peak, along(ball, back, 0.3)],
            1.0,
        );
    }
    // Around the ankle: a level strap, one up the heel and one from the toes.
    let ankle = back.1 - draws.between(0.3, 0.55);
    if draws.chance(0.75) {
        garment.sew(stroke((0.88, back.1 + 0.02), (0.86, ankle), width), 1.0);
        garment.sew(stroke((0.88, ankle), (draws.between(0.15, 0.3), ankle + 0.06), width), 1.0);
        if draws.chance(0.6) {
            garment.sew(stroke(peak, (0.3, ankle + 0.05), width), 1.0);
        } else {
            garment.sew(stroke((0.25, ankle + 0.05), along(ball, back, 0.5), width), 1.0);
        }
    }
}

/// A sneaker: low, closed, on a sole that contrasts, with laces. A few are high.
pub fn sneaker(garment: &mut Garment, draws: &mut Draws) {
    let ground = draws.between(0.3, 0.55);
    let toe = ground - draws.between(0.28, 0.42);
    // y of the top of the tongue and of the heel; a high sneaker is as high as a low boot.
    let lift = if draws.chance(0.28) { draws.between(0.2, 0.55) } else { 0.0 };
    let tongue = ground - draws.between(0.75, 0.95) - lift;
    let heel = ground - draws.between(0.6, 0.8) - lift;
    // x of the lower end of the tongue. The laces go from `start` to this point.
    let throat = draws.between(-0.05, 0.2);
    let start = (-0.5, toe - 0.08);
    // From the toe along the laces to the tongue, along the opening to the heel and down.
    let upper = [
        (-0.98, ground),
        (-0.97, toe + 0.12),
        (-0.8, toe),
        start,
        (throat - 0.1, tongue + 0.06),
        (throat + 0.1, tongue),
        (throat + 0.3, heel + 0.12),
        (0.75, heel + 0.06),
        (0.92, heel - 0.04),
        (0.95, ground),
    ];
    garment.sew(rounded(&upper), 1.0);
    let sole = draws.between(0.1, 0.18);
    let sole_shade =
        if draws.chance(0.65) { draws.between(0.7, 1.0) } else { draws.between(0.1, 0.4) };
    garment.trim(
        vec![
            (-1.0, ground - sole),
            (0.98, ground - sole),
            (0.95, ground + 0.05),
            (-0.93, ground + 0.05),
        ],
        sole_shade,
    );
    if draws.chance(0.75) {
        let shade = if draws.chance(0.6) { 0.95 } else { 0.15 };
        for lace in [0.2, 0.45, 0.7] {
            let (x, y) = along(start, (throat, tongue), lace);
            garment.trim(stroke((x - 0.02, y), (x + 0.2, y + 0.14), 0.07), shade);
        }
    }
    // The maker's stripes on the side.
    let tone = draws.between(0.45, 1.3);
    for mark in 0..draws.pick(&[0.35, 0.25, 0.2]) {
        let x = 0.05 + 0.18 * mark as f32;
        garment.sew(stroke((x, ground - 0.48), (x - 0.16, ground - sole), 0.08), tone);
    }
}

/// An ankle boot: a shaft over a closed foot, most often on a heel.
pub fn ankle_boot(garment: &mut Garment, draws: &mut Draws) {
    let ground = draws.between(0.6, 0.85);
    // y of the top of the shaft; a low boot is as high as a high sneaker.
    let rim = if draws.chance(0.28) {
        ground - draws.between(0.9, 1.25)
    } else {
        draws.between(-0.95, -0.6)
    };
    // The height of the back of the foot above the ground.
    let heel = draws.between(0.0, 0.38);
    // x of the front of the shaft.
    let front = draws.between(-0.15, 0.15);
    let toe = ground - draws.between(0.28, 0.45);
    let instep = ground - draws.between(0.6, 0.8);
    // From the toe over the instep, up the shaft, around its rim, to the heel and along the arch.
    let foot = [
        (-0.96, ground - 0.03),
        (-0.95, toe + 0.12),
        (-0.75, toe),
        (-0.4, toe - 0.12),
        (front - 0.06, instep),
        (front - 0.02, rim),
        (front + 0.3, rim + 0.02),
        (0.8, rim),
        (0.82, instep),
        (0.9, ground - heel - 0.12),
        (0.86, ground - heel),
        (0.2, ground - heel * 0.8),
        (-0.3, ground - 0.03),
    ];
    garment.sew(rounded(&foot), 1.0);
    let sole_tone = draws.between(0.3, 1.1);
    let thick = draws.between(0.05, 0.13);
    garment.sew(
        vec![(-0.96, ground - thick), (-0.3, ground - thick), (-0.25, ground), (-0.94, ground)],
        sole_tone,
    );
    // The heel, as wide as its block.
    let block = draws.between(0.12, 0.45);
    garment.sew(
        vec![
            (0.86 - block, ground - heel - 0.06),
            (0.9, ground - heel - 0.06),
            (0.88, ground),
            (0.9 - block, ground),
        ],
        sole_tone,
    );
    fasten(garment, draws, front, rim, instep);
}

/// Sews a strap, an elastic side panel, laces, or nothing.
fn fasten(garment: &mut Garment, draws: &mut Draws, front: f32, rim: f32, instep: f32) {
    let tone = draws.between(0.5, 1.2);
    match draws.pick(&[0.2, 0.25, 0.25]) {
        0 => garment.sew(stroke((front - 0.02, instep), (0.84, instep + 0.1), 0.1), tone),
        1 => garment
            .sew(vec![(0.3, rim), (0.6, rim), (0.5, instep + 0.1), (0.38, instep + 0.1)], tone),
        2 => {
            let shade = if draws.chance(0.5) { 0.9 } else { 0.1 };
            for lace in [0.0, 0.35, 0.7] {
                let y = instep + (rim - instep) * lace;
                garment.trim(stroke((front - 0.06, y), (front + 0.18, y + 0.04), 0.07), shade);
            }
        }
        _ => {}
    }
}
