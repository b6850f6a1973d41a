//! Flags of the optimiser.

use clap::Args;

use super::Extras;
use super::Momentum;

/// Flags of the optimiser.
#[derive(Args, Clone, Debug)]
pub struct OptimiserArguments {
    /// The share of the velocity that is kept from step to step
    #[arg(long, default_value_t = 0.0, value_name = "SHARE", value_parser = parse_momentum)]
    pub momentum: f64,

    /// How strongly weights are pulled towards 0
    #[arg(long, default_value_t = 0.0, value_name = "DECAY", value_parser = parse_decay)]
    pub weight_decay: f64,

    /// Steps over which the learning rate rises to its full height
    #[arg(long, default_value_t = 0, value_name = "STEPS")]
    pub warm_up: u32,
}

impl OptimiserArguments {
    /// What they come to.
    pub fn extras(&self) -> Extras {
        let Self { momentum, weight_decay, warm_up } = *self;
        Extras { constants: Momentum { momentum, weight_decay }, warm_up: warm_up as usize }
    }
}

fn parse_momentum(argument: &str) -> Result<f64, String> {
    match argument.parse::<f64>() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err("momentum is a share from 0 to below 1, such as 0.9".to_owned()),
    }
}

fn parse_decay(argument: &str) -> Result<f64, String> {
    match argument.parse::<f64>() {
        Ok(decay) if (0.0..=1.0).contains(&decay) => Ok(decay),
        _ => Err("weight decay is a number from 0 to 1, such as 0.0005".to_owned()),
    }
}
