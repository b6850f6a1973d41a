//! Tops: T-shirts, pullovers, coats and shirts.
//!
//! The four kinds have the same pattern. They differ in the probabilities of short or long sleeves, a collar, a closure at
//! the front, and ribs. The ranges overlap on purpose: some shirts look like T-shirts, and some pullovers like coats.

use super::draws::Draws;
use super::garment::Garment;
use super::outline::{Point, mirrored, rectangle, rounded, stroke};

/// The kinds of tops, in the order of the tables below.
#[derive(Clone, Copy)]
pub enum Kind {
    TShirt,
    Pullover,
    Coat,
    Shirt,
}

/// The probabilities of no sleeves and of short ones. All other tops have long sleeves.
const SLEEVES: [[f32; 2]; 4] = [[0.1, 0.8], [0.0, 0.06], [0.01, 0.03], [0.04, 0.28]];
/// The probabilities of a round neck, a pointed one, a collar and a turtleneck. All other tops have a hood.
const NECKS: [[f32; 4]; 4] = [
    [0.66, 0.24, 0.1, 0.0],
    [0.52, 0.16, 0.05, 0.17],
    [0.1, 0.15, 0.35, 0.15],
    [0.18, 0.13, 0.67, 0.01],
];
/// The probabilities of buttons, a zip and an open front. All other tops have no closure.
const CLOSURES: [[f32; 3]; 4] =
    [[0.06, 0.0, 0.0], [0.03, 0.06, 0.0], [0.18, 0.4, 0.32], [0.7, 0.03, 0.04]];
/// The probability of ribs at the hem and the cuffs.
const RIBS: [f32; 4] = [0.05, 0.65, 0.1, 0.06];
const POCKETS: [f32; 4] = [0.03, 0.06, 0.5, 0.2];
/// y of the hem, in the middle.
const HEM: [(f32, f32); 4] = [(0.72, 1.0), (0.62, 0.88), (0.84, 1.0), (0.78, 1.0)];
/// The rise of the hem from the middle to the sides.
const TAIL: [(f32, f32); 4] = [(-0.03, 0.05), (-0.03, 0.04), (-0.08, 0.03), (0.02, 0.2)];
/// Half width under the arms.
const CHEST: [(f32, f32); 4] = [(0.48, 0.62), (0.52, 0.66), (0.48, 0.64), (0.44, 0.57)];
/// The distance of long sleeves outwards per unit down.
const SPREAD: [(f32, f32); 4] = [(0.15, 0.4), (0.1, 0.35), (0.05, 0.3), (0.15, 0.4)];

/// The depth or height of a neck opening, in the order of [`NECKS`].
const NECK_SIZES: [(f32, f32); 5] =
    [(0.1, 0.3), (0.25, 0.5), (0.14, 0.26), (0.06, 0.16), (0.12, 0.22)];

struct Body {
    /// Half width of the neck opening.
    neck: f32,
    /// y of the top of the shoulders.
    top: f32,
    /// The outer end of the shoulder, which slopes.
    shoulder: Point,
    /// The lower end of the armhole.
    armpit: Point,
    /// Half width at the waist.
    waist: f32,
    /// Half width at the hem.
    width: f32,
    hem: f32,
    tail: f32,
    /// The depth of the neckline below the top of the shoulders, at the front.
    depth: f32,
}

