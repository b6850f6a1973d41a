//! Lists that the checker accepts, another one on each rank, have the bits of the strategy.

use std::collections::HashMap;

use model_parallel::check::in_one_order;
use model_parallel::{Schedule, UNBOUNDED, check};
use sharded_state::Sharing;

use crate::cases::{CASE, Case, Trained, Updates};
use crate::numbers::{same, strategies};
use crate::random_numbers::Random;

/// Moves instructions to other places as long as the checker accepts the list. If `orders`, collectives change their order, too.
fn shuffled(schedule: &Schedule, orders: bool, random: &mut Random) -> Schedule {
    let mut now = schedule.clone();
    for _ in 0..150 {
        let mut next = now.clone();
        let list = &mut next.lists[0];
        let (from, by) = (random.below(list.len()), 1 + random.below(9));
        let moved = list.remove(from);
        let to = if random.below(2) == 0 { from.saturating_sub(by) } else { from + by };
        list.insert(to.min(list.len()), moved);
        let one_order = || in_one_order(&[now.lists[0].clone(), next.lists[0].clone()]).is_ok();
        if (orders || one_order()) && check(next.clone(), UNBOUNDED).is_ok() {
            now = next;
        }
    }
    now
}

#[test]
fn random_lists_have_the_same_bits() {
    let trials = if std::env::var_os("FULL").is_some() { 1000 } else { 60 };
    let (mut plain, mut lists) = (HashMap::<_, Trained>::new(), 0);
    for seed in 0..trials {
        let random = &mut Random(seed);
        let strategies = strategies();
        let strategy = strategies[random.below(strategies.len())];
        let (ranks, micro_batches) = (2 + random.below(2), 1 + random.below(3));
        let case = Case { ranks, micro_batches, updates: Updates::Momentum, steps: 2, ..CASE };
        let whole = strategy.sharing == Sharing::Ddp;
        let schedule = case.schedule(strategy);
        let common = shuffled(&schedule, true, random);
        let of_ranks: Vec<_> = (0..ranks).map(|_| shuffled(&common, false, random)).collect();
        assert!(of_ranks.iter().all(|other| other.lists != schedule.lists), "seed {seed}");
        assert!(of_ranks[0].lists != of_ranks[1].lists, "seed {seed}");
        let expected = plain
            .entry((strategy.sharing as usize, ranks, micro_batches))
            .or_insert_with(|| case.train(strategy.sharing.plain()));
        let found = case.train_lists(whole, &of_ranks).unwrap();
        same(&found, expected, &format!("seed {seed}, {strategy:?}, {of_ranks:?}"));
        lists += ranks;
    }
    println!("{lists} lists");
}
