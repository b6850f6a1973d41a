//! What the book's stepper shows is what the collectives send.

use candle_core::Tensor;
use params_and_allreduce::Algorithm;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator as _, Error};
use xtask::pictures;
use xtask::steps::{Catalogue, PICTURED, RANKS, Recorder, record};

use crate::*;

#[test]
fn the_book_has_what_the_collectives_send_today() {
    let catalogue = Catalogue::record().unwrap();
    let run = catalogue.run(PICTURED.0, PICTURED.1).unwrap();
    for (name, now) in [
        ("data/all-reduce-steps.json", catalogue.json().unwrap()),
        ("figures/ring-steps.svg", pictures::steps(run)),
    ] {
        check_current(name, &now, "cargo xtask steps").unwrap();
    }
}

#[test]
fn bytes_of_messages_are_the_bytes_that_the_links_counted() {
    for run in Catalogue::record().unwrap().runs {
        let mut sent = vec![0; run.ranks];
        for message in run.steps.iter().flatten() {
            sent[message.from] += message.bytes;
        }
        assert_eq!(sent, run.sent, "{} on {}", run.algorithm, run.ranks);
    }
}

/// The stepper shows what each rank holds by adding up what it was sent: these are the sums that the
/// collectives then really send on, and all of them in the end.
#[test]
fn what_a_rank_is_shown_to_hold_is_what_it_sends() {
    for run in Catalogue::record().unwrap().runs {
        let holdings = run.holdings();
        for (before, messages) in holdings.iter().zip(&run.steps) {
            for message in messages {
                for &chunk in &message.chunks {
                    let held: Vec<usize> = before[message.from][chunk].iter().copied().collect();
                    assert_eq!(held, message.sum_of, "{} on {}", run.algorithm, run.ranks);
                }
            }
        }
        let last = holdings.last().unwrap().iter().flatten();
        assert!(last.into_iter().all(|held| held.len() == run.ranks), "{}", run.algorithm);
    }
}

#[test]
fn the_steps_are_as_many_as_the_course_says() {
    let catalogue = Catalogue::record().unwrap();
    for ranks in RANKS {
        let rounds = ranks.next_power_of_two().ilog2() as usize;
        for (algorithm, steps) in [
            (Algorithm::Naive, 2 * (ranks - 1)),
            (Algorithm::Tree, 2 * rounds),
            (Algorithm::Ring, 2 * (ranks - 1)),
        ] {
            let run = catalogue.run(algorithm, ranks).unwrap();
            assert_eq!(run.steps.len(), steps, "{algorithm} on {ranks}");
        }
    }
}

/// A ring whose ranks end with this instead of the sum.
fn broken(ring: impl Fn(&Recorder<'_>, &Tensor) -> Result<Tensor, Error> + Sync) -> String {
    format!("{:#}", record("broken ring", 4, ring).unwrap_err())
}

#[test]
fn a_broken_ring_is_not_recorded() {
    let doubled = broken(|recorder, tensor| {
        let chunk = recorder.reduce_scatter(tensor)?;
        let everything = tensor.elem_count();
        recorder.all_gather(&(chunk * 2.0)?, everything)
    });
    assert!(doubled.contains("no sum of contributions of 4 ranks"), "{doubled}");
    let gathered = broken(|recorder, tensor| {
        let range = chunk_range(tensor.elem_count(), 4, recorder.rank());
        recorder.all_gather(&tensor.narrow(0, range.start, range.len())?, tensor.elem_count())
    });
    assert!(gathered.contains("rank 0 ends with 0x1 as element 0"), "{gathered}");
    let pieces = broken(|recorder, tensor| {
        let part = tensor.narrow(0, 0, 100)?;
        recorder.all_reduce(&part, Algorithm::Ring)
    });
    assert!(pieces.contains("cuts chunk 0 into pieces"), "{pieces}");
    let too_many =
        record("ring", 9, |recorder, tensor| recorder.all_reduce(tensor, Algorithm::Ring));
    assert!(too_many.unwrap_err().to_string().contains("only two to eight"));
    let nothing = broken(|_, tensor| Ok(tensor.clone()));
    assert!(nothing.contains("rank 0 ends with 0x1 as element 0"), "{nothing}");
}
