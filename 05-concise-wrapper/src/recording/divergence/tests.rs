use super::*;

fn entry(step: usize, rank: usize, kind: &str, hash: &str) -> Entry {
    Entry { step, rank, kind: kind.to_owned(), name: "w".to_owned(), hash: hash.to_owned() }
}

/// What there is of `ranks` in a step, with a shard for each.
fn step(step: usize, ranks: usize) -> Vec<Entry> {
    let of_rank = |rank| {
        let images = Entry { name: format!("shard {rank}"), ..entry(step, rank, "images", "00") };
        let others = ["parameter", "loss", "gradient"].map(|kind| entry(step, rank, kind, "00"));
        std::iter::once(images).chain(others)
    };
    (0..ranks).flat_map(of_rank).collect()
}

/// Three steps on two ranks, of a run that was cut or is under way.
fn run() -> Vec<Entry> {
    (1..=3).flat_map(|number| step(number, 2)).collect()
}

/// So many steps on two ranks, to the end.
fn ended(steps: usize) -> Vec<Entry> {
    let weights = [0, 1].map(|rank| entry(steps + 1, rank, "parameter", "00"));
    (1..=steps).flat_map(|number| step(number, 2)).chain(weights).collect()
}

#[test]
fn equal_recordings_do_not_part_in_whatever_order_their_ranks_wrote() {
    let mut other = run();
    other.rotate_left(4);
    assert_eq!(first_divergence(&run(), &run()), None);
    other.sort_by_key(|entry| (entry.step, usize::MAX - entry.rank));
    assert_eq!(first_divergence(&run(), &other), None);
    // One ended earlier.
    assert_eq!(first_divergence(&run(), &run()[..8]), None);
    assert_eq!(first_divergence(&[], &run()), None);
}

#[test]
fn the_first_step_rank_and_tensor_are_found() {
    let mut other = run();
    // The parameter of step 2 on rank 1, what came of it on both ranks, and later.
    for later in [10, 13, 14, 20] {
        other[later].hash = "ff".to_owned();
    }
    let found = first_divergence(&run(), &other).unwrap();
    assert_eq!(found.equal, 11);
    assert_eq!(found.first, Some(entry(2, 1, "parameter", "00")));
    assert_eq!(found.second, Some(entry(2, 1, "parameter", "ff")));
    let told = found.to_string();
    assert!(told.contains("step 2, rank 1: the first difference, after 11 equal"), "{told}");
    assert!(told.contains("made by the update of the step before"), "{told}");
}

#[test]
fn steps_that_only_one_has_are_left_out() {
    let mut resumed = run().split_off(8);
    assert_eq!(first_divergence(&run(), &resumed), None);
    assert_eq!(first_divergence(&resumed, &run()), None);
    resumed[1].hash = "ff".to_owned();
    for found in [first_divergence(&run(), &resumed), first_divergence(&resumed, &run())] {
        // The images of both ranks.
        assert_eq!(found.unwrap().equal, 2);
    }
}

#[test]
fn ranks_that_only_one_has_are_left_out() {
    let one_rank: Vec<Entry> = run().into_iter().filter(|entry| entry.rank == 0).collect();
    assert_eq!(first_divergence(&run(), &one_rank), None);
}

/// What is told of a whole recording, as the first, and this one.
fn told(of: &[Entry]) -> String {
    first_divergence(&run(), of).unwrap().to_string()
}

#[test]
fn a_recording_that_ends_in_a_step_is_no_other_computation() {
    // In step 2, with fewer and fewer of its eight entries.
    for (length, place, equal) in
        [(15, "rank 1", 15), (13, "rank 1", 11), (11, "rank 1", 10), (9, "rank 0", 9)]
    {
        let cut = &run()[..length];
        let told = told(cut);
        let heading = format!("step 2, {place}: the second recording ends here, after {equal}");
        assert!(told.starts_with(&heading), "{length}: {told}");
        assert!(told.contains("nothing differs up to there"), "{told}");
        assert!(!told.contains("made by"), "{told}");
        let turned = first_divergence(cut, &run()).unwrap().to_string();
        assert!(turned.contains(": the first recording ends here, after"), "{turned}");
    }
}

#[test]
fn where_a_recording_ends_in_a_step_what_came_out_before_it_is_compared() {
    // Rank 0 has written all of step 3, rank 1 nothing.
    for (at, made_by) in [(18, "forward"), (19, "backward")] {
        let mut cut = run()[..20].to_vec();
        cut[at].hash = "ff".to_owned();
        let told = told(&cut);
        assert!(told.starts_with("step 3, rank 0: the first difference, after "), "{told}");
        assert!(told.contains(&format!("made by the {made_by} pass")), "{told}");
    }
}

