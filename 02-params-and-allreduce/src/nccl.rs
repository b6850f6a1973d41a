//! NCCL: NVIDIA's own all-reduce, between GPUs.
//!
//! It adds as the ring and the tree do, but GPU kernels do the sending, straight from one GPU's memory
//! to another's. What it asks for in return:
//!
//! - **Everyone joins together.** Rank 0 draws an identifier, the others get it over the links that the
//!   ranks have already, and each makes its end of the connection *in the thread that drives its GPU*.
//! - **One GPU each.** NCCL refuses two ranks on one GPU, so that is found out, and said, beforehand.
//! - **Everyone leaves together.** A rank's buffers may still be read by a slower one.
//!
//! [`with_nccl`] sees to all three. The end of the connection is neither `Send` nor `Sync`, and need not
//! be: on a GPU a rank works in its own thread from beginning to end.
//!
//! # When a rank dies
//!
//! NCCL does not notice: the others' kernels wait for it for ever. So each sum is waited for here, with a
//! time limit, and then the connection is torn down, which ends the kernels. That costs one wait of the
//! CPU per sum, and the error cannot name the rank that is missing;
//! [`run_ranks`](crate::thread::run_ranks) can, because it sees who failed first. One gap remains:
//! joining has no time limit. Every rank has shown itself over the links just before, so a rank would
//! have to die within that moment.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, DType, Device, Layout, Shape, Tensor, bail};
use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, DriverError, ValidAsZeroBits};
use cudarc::nccl::result::NcclError;
use cudarc::nccl::safe::{Comm, Id, NcclType, ReduceOp};

use crate::communicator::{Communicator, Error};

/// Bytes of the identifier that rank 0 draws.
const ID_BYTES: usize = 128;

/// A sum of small tensors is there within this time; a wait that goes on longer may sleep.
const SPIN: Duration = Duration::from_micros(200);

/// How long it sleeps then.
const NAP: Duration = Duration::from_micros(50);

/// Runs `work` with ranks that are connected through NCCL; all ranks of the world call this together.
///
/// `links` connect the ranks already, and go on carrying their messages. A sum that is not there after
/// `timeout` is an error.
///
/// # Errors
///
/// When a rank's device is no GPU or two ranks share one, when NCCL cannot connect them, and the errors
/// of `work`. After an error this rank leaves at once.
pub fn with_nccl<C: Communicator, R, E: From<Error>>(
    links: &C,
    timeout: Duration,
    work: impl FnOnce(&NcclRank<'_, C>) -> Result<R, E>,
) -> Result<R, E> {
    let rank = NcclRank::join(links, timeout)?;
    let outcome = work(&rank)?;
    exchange(links, 0)?;
    Ok(outcome)
}

/// One rank whose all-reduce is NCCL's; everything else goes over its links.
pub struct NcclRank<'a, C> {
    links: &'a C,
    stream: Arc<CudaStream>,
    /// `None` once a sum has failed: after that the ranks no longer agree on what comes next.
    connection: RefCell<Option<Comm>>,
    timeout: Duration,
}

impl<'a, C: Communicator> NcclRank<'a, C> {
    fn join(links: &'a C, timeout: Duration) -> Result<Self, Error> {
        let Device::Cuda(device) = links.device() else {
            return Err(failure("NCCL adds up tensors on GPUs: use --device cuda".to_owned()));
        };
        // The stream that candle's kernels for this device run on. NCCL's are put on the same one, so
        // they run after the kernels that made the tensor and before those that use the sum.
        let stream = device.cuda_stream();
        let ordinals = exchange(links, stream.context().ordinal() as u32)?;
        if let Some((one, other)) = sharers(&ordinals) {
            return Err(failure(format!(
                "ranks {one} and {other} share cuda:{}, and NCCL needs a GPU for each rank: use no \
                 more devices than there are GPUs, or another all-reduce",
                ordinals[one]
            )));
        }
        let id = shared_id(links)?;
        // A connection belongs to whatever context is current, and making one does not set it.
        stream.context().bind_to_thread().map_err(driver)?;
        let comm = Comm::from_rank(stream.clone(), links.rank(), links.world_size(), id);
        let connection = RefCell::new(Some(comm.map_err(nccl)?));
        Ok(Self { links, stream, connection, timeout })
    }

