//! A mesh of devices: data, pipeline and tensor parallelism together.
//!
//! Devices are laid out in a box with three axes, and each does something with every line that it lies on:
//!
//! ```text
//! 2x2x1                    pipeline →
//!                          stage 0   stage 1
//! data ↓    replica 0      rank 0 ── rank 1       along a row: activations and gradients of activations
//!                            │         │
//!           replica 1      rank 2 ── rank 3       along a column: gradients of the same weights, summed
//! ```
//!
//! Ranks are numbered so that the tensor axis runs fastest and the data axis slowest: those that talk most
//! are neighbours, and neighbours are likely to lie on one machine (Narayanan et al., arXiv 2104.04473,
//! section 3.2, say why).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use params_and_allreduce::communicator::{Error, Group, SharedCommunicator};

/// How many devices there are along each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Replicas of the model, each of which works on its own part of a batch.
    pub data: usize,
    /// Stages of each replica.
    pub pipeline: usize,
    /// Parts of each layer.
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

/// Where a rank lies, from 0 along each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// The number of its replica.
    pub data: usize,
    /// The number of its stage.
    pub pipeline: usize,
    /// The number of its part.
    pub tensor: usize,
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

    /// How many devices there are.
    pub fn devices(&self) -> usize {
        self.data * self.pipeline * self.tensor
    }

    // ANCHOR: coordinates
    /// Where a rank lies.
    pub fn coordinates(&self, rank: usize) -> Coordinates {
        let Self { pipeline, tensor, .. } = *self;
        Coordinates {
            data: rank / (pipeline * tensor),
            pipeline: rank / tensor % pipeline,
            tensor: rank % tensor,
        }
    }
    // ANCHOR_END: coordinates

    /// The rank that lies there.
    pub fn rank(&self, at: Coordinates) -> usize {
        (at.data * self.pipeline + at.pipeline) * self.tensor + at.tensor
    }

    /// The ranks on a line through `rank` along an axis, from its beginning to its end.
    pub fn line(&self, rank: usize, axis: Axis) -> Vec<usize> {
        let at = self.coordinates(rank);
        let ranks = |length: usize, there: &dyn Fn(usize) -> Coordinates| {
            (0..length).map(|place| self.rank(there(place))).collect()
        };
        match axis {
            Axis::Data => ranks(self.data, &|data| Coordinates { data, ..at }),
            Axis::Pipeline => ranks(self.pipeline, &|pipeline| Coordinates { pipeline, ..at }),
            Axis::Tensor => ranks(self.tensor, &|tensor| Coordinates { tensor, ..at }),
        }
    }

    /// A communicator between the ranks of a line, made of one between all ranks. Its second connection is between the same
    /// ranks.
    ///
    /// # Errors
    ///
    /// When `all` does not connect as many ranks as the mesh has devices.
    pub fn along(&self, all: &SharedCommunicator, axis: Axis) -> Result<SharedCommunicator, Error> {
        let (devices, ranks) = (self.devices(), all.world_size());
        if devices != ranks {
            let text = format!("a mesh of {devices} devices on {ranks} ranks");
            return Err(candle_core::Error::Msg(text).into());
        }
        let members = self.line(all.rank(), axis);
        Ok(Arc::new(Group::new(Arc::clone(all), members)?))
    }
}

/// Why something is no mesh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no mesh: it is DATAxPIPELINExTENSOR, three numbers from 1, such as 2x2x1")]
pub struct NoMesh(String);

impl FromStr for Mesh {
    type Err = NoMesh;

    fn from_str(text: &str) -> Result<Self, NoMesh> {
        let number = |part: &str| part.parse().ok().filter(|&number: &usize| number > 0);
        let numbers: Option<Vec<usize>> = text.split('x').map(number).collect();
        let devices = |numbers: &[usize]| {
            numbers.iter().try_fold(1usize, |product, &number| product.checked_mul(number))
        };
        match numbers.as_deref() {
            Some(&[data, pipeline, tensor]) if devices(&[data, pipeline, tensor]).is_some() => {
                Ok(Self { data, pipeline, tensor })
            }
            _ => Err(NoMesh(text.to_owned())),
        }
    }
}

impl fmt::Display for Mesh {
    /// `2x2x1`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.data, self.pipeline, self.tensor)
    }
}

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
            let at = mesh.coordinates(rank);
            assert_eq!(mesh.rank(at), rank);
            assert!(at.data < 2 && at.pipeline < 3 && at.tensor < 4);
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

    /// What goes through one connection does not come out of the other.
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
