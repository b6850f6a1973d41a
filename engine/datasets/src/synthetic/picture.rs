//! A small grey canvas, which fills polygons with smooth edges, and the camera that takes a picture of it.
//!
//! Coordinates are pixels: x grows to the right and y down from the top left corner. Pixel (column, row) covers the square
//! from (column, row) to (column + 1, row + 1).

use super::Draws;
use super::pattern::Point;
use crate::{PIXELS, SIDE};

/// The number of lines that sample a pixel's height. Along each line the coverage is exact.
const LINES: usize = 4;

/// A grey picture with shades from 0 (black) to 1 (white), row by row from the top.
pub type Canvas = [f32; PIXELS];

/// Fills a polygon in front of the picture. `shade` returns the shade of a pixel for its centre.
pub fn fill(canvas: &mut Canvas, outline: &[Point], shade: impl Fn(Point) -> f32) {
    // A side of the polygon is x = origin + slope · y, for y from top to bottom. No line crosses a level side.
    let side = |(a, b): (&Point, &Point)| {
        let slope = (b.0 - a.0) / (b.1 - a.1);
        (a.1.min(b.1), a.1.max(b.1), a.0 - slope * a.1, slope)
    };
    let sides: Vec<_> = outline.iter().zip(outline.iter().cycle().skip(1)).map(side).collect();
    let top = sides.iter().map(|side| side.0).fold(SIDE as f32, f32::min);
    let bottom = sides.iter().map(|side| side.1).fold(0.0, f32::max);
    let mut crossings = Vec::with_capacity(sides.len());
    // Casts to integers stop at 0, so a polygon above the canvas begins in row 0.
    for row in top as usize..SIDE.min(bottom.ceil() as usize) {
        let mut coverage = [0.0; SIDE];
        for line in 0..LINES {
            let y = row as f32 + (line as f32 + 0.5) / LINES as f32;
            let crossed = sides.iter().filter(|(top, bottom, ..)| *top <= y && y < *bottom);
            crossings.clear();
            crossings.extend(crossed.map(|(_, _, origin, slope)| origin + slope * y));
            crossings.sort_unstable_by(f32::total_cmp);
            for span in crossings.chunks_exact(2) {
                let (left, right) = (span[0].max(0.0), span[1].min(SIDE as f32));
                let columns = left as usize..right.ceil() as usize;
                for column in columns {
                    let (from, to) = (left.max(column as f32), right.min((column + 1) as f32));
                    coverage[column] += to - from;
                }
            }
        }
        let pixels = &mut canvas[row * SIDE..(row + 1) * SIDE];
        for (column, (pixel, covered)) in pixels.iter_mut().zip(coverage).enumerate() {
            if covered > 0.0 {
                let new = shade((column as f32 + 0.5, row as f32 + 0.5));
                *pixel += (new - *pixel) * (covered / LINES as f32);
            }
        }
    }
}

/// Exposes the canvas and rounds it to the grey values 0 to 255. Black pixels stay black, like the background of a cut-out
/// photograph. All other pixels get light and noise, which grows with the light, so that soft edges stay soft.
pub fn develop(canvas: &Canvas, draws: &mut Draws) -> [u8; PIXELS] {
    let (gain, noise) = (draws.between(0.85, 1.1), draws.between(0.01, 0.08));
    let mut exposed = |shade| gain * shade + noise * draws.bell() * (0.3 + shade);
    // The cast rounds down and stops at 0 and 255.
    canvas.map(|shade| if shade > 0.0 { (exposed(shade) * 255.0 + 0.5) as u8 } else { 0 })
}

/// Draws a random pose: a shift, a small turn, a scale for each axis and a shear. Returns the affine map p ↦ M p + c from
/// garment coordinates to pixels, and its inverse.
pub fn pose(
    draws: &mut Draws,
) -> (impl Fn(Point) -> Point + use<>, impl Fn(Point) -> Point + use<>) {
    // The number of pixels per unit of garment coordinates, at scale 1.
    let unit = SIDE as f32 / 2.0;
    let centre = (unit + draws.between(-1.5, 1.5), unit + draws.between(-1.2, 1.2));
    // t is the tangent of half the angle. The last bit of a trigonometric function would differ between machines.
    let t = draws.between(-0.07, 0.07);
    let (cos, sin) = ((1.0 - t * t) / (1.0 + t * t), 2.0 * t / (1.0 + t * t));
    let size = unit * draws.between(0.92, 1.07);
    let (wide, tall) = (size * draws.between(0.92, 1.05), size * draws.between(0.94, 1.03));
    let shear = draws.between(-0.1, 0.1);
    // M turns after the shear after the scales. Its area is never 0: scales are positive, turns and shears keep areas.
    let (a, b, c, d) =
        (cos * wide, (cos * shear - sin) * tall, sin * wide, (sin * shear + cos) * tall);
    let area = a * d - b * c;
    let to_garment = move |(column, row): Point| {
        let (x, y) = (column - centre.0, row - centre.1);
        ((d * x - b * y) / area, (a * y - c * x) / area)
    };
    (move |(x, y)| (a * x + b * y + centre.0, c * x + d * y + centre.1), to_garment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_is_the_area_inside_and_a_later_polygon_covers_an_earlier_one() {
        let mut canvas = [0.0; PIXELS];
        // A rectangle of 3.5 by 2.25 pixels, and one outside the canvas.
        fill(&mut canvas, &[(1.25, 2.0), (4.75, 2.0), (4.75, 4.25), (1.25, 4.25)], |_| 1.0);
        fill(&mut canvas, &[(-9.0, -9.0), (-1.0, -9.0), (-1.0, 99.0), (-9.0, 99.0)], |_| 1.0);
        assert_eq!(canvas.iter().sum::<f32>(), 3.5 * 2.25);
        assert_eq!((canvas[2 * SIDE + 1], canvas[4 * SIDE + 2]), (0.75, 0.25));
        fill(&mut canvas, &[(1.0, 1.0), (5.0, 1.0), (5.0, 5.0), (1.0, 5.0)], |(x, _)| x / 10.0);
        assert_eq!(canvas[2 * SIDE + 2], 0.25);
    }
}
