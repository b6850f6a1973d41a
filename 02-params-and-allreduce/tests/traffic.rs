//! What each algorithm sends, counted where it is sent.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use devices::DevicePlan;
use params_and_allreduce::Algorithm;
use params_and_allreduce::all_reduce::two_levels;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator as _, Error, SharedCommunicator};
use params_and_allreduce::host_link::HostLink;
use params_and_allreduce::thread::{Rank, Traffic, run_ranks};

fn traffic(ranks: usize, work: impl Fn(&Rank) -> Result<(), Error> + Sync) -> Vec<Traffic> {
    let plan = DevicePlan::slices(ranks).unwrap();
    let counted = run_ranks(&plan, Duration::from_secs(20), |rank| {
        work(rank)?;
        Ok::<_, Error>(rank.traffic())
    });
    counted.unwrap()
}

fn of_all_reduce(ranks: usize, len: usize, dtype: DType, algorithm: Algorithm) -> Vec<Traffic> {
    traffic(ranks, |rank| {
        let tensor = Tensor::ones(len, dtype, &Device::Cpu)?;
        rank.all_reduce(&tensor, algorithm).map(|_| ())
    })
}

#[test]
fn the_ring_sends_two_times_n_minus_one_over_n_of_the_bytes() {
    for ranks in 1..=9u64 {
        for (dtype, size) in [(DType::F32, 4), (DType::F64, 8), (DType::BF16, 2)] {
            let len = 10 * ranks;
            let expected = Traffic {
                messages: 2 * (ranks - 1),
                bytes: 2 * (ranks - 1) * (len * size) / ranks,
            };
            let counted = of_all_reduce(ranks as usize, len as usize, dtype, Algorithm::Ring);
            assert_eq!(counted, vec![expected; ranks as usize], "{ranks} ranks, {dtype:?}");
        }
    }
}

#[test]
fn where_the_length_does_not_divide_it_is_all_but_two_chunks_twice() {
    for ranks in 2..=9 {
        for len in 0..30 {
            let counted = of_all_reduce(ranks, len, DType::F32, Algorithm::Ring);
            for (rank, counted) in counted.iter().enumerate() {
                // In the first half everything but its own chunk, in the second all but the next one's.
                let [own, next] =
                    [rank, (rank + 1) % ranks].map(|chunk| chunk_range(len, ranks, chunk).len());
                let bytes = 4 * (2 * len - own - next);
                assert_eq!(counted.bytes, bytes as u64, "rank {rank} of {ranks}, {len} elements");
            }
        }
    }
}

#[test]
fn a_large_tensor_takes_more_messages_around_the_ring_and_no_more_bytes() {
    const MIB: usize = 1 << 20;
    for ranks in [2, 4] {
        for (bytes, pieces) in [(2 * MIB, 1), (2 * MIB + 4 * ranks, 2), (7 * MIB, 4)] {
            let counted = of_all_reduce(ranks, bytes / 4, DType::F32, Algorithm::Ring);
            let steps = 2 * (ranks - 1);
            // Several pieces come after a message with the length.
            let lengths = usize::from(pieces > 1);
            let expected = Traffic {
                messages: (pieces * steps + lengths) as u64,
                bytes: (steps * bytes / ranks + 8 * lengths) as u64,
            };
            assert_eq!(counted, vec![expected; ranks], "{ranks} ranks, {bytes} bytes");
        }
    }
}

#[test]
fn in_one_shot_everyone_sends_everything_to_everyone() {
    for ranks in 1..=9 {
        // Small enough to be copied, and so large that it is shared: then each reader answers with an empty message.
        for (len, answers) in [(25, 0), (25_000, 1)] {
            let counted = of_all_reduce(ranks, len, DType::F32, Algorithm::OneShot);
            let others = ranks as u64 - 1;
            let messages = others * (1 + answers);
            let expected = Traffic { messages, bytes: 4 * len as u64 * others };
            assert_eq!(counted, vec![expected; ranks], "{ranks} ranks, {len} elements");
        }
    }
}

#[test]
fn naive_sends_everything_through_rank_0() {
    for ranks in 2..=9 {
        let counted = of_all_reduce(ranks, 25, DType::F32, Algorithm::Naive);
        let all_others = ranks as u64 - 1;
        assert_eq!(counted[0], Traffic { messages: all_others, bytes: 100 * all_others });
        assert_eq!(counted[1..], vec![Traffic { messages: 1, bytes: 100 }; ranks - 1]);
    }
}