pub fn top(garment: &mut Garment, draws: &mut Draws, kind: Kind) {
    let kind = kind as usize;
    let within = |draws: &mut Draws, (low, high)| draws.between(low, high);
    let ribbed = draws.chance(RIBS[kind]);
    let (neck, shoulder) = (draws.between(0.16, 0.26), draws.between(0.4, 0.5));
    let chest = within(draws, CHEST[kind]);
    let (waist, width) = (chest * draws.between(0.88, 1.0), chest * draws.between(0.92, 1.1));
    let top = draws.between(-0.94, -0.84);
    let (hem, tail) = (within(draws, HEM[kind]), within(draws, TAIL[kind]));
    let shape = draws.pick(&NECKS[kind]);
    let size = within(draws, NECK_SIZES[shape]);
    let depth = match shape {
        0 | 1 => size,
        2 | 3 => 0.06,
        _ => 0.16,
    };
    let (shoulder, armpit) = ((shoulder, top + 0.13), (chest, top + 0.52));
    let body = Body { neck, top, shoulder, armpit, waist, width, hem, tail, depth };
    // The ranges of a sleeve's length, the width of its cuff, and its distance outwards per unit down.
    let ranges = match draws.pick(&SLEEVES[kind]) {
        0 => None,
        1 => Some([(0.25, 0.62), (0.26, 0.4), (0.45, 0.95)]),
        _ => Some([(1.1, 1.5), (0.19, 0.3), SPREAD[kind]]),
    };
    let sleeve = ranges.map(|ranges| ranges.map(|range| within(draws, range)));
    let closure = draws.pick(&CLOSURES[kind]);

    if let Some(sleeve) = sleeve {
        body.sew_sleeves(garment, draws, sleeve, ribbed);
    }
    body.sew_torso(garment, draws, shape, ribbed);
    body.sew_closure(garment, draws, closure);
    body.sew_neck(garment, draws, shape, size);
    if draws.chance(POCKETS[kind]) {
        body.sew_pockets(garment, draws);
    }
}

impl Body {
    /// Sews the two sleeves on, and their cuffs if there are ribs.
    fn sew_sleeves(
        &self,
        garment: &mut Garment,
        draws: &mut Draws,
        [length, cuff, spread]: [f32; 3],
        ribbed: bool,
    ) {
        let tone = draws.between(0.78, 1.0);
        let rib = draws.between(0.65, 0.9);
        // The unit vector down the sleeve, and the one across it, away from the body.
        let norm = (spread * spread + 1.0).sqrt();
        let (down_x, down_y) = (spread / norm, 1.0 / norm);
        let (out_x, out_y) = (down_y, -down_x);
        let (shoulder, armpit) = (self.shoulder, self.armpit);
        // The middle of the armhole, where the sleeve begins.
        let middle = ((shoulder.0 + armpit.0) / 2.0, (shoulder.1 + armpit.1) / 2.0);
        let end = |length: f32, side: f32| {
            (
                middle.0 + down_x * length + out_x * side * cuff / 2.0,
                middle.1 + down_y * length + out_y * side * cuff / 2.0,
            )
        };
        let outline = vec![
            (shoulder.0 - 0.12, shoulder.1 - 0.04),
            (shoulder.0 + 0.03, shoulder.1 + 0.03),
            end(length, 1.0),
            end(length, -1.0),
            (armpit.0 - 0.03, armpit.1),
        ];
        garment.sew_pair(outline, tone);
        if ribbed {
            let above = length - 0.12;
            let cuff = [end(length, 1.0), end(length, -1.0), end(above, -1.0), end(above, 1.0)];
            garment.sew_pair(cuff.to_vec(), tone * rib);
        }
    }

    /// Sews the torso with its neckline, the armhole seams and, if the top is ribbed, the rib at the hem.
    fn sew_torso(&self, garment: &mut Garment, draws: &mut Draws, neck: usize, ribbed: bool) {
        // The inside of the back, seen through the neck opening.
        let inside = rectangle((0.0, self.top + 0.12), self.neck, 0.12);
        garment.sew(inside, draws.between(0.25, 0.6));
        let bottom = self.top + self.depth;
        let mut right = vec![(0.0, bottom)];
        if neck != 1 {
            right.push((self.neck * 0.7, bottom - self.depth * 0.2));
        }
        right.extend([
            (self.neck, self.top),
            self.shoulder,
            self.armpit,
            (self.waist, (self.armpit.1 + self.hem) / 2.0),
            (self.width, self.hem - self.tail),
            (self.width * 0.6, self.hem),
        ]);
        garment.sew(mirrored(&right), 1.0);
        let seam = stroke(self.shoulder, self.armpit, draws.between(0.03, 0.07));
        garment.sew_pair(seam, draws.between(0.5, 0.95));
        if ribbed {
            let hem = rectangle((0.0, self.hem - 0.06), self.width * 0.98, 0.06);
            garment.sew(hem, draws.between(0.65, 0.9));
        }
    }

