//! Processes come to the bits of threads.

use super::SMALL;
use super::job::{alone, hashes, processes, turn};

/// The hashes of all ways on threads, but for one device's, and on as many processes.
fn assert_same(ranks: usize, arguments: &[&str]) {
    let _turn = turn();
    let Some(mut job) = processes(ranks) else { return };
    // A GPT reads a text.
    let is_gpt = arguments.contains(&"--model=gpt");
    let small = SMALL.into_iter().filter(|flag| !is_gpt || !flag.starts_with("--data"));
    job.args(small.clone()).args(arguments).arg("--epochs=1");
    let mut threads = alone();
    threads.args(small).args(arguments);
    threads.arg("--epochs=1").arg(format!("--devices={ranks}"));
    let (processes, threads) = (hashes(job), hashes(threads));
    assert!(!processes.is_empty());
    assert_eq!(processes, threads[threads.len() - processes.len()..], "{arguments:?}");
}

#[test]
fn stages_and_parts_of_a_dense_stack() {
    assert_same(2, &["--widths=24,20,16", "--micro-batches=5"]);
    assert_same(3, &["--widths=24,20,16", "--cut=1,3"]);
}

#[test]
fn stages_of_lenet() {
    assert_same(2, &["--model=lenet"]);
}

#[test]
fn stages_of_resnet18() {
    assert_same(2, &["--model=resnet18", "--width=4", "--micro-batches=4"]);
}

#[test]
fn meshes() {
    assert_same(4, &["--widths=24,20,16", "--mesh=2x2x1", "--micro-batches=4"]);
    assert_same(4, &["--widths=24,20,16", "--mesh=2x1x2"]);
    // Replicas sum on second threads, while the parts of a stage sum on their main threads.
    assert_same(8, &["--widths=24,20,16", "--mesh=2x2x2", "--schedule=1f1b,interleaved:2"]);
}

#[test]
fn a_gpt() {
    let gpt = ["--model=gpt", "--width=16", "--heads=2", "--blocks=2", "--context=8"];
    let assert_same = |ranks, further: &[&str]| assert_same(ranks, &[&gpt, further].concat());
    assert_same(2, &["--micro-batches=4"]);
    assert_same(2, &["--mesh=1x2x1", "--shards=4"]);
    assert_same(4, &["--mesh=2x2x1", "--shards=4"]);
    assert_same(4, &["--mesh=2x1x2"]);
}
