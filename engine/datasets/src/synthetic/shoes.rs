//! Closed shoes, sneakers and ankle boots, seen from the side with the toe to the left.

use super::draws::Draws;
use super::fabric::{Fabric, PLAIN};
use super::garment::Garment;
use super::outline::{along, rounded, stroke};

/// A sneaker: low, closed, on a sole that contrasts, with laces. A few are high.
pub fn sneaker(draws: &mut Draws) -> Garment {
    let mut garment = Garment::of(Fabric::draw(draws, PLAIN));
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
    garment.sew(rounded(&upper));
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
        garment.sew_toned(stroke((x, ground - 0.48), (x - 0.16, ground - sole), 0.08), tone);
    }
    garment
}

/// An ankle boot: a shaft over a closed foot, most often on a heel.
pub fn ankle_boot(draws: &mut Draws) -> Garment {
    let mut garment = Garment::of(Fabric::draw(draws, PLAIN));
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
    // From the toe over the instep, up the shaft, around its rim, down to the heel and forward
    // along the arch.
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
    garment.sew(rounded(&foot));
    let sole_tone = draws.between(0.3, 1.1);
    let thick = draws.between(0.05, 0.13);
    garment.sew_toned(
        vec![(-0.96, ground - thick), (-0.3, ground - thick), (-0.25, ground), (-0.94, ground)],
        sole_tone,
    );
    // The heel, as wide as its block.
    let block = draws.between(0.12, 0.45);
    garment.sew_toned(
        vec![
            (0.86 - block, ground - heel - 0.06),
            (0.9, ground - heel - 0.06),
            (0.88, ground),
            (0.9 - block, ground),
        ],
        sole_tone,
    );
    // A strap, an elastic side panel, laces, or nothing.
    let tone = draws.between(0.5, 1.2);
    match draws.pick(&[0.2, 0.25, 0.25]) {
        0 => garment.sew_toned(stroke((front - 0.02, instep), (0.84, instep + 0.1), 0.1), tone),
        1 => garment.sew_toned(
            vec![(0.3, rim), (0.6, rim), (0.5, instep + 0.1), (0.38, instep + 0.1)],
            tone,
        ),
        2 => {
            let shade = if draws.chance(0.5) { 0.9 } else { 0.1 };
            for lace in [0.0, 0.35, 0.7] {
                let y = instep + (rim - instep) * lace;
                garment.trim(stroke((front - 0.06, y), (front + 0.18, y + 0.04), 0.07), shade);
            }
        }
        _ => {}
    }
    garment
}
