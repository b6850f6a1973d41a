//! Outlines of garments, and their place in the picture.
//!
//! Garments use garment coordinates: x grows to the right and y down, and a garment roughly fills the square from (-1,
//! -1) to (1, 1).

use super::draws::Draws;
use crate::SIDE;

/// A point (x, y). x grows to the right and y down.
pub type Point = (f32, f32);

/// A closed polygon: the last point is connected to the first.
pub type Outline = Vec<Point>;

/// Returns the symmetric outline with the given right half, from top to bottom.
pub fn mirrored(right: &[Point]) -> Outline {
    let left = right.iter().rev().map(|&(x, y)| (-x, y));
    right.iter().copied().chain(left).collect()
}

/// Returns the mirror image of an outline across the vertical axis.
pub fn flipped(outline: &[Point]) -> Outline {
    outline.iter().map(|&(x, y)| (-x, y)).collect()
}

/// Cuts the corners of an outline: each side keeps its middle half.
pub fn rounded(outline: &[Point]) -> Outline {
    let next = outline.iter().cycle().skip(1);
    outline.iter().zip(next).flat_map(|(&a, &b)| [along(a, b, 0.25), along(a, b, 0.75)]).collect()
}

/// Returns the upright rectangle with the given centre, half width and half height.
pub fn rectangle(centre: Point, half_width: f32, half_height: f32) -> Outline {
    let (left, right) = (centre.0 - half_width, centre.0 + half_width);
    let (top, bottom) = (centre.1 - half_height, centre.1 + half_height);
    vec![(left, top), (right, top), (right, bottom), (left, bottom)]
}

/// Returns a straight stroke. If its ends are equal, the outline is empty.
pub fn stroke(from: Point, to: Point, width: f32) -> Outline {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = (dx * dx + dy * dy).sqrt();
    if length == 0.0 {
        return Outline::new();
    }
    let (nx, ny) = (-dy / length * width / 2.0, dx / length * width / 2.0);
    vec![
        (from.0 + nx, from.1 + ny),
        (to.0 + nx, to.1 + ny),
        (to.0 - nx, to.1 - ny),
        (from.0 - nx, from.1 - ny),
    ]
}

/// Returns the point at a fraction of the way from one point to another.
pub fn along(from: Point, to: Point, part: f32) -> Point {
    (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part)
}

/// The number of pixels per unit of garment coordinates, at scale 1.
const UNIT: f32 = SIDE as f32 / 2.0;

/// The affine map p ↦ M p + c from garment coordinates to pixels.
pub struct Pose {
    /// M, row by row.
    matrix: [f32; 4],
    /// c, the middle of the garment in pixels.
    centre: Point,
}

impl Pose {
    /// Draws a random pose: a shift, a small turn, a scale for each axis and a shear.
    pub fn draw(draws: &mut Draws) -> Self {
        let centre = (UNIT + draws.between(-1.5, 1.5), UNIT + draws.between(-1.2, 1.2));
        // t is the tangent of half the angle. The last bit of a trigonometric function would differ between machines.
        let t = draws.between(-0.07, 0.07);
        let (cos, sin) = ((1.0 - t * t) / (1.0 + t * t), 2.0 * t / (1.0 + t * t));
        let size = UNIT * draws.between(0.92, 1.07);
        let (wide, tall) = (size * draws.between(0.92, 1.05), size * draws.between(0.94, 1.03));
        let shear = draws.between(-0.1, 0.1);
        // The turn after the shear after the scales.
        let matrix =
            [cos * wide, (cos * shear - sin) * tall, sin * wide, (sin * shear + cos) * tall];
        Self { matrix, centre }
    }

    pub fn to_pixels(&self, (x, y): Point) -> Point {
        let [a, b, c, d] = self.matrix;
        (a * x + b * y + self.centre.0, c * x + d * y + self.centre.1)
    }

    pub fn to_garment(&self, (column, row): Point) -> Point {
        let [a, b, c, d] = self.matrix;
        let (x, y) = (column - self.centre.0, row - self.centre.1);
        // The area is never 0: scales are positive, and turns and shears keep areas.
        let area = a * d - b * c;
        ((d * x - b * y) / area, (a * y - c * x) / area)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Split;

    #[test]
    fn there_and_back_is_where_one_was() {
        let pose = Pose::draw(&mut Draws::new(1, Split::Train, 2));
        let (x, y) = pose.to_garment(pose.to_pixels((0.5, -0.75)));
        assert!((x - 0.5).abs() < 1e-5 && (y + 0.75).abs() < 1e-5);
    }
}
