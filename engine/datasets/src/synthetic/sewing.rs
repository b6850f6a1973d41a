//! The main parts of a top: sleeves and body.

use super::cut::{Body, Neck, Sleeve};
use super::draws::Draws;
use super::garment::Garment;
use super::outline::{mirrored, rectangle, stroke};

/// Sews the two sleeves on, and their cuffs if there are ribs.
pub fn sew_sleeves(
    garment: &mut Garment,
    draws: &mut Draws,
    body: &Body,
    sleeve: &Sleeve,
    ribbed: bool,
) {
    let tone = draws.between(0.78, 1.0);
    let rib = draws.between(0.65, 0.9);
    // The unit vector down the sleeve, and the one across it, away from the body.
    let norm = (sleeve.spread * sleeve.spread + 1.0).sqrt();
    let (down_x, down_y) = (sleeve.spread / norm, 1.0 / norm);
    let (out_x, out_y) = (down_y, -down_x);
    // The middle of the armhole, where the sleeve begins.
    let middle = ((body.shoulder + body.chest) / 2.0, (body.shoulder_end() + body.armpit()) / 2.0);
    let end = |length: f32, side: f32| {
        (
            middle.0 + down_x * length + out_x * side * sleeve.cuff / 2.0,
            middle.1 + down_y * length + out_y * side * sleeve.cuff / 2.0,
        )
    };
    let outline = vec![
        (body.shoulder - 0.12, body.shoulder_end() - 0.04),
        (body.shoulder + 0.03, body.shoulder_end() + 0.03),
        end(sleeve.length, 1.0),
        end(sleeve.length, -1.0),
        (body.chest - 0.03, body.armpit()),
    ];
    let cuff = vec![
        end(sleeve.length, 1.0),
        end(sleeve.length, -1.0),
        end(sleeve.length - 0.12, -1.0),
        end(sleeve.length - 0.12, 1.0),
    ];
    garment.sew_pair(outline, tone);
    if ribbed {
        garment.sew_pair(cuff, tone * rib);
    }
}

/// Sews the body with its neckline, the armhole seams and, if the top is ribbed, the rib at the hem.
pub fn sew_body(garment: &mut Garment, draws: &mut Draws, body: &Body, neck: &Neck, ribbed: bool) {
    // The inside of the back, seen through the neck opening.
    let inside = rectangle((0.0, body.top + 0.12), body.neck, 0.12);
    garment.sew_toned(inside, draws.between(0.25, 0.6));
    let bottom = body.top + neck.depth();
    let mut right = vec![(0.0, bottom)];
    if !matches!(neck, Neck::Vee(_)) {
        right.push((body.neck * 0.7, bottom - neck.depth() * 0.2));
    }
    right.extend([
        (body.neck, body.top),
        (body.shoulder, body.shoulder_end()),
        (body.chest, body.armpit()),
        (body.chest * body.waist, (body.armpit() + body.hem) / 2.0),
        (body.hem_width(), body.hem - body.tail),
        (body.hem_width() * 0.6, body.hem),
    ]);
    garment.sew(mirrored(&right));

    let seam = stroke(
        (body.shoulder, body.shoulder_end()),
        (body.chest, body.armpit()),
        draws.between(0.03, 0.07),
    );
    let tone = draws.between(0.5, 0.95);
    garment.sew_pair(seam, tone);
    if ribbed {
        let hem = rectangle((0.0, body.hem - 0.06), body.hem_width() * 0.98, 0.06);
        garment.sew_toned(hem, draws.between(0.65, 0.9));
    }
}
