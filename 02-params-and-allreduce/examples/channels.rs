//! The smallest communicator, a channel between every two ranks, under this chapter's all-reduce:
//! `cargo run --release -p params-and-allreduce --example channels`.

use std::thread;

use candle_core::{DType, Device, Shape, Tensor};
use crossbeam_channel::{Receiver, Sender, unbounded};
use harness::report::line;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

// ANCHOR: channels
/// One rank's ends of the channels.
struct Channels {
    rank: usize,
    /// A channel to each rank.
    to: Vec<Sender<Tensor>>,
    /// A channel from each rank.
    from: Vec<Receiver<Tensor>>,
}

impl Communicator for Channels {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.to.len()
    }

    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        let copy = tensor.force_contiguous()?;
        self.to[to].send(copy).map_err(|_| Error::Other(format!("rank {to} has ended")))
    }

    fn recv(&self, from: usize, _: &Shape, _: DType) -> Result<Tensor, Error> {
        self.from[from].recv().map_err(|_| Error::Other(format!("rank {from} has ended")))
    }
}
// ANCHOR_END: channels

// ANCHOR: main
/// Connects every two ranks in both directions.
fn connect(world_size: usize) -> Vec<Channels> {
    let unconnected = |rank| Channels { rank, to: Vec::new(), from: Vec::new() };
    let mut ranks: Vec<Channels> = (0..world_size).map(unconnected).collect();
    for from in 0..world_size {
        for to in 0..world_size {
            let (sender, receiver) = unbounded();
            ranks[from].to.push(sender);
            ranks[to].from.push(receiver);
        }
    }
    ranks
}

/// Fills a tensor with the rank's number plus 1, and adds it up with the tensors of all ranks.
fn work(comm: &impl Communicator, algorithm: Algorithm) -> Result<String, Error> {
    let mine = Tensor::full((comm.rank() + 1) as f32, 2, comm.device())?;
    let sum = comm.all_reduce(&mine, algorithm)?;
    Ok(format!("{:?} → {:?}", mine.to_vec1::<f32>()?, sum.to_vec1::<f32>()?))
}

fn main() -> anyhow::Result<()> {
    for algorithm in Algorithm::OURS {
        line(algorithm)?;
        let results: Vec<Result<String, Error>> = thread::scope(|scope| {
            let start = |comm: Channels| scope.spawn(move || work(&comm, algorithm));
            let ranks: Vec<_> = connect(3).into_iter().map(start).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        });
        for (rank, result) in results.into_iter().enumerate() {
            line(format_args!("  rank {rank}: {}", result?))?;
        }
    }
    Ok(())
}
// ANCHOR_END: main
