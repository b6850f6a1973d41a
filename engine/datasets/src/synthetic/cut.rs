//! The pattern of a top: its measures, neck, sleeves and closure.
//!
//! Measures are in garment units: x grows to the right, y down, and a garment is about 2 by 2. Half widths count from the
//! middle to one side.

/// The measures of a body.
pub struct Body {
    /// Half width of the neck opening.
    pub neck: f32,
    /// Half width at the shoulders.
    pub shoulder: f32,
    /// Half width under the arms.
    pub chest: f32,
    /// The width of the waist as a fraction of the chest.
    pub waist: f32,
    /// The width of the hem as a fraction of the chest.
    pub flare: f32,
    /// y of the top of the shoulders.
    pub top: f32,
    /// y of the hem, in the middle.
    pub hem: f32,
    /// The rise of the hem from the middle to the sides.
    pub tail: f32,
}

/// The kind of a neck opening, with its depth or height.
pub enum Neck {
    /// A round neckline.
    Round(f32),
    /// A pointed neckline.
    Vee(f32),
    /// Two collar flaps.
    Collar(f32),
    /// A turtleneck.
    High(f32),
    /// A hood that lies back.
    Hood(f32),
}

/// A sleeve.
pub struct Sleeve {
    /// The length from the armhole to the cuff.
    pub length: f32,
    /// The width of the cuff.
    pub cuff: f32,
    /// The distance outwards per unit down.
    pub spread: f32,
}

/// The closure at the front of a top.
#[derive(Clone, Copy)]
pub enum Closure {
    /// No closure.
    None,
    /// A row of buttons.
    Buttons,
    /// A zip.
    Zip,
    /// An open front that shows the lining.
    Open,
}

impl Body {
    /// y of the lower end of the armhole.
    pub fn armpit(&self) -> f32 {
        self.top + 0.52
    }

    /// y of the outer end of the shoulder, which slopes.
    pub fn shoulder_end(&self) -> f32 {
        self.top + 0.13
    }

    /// Half width at the hem.
    pub fn hem_width(&self) -> f32 {
        self.chest * self.flare
    }
}

impl Neck {
    /// The depth of the neckline below the top of the shoulders, at the front.
    pub fn depth(&self) -> f32 {
        match *self {
            Neck::Round(depth) | Neck::Vee(depth) => depth,
            Neck::Collar(_) | Neck::High(_) => 0.06,
            Neck::Hood(_) => 0.16,
        }
    }
}
