//! The book's stepper has the messages of the collectives.

use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator as _;
use xtask::steps::{Catalogue, record};

/// The links count the same bytes. The number of steps is the number in the course. Each rank sends the sums that the stepper
/// shows in this rank, and every rank ends with the sum of all.
#[test]
fn messages_add_up() {
    for run in Catalogue::record().unwrap().runs {
        let what = format!("{} on {}", run.algorithm, run.ranks);
        let holdings = run.holdings();
        let mut sent = vec![0; run.ranks];
        for (before, message) in
            holdings.iter().zip(&run.steps).flat_map(|(h, step)| step.iter().map(move |m| (h, m)))
        {
            sent[message.from] += message.bytes;
            for &chunk in &message.chunks {
                assert!(before[message.from][chunk].iter().eq(&message.sum_of), "{what}");
            }
        }
        assert_eq!(sent, run.sent, "{what}");
        let steps = match run.algorithm.as_str() {
            "tree" => 2 * run.ranks.next_power_of_two().ilog2() as usize,
            _ => 2 * (run.ranks - 1),
        };
        assert_eq!(run.steps.len(), steps, "{what}");
        let mut last = holdings[steps].iter().flatten();
        assert!(last.all(|held| held.len() == run.ranks), "{what}");
    }
}

#[test]
fn a_broken_ring_is_not_recorded() {
    let doubled = record("ring", 4, |recorder, tensor| {
        let chunk = recorder.reduce_scatter(tensor)?;
        recorder.all_gather(&(chunk * 2.0)?, tensor.elem_count())
    });
    assert!(format!("{:#}", doubled.unwrap_err()).contains("whole chunks of one partial sum"));
    let pieces = record("ring", 4, |recorder, tensor| {
        recorder.all_reduce(&tensor.narrow(0, 0, 100)?, Algorithm::Ring)
    });
    assert!(format!("{:#}", pieces.unwrap_err()).contains("whole chunks of one partial sum"));
    let nothing = record("ring", 4, |_, tensor| Ok(tensor.clone()));
    assert!(nothing.unwrap_err().to_string().contains("rank 0 does not end with the sum"));
}
