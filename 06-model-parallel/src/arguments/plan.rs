//! From what layers cost to the ways in which the model is trained.

use anyhow::anyhow;
use concise_wrapper::launch::Launch;
use datasets::SAMPLE;
use model_parallel::mesh::Mesh;
use model_parallel::partition::{self, LayerCost};
use model_parallel::pipeline::Kind;
use model_parallel::pipeline::predict::Costs;
use trainer::TrainSetup;

use super::{ModelKind, Prepared};
use crate::way::{Planned, Way};

/// How often each layer is measured; the least counts.
const TIMES: usize = 5;

/// What layers cost, for each size of micro-batch that there is.
type Measured = Vec<(usize, Vec<LayerCost>)>;

impl Prepared {
    /// Samples of the largest of so many shards of a batch, of which there may be one only, a smaller one.
    pub(crate) fn rows(&self, shards: usize) -> usize {
        let TrainSetup { options, data, .. } = &self.setup;
        options.batch_size.min(data.train.len()).div_ceil(shards)
    }

    /// What the layers cost on this process's first device, if they are to be cut; the same numbers on all
    /// processes, which call this together.
    pub(crate) fn measure(&self, launch: &Launch) -> anyhow::Result<Measured> {
        let mine =
            if launch.speaks() && self.mesh.pipeline > 1 { self.costs() } else { Ok(vec![]) };
        Ok(launch.of_speaker(launch.agree(mine)?)?)
    }

    fn costs(&self) -> anyhow::Result<Measured> {
        let layers = self.network.layers()?;
        let mut measured = Measured::new();
        let slot = self.several.slots().first().ok_or_else(|| anyhow!("there is no device"))?;
        let device = slot.open()?;
        for &(_, micro_batches) in &self.schedules {
            let rows = self.rows(self.mesh.data * micro_batches);
            if measured.iter().all(|(known, _)| *known != rows) {
                let costs = device.run(|| {
                    partition::measure(
                        &layers,
                        &SAMPLE,
                        rows,
                        TIMES,
                        self.dtype(),
                        device.tensors(),
                    )
                });
                measured.push((rows, costs?));
            }
        }
        // The cut is by the smallest micro-batches: those of the schedules that are to be quick.
        measured.sort_by_key(|(rows, _)| *rows);
        Ok(measured)
    }

    /// All ways, from what layers cost.
    pub(crate) fn plan(&self, measured: &Measured) -> anyhow::Result<Planned> {
        let mut planned =
            Planned { ways: Vec::new(), cut: Vec::new(), costs: Vec::new(), left_out: None };
        if let Some((_, costs)) = measured.first() {
            let totals: Vec<f64> = costs.iter().map(LayerCost::total).collect();
            planned.cut = match &self.cut {
                Some(cut) => cut.ranges(totals.len())?,
                None => partition::cut(&totals, self.mesh.pipeline)?,
            };
            planned.costs.clone_from(costs);
        } else {
            planned.cut.push(0..self.network.layers()?.len());
        }
        let mut split = self.split(measured, &planned)?;
        let tensor_too = !self.mesh_given && !self.schedules_given && self.mesh.devices() > 1;
        match &self.no_parts {
            _ if !tensor_too => {}
            Some(why) => planned.left_out = Some(format!("no tensor parallelism: {why}")),
            None => split.push(Way::Tensor { mesh: Mesh::tensor(self.mesh.devices()) }),
        }
        // Batch norms see micro-batches, so there is something to compare for each number of these.
        let mut alone = vec![1];
        if self.network.model == ModelKind::Resnet18 {
            alone.extend(split.iter().map(Way::shards));
            alone.sort_unstable();
            alone.dedup();
        }
        let alone = alone.into_iter().filter(|_| self.one.is_some());
        planned.ways = alone.map(|shards| Way::Alone { shards }).collect();
        planned.ways.extend(split);
        Ok(planned)
    }

    /// The ways in which several devices take part.
    fn split(&self, measured: &Measured, planned: &Planned) -> anyhow::Result<Vec<Way>> {
        let mesh = self.mesh;
        if mesh.devices() == 1 {
            return Ok(Vec::new());
        }
        if mesh.tensor > 1 {
            return Ok(vec![Way::Tensor { mesh }]);
        }
        if mesh.pipeline == 1 {
            let whole = Costs { stages: vec![Default::default()], message: 0.0 };
            return Ok(vec![Way::pipeline(Kind::Naive, 1, mesh, &whole)?]);
        }
        let way = |&(kind, micro_batches): &(Kind, usize)| {
            let rows = self.rows(mesh.data * micro_batches);
            let of_rows = measured.iter().find(|(known, _)| *known == rows);
            let (_, costs) = of_rows.ok_or_else(|| anyhow!("no costs of {rows} rows"))?;
            Way::pipeline(kind, micro_batches, mesh, &Costs::of_cut(costs, &planned.cut))
        };
        self.schedules.iter().map(way).collect()
    }
}
