//! A page folds the course's own code for an exercise, so nobody sees the answer before the exercise.

use std::io;
use std::path::Path;

use super::page::Page;
use super::{Book, Problem};

/// In each line a page, an exercise of it, and the listings that answer the exercise.
const ANSWERS: &str = "\
ch01-single-gpu.md ch01_pool_gradient layers.rs:pool_backward
ch01-single-gpu.md ch01_cross_entropy layers.rs:cross_entropy
ch02-all-reduce.md ch02_allreduce naive.rs:naive
ch02-all-reduce.md ch02_ring ring.rs:ring collectives.rs:reduce_scatter collectives.rs:all_gather
ch03-split-batch.md ch03_uneven_split collectives.rs:chunk_range split.rs:cut_shard split.rs:split_batch
ch03-split-batch.md ch03_sampler sampler/mod.rs:epoch
ch04-data-parallel.md ch04_accuracy evaluate.rs:evaluate
ch05-concise-wrapper.md ch05_buckets bucket.rs:buckets
ch05-concise-wrapper.md ch05_overlap reducer.rs:backward
ch05b-batch-norm.md ch05_sync_batch_norm batch_norm.rs:merged
ch05c-processes.md ch05_resume resume.rs:restore resume.rs:begin
ch06-model-parallel.md ch06_balance partition.rs:cut
ch06-model-parallel.md ch06_1f1b orders.rs:one_f_one_b orders.rs:generate orders.rs:interleaved orders.rs:zb_h1
ch06b-tensor-parallel.md ch06_tensor_parallel linear.rs:linear networks.rs:dense convolution.rs:convolution
";

/// Listings of answers that are not folded, or that their page does not print.
pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let rows = ANSWERS.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter_map(|row| Some((book.page(Path::new(row[0]))?, row)));
    let problems = |(page, row): (&Page, Vec<&str>)| {
        row[2..].iter().filter_map(|l| wrong(page, row[1], l)).collect::<Vec<_>>()
    };
    Ok(rows.flat_map(problems).collect())
}

fn wrong(page: &Page, exercise: &str, listing: &str) -> Option<Problem> {
    let fold = format!("<summary>After the exercise <code>{exercise}</code>");
    let lines: Vec<&str> = page.text.lines().collect();
    let Some(at) = lines.iter().position(|line| line.ends_with(&format!("{listing}}}}}"))) else {
        return Some(Problem::of(page.path(), format!("{listing} of {exercise} is not there")));
    };
    let begins_or_ends = |line: &&&str| line.starts_with("<summary>") || **line == "</details>";
    let nearest = lines[..at].iter().rfind(begins_or_ends);
    let folded = nearest.is_some_and(|line| line.starts_with(&fold));
    (!folded).then(|| Problem::on(page, at + 1, format!("{listing} is not below {fold}")))
}

#[test]
fn a_listing_that_is_not_folded_is_found() {
    let is_wrong =
        |text: &str| wrong(&Page::new("a.md".into(), text.into()), "ch01_a", "a.rs:f").is_some();
    let fold = "<details>\n<summary>After the exercise <code>ch01_a</code>: f</summary>\n\n";
    let listing = "{{#include a.rs:f}}\n";
    assert!(!is_wrong(&format!("{fold}{listing}</details>\n")));
    assert!(is_wrong(listing) && is_wrong(fold) && is_wrong(&fold.replace("01_a", "01_b")));
    assert!(is_wrong(&format!("{fold}</details>\n\n{listing}")));
}
