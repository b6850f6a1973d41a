//! Sandals, seen from the side with the toe to the left.

use super::draws::Draws;
use super::fabric::{Fabric, PLAIN};
use super::garment::Garment;
use super::outline::{along, stroke};

/// A sandal: a sole, flat or on a heel, and a few straps with nothing between them.
pub fn sandal(draws: &mut Draws) -> Garment {
    let mut garment = Garment::of(Fabric::draw(draws, PLAIN));
    let ground = draws.between(0.3, 0.7);
    // The height of the back of the sole above its front: small for flat sandals, and large for heels.
    let heel = if draws.chance(0.4) { draws.between(0.0, 0.15) } else { draws.between(0.25, 0.8) };
    let thick = draws.between(0.1, 0.2);
    // The top of the sole: level under the toes, then up to the heel.
    let toe = (-0.95, ground - thick);
    let ball = (-0.35, ground - thick);
    let back = (0.9, ground - thick - heel);
    garment.sew_toned(
        vec![toe, ball, back, (0.9, back.1 + thick), (-0.3, ground), (-0.92, ground)],
        draws.between(0.6, 1.2),
    );
    let tone = draws.between(0.6, 1.1);
    if draws.chance(0.3) {
        // A wedge fills the room under the heel.
        garment.sew_toned(vec![(-0.3, ground), (0.9, back.1), (0.85, ground)], tone);
    } else {
        let width = draws.between(0.08, 0.25);
        garment.sew_toned(
            stroke((0.84 - width / 2.0, back.1 + 0.04), (0.86 - width / 2.0, ground), width),
            tone,
        );
    }
    let width = draws.between(0.1, 0.26);
    // Over the toes: one to three straps rising to a common side.
    let peak = (draws.between(-0.4, -0.15), ground - thick - draws.between(0.25, 0.42));
    for strap in 0..1 + draws.pick(&[0.3, 0.4]) {
        let foot = along(toe, ball, 0.15 + 0.42 * strap as f32);
        garment.sew(stroke((foot.0, foot.1 + 0.03), peak, width));
    }
    garment.sew(stroke(peak, along(ball, back, 0.25), width));
    if draws.chance(0.25) {
        // A closed toe, as on a clog.
        garment.sew(vec![
            (-0.93, toe.1 + 0.03),
            (-0.7, peak.1 + 0.08),
            peak,
            along(ball, back, 0.3),
        ]);
    }
    // Around the ankle: a level strap, one up the heel and one from the toes.
    let ankle = back.1 - draws.between(0.3, 0.55);
    if draws.chance(0.75) {
        garment.sew(stroke((0.88, back.1 + 0.02), (0.86, ankle), width));
        garment.sew(stroke((0.88, ankle), (draws.between(0.15, 0.3), ankle + 0.06), width));
        if draws.chance(0.6) {
            garment.sew(stroke(peak, (0.3, ankle + 0.05), width));
        } else {
            garment.sew(stroke((0.25, ankle + 0.05), along(ball, back, 0.5), width));
        }
    }
    garment
}
