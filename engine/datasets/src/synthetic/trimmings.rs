//! The trimmings of a top: the border of the neck or the collar, the closure, pockets.

use super::cut::{Body, Closure, Neck};
use super::draws::Draws;
use super::garment::Garment;
use super::outline::{mirrored, rectangle, rounded, stroke};

/// Sews the border of the neck opening, or the collar.
pub fn sew_neck(garment: &mut Garment, draws: &mut Draws, body: &Body, neck: &Neck) {
    let tone = draws.between(0.7, 1.3);
    let top = body.top;
    match *neck {
        Neck::Round(depth) | Neck::Vee(depth) => {
            // A thin border along one half of the neckline, and its mirror image.
            let low = if matches!(neck, Neck::Vee(_)) { 0.0 } else { body.neck * 0.5 };
            let border = stroke((body.neck, top), (low, top + depth), 0.06);
            garment.sew_pair(border, tone);
        }
        Neck::Collar(height) => {
            let flap = vec![
                (0.0, top + 0.08),
                (body.neck * 0.8, top - 0.06),
                (body.neck + 0.08, top + 0.02),
                (body.neck * 0.9, top + height + 0.06),
            ];
            garment.sew_pair(flap, tone);
            // The gap between the flaps, in the shade.
            let gap = mirrored(&[(0.05, top - 0.02), (0.02, top + height)]);
            garment.sew_toned(gap, draws.between(0.2, 0.6));
        }
        Neck::High(height) => {
            let tube = rectangle((0.0, top - height / 2.0 + 0.08), body.neck, height / 2.0 + 0.06);
            garment.sew_toned(tube, tone);
        }
        Neck::Hood(height) => {
            let hood = mirrored(&[
                (body.neck * 0.7, top - 0.08),
                (body.neck + 0.1, top + 0.02),
                (body.neck + 0.06, top + height),
                (0.1, top + height + 0.12),
            ]);
            garment.sew_toned(rounded(&hood), tone);
            let opening = mirrored(&[(body.neck * 0.7, top), (0.05, top + height)]);
            garment.sew_toned(rounded(&opening), draws.between(0.2, 0.5));
        }
    }
}

/// Sews the closure down the front.
pub fn sew_closure(
    garment: &mut Garment,
    draws: &mut Draws,
    body: &Body,
    neck: &Neck,
    closure: Closure,
) {
    let top = body.top + neck.depth();
    let middle = (top + body.hem) / 2.0;
    let half = (body.hem - top) / 2.0;
    let tone = draws.between(0.5, 0.88);
    match closure {
        Closure::None => {}
        Closure::Buttons => {
            garment.sew_toned(rectangle((0.07, middle), 0.035, half), tone);
            let shade = if draws.chance(0.5) { 0.1 } else { 0.95 };
            let count = 4 + draws.pick(&[0.4, 0.3]);
            for button in 0..count {
                let y = top + 2.0 * half * (button as f32 + 0.5) / count as f32;
                garment.trim(rectangle((-0.02, y), 0.05, 0.045), shade);
            }
        }
        Closure::Zip => {
            garment.sew_toned(rectangle((0.0, middle), 0.08, half), tone);
            garment.trim(rectangle((0.0, middle), 0.025, half), draws.between(0.5, 1.0));
        }
        Closure::Open => {
            let (above, below) = (draws.between(0.02, 0.1), draws.between(0.06, 0.2));
            let gap = mirrored(&[(above, top), (below, body.hem)]);
            garment.sew_toned(gap, draws.between(0.15, 0.5));
        }
    }
}

/// Sews two pockets, or one on the chest.
pub fn sew_pockets(garment: &mut Garment, draws: &mut Draws, body: &Body) {
    let tone = draws.between(0.6, 0.85);
    if draws.chance(0.5) {
        let chest = rectangle((body.chest * 0.5, body.armpit() + 0.05), 0.11, 0.11);
        garment.sew_toned(chest, tone);
    } else {
        let y = body.hem - 0.45;
        let low = stroke((body.chest * 0.4, y), (body.chest * 0.75, y + 0.12), 0.07);
        garment.sew_pair(low, tone);
    }
}