#[test]
fn the_tree_sends_a_logarithm_of_tensors_at_most() {
    for ranks in 2..=9usize {
        let counted = of_all_reduce(ranks, 25, DType::F32, Algorithm::Tree);
        let rounds = u64::from(ranks.next_power_of_two().ilog2());
        assert_eq!(counted[0], Traffic { messages: rounds, bytes: 100 * rounds }, "{ranks} ranks");
        assert!(counted.iter().all(|rank| rank.messages <= rounds), "{ranks}: {counted:?}");
        // Up and down each of the n − 1 edges once.
        let total: u64 = counted.iter().map(|rank| rank.bytes).sum();
        assert_eq!(total, 2 * 100 * (ranks as u64 - 1), "{ranks} ranks");
    }
}

/// The numbers of hosts, and of ranks on each.
const HOSTS: [(u64, u64); 7] = [(1, 3), (2, 1), (2, 2), (2, 4), (3, 2), (3, 3), (5, 1)];

/// On h hosts with g ranks each, two levels with a ring between the hosts.
#[test]
fn two_levels_send_as_much_as_three_rings() {
    for (hosts, g) in HOSTS {
        let len = 10 * hosts * g;
        let counted = traffic((hosts * g) as usize, |rank| {
            let tensor = Tensor::ones(len as usize, DType::F32, &Device::Cpu)?;
            two_levels(&rank.into(), g as usize, &tensor, Algorithm::Ring).map(drop)
        });
        let (inside, between) = (2 * (g - 1), 2 * (hosts - 1));
        let bytes = 4 * len * inside / g + 4 * len / g * between / hosts;
        let expected = Traffic { messages: inside + between, bytes };
        assert_eq!(counted, vec![expected; (hosts * g) as usize], "{hosts} hosts with {g} ranks");
    }
}

/// The bytes that each host sends to other hosts in an all-reduce of `len` numbers in f32.
fn between_hosts(
    (hosts, g): (u64, u64),
    len: u64,
    sum: impl Fn(&SharedCommunicator, &Tensor) -> Result<Tensor, Error> + Sync,
) -> Vec<u64> {
    let link = HostLink::new(hosts as usize, g as usize, 1e9);
    traffic((hosts * g) as usize, |rank| {
        let comm = link.connect(rank.into());
        sum(&comm, &Tensor::ones(len as usize, DType::F32, &Device::Cpu)?).map(drop)
    });
    link.sent()
}

#[test]
fn two_levels_send_less_between_hosts_than_one_ring() {
    for (hosts, g) in HOSTS {
        let (ranks, len) = (hosts * g, 10_000 * hosts * g);
        let of = |algorithm| {
            between_hosts((hosts, g), len, move |comm, tensor| match algorithm {
                None => two_levels(comm, g as usize, tensor, Algorithm::Ring),
                Some(algorithm) => comm.all_reduce(tensor, algorithm),
            })
        };
        let levels = 2 * (hosts - 1) * 4 * len / hosts;
        assert_eq!(of(None), vec![levels; hosts as usize], "{hosts} hosts with {g} ranks");
        let ring = if hosts == 1 { 0 } else { 2 * (ranks - 1) * 4 * len / ranks };
        assert_eq!(of(Some(Algorithm::Ring)), vec![ring; hosts as usize], "{hosts} of {g}: ring");
        let one_shot = (ranks - g) * g * 4 * len;
        assert_eq!(of(Some(Algorithm::OneShot)), vec![one_shot; hosts as usize], "one-shot");
    }
}

/// The port of a host sends one message at a time, and the ports of two hosts send side by side.
#[test]
fn a_message_to_another_host_takes_its_bytes_time() {
    let link = HostLink::new(2, 2, 1e6);
    let tensor = Tensor::ones(25_000, DType::F32, &Device::Cpu).unwrap();
    let started = std::time::Instant::now();
    traffic(4, |rank| {
        let (comm, other) = (link.connect(rank.into()), (rank.rank() + 2) % 4);
        let neighbour = rank.rank() ^ 1;
        (0..100).try_for_each(|_| comm.send(neighbour, &tensor))?;
        comm.send(other, &tensor)?;
        comm.recv(other, tensor.shape(), DType::F32).map(drop)
    });
    // Two messages of 100 ms from each host.
    let seconds = started.elapsed().as_secs_f64();
    assert!((0.2..2.0).contains(&seconds), "{seconds}");
    assert_eq!(link.sent(), [200_000; 2]);
}

#[test]
fn a_barrier_sends_a_logarithm_of_empty_messages() {
    for ranks in 1..=9usize {
        let rounds = u64::from(ranks.next_power_of_two().ilog2());
        let counted = traffic(ranks, |rank| rank.barrier());
        assert_eq!(counted, vec![Traffic { messages: rounds, bytes: 0 }; ranks], "{ranks} ranks");
    }
}