    /// The sum of all ranks' tensors, on every rank; it is there when this returns.
    ///
    /// All ranks call this together, with tensors of one shape and type (f32, f64, f16 or bf16): NCCL
    /// does not compare them. The order of adding is NCCL's choice, and depends on how many ranks there
    /// are and on how their GPUs are connected.
    ///
    /// # Errors
    ///
    /// When the tensor is not on this rank's GPU or of another type, when NCCL reports a failure, or when
    /// the other ranks have not done their part in time. After the last two there are no more sums.
    pub fn all_reduce(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        if !tensor.device().same_device(self.links.device()) {
            return Err(failure("NCCL: the tensor is not on this rank's GPU".to_owned()));
        }
        let tensor = tensor.detach().contiguous()?;
        if tensor.elem_count() == 0 {
            return Ok(tensor);
        }
        let sum = match &*self.connection.borrow() {
            Some(comm) => tensor.apply_op1_no_bwd(&Sum(comm))?,
            None => return Err(failure("NCCL: an earlier sum has failed".to_owned())),
        };
        if let Err(error) = self.wait() {
            // Tearing the connection down ends its kernels; only then can the tensors be let go.
            drop(self.connection.take());
            return Err(error);
        }
        Ok(sum)
    }

    /// Waits until the GPU has done everything it was given so far.
    fn wait(&self) -> Result<(), Error> {
        let done = self.stream.record_event(None).map_err(driver)?;
        let started = Instant::now();
        while !done.try_is_complete().map_err(driver)? {
            match started.elapsed() {
                waited if waited > self.timeout => {
                    return Err(failure(format!(
                        "rank {} waited {:.1} s for a sum: another rank stopped, stalls, or gave NCCL \
                         a tensor of another size",
                        self.links.rank(),
                        waited.as_secs_f64()
                    )));
                }
                waited if waited < SPIN => std::hint::spin_loop(),
                _ => thread::sleep(NAP),
            }
        }
        Ok(())
    }
}

impl<C: Communicator> Communicator for NcclRank<'_, C> {
    fn rank(&self) -> usize {
        self.links.rank()
    }

    fn world_size(&self) -> usize {
        self.links.world_size()
    }

    fn device(&self) -> &Device {
        self.links.device()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.links.send(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.links.recv(from, shape, dtype)
    }
}

/// The sum as an operation of candle's, which hands out the memory behind a tensor.
struct Sum<'a>(&'a Comm);

impl CustomOp1 for Sum<'_> {
    fn name(&self) -> &'static str {
        "nccl all-reduce"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        bail!("{}: the tensor is in CPU memory", self.name())
    }

    fn cuda_fwd(
        &self,
        storage: &CudaStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        use CudaStorageSlice as Slice;
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("{}: expected a contiguous tensor", self.name());
        };
        let slice = match &storage.slice {
            Slice::F32(values) => Slice::F32(self.of(values, start..end)?),
            Slice::F64(values) => Slice::F64(self.of(values, start..end)?),
            Slice::F16(values) => Slice::F16(self.of(values, start..end)?),
            Slice::BF16(values) => Slice::BF16(self.of(values, start..end)?),
            _ => bail!("{}: works on f32, f64, f16 and bf16", self.name()),
        };
        Ok((CudaStorage { slice, device: storage.device.clone() }, layout.shape().clone()))
    }
}

impl Sum<'_> {
    fn of<T: NcclType + DeviceRepr + ValidAsZeroBits>(
        &self,
        values: &CudaSlice<T>,
        shown: Range<usize>,
    ) -> candle_core::Result<CudaSlice<T>> {
        let mine = values.slice(shown);
        let mut sum = self.0.stream().alloc_zeros(mine.len()).map_err(driver)?;
        self.0.all_reduce(&mine, &mut sum, &ReduceOp::Sum).map_err(nccl)?;
        Ok(sum)
    }
}

