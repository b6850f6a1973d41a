//! The ways in which a model is trained, one after the other.

use std::fmt;
use std::ops::Range;

use model_parallel::mesh::Mesh;
use model_parallel::partition::LayerCost;
use model_parallel::pipeline::channel::UNBOUNDED;
use model_parallel::pipeline::predict::Costs;
use model_parallel::pipeline::{Checked, Kind, Timeline, check, predict};

/// One way to train.
#[derive(Debug)]
pub(crate) enum Way {
    /// On one device, which adds the gradients of so many shards of each batch up; in one piece if that is one.
    Alone {
        /// How many.
        shards: usize,
    },
    /// In stages.
    Pipeline {
        /// Who does what when.
        kind: Kind,
        /// The same, written out and checked.
        checked: Box<Checked>,
        /// What is to be expected of it.
        predicted: Timeline,
        /// Devices in stages and replicas.
        mesh: Mesh,
    },
    /// In parts of every layer.
    Tensor {
        /// Devices in parts and replicas.
        mesh: Mesh,
    },
}

/// What is to be done.
#[derive(Debug)]
pub(crate) struct Planned {
    /// In this order.
    pub(crate) ways: Vec<Way>,
    /// The layers of each stage; all layers where there are no stages.
    pub(crate) cut: Vec<Range<usize>>,
    /// What each layer costs, for one size of micro-batch.
    pub(crate) costs: Vec<LayerCost>,
    /// Why something was left out.
    pub(crate) left_out: Option<String>,
}

impl Way {
    /// What a run is called in tables and files.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Alone { shards: 1 } => "one device".to_owned(),
            Self::Alone { shards } => format!("one device, {shards} micro-batches"),
            Self::Pipeline { mesh, .. } if mesh.pipeline == 1 => format!("mesh {mesh}"),
            Self::Pipeline { kind, checked, mesh, .. } => {
                let mesh = if mesh.data > 1 { format!(", mesh {mesh}") } else { String::new() };
                match checked.schedule().micro_batches {
                    1 => format!("{kind}, whole batch{mesh}"),
                    number => format!("{kind}, {number} micro-batches{mesh}"),
                }
            }
            Self::Tensor { mesh } if mesh.data > 1 => format!("tensor parallel, mesh {mesh}"),
            Self::Tensor { .. } => "tensor parallel".to_owned(),
        }
    }

    /// Into how many pieces of its own each batch is cut: what batch norms see, and what gradients are sums of.
    pub(crate) fn shards(&self) -> usize {
        match self {
            Self::Alone { shards } => *shards,
            Self::Pipeline { checked, mesh, .. } => mesh.data * checked.schedule().micro_batches,
            Self::Tensor { mesh } => mesh.data,
        }
    }

    /// Whether it is one device that does everything: what others are compared with.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self, Self::Alone { .. })
    }

    /// The devices that take part.
    pub(crate) fn devices(&self) -> usize {
        match self {
            Self::Alone { .. } => 1,
            Self::Pipeline { mesh, .. } | Self::Tensor { mesh } => mesh.devices(),
        }
    }

    /// What is to be expected, of a pipeline.
    pub(crate) fn predicted(&self) -> Option<&Timeline> {
        match self {
            Self::Pipeline { predicted, mesh, .. } if mesh.pipeline > 1 => Some(predicted),
            _ => None,
        }
    }

    /// The most micro-batches whose activations each stage of a pipeline keeps at one time.
    pub(crate) fn alive(&self) -> Vec<usize> {
        match self {
            Self::Pipeline { checked, .. } => {
                checked.peaks().iter().map(|peak| peak.activations).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Into how many micro-batches each pipeline cuts its part of a batch.
    pub(crate) fn micro_batches(&self) -> usize {
        match self {
            Self::Pipeline { checked, .. } => checked.schedule().micro_batches,
            Self::Alone { .. } | Self::Tensor { .. } => 1,
        }
    }

    /// A pipeline of this kind, whose stages are measured layers.
    pub(crate) fn pipeline(
        kind: Kind,
        micro_batches: usize,
        mesh: Mesh,
        costs: &Costs,
    ) -> anyhow::Result<Self> {
        let schedule = kind.schedule(mesh.pipeline, micro_batches)?;
        // Messages are sent at once, as if channels held any number of them.
        let checked = check(schedule, UNBOUNDED)?;
        let predicted = predict(&checked, costs)?;
        Ok(Self::Pipeline { kind, checked: Box::new(checked), predicted, mesh })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.devices();
        match self {
            Self::Alone { .. } => write!(f, "{}", self.name()),
            _ => write!(f, "{} on {devices} devices", self.name()),
        }
    }
}

impl Planned {
    /// What to know before believing the numbers.
    /// `known` are the notes from before the plan; `asked` says whether the cut was asked for.
    pub(crate) fn notes(&self, known: &[String], asked: bool) -> Vec<String> {
        let mut notes = known.to_vec();
        if self.cut.len() > 1 {
            notes.push(self.stages(asked));
        }
        notes.extend(self.left_out.clone());
        notes
    }

    /// `2 stages, cut by measured cost: layers 0 to 5 (96 % of the work), layer 6 (4 % of the work)`
    fn stages(&self, asked: bool) -> String {
        let all: f64 = self.costs.iter().map(LayerCost::total).sum();
        let stage = |range: &Range<usize>| {
            let cost: f64 = self.costs[range.clone()].iter().map(LayerCost::total).sum();
            let layers = match range.len() {
                1 => format!("layer {}", range.start),
                _ => format!("layers {} to {}", range.start, range.end - 1),
            };
            format!("{layers} ({:.0} % of the work)", cost / all * 100.0)
        };
        let stages: Vec<String> = self.cut.iter().map(stage).collect();
        let how = if asked { "as asked" } else { "by measured cost" };
        format!("{} stages, cut {how}: {}", self.cut.len(), stages.join(", "))
    }
}
