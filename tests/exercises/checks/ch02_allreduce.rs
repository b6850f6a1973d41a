//! Chapter 2, `book/src/ch02-all-reduce.md`: all-reduce by way of the first rank.
//!
//! The sums are made on 1 to 5 ranks. A wrong sum shows which rank is missing.

use std::fmt;

use crate::prelude::*;

/// A rank and its gradients, which become the sums over all ranks.
pub type Answer = fn(&Rank, &mut [Var]) -> Result<(), Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    every_rank_holds_the_sum: sums in [Case(2, &[&[2, 3]]), Case(3, &[&[2, 3]]), Case(5, &[&[2, 3]])],
    every_gradient_is_summed: sums in [Case(3, &[&[4, 1, 3, 3], &[4], &[]])],
    messages_go_to_rank_0_and_back: messages in [Case(2, &[&[5], &[2, 2]]), Case(4, &[&[5], &[2, 2]])],
    alone_nothing_changes: sums in [Case(1, &[&[2, 3], &[4]])],
    alone_nothing_is_sent: messages in [Case(1, &[&[2, 3], &[4]])],
    every_rank_has_the_same_bits_and_those_of_stage_2 in [Case(3, &[&[7]])],
    errors_are_passed_on
];

const SUM: &str =
    "every rank gets the sum of each gradient over all ranks; nothing is divided here";
const VARIABLE: &str =
    "write the sum into the variable (Var::set): the update holds the variable, not the list";
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

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, gradients {:?}", counted(self.0, "rank"), self.1)
    }
}

/// The variables of a rank after the call.
struct Found {
    /// The variables as the update knows them.
    update: Vec<Tensor>,
    /// The variables of the list.
    list: Vec<Tensor>,
    /// The receivers of the rank's messages, in order.
    receivers: Vec<usize>,
}

impl Case {
    fn found(
        self,
        answer: Answer,
        own: fn(usize, &[usize]) -> Result<Tensor>,
    ) -> Outcome<Vec<Found>> {
        let found = ranks::run(self.0, Sends::Buffered, move |rank| {
            let gradients = self.1.iter().map(|shape| own(rank.rank(), shape));
            reduced(answer, rank, gradients.collect::<Result<_>>()?)
        });
        found.map_err(|finding| finding.law_by(&FAILURES))
    }
}

fn of_rank(rank: usize, shape: &[usize]) -> Result<Tensor> {
    contribution(rank, shape)
}

fn reduced(answer: Answer, rank: &Rank, gradients: Vec<Tensor>) -> Result<Found, Error> {
    let variables = gradients.iter().map(Var::from_tensor);
    let mut gradients: Vec<Var> = variables.collect::<Result<_>>()?;
    // The update holds the same variables through clones.
    let held = gradients.clone();
    answer(rank, &mut gradients)?;
    let copies =
        |variables: &[Var]| variables.iter().map(|it| it.as_tensor().copy()).collect::<Result<_>>();
    let (update, list) = (copies(&held)?, copies(&gradients)?);
    let mut receivers: Vec<usize> = rank.sent().iter().map(|message| message.to).collect();
    receivers.sort_unstable();
    // The update comes next and writes to the variables. A rank that has shared their memory breaks its promise.
    held.iter().try_for_each(|variable| variable.set(&(variable.as_tensor() - 1.0)?))?;
    Ok(Found { update, list, receivers })
}

fn sums(answer: Answer, &case: &Case) -> Outcome {
    for (rank, Found { update, list, .. }) in case.found(answer, of_rank)?.iter().enumerate() {
        for (index, &shape) in case.1.iter().enumerate() {
            let expected = sum(case.0, shape)?;
            let right = numbers(&expected)?;
            let is_in_list =
                list.get(index).is_some_and(|it| numbers(it).is_ok_and(|it| it == right));
            let rebound = is_in_list && numbers(&update[index])? != right;
            Expectation::of(format!("gradient {index} on rank {rank}"))
                .law(if rebound { VARIABLE } else { SUM })
                .guess(|expected, got| match rebound {
                    true => Some(
                        "the list has a new variable with the sum, and the update has the old one"
                            .to_owned(),
                    ),
                    false => guess(case.0)(expected, got),
                })
                .compare_tensors(&expected, &update[index])?;
        }
    }
    Ok(())
}

fn messages(answer: Answer, &case: &Case) -> Outcome {
    for (rank, Found { receivers, .. }) in case.found(answer, of_rank)?.iter().enumerate() {
        let others = if rank == 0 { 1..case.0 } else { 0..1 };
        let expected = in_a_row(others.flat_map(|other| vec![other; case.1.len()]));
        same(
            format!("the receivers of rank {rank}'s messages"),
            expected,
            in_a_row(receivers),
            MESSAGES,
        )?;
    }
    Ok(())
}

/// Numbers that round, in f64: rank 0 must send the sum that it keeps.
fn every_rank_has_the_same_bits_and_those_of_stage_2(answer: Answer, &case: &Case) -> Outcome {
    fn third(rank: usize, shape: &[usize]) -> Result<Tensor> {
        contribution(rank, shape)?.to_dtype(DType::F64)? / 3.0
    }
    let found = case.found(answer, third)?;
    let theirs = ranks::run(case.0, Sends::Buffered, move |rank| {
        rank.all_reduce(&third(rank.rank(), case.1[0])?, Algorithm::Naive)
    })?;
    found.iter().enumerate().try_for_each(|(rank, Found { update, .. })| {
        let sum = || Expectation::of(format!("gradient 0 on rank {rank}")).guess(guess(case.0));
        sum()
            .law("all ranks go on from equal numbers, to the last bit")
            .compare_tensors(&found[0].update[0], &update[0])?;
        sum()
            .law("it is what params_and_allreduce::all_reduce::naive computes")
            .up_to(1e-14)
            .compare_tensors(&theirs[rank], &update[0])
    })
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| {
        reduced(answer, rank, vec![contribution(rank.rank(), 4)?])
    })
}
