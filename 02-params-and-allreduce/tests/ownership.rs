//! Who owns a tensor. Ranks read the input of a collective where it lies. When the collective has returned, the caller may
//! write to the input and to the result, however late the other ranks are.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Shape, Tensor};
use devices::DevicePlan;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error, Group, SharedCommunicator};
use params_and_allreduce::forward;
use params_and_allreduce::thread::{Rank, run_ranks};

use crate::collective::Collective;

const PATIENT: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(200);
/// How late a rank is: long enough for the others to return and write, if they do not wait for it.
const LATE: Duration = Duration::from_millis(5);
/// So many numbers that even a fifth of them is shared, not copied.
const LEN: usize = 50_000;

fn in_ranks<R: Send>(
    ranks: usize,
    timeout: Duration,
    work: impl Fn(&Rank) -> Result<R, Error> + Sync,
) -> Vec<R> {
    let plan = DevicePlan::slices(ranks).unwrap();
    run_ranks(&plan, timeout, work).unwrap()
}

fn full_of(number: f32, len: usize) -> Tensor {
    Tensor::full(number, len, &Device::Cpu).unwrap()
}

fn assert_full_of(tensor: &Tensor, number: f32, what: &str) {
    let numbers = tensor.to_vec1::<f32>().unwrap();
    let wrong = numbers.iter().find(|&&found| found != number);
    assert_eq!(wrong, None, "{what}: instead of {number}");
}

/// The numbers of a result on so many ranks that bring ones.
fn of_ones(collective: Collective, ranks: usize) -> f32 {
    match collective {
        Collective::AllGather | Collective::Broadcast => 1.0,
        _ => ranks as f32,
    }
}

struct Late(Rank);

impl Communicator for Late {
    forward!(0: rank, world_size, device, shares_memory, send, background);

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.0.send_shared(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        std::thread::sleep(LATE);
        let received = self.0.recv(from, shape, dtype)?;
        std::thread::sleep(LATE);
        Ok(received)
    }
}

/// Whatever rank is late: each brings ones, so every number of a sum is the number of ranks. Small tensors are copied, and
/// large ones shared.
#[test]
fn after_a_collective_a_rank_may_write_to_what_it_gave_and_got() {
    let sizes = |collective| [(collective, 7), (collective, LEN)];
    for (collective, len) in Collective::of_numbers().flat_map(sizes) {
        for (ranks, late) in [1, 2, 3, 5].into_iter().flat_map(|it| (0..it).map(move |of| (it, of)))
        {
            in_ranks(ranks, PATIENT, |rank| {
                let what = format!("{collective:?} of {len}, rank {} of {ranks}", rank.rank());
                let mine = full_of(1.0, len);
                let comm: SharedCommunicator = match rank.rank() == late {
                    true => Arc::new(Late(rank.clone())),
                    false => rank.into(),
                };
                let result = collective.apply(&comm, &mine, ranks - 1)?;
                mine.slice_set(&full_of(-1.0, len), 0, 0)?;
                assert_full_of(&result, of_ones(collective, ranks), &what);
                let number = 100.0 + rank.rank() as f32;
                result.slice_set(&full_of(number, result.elem_count()), 0, 0)?;
                rank.barrier()?;
                assert_full_of(&result, number, &what);
                assert_full_of(&mine, -1.0, &what);
                Ok(())
            });
        }
    }
}

/// Rank 0 gives up, and writes to its input. The late rank 1 then reads the input.
#[test]
fn no_rank_takes_an_input_that_has_changed_for_a_result() {
    for collective in Collective::of_numbers() {
        for ranks in [2, 3] {
            let (plan, gave_up) = (DevicePlan::slices(ranks).unwrap(), Barrier::new(ranks));
            let outcome = run_ranks(&plan, SHORT, |rank| {
                let mine = full_of(1.0, LEN);
                if rank.rank() == 1 {
                    gave_up.wait();
                }
                let result = collective.apply(&rank.into(), &mine, 0);
                mine.slice_set(&full_of(-1.0, LEN), 0, 0)?;
                if rank.rank() != 1 {
                    gave_up.wait();
                }
                if let Ok(result) = &result {
                    let what = format!("{collective:?}, {ranks} ranks");
                    assert_full_of(result, of_ones(collective, ranks), &what);
                }
                result.map(drop)
            });
            // A root needs no other rank.
            assert!(outcome.is_err() || matches!(collective, Collective::Broadcast));
        }
    }
}

#[test]
fn an_input_that_a_rank_holds_on_to_names_the_rank() {
    let plan = DevicePlan::slices(2).unwrap();
    let failure = run_ranks(&plan, SHORT, |rank| {
        let ones = full_of(1.0, LEN);
        if rank.rank() == 0 {
            return rank.all_reduce(&ones, Algorithm::OneShot).map(drop);
        }
        rank.send_shared(0, &ones)?;
        let held = rank.recv(0, ones.shape(), ones.dtype())?;
        std::thread::sleep(5 * SHORT);
        drop(held);
        Ok(())
    });
    let failure = failure.unwrap_err().to_string();
    assert!(failure.contains("rank 0 failed") && failure.contains("rank 1 is alive"), "{failure}");
}

#[test]
fn a_rank_that_leaves_without_reading_is_named_at_once() {
    let started = Instant::now();
    let plan = DevicePlan::slices(2).unwrap();
    let failure = run_ranks(&plan, PATIENT, |rank| {
        let ones = full_of(1.0, LEN);
        if rank.rank() == 0 {
            return rank.all_reduce(&ones, Algorithm::OneShot).map(drop);
        }
        rank.send_shared(0, &ones)
    });
    let failure = failure.unwrap_err().to_string();
    assert!(failure.contains("rank 1 returned early"), "{failure}");
    assert!(started.elapsed() < PATIENT);
}

/// Rows and columns of a mesh, with more messages under way than any rank has read.
#[test]
fn groups_that_cross_do_not_wait_for_each_other() {
    in_ranks(4, PATIENT, |rank| {
        let world: SharedCommunicator = Arc::new(rank.clone());
        let (row, column) = (rank.rank() / 2, rank.rank() % 2);
        let row = Group::new(Arc::clone(&world), vec![2 * row, 2 * row + 1])?;
        let column = Group::new(world, vec![column, column + 2])?;
        let large = full_of(1.0, LEN);
        // A message to the column is on its way while the row adds up.
        column.send_shared(1 - column.rank(), &large)?;
        let of_row = row.all_reduce(&large, Algorithm::OneShot)?;
        let other = column.recv(1 - column.rank(), large.shape(), large.dtype())?;
        assert_full_of(&(of_row + other)?, 3.0, "a row and a message");
        Ok(())
    });
}

/// A clone of a rank in another thread is the same rank.
#[test]
fn a_communicator_works_in_another_thread_and_is_dropped_there() {
    in_ranks(2, PATIENT, |rank| {
        let clone = rank.clone();
        let sum = std::thread::spawn(move || clone.all_reduce(&full_of(1.0, LEN), Algorithm::Ring));
        assert_full_of(&sum.join().unwrap()?, 2.0, "a sum in another thread");
        rank.barrier()
    });
}
