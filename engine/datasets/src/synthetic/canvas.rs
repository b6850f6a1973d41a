//! A small grey canvas, which fills polygons with smooth edges, and the camera that takes a picture of it.
//!
//! Coordinates are pixels: x grows to the right and y down from the top left corner. Pixel (column, row) covers the square
//! from (column, row) to (column + 1, row + 1).

use super::draws::Draws;
use super::outline::{Point, rectangle, rounded, stroke};
use crate::{PIXELS, SIDE};

/// The number of lines that sample a pixel's height. Along each line the coverage is exact.
const LINES: usize = 4;

/// A square grey picture with shades from 0 (black) to 1 (white), row by row from the top.
pub struct Canvas {
    shades: [f32; PIXELS],
}

/// A side of a polygon: x = origin + slope · y, for y from top to bottom.
struct Edge {
    top: f32,
    bottom: f32,
    origin: f32,
    slope: f32,
}

impl Canvas {
    pub fn black() -> Self {
        Self { shades: [0.0; PIXELS] }
    }

    /// Fills a polygon in front of the picture. `shade` returns the shade of a pixel for its centre.
    pub fn fill(&mut self, outline: &[Point], shade: impl Fn(Point) -> f32) {
        let edges = edges(outline);
        let top = edges.iter().map(|edge| edge.top).fold(SIDE as f32, f32::min);
        let bottom = edges.iter().map(|edge| edge.bottom).fold(0.0, f32::max);
        // Casts to integers stop at 0, so a polygon above the canvas begins in row 0.
        let rows = top as usize..SIDE.min(bottom.ceil() as usize);
        let mut crossings = Vec::with_capacity(edges.len());
        for row in rows {
            let mut coverage = [0.0; SIDE];
            for line in 0..LINES {
                let y = row as f32 + (line as f32 + 0.5) / LINES as f32;
                crossings.clear();
                crossings.extend(
                    edges
                        .iter()
                        .filter(|edge| edge.top <= y && y < edge.bottom)
                        .map(|edge| edge.origin + edge.slope * y),
                );
                crossings.sort_unstable_by(f32::total_cmp);
                for span in crossings.chunks_exact(2) {
                    cover(&mut coverage, span[0], span[1]);
                }
            }
            let pixels = &mut self.shades[row * SIDE..(row + 1) * SIDE];
            for (column, (pixel, covered)) in pixels.iter_mut().zip(coverage).enumerate() {
                if covered > 0.0 {
                    let new = shade((column as f32 + 0.5, row as f32 + 0.5));
                    *pixel += (new - *pixel) * (covered / LINES as f32);
                }
            }
        }
    }
}

/// Returns the sides of a polygon. Level sides are left out, because no line crosses them.
fn edges(outline: &[Point]) -> Vec<Edge> {
    let next = outline.iter().cycle().skip(1);
    outline
        .iter()
        .zip(next)
        .filter(|(a, b)| a.1 != b.1)
        .map(|(a, b)| {
            let slope = (b.0 - a.0) / (b.1 - a.1);
            Edge { top: a.1.min(b.1), bottom: a.1.max(b.1), origin: a.0 - slope * a.1, slope }
        })
        .collect()
}

/// Adds the covered length of the span from `left` to `right` to each pixel of a row.
fn cover(coverage: &mut [f32; SIDE], left: f32, right: f32) {
    let left = left.max(0.0);
    let right = right.min(SIDE as f32);
    let columns = left as usize..right.ceil() as usize;
    for column in columns {
        let from = left.max(column as f32);
        let to = right.min((column + 1) as f32);
        coverage[column] += to - from;
    }
}

/// The fraction of pictures with an object in front of the garment.
const OCCLUDED: f32 = 0.3;

/// Puts a dark or grey strip or patch in front of some garments.
pub fn occlude(canvas: &mut Canvas, draws: &mut Draws) {
    if !draws.chance(OCCLUDED) {
        return;
    }
    let side = SIDE as f32;
    let mut place = || (draws.between(0.0, side), draws.between(0.0, side));
    let (from, to) = (place(), place());
    let outline = if draws.chance(0.5) {
        stroke(from, to, draws.between(1.5, 4.0))
    } else {
        rounded(&rectangle(from, draws.between(1.5, 5.0), draws.between(1.5, 5.0)))
    };
    let shade = if draws.chance(0.6) { 0.0 } else { draws.between(0.1, 0.6) };
    canvas.fill(&outline, |_| shade);
}

/// Exposes a canvas and rounds it to the grey values 0 to 255. Black pixels stay black, like the background of a cut-out
/// photograph. All other pixels get light and noise.
pub fn develop(canvas: &Canvas, draws: &mut Draws) -> [u8; PIXELS] {
    let gain = draws.between(0.85, 1.1);
    let noise = draws.between(0.01, 0.08);
    canvas.shades.map(|shade| {
        if shade <= 0.0 {
            return 0;
        }
        // Noise grows with the light, as in a camera. So soft edges stay soft.
        let grain = noise * draws.bell() * (0.3 + shade);
        // The cast rounds down and stops at 0 and 255.
        ((gain * shade + grain) * 255.0 + 0.5) as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_is_the_area_inside() {
        let mut canvas = Canvas::black();
        // A rectangle of 3.5 by 2.25 pixels, and one outside the canvas.
        canvas.fill(&[(1.25, 2.0), (4.75, 2.0), (4.75, 4.25), (1.25, 4.25)], |_| 1.0);
        canvas.fill(&[(-9.0, -9.0), (-1.0, -9.0), (-1.0, 99.0), (-9.0, 99.0)], |_| 1.0);
        assert_eq!(canvas.shades.iter().sum::<f32>(), 3.5 * 2.25);
        assert_eq!(canvas.shades[2 * SIDE + 1], 0.75);
        assert_eq!(canvas.shades[4 * SIDE + 2], 0.25);
    }

    #[test]
    fn a_later_polygon_covers_an_earlier_one() {
        let mut canvas = Canvas::black();
        let square = [(5.0, 5.0), (9.0, 5.0), (9.0, 9.0), (5.0, 9.0)];
        canvas.fill(&square, |_| 1.0);
        canvas.fill(&square, |(x, _)| x / 10.0);
        assert_eq!(canvas.shades[6 * SIDE + 5], 0.55);
    }
}
