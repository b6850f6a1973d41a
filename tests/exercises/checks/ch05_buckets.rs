//! Chapter 5, `book/src/ch05-concise-wrapper.md`: gradient buckets by size, last layer first.
//!
//! Each law of buckets in turn, and then stage 5's buckets. The message names the first law that is broken.

use crate::prelude::*;
use concise_wrapper::ddp::bucket::{BucketCaps, buckets};

/// Sizes of gradients in bytes, and the caps; the buckets.
pub type Answer = fn(&[usize], BucketCaps) -> Vec<Vec<usize>>;

pub const LAWS: &[Law<Answer>] = laws![gradients_are_gathered_into_buckets in cases()];

struct Case(Vec<usize>, BucketCaps);

shown!(Case(sizes, BucketCaps { first, others }) =>
    "sizes {}, caps {first} and {others}", in_a_row(sizes));

fn cases() -> Vec<Case> {
    let case = |sizes: &[usize], first, others| Case(sizes.to_vec(), BucketCaps { first, others });
    let mut cases = vec![
        // The example; buckets that are filled to the last byte, in a row; all in one; each in its own.
        case(&[3, 6, 2, 9, 2, 1], 4, 10),
        case(&[4, 6, 9, 1, 2, 2], 4, 10),
        case(&[1, 2, 1], 100, 200),
        case(&[3, 5, 4], 2, 2),
        // A gradient larger than the cap at the end, in the middle, at the beginning, everywhere.
        case(&[1, 2, 50], 4, 10),
        case(&[2, 3, 60, 4, 1], 20, 10),
        case(&[70, 2, 1], 4, 10),
        case(&[50, 60, 70], 4, 10),
        case(&[5], 4, 10),
        case(&[], 4, 10),
        // A first gradient above its cap and below the other caps; a first bucket that is closed below its cap.
        case(&[2, 6], 4, 10),
        case(&[3, 2, 2, 3], 4, 10),
    ];
    let many: Vec<usize> = (0..40).map(|index| 1 + index * 7 % 23).collect();
    cases.extend([1, 7, 30, 1000].map(|others| case(&many, 5, others)));
    // All lists of four small gradients.
    let lists = (0..256).map(|number| [0, 2, 4, 6].map(|shift| [1, 2, 3, 5][number >> shift & 3]));
    let caps = [(3, 7), (7, 3), (4, 5)];
    cases.extend(lists.flat_map(|sizes| caps.map(|(first, others)| case(&sizes, first, others))));
    cases
}

fn gradients_are_gathered_into_buckets(answer: Answer, Case(sizes, caps): &Case) -> Outcome {
    let (expected, found) = (buckets(sizes, *caps), answer(sizes, *caps));
    let broken = |what: String, law: &str| {
        let drawn = |buckets: &[Vec<usize>]| match buckets.len() {
            0 => "no buckets".to_owned(),
            _ => in_groups(buckets),
        };
        Err(Finding::new(what).expected(drawn(&expected), drawn(&found)).law(law))
    };
    if let Some(index) = found.iter().position(Vec::is_empty) {
        let law = "a bucket is a message: nothing is sent for no gradient";
        return broken(format!("bucket {index} is empty"), law);
    }
    if let Some(parameter) = found.iter().flatten().find(|&&one| one >= sizes.len()) {
        let law = "a bucket is a list of indices into the sizes";
        return broken(format!("there is no parameter {parameter}"), law);
    }
    let places = |parameter: usize| -> Vec<usize> {
        let times = |members: &Vec<usize>| members.iter().filter(|&&it| it == parameter).count();
        found.iter().enumerate().flat_map(|(bucket, it)| vec![bucket; times(it)]).collect()
    };
    let last_first = || (0..sizes.len()).rev();
    if let Some(parameter) = last_first().find(|&parameter| places(parameter).len() > 1) {
        let (one, other) = (places(parameter)[0], places(parameter)[1]);
        let what = format!("parameter {parameter} is in bucket {one} and in bucket {other}");
        let law = "a gradient is in one bucket, whole: none is split, none is added up twice";
        return broken(what, law);
    }
    let lost: Vec<usize> = last_first().filter(|&it| places(it).is_empty()).collect();
    if !lost.is_empty() {
        let is_last = expected.last() == Some(&lost);
        let guess = if is_last { ": the bucket that is open after the last gradient" } else { "" };
        let what = format!("no bucket has parameters {}{guess}", in_a_row(&lost));
        return broken(what, "every gradient is added up over the ranks");
    }
    let mut order = found.iter().flatten().zip(last_first());
    if let Some((got, expected)) = order.find(|(got, expected)| *got != expected) {
        let law = "the last layer's gradient is finished first: this is the order of the buckets, and the order in each of them";
        return broken(format!("parameter {got} comes before parameter {expected}"), law);
    }
    let filled = |(index, members): (usize, &Vec<usize>)| {
        let cap = if index == 0 { caps.first } else { caps.others };
        (index, members.iter().map(|&member| sizes[member]).sum::<usize>(), cap)
    };
    let all = || found.iter().enumerate().map(filled);
    let mut full = all().zip(&found).filter(|(_, members)| members.len() > 1);
    if let Some(((bucket, bytes, cap), _)) = full.find(|((_, bytes, cap), _)| bytes > cap) {
        let law = "a gradient that would exceed the cap opens the next bucket; caps.first is the cap of the first bucket alone";
        return broken(format!("bucket {bucket} has {bytes} bytes, and a cap of {cap}"), law);
    }
    for (two, (bucket, bytes, cap)) in found.windows(2).zip(all()) {
        let (next, size) = (two[1][0], sizes[two[1][0]]);
        if bytes + size <= cap {
            let what = format!("bucket {bucket} is closed with {bytes} bytes of {cap}");
            let law = "few large messages: a bucket is closed when the next gradient does not fit, and not before";
            return broken(format!("{what}, but parameter {next} of {size} fits"), law);
        }
    }
    Ok(())
}
