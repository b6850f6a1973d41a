//! A garment as a list of polygons, each with its paint.

use super::canvas::Canvas;
use super::fabric::Fabric;
use super::outline::{Outline, flipped};
use super::pose::Pose;

/// A garment: its fabric, and its parts from the back to the front.
pub struct Garment {
    fabric: Fabric,
    parts: Vec<(Outline, Paint)>,
}

/// The colour of a part.
enum Paint {
    /// The garment's fabric, with its shade times this number.
    Fabric(f32),
    /// One shade, from 0 (black, like the background) to 1 (white).
    Flat(f32),
}

impl Garment {
    /// Makes a garment without parts.
    pub fn of(fabric: Fabric) -> Self {
        Self { fabric, parts: Vec::new() }
    }

    /// Adds a part of the fabric, in front of the other parts.
    pub fn sew(&mut self, outline: Outline) {
        self.sew_toned(outline, 1.0);
    }

    /// Adds a part of the fabric, with its shade times `tone`. A tone below 1 is for seams, ribs and shadows, and a tone
    /// above 1 for light parts.
    pub fn sew_toned(&mut self, outline: Outline, tone: f32) {
        self.parts.push((outline, Paint::Fabric(tone)));
    }

    /// Adds a part and its mirror image across the vertical axis.
    pub fn sew_pair(&mut self, outline: Outline, tone: f32) {
        self.sew_toned(flipped(&outline), tone);
        self.sew_toned(outline, tone);
    }

    /// Adds a part such as a button, with a shade from 0 (black) to 1 (white).
    pub fn trim(&mut self, outline: Outline, shade: f32) {
        self.parts.push((outline, Paint::Flat(shade)));
    }

    /// Paints the garment in a pose.
    pub fn paint(&self, pose: &Pose, canvas: &mut Canvas) {
        for (outline, paint) in &self.parts {
            let pixels: Outline = outline.iter().map(|&point| pose.to_pixels(point)).collect();
            match *paint {
                Paint::Fabric(tone) => canvas.fill(&pixels, |place| {
                    (self.fabric.shade(pose.to_garment(place)) * tone).clamp(0.0, 1.0)
                }),
                Paint::Flat(shade) => canvas.fill(&pixels, |_| shade),
            }
        }
    }
}
