//! The pattern a top is cut by: its measures, neck, sleeves and closure.
//!
//! Measures are in garment units (x to the right, y down, the garment about 2 by 2), half widths
//! from the middle to one side. How the parts look is a matter of the sewing.

/// The measures of a body.
pub struct Body {
    /// Half width of the neck opening.
    pub neck: f32,
    /// Half width at the shoulders.
    pub shoulder: f32,
    /// Half width under the arms.
    pub chest: f32,
    /// The waist's part of the chest.
    pub waist: f32,
    /// The hem's part of the chest.
    pub flare: f32,
    /// y of the top of the shoulders.
    pub top: f32,
    /// y of the hem, in the middle.
    pub hem: f32,
    /// How far the hem rises from the middle to the sides.
    pub tail: f32,
}

/// A neck opening and what is around it, with its depth or height.
pub enum Neck {
    /// A round neckline.
    Round(f32),
    /// A pointed neckline.
    Vee(f32),
    /// Two collar flaps.
    Collar(f32),
    /// A turtleneck.
    High(f32),
    /// A hood, lying back.
    Hood(f32),
}

/// A sleeve.
pub struct Sleeve {
    /// From the armhole to the cuff.
    pub length: f32,
    /// Width of the cuff.
    pub cuff: f32,
    /// How far it goes out for each unit it goes down.
    pub spread: f32,
}

/// How a top closes at the front.
#[derive(Clone, Copy)]
pub enum Closure {
    /// It does not.
    None,
    /// A row of buttons.
    Buttons,
    /// A zip.
    Zip,
    /// It is worn open, the lining showing.
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
    /// How far the neckline reaches below the top of the shoulders, at the front.
    pub fn depth(&self) -> f32 {
        match *self {
            Neck::Round(depth) | Neck::Vee(depth) => depth,
            Neck::Collar(_) | Neck::High(_) => 0.06,
            Neck::Hood(_) => 0.16,
        }
    }
}
