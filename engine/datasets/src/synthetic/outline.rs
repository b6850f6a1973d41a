//! Outlines: mirrored and rounded polygons, rectangles and strokes.
//!
//! The functions work in any unit. Garments use garment coordinates: x grows to the right and y down, and a garment roughly
//! fills the square from (-1, -1) to (1, 1).

use super::canvas::Point;

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