#[test]
fn an_entry_that_one_lacks_is_told_as_lacking() {
    // The images and the parameter of step 1, the gradients of both ranks of step 2.
    for (without, lacks) in [
        (vec![0], "step 1, rank 0: the first difference, after 0"),
        (vec![1], "step 1, rank 0: the first difference, after 2"),
        (vec![11], "step 2, rank 0: the first difference, after 13"),
        (vec![15], "step 2, rank 1: the first difference, after 15"),
        ((8..16).collect(), "step 2, rank 0: the first difference, after 8"),
        ((12..16).collect(), "step 2, rank 1: the first difference, after 9"),
    ] {
        let mut lacking = run();
        let gone: Vec<Entry> = without.iter().rev().map(|&at| lacking.remove(at)).collect();
        let Entry { kind, name, .. } = gone.last().unwrap();
        let told = told(&lacking);
        assert!(told.starts_with(lacks), "{without:?}: {told}");
        let where_else = if kind == "images" { ", on any rank" } else { "" };
        let lacks = format!("\n  the second recording lacks {kind} {name} there{where_else}");
        assert!(told.ends_with(&lacks), "{told}");
        let turned = first_divergence(&lacking, &run()).unwrap().to_string();
        assert!(turned.ends_with(&lacks.replace("second", "first")), "{turned}");
    }
}

/// Two steps with four shards in every batch, on so many ranks, to the end.
fn by_shard(ranks: usize) -> Vec<Entry> {
    let of_rank = |step, rank| {
        let shards = (rank * 4 / ranks..(rank + 1) * 4 / ranks).map(move |shard| Entry {
            name: format!("shard {shard}"),
            ..entry(step, rank, "images", &format!("0{shard}"))
        });
        let others = ["parameter", "loss", "gradient"].map(|kind| entry(step, rank, kind, "00"));
        shards.chain(others)
    };
    let steps = [1, 2].into_iter().flat_map(|step| (0..ranks).map(move |rank| (step, rank)));
    let weights = (0..ranks).map(|rank| entry(3, rank, "parameter", "00"));
    steps.flat_map(|(step, rank)| of_rank(step, rank)).chain(weights).collect()
}

#[test]
fn a_shard_is_compared_whichever_rank_has_it() {
    for (one, other) in [(1, 2), (1, 4), (2, 4), (4, 2), (4, 1)] {
        let (one, mut other) = (by_shard(one), by_shard(other));
        assert_eq!(first_divergence(&one, &other), None);
        // Of a recording that was cut anywhere, nothing differs.
        for length in 0..other.len() {
            if let Some(found) = first_divergence(&one, &other[..length]) {
                assert!(found.to_string().contains("nothing differs up to there"), "{found}");
            }
        }
        let shard = other.iter().position(|entry| entry.name == "shard 3").unwrap();
        other[shard].hash = "ff".to_owned();
        let found = first_divergence(&one, &other).unwrap();
        assert_eq!((found.equal, found.second.as_ref()), (3, Some(&other[shard])));
        assert!(found.to_string().ends_with("compare seed, batch and sampler"), "{found}");
    }
}

#[test]
fn batches_that_are_cut_into_other_shards_are_told() {
    let mut four = by_shard(4);
    four[0].hash = "ff".to_owned();
    let found = first_divergence(&run(), &four).unwrap();
    assert_eq!(found.equal, 0);
    let told = "the two cut a batch into 2 and 4 shards: --shards makes them the same";
    assert!(found.to_string().contains(told), "{found}");
}

#[test]
fn what_the_last_update_made_is_compared() {
    let mut other = ended(3);
    assert_eq!(first_divergence(&ended(3), &other), None);
    other[25].hash = "ff".to_owned();
    // With one that ended there as well, and with one that went on.
    for whole in [ended(3), ended(4)] {
        for found in [first_divergence(&whole, &other), first_divergence(&other, &whole)] {
            let told = found.unwrap().to_string();
            let heading = "after step 3, rank 1: the first difference, after 25 equal tensors";
            assert!(told.starts_with(heading), "{told}");
            assert!(told.ends_with("made by the update of that step"), "{told}");
        }
    }
}

#[test]
fn a_run_that_went_on_begins_with_what_the_one_before_ended_with() {
    let longer = ended(5);
    for steps in 1..5 {
        assert_eq!(first_divergence(&ended(steps), &longer), None);
        assert_eq!(first_divergence(&longer, &ended(steps)), None);
        let mut rest = longer[steps * 8..].to_vec();
        assert_eq!(first_divergence(&ended(steps), &rest), None);
        rest[5].hash = "ff".to_owned();
        assert_eq!(first_divergence(&ended(steps), &rest).unwrap().equal, 1);
    }
    // Only the weights of one rank were written of the end.
    let cut = ended(3);
    let told = first_divergence(&cut[..25], &ended(3)).unwrap().to_string();
    assert!(told.starts_with("after step 3, rank 1: the first recording ends here"), "{told}");
}

#[test]
fn what_is_no_recording_is_refused_with_its_line() {
    let line = serde_json::to_string(&entry(1, 0, "loss", "00")).unwrap();
    assert_eq!(read(format!("{line}\n{line}\n").as_bytes()).unwrap().len(), 2);
    // A run that was killed in the middle of a line.
    assert_eq!(read(format!("{line}\n{}", &line[..20]).as_bytes()).unwrap().len(), 1);
    let error = read(format!("{line}\nnonsense\n").as_bytes()).unwrap_err().to_string();
    assert!(error.contains("line 2 is not of a recording"), "{error}");
    // And what never ends: no more of it is read than a line may have.
    for endless in [b'"', 0] {
        let error = read(io::BufReader::new(io::repeat(endless))).unwrap_err().to_string();
        assert!(error.contains("line 1 is not of a recording"), "{error}");
    }
}
