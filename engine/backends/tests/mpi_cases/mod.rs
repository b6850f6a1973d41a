//! What one process does in each case of `tests/mpi.rs`.

mod agreement;
mod failures;

use std::thread;
use std::time::Duration;

use backends::mpi;
use candle_core::{DType, Device, Shape, Tensor};
use devices::DevicePlan;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Error, SharedCommunicator as Rank};

/// Nobody waits this long, unless something is wrong.
const LONG: Duration = Duration::from_secs(60);

/// Soon over, where somebody does wait in vain.
const SHORT: Duration = Duration::from_secs(2);

/// What one rank does.
type Case = fn(&Rank) -> Result<(), Error>;

/// Runs a case in this process. Where it fails, the process ends here.
pub fn run(case: &str) {
    let (timeout, work): (_, Case) = match case {
        "collectives" => (LONG, agreement::collectives),
        "native" => (LONG, agreement::native),
        "large" => (LONG, large),
        "huge" => (LONG, huge),
        "parting" => (LONG, parting),
        "in-vain" => (LONG, in_vain),
        "two-connections" => (LONG, two_connections),
        "no-such-rank" => (LONG, no_such_rank),
        "outlived" => return outlived(),
        "wrong-shape" => (LONG, failures::wrong_shape),
        "wrong-type" => (LONG, failures::wrong_type),
        "stall" => (SHORT, failures::stall),
        "stall-native" => (SHORT, failures::stall_native),
        "sum-given-up" => (SHORT, failures::sum_given_up),
        "other-size" => (SHORT, failures::other_size),
        "stopped" => (SHORT, failures::stopped),
        "stopped-in-a-ring" => (SHORT, failures::stopped_in_a_ring),
        "stopped-before-another" => (SHORT, failures::stopped_before_another),
        "paused" => (SHORT, failures::paused),
        "deadlock" => (SHORT, failures::deadlock),
        "early" => (LONG, failures::early),
        "error" => (LONG, failures::error),
        "panic" => (LONG, failures::panic),
        "killed" => (LONG, failures::killed),
        other => panic!("there is no case {other}"),
    };
    let world = mpi::connect(timeout).unwrap();
    let plan = DevicePlan::slices(world.devices_here).unwrap();
    world.run(&plan, |_, rank| work(&rank));
}

/// 24 MB from every rank to every other, of which nobody receives any before all is sent.
fn large(rank: &Rank) -> Result<(), Error> {
    const LEN: usize = 6_000_000;
    let others = || (0..rank.world_size()).filter(|other| *other != rank.rank());
    let whole = Tensor::full(rank.rank() as f32, LEN + 1, rank.device())?;
    for other in others() {
        rank.send(other, &whole.narrow(0, 0, LEN)?)?;
    }
    // What was sent is the value at that time.
    whole.slice_set(&Tensor::full(99f32, LEN + 1, rank.device())?, 0, 0)?;
    // In the background. In this connection its messages would arrive behind the tensors.
    rank.background()?.barrier()?;
    for other in others() {
        let numbers = rank.recv(other, &Shape::from(LEN), DType::F32)?.to_vec1::<f32>()?;
        assert!(numbers.iter().all(|number| *number == other as f32), "from rank {other}");
    }
    Ok(())
}

/// More bytes than MPI counts, in three parts.
fn huge(rank: &Rank) -> Result<(), Error> {
    const LEN: usize = (2 << 30) + 5;
    let last = |tensor: &Tensor| tensor.narrow(0, LEN - 3, 3)?.to_vec1::<u8>();
    let mine = Tensor::ones(LEN, DType::U8, rank.device())?;
    if rank.rank() == 0 {
        return rank.send(1, &mine);
    }
    assert_eq!(last(&rank.recv(0, mine.shape(), DType::U8)?)?, [1; 3]);
    Ok(())
}

/// Every rank's work is over as soon as it has sent; the last receives, and takes its time.
fn parting(rank: &Rank) -> Result<(), Error> {
    const LEN: usize = 3_000_000;
    let last = rank.world_size() - 1;
    if rank.rank() != last {
        return rank.send(last, &Tensor::full(rank.rank() as f64, LEN, rank.device())?);
    }
    thread::sleep(SHORT);
    for other in 0..last {
        let numbers = rank.recv(other, &Shape::from(LEN), DType::F64)?.to_vec1::<f64>()?;
        assert!(numbers.iter().all(|number| *number == other as f64), "from rank {other}");
        let more = rank.recv(other, &Shape::from(LEN), DType::F64).unwrap_err().to_string();
        assert!(more.contains("returned early"), "{more}");
    }
    Ok(())
}

/// Rank 0 is done, and will never ask for what the other two send it before they turn to each other.
fn in_vain(rank: &Rank) -> Result<(), Error> {
    if rank.rank() == 0 {
        return Ok(());
    }
    thread::sleep(SHORT);
    rank.send(0, &Tensor::zeros(3_000_000, DType::F64, rank.device())?)?;
    let other = 3 - rank.rank();
    rank.send(other, &Tensor::zeros(1, DType::F64, rank.device())?)?;
    rank.recv(other, &Shape::from(1), DType::F64).map(|_| ())
}

/// One thread adds large tensors up in the background, while the other exchanges many small messages.
fn two_connections(rank: &Rank) -> Result<(), Error> {
    let (background, main) = (rank.background()?, rank.clone());
    let sum = |line: &dyn Fn(&Tensor) -> Result<Tensor, Error>, len: usize, number: usize| {
        let mine = Tensor::full((number + rank.rank()) as f64, len, &Device::Cpu)?;
        let expected = (0..rank.world_size()).map(|rank| (number + rank) as f64).sum::<f64>();
        assert_eq!(line(&mine)?.to_vec1::<f64>()?, vec![expected; len]);
        Ok::<_, Error>(())
    };
    for algorithm in Algorithm::OURS.into_iter().chain([Algorithm::Native]) {
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                (0..5).try_for_each(|i| {
                    sum(&|mine| background.all_reduce(mine, algorithm), 300_000, 1000 + i)
                })
            });
            (0..100).try_for_each(|i| sum(&|mine| main.all_reduce(mine, algorithm), 3, i))?;
            other.join().unwrap()
        })?;
    }
    Ok(())
}

fn no_such_rank(rank: &Rank) -> Result<(), Error> {
    let tensor = Tensor::zeros(2, DType::F32, rank.device())?;
    for other in [rank.rank(), 2, usize::MAX] {
        let sent = rank.send(other, &tensor);
        let received = rank.recv(other, &Shape::from(2), DType::F32);
        for outcome in [sent, received.map(|_| ())] {
            assert!(matches!(outcome, Err(Error::NoSuchRank { .. })), "{other}: {outcome:?}");
        }
    }
    Ok(())
}

fn outlived() {
    let world = mpi::connect(LONG).unwrap();
    assert!(mpi::connect(LONG).is_err(), "connected twice");
    let plan = DevicePlan::slices(world.devices_here).unwrap();
    let line = world.run(&plan, |_, rank| Ok::<_, Error>(rank));
    drop(world);
    let tensor = Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap();
    let other = 1 - line.rank();
    let sent = line.send(other, &tensor).unwrap_err().to_string();
    let received = line.recv(other, &Shape::from(2), DType::F32).unwrap_err().to_string();
    let sum = line.all_reduce(&tensor, Algorithm::Native).unwrap_err().to_string();
    for message in [sent, received, sum] {
        assert!(message.contains("has ended"), "{message}");
    }
}