    /// Sews buttons (0), a zip (1), an open front that shows the lining (2), or nothing.
    fn sew_closure(&self, garment: &mut Garment, draws: &mut Draws, closure: usize) {
        let top = self.top + self.depth;
        let middle = (top + self.hem) / 2.0;
        let half = (self.hem - top) / 2.0;
        let tone = draws.between(0.5, 0.88);
        match closure {
            0 => {
                garment.sew(rectangle((0.07, middle), 0.035, half), tone);
                let shade = if draws.chance(0.5) { 0.1 } else { 0.95 };
                let count = 4 + draws.pick(&[0.4, 0.3]);
                for button in 0..count {
                    let y = top + 2.0 * half * (button as f32 + 0.5) / count as f32;
                    garment.trim(rectangle((-0.02, y), 0.05, 0.045), shade);
                }
            }
            1 => {
                garment.sew(rectangle((0.0, middle), 0.08, half), tone);
                garment.trim(rectangle((0.0, middle), 0.025, half), draws.between(0.5, 1.0));
            }
            2 => {
                let (above, below) = (draws.between(0.02, 0.1), draws.between(0.06, 0.2));
                let gap = mirrored(&[(above, top), (below, self.hem)]);
                garment.sew(gap, draws.between(0.15, 0.5));
            }
            _ => {}
        }
    }

    /// Sews the border of a round (0) or pointed neck (1), a collar (2), a turtleneck (3), or a hood that lies back.
    fn sew_neck(&self, garment: &mut Garment, draws: &mut Draws, neck: usize, size: f32) {
        let tone = draws.between(0.7, 1.3);
        let (top, width) = (self.top, self.neck);
        match neck {
            0 | 1 => {
                // A thin border along one half of the neckline, and its mirror image.
                let low = if neck == 1 { 0.0 } else { width * 0.5 };
                garment.sew_pair(stroke((width, top), (low, top + size), 0.06), tone);
            }
            2 => {
                let flap = vec![
                    (0.0, top + 0.08),
                    (width * 0.8, top - 0.06),
                    (width + 0.08, top + 0.02),
                    (width * 0.9, top + size + 0.06),
                ];
                garment.sew_pair(flap, tone);
                // The gap between the flaps, in the shade.
                let gap = mirrored(&[(0.05, top - 0.02), (0.02, top + size)]);
                garment.sew(gap, draws.between(0.2, 0.6));
            }
            3 => {
                let middle = (0.0, top - size / 2.0 + 0.08);
                garment.sew(rectangle(middle, width, size / 2.0 + 0.06), tone);
            }
            _ => {
                let hood = mirrored(&[
                    (width * 0.7, top - 0.08),
                    (width + 0.1, top + 0.02),
                    (width + 0.06, top + size),
                    (0.1, top + size + 0.12),
                ]);
                garment.sew(rounded(&hood), tone);
                let opening = mirrored(&[(width * 0.7, top), (0.05, top + size)]);
                garment.sew(rounded(&opening), draws.between(0.2, 0.5));
            }
        }
    }

    /// Sews two pockets, or one on the chest.
    fn sew_pockets(&self, garment: &mut Garment, draws: &mut Draws) {
        let tone = draws.between(0.6, 0.85);
        if draws.chance(0.5) {
            garment.sew(rectangle((self.armpit.0 * 0.5, self.armpit.1 + 0.05), 0.11, 0.11), tone);
        } else {
            let y = self.hem - 0.45;
            let low = stroke((self.armpit.0 * 0.4, y), (self.armpit.0 * 0.75, y + 0.12), 0.07);
            garment.sew_pair(low, tone);
        }
    }
}
