//! What is trained.

use harness::cli::UsageError;
use model_parallel::layers::Layers;
use model_parallel::partition::{self, CutPoints};

use super::ModelKind;

/// A network, as far as flags say something about it.
pub(crate) struct Architecture {
    pub(crate) model: ModelKind,
    /// Of a dense stack, from pixels to classes.
    pub(crate) widths: Vec<usize>,
    /// Of a ResNet-18.
    pub(super) width: usize,
}

impl Architecture {
    /// In a few words.
    pub(crate) fn name(&self) -> String {
        match self.model {
            ModelKind::Dense => {
                let widths: Vec<String> = self.widths.iter().map(ToString::to_string).collect();
                format!("dense stack {}", widths.join("-"))
            }
            ModelKind::Lenet => "LeNet".to_owned(),
            ModelKind::Resnet18 => format!("ResNet-18 of width {}", self.width),
        }
    }

    /// Layer by layer.
    pub(crate) fn layers(&self) -> candle_core::Result<Layers> {
        match self.model {
            ModelKind::Dense => Layers::dense(&self.widths),
            ModelKind::Lenet => Ok(Layers::lenet()),
            ModelKind::Resnet18 => Ok(Layers::resnet18(self.width)),
        }
    }

    /// Refuses a cut that this network cannot have, and more stages than it has layers.
    pub(super) fn check_cut(&self, cut: Option<&CutPoints>, stages: usize) -> anyhow::Result<()> {
        let layers = self.layers()?.len();
        let checked = match cut {
            Some(cut) => cut.ranges(layers).map(drop),
            None => partition::cut(&vec![1.0; layers], stages).map(drop),
        };
        let name = self.name();
        Ok(checked.map_err(|error| UsageError::new(format_args!("{name}: {error}")))?)
    }
}
