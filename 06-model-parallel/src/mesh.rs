//! A mesh of devices: data, pipeline and tensor parallelism together.
//!
//! Ranks lie in a box with three axes. Ranks in a row along an axis exchange messages of one kind:
//!
//! ```text
//! 2x2x2                    pipeline →
//!                          stage 0                stage 1
//! data ↓    replica 0      rank 0 ─ rank 1        rank 2 ─ rank 3         tensor axis: terms of activations
//!           replica 1      rank 4 ─ rank 5        rank 6 ─ rank 7
//! ```
//!
//! The tensor axis runs fastest and the data axis slowest. So the ranks that exchange most are neighbours, and neighbours
//! are likely to be on one machine (Narayanan et al., arXiv 2104.04473, section 3.2).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use params_and_allreduce::communicator::{Error, Group, SharedCommunicator};

use crate::Refused;

// ANCHOR: mesh
/// The number of devices along each axis: replicas of the model, stages of each replica, and parts of each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Mesh {
    pub data: usize,
    pub pipeline: usize,
    pub tensor: usize,
}

/// A direction in the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Ranks that hold the same weights.
    Data,
    /// The stages of one replica.
    Pipeline,
    /// The parts of one stage.
    Tensor,
}

impl Mesh {
    /// Stages of one replica, and nothing else.
    pub fn pipeline(stages: usize) -> Self {
        Self { data: 1, pipeline: stages, tensor: 1 }
    }

    /// Parts of one replica, and nothing else.
    pub fn tensor(parts: usize) -> Self {
        Self { data: 1, pipeline: 1, tensor: parts }
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.data * self.pipeline * self.tensor
    }

    /// The number of ranks in a row along an axis, and the difference between two neighbours' numbers.
    fn row(&self, axis: Axis) -> (usize, usize) {
        match axis {
            Axis::Data => (self.data, self.pipeline * self.tensor),
            Axis::Pipeline => (self.pipeline, self.tensor),
            Axis::Tensor => (self.tensor, 1),
        }
    }

    /// The number of a rank's replica, stage or part, from 0.
    pub fn coordinate(&self, rank: usize, axis: Axis) -> usize {
        let (length, step) = self.row(axis);
        rank / step % length
    }

    /// The ranks in a row through `rank` along an axis, from the beginning to the end.
    pub fn line(&self, rank: usize, axis: Axis) -> Vec<usize> {
        let (length, step) = self.row(axis);
        let first = rank - self.coordinate(rank, axis) * step;
        (0..length).map(|place| first + place * step).collect()
    }

    /// A communicator between the ranks of a row, made of one between all ranks. Fails when `all` does not connect as
    /// many ranks as the mesh has devices.
    pub fn along(&self, all: &SharedCommunicator, axis: Axis) -> Result<SharedCommunicator, Error> {
        let (devices, ranks) = (self.devices(), all.world_size());
        if devices != ranks {
            return Err(Error::Other(format!("a mesh of {devices} devices on {ranks} ranks")));
        }
        Ok(Arc::new(Group::new(Arc::clone(all), self.line(all.rank(), axis))?))
    }
}
// ANCHOR_END: mesh

// ANCHOR: name
impl FromStr for Mesh {
    type Err = Refused;

    fn from_str(text: &str) -> Result<Self, Refused> {
        let numbers: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
        let numbers = numbers.unwrap_or_default();
        let devices = numbers.iter().try_fold(1usize, |product, &next| product.checked_mul(next));
        match (numbers.as_slice(), devices) {
            (&[data, pipeline, tensor], Some(1..)) => Ok(Self { data, pipeline, tensor }),
            _ => Err(Refused(format!(
                "\"{text}\" is no mesh: it is DATAxPIPELINExTENSOR, three numbers from 1, such as 2x2x1"
            ))),
        }
    }
}

impl fmt::Display for Mesh {
    /// `2x2x1`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.data, self.pipeline, self.tensor)
    }
}
// ANCHOR_END: name

#[cfg(test)]
mod tests {
    use candle_core::{DType, Shape, Tensor};
    use devices::DevicePlan;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, run_ranks};

    use params_and_allreduce::communicator::Communicator as _;

    use super::*;

    #[test]
    fn every_rank_has_a_place_of_its_own() {
        let mesh: Mesh = "2x3x4".parse().unwrap();
        assert_eq!((mesh.devices(), mesh.to_string()), (24, "2x3x4".to_owned()));
        for rank in 0..24 {
            let [data, pipeline, tensor] =
                [Axis::Data, Axis::Pipeline, Axis::Tensor].map(|axis| mesh.coordinate(rank, axis));
            assert_eq!((data * 3 + pipeline) * 4 + tensor, rank);
            assert!(data < 2 && pipeline < 3 && tensor < 4);
            for axis in [Axis::Data, Axis::Pipeline, Axis::Tensor] {
                assert!(mesh.line(rank, axis).contains(&rank));
            }
        }
    }

    #[test]
    fn lines_run_along_one_axis() {
        let mesh: Mesh = "2x3x4".parse().unwrap();
        assert_eq!(mesh.line(6, Axis::Tensor), [4, 5, 6, 7]);
        assert_eq!(mesh.line(6, Axis::Pipeline), [2, 6, 10]);
        assert_eq!(mesh.line(6, Axis::Data), [6, 18]);
    }

    fn on_four<R: Send>(work: impl Fn(&Rank) -> Result<R, Error> + Sync) -> Result<Vec<R>, String> {
        let plan = DevicePlan::slices(4).unwrap();
        run_ranks(&plan, DEFAULT_TIMEOUT, work).map_err(|failure| failure.to_string())
    }

    /// A message on one connection never arrives on the second connection.
    #[test]
    fn both_connections_run_along_a_line() {
        let mesh: Mesh = "2x2x1".parse().unwrap();
        let received = on_four(|rank| {
            let main = mesh.along(&rank.into(), Axis::Data)?;
            let background = main.background()?;
            let (other, number) = (1 - main.rank(), rank.rank() as f64);
            main.send(other, &Tensor::new(number, rank.device())?)?;
            background.send(other, &Tensor::new(10.0 + number, rank.device())?)?;
            let number = |line: &SharedCommunicator| {
                let received = line.recv(other, &Shape::from(()), DType::F64)?;
                Ok::<_, Error>(received.to_scalar::<f64>()?)
            };
            Ok([number(&background)?, number(&main)?])
        });
        assert_eq!(received.unwrap(), [[12.0, 2.0], [13.0, 3.0], [10.0, 0.0], [11.0, 1.0]]);
    }

    #[test]
    fn a_mesh_has_as_many_devices_as_there_are_ranks() {
        for text in ["2x1x1", "2x2x2"] {
            let mesh: Mesh = text.parse().unwrap();
            let told =
                on_four(|rank| mesh.along(&(Arc::new(rank.clone()) as _), Axis::Data).map(drop));
            let expected = format!("a mesh of {} devices on 4 ranks", mesh.devices());
            assert!(told.as_ref().is_err_and(|told| told.contains(&expected)), "{told:?}");
        }
    }

    #[test]
    fn what_is_no_mesh_is_refused() {
        for text in [
            "",
            "2",
            "2x2",
            "2x2x2x2",
            "0x1x1",
            "2x-1x1",
            "axbxc",
            "2X2X1",
            "2x2x",
            "4294967296x4294967296x2",
        ] {
            let told = text.parse::<Mesh>().unwrap_err().to_string();
            assert!(told.starts_with(&format!("\"{text}\" is no mesh")), "{told}");
        }
    }
}
