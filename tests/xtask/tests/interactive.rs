//! The book's interactive figures have the numbers of the stages, and the laws of the stages hold in them.

use itertools::Itertools as _;
use model_parallel::check;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator as _;
use xtask::lists::{Row, Shape, State, Step};
use xtask::schedules::{FAST, KINDS, Plan};
use xtask::{schedules, sharded, steps};

/// The links count the same bytes. The number of steps is the number in the course. Each rank sends the sums that the stepper
/// shows in this rank, and every rank ends with the sum of all.
#[test]
fn messages_add_up() {
    for run in steps::Catalogue::record().unwrap().runs {
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
    let doubled = steps::record("ring", 4, |recorder, tensor| {
        let chunk = recorder.reduce_scatter(tensor)?;
        recorder.all_gather(&(chunk * 2.0)?, tensor.elem_count())
    });
    assert!(format!("{:#}", doubled.unwrap_err()).contains("whole chunks of one partial sum"));
    let pieces = steps::record("ring", 4, |recorder, tensor| {
        recorder.all_reduce(&tensor.narrow(0, 0, 100)?, Algorithm::Ring)
    });
    assert!(format!("{:#}", pieces.unwrap_err()).contains("whole chunks of one partial sum"));
    let nothing = steps::record("ring", 4, |_, tensor| Ok(tensor.clone()));
    assert!(nothing.unwrap_err().to_string().contains("rank 0 does not end with the sum"));
}

/// A span in the text of a lane: its letter and numbers, its start and its end.
type Piece = (String, f64, f64);

/// Reads the text of a lane. `usual` is the time of a span at a time.
fn pieces(text: &str, usual: impl Fn(&str, f64) -> f64) -> Vec<Piece> {
    let mut time = 0.0;
    let mut found = Vec::new();
    for token in text.split_whitespace() {
        if token.starts_with(['+', '-']) {
            time += token.parse::<f64>().unwrap();
            continue;
        }
        let (name, length) = match token.split_once(':') {
            Some((name, length)) => (name, length.parse().unwrap()),
            None => (token, usual(token, time)),
        };
        found.push((name.to_owned(), time, time + length));
        time += length;
    }
    found
}

/// The three lanes of a row.
fn lanes(row: &Row, shape: &Shape, units: f64) -> [Vec<Piece>; 3] {
    let of_label = |name: &str, _| {
        let label = shape.labels.iter().find(|label| name.starts_with(label.letter)).unwrap();
        assert!(name.split('.').count() <= label.numbers.len().max(1), "{name}");
        label.units.0
    };
    let computing = pieces(&row[0], of_label);
    let bounds = computing.iter().flat_map(|(_, start, end)| [*start, *end]).chain([units]);
    let bounds = bounds.collect_vec();
    let next = |_: &str, time| bounds.iter().find(|&&bound| bound > time).unwrap() - time;
    [computing.clone(), pieces(&row[1], of_label), pieces(&row[2], next)]
}

fn held((state, ..): &Piece, states: &[State]) -> [f64; 5] {
    states[state.parse::<usize>().unwrap()].map(|it| it.0)
}

/// No time has two memories, and none has none. The peak is the most memory.
fn check_memory(memory: &[Piece], states: &[State], units: f64, peak: f64, what: &str) {
    assert!(memory.windows(2).all(|pair| pair[0].2 == pair[1].1), "{what}");
    assert_eq!((memory[0].1, memory[memory.len() - 1].2), (0.0, units), "{what}");
    let most = memory.iter().map(|piece| held(piece, states).iter().sum()).fold(0.0, f64::max);
    assert_eq!(most, peak, "{what}");
}

/// The busy time of a stage. Its memory follows from its passes, and its messages arrive while it waits.
fn checked(row: &Row, shape: &Shape, plan: &Plan, states: &[State], peak: f64) -> f64 {
    let what = format!("{}, {} × {}", plan.kind, plan.stages, plan.micro_batches);
    let units = plan.step.as_ref().unwrap().units.0;
    let [computing, communicating, memory] = lanes(row, shape, units);
    check_memory(&memory, states, units, peak, &what);
    let chunks = if shape.labels[0].numbers.len() == 2 { 2.0 } else { 1.0 };
    let last = |letter| computing.iter().rev().find(move |it| it.0.starts_with(letter));
    let frees = if last('W').is_some() { 'W' } else { 'B' };
    let (mut alive, mut time, mut busy) = (0.0, 0.0, 0.0);
    for (name, start, end) in &computing {
        assert!(*start >= time, "{what}: two passes at one time");
        (time, busy) = (*end, busy + end - start);
        alive += if name.starts_with('F') { 1.0 / chunks } else { 0.0 };
        let [.., activations, _] = held(memory.iter().find(|it| it.1 == *start).unwrap(), states);
        assert_eq!(activations, alive, "{what}: {name}");
        alive -= if name.starts_with(frees) { 1.0 / chunks } else { 0.0 };
    }
    assert_eq!(alive, 0.0, "{what}");
    for (name, start, end) in &communicating {
        let overlaps = computing.iter().any(|it| it.1 < *end && *start < it.2);
        assert!(name.starts_with('S') || !overlaps, "{what}: {name}");
        // The pass that the stage waits for.
        let pass = name.replace('a', "F").replace('g', "B");
        let begins = computing.iter().any(|it| it.0 == pass && it.1 == *end);
        assert!(name.starts_with('S') || begins, "{what}: {name}");
    }
    let sums = communicating.iter().filter(|it| it.0.starts_with('S')).count() as f64;
    assert_eq!(sums, if plan.links == "slow" { chunks } else { 0.0 }, "{what}");
    busy
}

#[test]
fn bubbles_and_memory_are_those_of_the_rows() {
    let catalogue = schedules::catalogue().unwrap();
    let mut found = 0;
    for plan in &catalogue.plans {
        let Plan { kind, stages, micro_batches, links, step, .. } = plan;
        let what = format!("{kind}, {stages} × {micro_batches}, {links} links");
        let Some(Step { facts, units, peaks, rows }) = step else {
            assert!(kind.contains("interleaved") && micro_batches % stages != 0, "{what}");
            continue;
        };
        found += 1;
        let shape = catalogue.shapes.iter().find(|shape| shape.kind == *kind).unwrap();
        let rows = rows.iter().zip(peaks);
        let busy = rows.map(|(row, peak)| checked(row, shape, plan, &catalogue.states, peak.0));
        let idle = 1.0 - busy.sum::<f64>() / (*stages as f64 * units.0);
        assert!((plan.bubble - idle).abs() < 1e-12, "{what}: {idle}");
        assert_eq!(facts[0], format!("{:.1} %", 100.0 * idle), "{what}");
        // With channels that hold no more, nothing is later.
        let kind = KINDS.into_iter().find(|one| one.to_string() == *kind).unwrap();
        let schedule = kind.schedule(*stages, *micro_batches).unwrap();
        let tight = check(schedule, plan.capacity).unwrap();
        let tight = tight.simulate(&FAST.costs(kind, *stages), 0.0).unwrap();
        assert!(*links == "slow" || tight.makespan() == units.0, "{what}");
    }
    assert_eq!((found, catalogue.plans.len()), (178, 200));
}

/// Every strategy computes the same. Each one holds less than the one before, and prefetch makes a step shorter.
#[test]
fn strategies_compute_the_same_and_hold_less() {
    let catalogue = sharded::catalogue().unwrap();
    let strategies = sharded::STRATEGIES.len();
    assert_eq!(catalogue.plans.len(), strategies * 12);
    let of_strategy = catalogue.plans.len() / strategies;
    for (n, plan) in catalogue.plans.iter().enumerate() {
        let sharded::Plan { kind, devices, micro_batches, links, step } = plan;
        let what = format!("{kind}, {devices} × {micro_batches}, {links}");
        let shape = catalogue.shapes.iter().find(|shape| shape.kind == *kind).unwrap();
        let [computing, communicating, memory] = lanes(&step.rows[0], shape, step.units.0);
        check_memory(&memory, &catalogue.states, step.units.0, step.peaks[0].0, &what);
        for letter in ["F", "B"] {
            let passes = computing.iter().filter(|it| it.0.starts_with(letter)).count();
            assert_eq!(passes, sharded::UNITS * micro_batches, "{what}");
        }
        let streams = [computing, communicating];
        let in_turn = |lane: &Vec<Piece>| lane.windows(2).all(|pair| pair[0].2 <= pair[1].1);
        assert!(streams.iter().all(in_turn), "{what}");
        if let Some(before) = n.checked_sub(of_strategy).map(|n| &catalogue.plans[n].step) {
            let (less, shorter) = (step.peaks[0] <= before.peaks[0], step.units < before.units);
            assert!(if kind.ends_with("prefetch") { shorter } else { less }, "{what}");
        }
    }
}
