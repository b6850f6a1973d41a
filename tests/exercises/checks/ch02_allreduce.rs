//! Chapter 2, `book/src/ch02-all-reduce.md`: all-reduce by way of the first rank.
//!
//! The sums are made on 1 to 5 ranks. A wrong sum shows which rank is missing.

use crate::prelude::*;

/// A rank and its gradients, which become the sums over all ranks.
pub type Answer = fn(&Rank, &mut [Var]) -> Result<(), Error>;

pub const LAWS: &[Law<Answer>] = laws![
    every_rank_holds_the_sum: sums in [Case(2, &[&[2, 3]]), Case(3, &[&[2, 3]]), Case(5, &[&[2, 3]])],
    every_gradient_is_summed: sums in [Case(3, &[&[4, 1, 3, 3], &[4], &[]])],
    messages_go_to_rank_0_and_back in
        [Case(2, &[&[5], &[2, 2]]), Case(4, &[&[5], &[2, 2]]), Case(1, &[&[2, 3], &[4]])],
    alone_nothing_changes: sums in [Case(1, &[&[2, 3], &[4]])],
    the_same_bits_on_every_rank in [Case(3, &[&[7]])],
    errors_are_passed_on => (3, Sends::Buffered)
        |answer, rank| reduced(answer, rank, vec![contribution(rank.rank(), 4)?]),
];

const SUM: &str = "every rank gets each gradient's sum over all ranks; nothing is divided";
const VARIABLE: &str = "write the sum into the variable (Var::set), which the update holds";
const MESSAGES: &str =
    "for each gradient every other rank sends one message, to rank 0, and rank 0 one to each";
const ITSELF: &str = "a variable cannot be set to its own memory: a rank that is alone has nothing to add and nothing to write";

/// The laws about failures of ranks.
const FAILURES: [(&str, &str); 6] = [
    ("deadlock: ", MESSAGES),
    (" never received", MESSAGES),
    (" still needed it", MESSAGES),
    ("exchange messages with", MESSAGES),
    (ranks::PROMISE_BROKEN, ranks::PROMISE),
    ("cannot set a variable", ITSELF),
];

/// A number of ranks, and the shapes of their gradients.
#[derive(Clone, Copy)]
struct Case(usize, &'static [&'static [usize]]);

shown!(Case(ranks, shapes) => "{}, gradients {shapes:?}", counted(*ranks, "rank"));

/// The variables of a rank after the call: the update's clones, and the list's own. And the receivers of the rank's messages.
type Found = ([Vec<Tensor>; 2], Vec<usize>);

fn reduced(answer: Answer, rank: &Rank, gradients: Vec<Tensor>) -> Result<Found, Error> {
    let variables = gradients.iter().map(Var::from_tensor);
    let mut gradients: Vec<Var> = variables.collect::<Result<_>>()?;
    // The update holds the same variables through clones.
    let held = gradients.clone();
    answer(rank, &mut gradients)?;
    let copies = |variables: &[Var]| -> Result<Vec<Tensor>> {
        variables.iter().map(|it| it.as_tensor().copy()).collect()
    };
    let found = [copies(&held)?, copies(&gradients)?];
    let mut receivers: Vec<usize> = rank.sent().iter().map(|message| message.to).collect();
    receivers.sort_unstable();
    // The update comes next and writes to the variables. A rank that has shared their memory breaks its promise.
    held.iter().try_for_each(|variable| variable.set(&(variable.as_tensor() - 1.0)?))?;
    Ok((found, receivers))
}

impl Case {
    fn found(
        self,
        answer: Answer,
        own: impl Fn(usize, &[usize]) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Outcome<Vec<Found>> {
        let found = ranks::run(self.0, Sends::Buffered, move |rank| {
            let gradients = self.1.iter().map(|shape| own(rank.rank(), shape));
            reduced(answer, rank, gradients.collect::<Result<_>>()?)
        });
        found.map_err(|finding| finding.law_by(&FAILURES))
    }
}

fn sums(answer: Answer, &case: &Case) -> Outcome {
    let found = case.found(answer, |rank, shape| contribution(rank, shape))?;
    for (rank, ([update, list], _)) in found.iter().enumerate() {
        for (index, &shape) in case.1.iter().enumerate() {
            let (expected, what) =
                (sum(case.0, shape)?, format!("gradient {index} on rank {rank}"));
            let is = |got: &Tensor| Expectation::of("").compare_tensors(&expected, got).is_ok();
            let rebound = list.get(index).is_some_and(is) && !is(&update[index]);
            demand(!rebound, || {
                let wrong =
                    "the list has a new variable with the sum, and the update has the old one";
                Finding::new(format!("{what}: {wrong}")).law(VARIABLE)
            })?;
            let sum = Expectation::of(what).law(SUM).guess(guess(case.0));
            sum.compare_tensors(&expected, &update[index])?;
        }
    }
    Ok(())
}

fn messages_go_to_rank_0_and_back(answer: Answer, &case: &Case) -> Outcome {
    let found = case.found(answer, |rank, shape| contribution(rank, shape))?;
    found.iter().enumerate().try_for_each(|(rank, (_, receivers))| {
        let others = if rank == 0 { 1..case.0 } else { 0..1 };
        let expected = in_a_row(others.flat_map(|other| vec![other; case.1.len()]));
        let what = format!("the receivers of rank {rank}'s messages");
        same(what, expected, in_a_row(receivers), MESSAGES)
    })
}

/// Rank 0 must send the sum that it keeps.
fn the_same_bits_on_every_rank(answer: Answer, &case: &Case) -> Outcome {
    let own = |rank, shape: &[usize]| contributions::rounding(rank, shape, DType::F64);
    let found = case.found(answer, own)?;
    let sums: Vec<&Tensor> = found.iter().map(|([update, _], _)| &update[0]).collect();
    contributions::same_bits("gradient 0", &sums)
}
