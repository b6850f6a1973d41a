//! Tops: T-shirts, pullovers, coats and shirts.
//!
//! The four kinds have the same pattern. They differ in the probabilities of short or long sleeves, a collar, a closure at
//! the front, and ribs. The ranges overlap on purpose: some shirts look like T-shirts, and some pullovers like coats.

use super::cut::{Body, Closure, Neck, Sleeve};
use super::draws::Draws;
use super::fabric::{Fabric, MIXED, Odds, PLAIN, PRINTED, WOVEN};
use super::garment::Garment;
use super::sewing::{sew_body, sew_sleeves};
use super::trimmings::{sew_closure, sew_neck, sew_pockets};

/// A kind of top: the probabilities of its features, and the ranges of its measures in garment units.
struct Habit {
    fabric: Odds,
    /// Sleeves: none, short; else long.
    sleeves: [f32; 2],
    /// Neck: round, vee, collar, high; else a hood.
    necks: [f32; 4],
    /// Closure: buttons, zip, open front; else none.
    closures: [f32; 3],
    /// Ribs along hem and cuffs.
    ribs: f32,
    /// Pockets.
    pockets: f32,
    /// y of the hem.
    hem: (f32, f32),
    /// The rise of the hem from the middle to the sides.
    tail: (f32, f32),
    /// Half width of the chest.
    chest: (f32, f32),
    /// The distance of long sleeves outwards per unit down.
    spread: (f32, f32),
}

const T_SHIRT: Habit = Habit {
    fabric: PRINTED,
    sleeves: [0.1, 0.8],
    necks: [0.66, 0.24, 0.1, 0.0],
    closures: [0.06, 0.0, 0.0],
    ribs: 0.05,
    pockets: 0.03,
    hem: (0.72, 1.0),
    tail: (-0.03, 0.05),
    chest: (0.48, 0.62),
    spread: (0.15, 0.4),
};

const PULLOVER: Habit = Habit {
    fabric: MIXED,
    sleeves: [0.0, 0.06],
    necks: [0.52, 0.16, 0.05, 0.17],
    closures: [0.03, 0.06, 0.0],
    ribs: 0.65,
    pockets: 0.06,
    hem: (0.62, 0.88),
    tail: (-0.03, 0.04),
    chest: (0.52, 0.66),
    spread: (0.1, 0.35),
};

const COAT: Habit = Habit {
    fabric: PLAIN,
    sleeves: [0.01, 0.03],
    necks: [0.1, 0.15, 0.35, 0.15],
    closures: [0.18, 0.4, 0.32],
    ribs: 0.1,
    pockets: 0.5,
    hem: (0.84, 1.0),
    tail: (-0.08, 0.03),
    chest: (0.48, 0.64),
    spread: (0.05, 0.3),
};

const SHIRT: Habit = Habit {
    fabric: WOVEN,
    sleeves: [0.04, 0.28],
    necks: [0.18, 0.13, 0.67, 0.01],
    closures: [0.7, 0.03, 0.04],
    ribs: 0.06,
    pockets: 0.2,
    hem: (0.78, 1.0),
    tail: (0.02, 0.2),
    chest: (0.44, 0.57),
    spread: (0.15, 0.4),
};

/// A T-shirt: short sleeves, a round neck, often a print.
pub fn t_shirt(draws: &mut Draws) -> Garment {
    top(draws, &T_SHIRT)
}

/// A pullover: long sleeves, no closure, often ribs.
pub fn pullover(draws: &mut Draws) -> Garment {
    top(draws, &PULLOVER)
}

/// A coat: long, with long sleeves and a closure or an open front.
pub fn coat(draws: &mut Draws) -> Garment {
    top(draws, &COAT)
}

/// A shirt: long or short sleeves, most often a collar and buttons.
pub fn shirt(draws: &mut Draws) -> Garment {
    top(draws, &SHIRT)
}

/// Draws a top of one kind.
fn top(draws: &mut Draws, habit: &Habit) -> Garment {
    let mut garment = Garment::of(Fabric::draw(draws, habit.fabric));
    let ribbed = draws.chance(habit.ribs);
    let body = Body {
        neck: draws.between(0.16, 0.26),
        shoulder: draws.between(0.4, 0.5),
        chest: draws.between(habit.chest.0, habit.chest.1),
        waist: draws.between(0.88, 1.0),
        flare: draws.between(0.92, 1.1),
        top: draws.between(-0.94, -0.84),
        hem: draws.between(habit.hem.0, habit.hem.1),
        tail: draws.between(habit.tail.0, habit.tail.1),
    };
    let neck = match draws.pick(&habit.necks) {
        0 => Neck::Round(draws.between(0.1, 0.3)),
        1 => Neck::Vee(draws.between(0.25, 0.5)),
        2 => Neck::Collar(draws.between(0.14, 0.26)),
        3 => Neck::High(draws.between(0.06, 0.16)),
        _ => Neck::Hood(draws.between(0.12, 0.22)),
    };
    let sleeve = match draws.pick(&habit.sleeves) {
        0 => None,
        1 => Some(Sleeve {
            length: draws.between(0.25, 0.62),
            cuff: draws.between(0.26, 0.4),
            spread: draws.between(0.45, 0.95),
        }),
        _ => Some(Sleeve {
            length: draws.between(1.1, 1.5),
            cuff: draws.between(0.19, 0.3),
            spread: draws.between(habit.spread.0, habit.spread.1),
        }),
    };
    let closure = match draws.pick(&habit.closures) {
        0 => Closure::Buttons,
        1 => Closure::Zip,
        2 => Closure::Open,
        _ => Closure::None,
    };

    if let Some(sleeve) = sleeve {
        sew_sleeves(&mut garment, draws, &body, &sleeve, ribbed);
    }
    sew_body(&mut garment, draws, &body, &neck, ribbed);
    sew_closure(&mut garment, draws, &body, &neck, closure);
    sew_neck(&mut garment, draws, &body, &neck);
    if draws.chance(habit.pockets) {
        sew_pockets(&mut garment, draws, &body);
    }
    garment
}