/// Every rank's number, known to every rank. Nobody has all of them before everybody has called this.
fn exchange(links: &impl Communicator, mine: u32) -> Result<Vec<u32>, Error> {
    let number = |value: u32| Tensor::new(&[value], &Device::Cpu);
    if links.rank() > 0 {
        links.send(0, &number(mine)?)?;
        let all = links.recv(0, &Shape::from(links.world_size()), DType::U32)?;
        return Ok(all.to_vec1()?);
    }
    let mut all = vec![mine];
    for other in 1..links.world_size() {
        all.extend(links.recv(other, &Shape::from(1), DType::U32)?.to_vec1::<u32>()?);
    }
    let list = Tensor::new(all.as_slice(), &Device::Cpu)?;
    (1..links.world_size()).try_for_each(|other| links.send(other, &list))?;
    Ok(all)
}

/// The first two ranks that have the same GPU.
fn sharers(ordinals: &[u32]) -> Option<(usize, usize)> {
    let earlier = |rank: usize| ordinals[..rank].iter().position(|o| *o == ordinals[rank]);
    (0..ordinals.len()).find_map(|rank| Some((earlier(rank)?, rank)))
}

/// An identifier drawn by rank 0, the same on every rank.
fn shared_id(links: &impl Communicator) -> Result<Id, Error> {
    if links.rank() == 0 {
        let id = Id::new().map_err(nccl)?;
        let bytes = id.internal().map(|byte| byte.to_ne_bytes()[0]);
        let message = Tensor::new(&bytes, &Device::Cpu)?;
        (1..links.world_size()).try_for_each(|other| links.send(other, &message))?;
        return Ok(id);
    }
    let message = links.recv(0, &Shape::from(ID_BYTES), DType::U8)?.to_vec1::<u8>()?;
    let mut id = [0; ID_BYTES];
    for (place, byte) in id.iter_mut().zip(message) {
        *place = std::ffi::c_char::from_ne_bytes([byte]);
    }
    Ok(Id::uninit(id))
}

fn failure(message: String) -> Error {
    candle_core::Error::Msg(message).into()
}

fn nccl(error: NcclError) -> candle_core::Error {
    candle_core::Error::Msg(format!("NCCL: {:?}", error.0))
}

fn driver(error: DriverError) -> candle_core::Error {
    candle_core::Error::wrap(error)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use single_gpu::device::{DeviceKind, DevicePlan};

    use super::*;
    use crate::thread::run_ranks;

    const SHORT: Duration = Duration::from_secs(5);

    fn slices(ranks: usize) -> DevicePlan {
        DevicePlan::new(DeviceKind::Cpu, ranks, NonZeroUsize::new(1)).unwrap()
    }

    #[test]
    fn every_rank_learns_every_number() {
        for ranks in [1, 2, 5] {
            let numbers =
                run_ranks(&slices(ranks), SHORT, |rank| exchange(rank, 10 + rank.rank() as u32));
            let expected: Vec<u32> = (10..).take(ranks).collect();
            assert_eq!(numbers.unwrap(), vec![expected; ranks]);
        }
    }

    #[test]
    fn two_ranks_on_one_gpu_are_found() {
        assert_eq!(sharers(&[0, 1, 2]), None);
        assert_eq!(sharers(&[0, 1, 0, 1]), Some((0, 2)));
        assert_eq!(sharers(&[3, 1, 1]), Some((1, 2)));
    }

    #[test]
    fn slices_of_the_cpu_are_refused() {
        let failure =
            run_ranks(&slices(2), SHORT, |rank| with_nccl(rank, SHORT, |_| Ok::<_, Error>(())));
        let message = failure.unwrap_err().to_string();
        assert!(message.contains("NCCL adds up tensors on GPUs"), "{message}");
    }
}
