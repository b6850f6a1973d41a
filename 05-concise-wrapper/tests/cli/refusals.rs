//! Wrong flags are refused in one line, before anything is written.

use predicates::prelude::*;
use predicates::str::contains;

use crate::{SMALL, flags, wrapper};

#[cfg(not(feature = "mpi"))]
#[test]
fn several_processes_are_refused_as_they_would_train_beside_each_other() {
    let mut started = wrapper(&["--data=synthetic"]);
    started.env("OMPI_COMM_WORLD_SIZE", "4").assert().code(2).stdout("").stderr(contains(
        "mpirun started 4 processes of a program that was built without MPI: build it with --features mpi",
    ));
}

#[cfg(not(feature = "nccl"))]
#[test]
fn another_launchers_processes_are_refused() {
    let mut started = wrapper(&["--data=synthetic"]);
    started.envs([("RANK", "0"), ("WORLD_SIZE", "4")]).assert().code(2).stdout("").stderr(contains(
        "a launcher started 4 processes: start them with mpirun (DDP, with a GPU for each, can do with NCCL: built \
         with --features nccl)",
    ));
}

#[cfg(feature = "nccl")]
#[test]
fn nccl_says_what_a_launcher_and_a_machine_have_to_provide() {
    let mut started = wrapper(&["--data=synthetic"]);
    started.envs([("RANK", "0"), ("WORLD_SIZE", "4")]);
    started.assert().code(2).stdout("").stderr(contains(
        "a launcher started 4 processes (WORLD_SIZE), but did not set LOCAL_RANK: the number of this process's GPU",
    ));
    // The environment lacks NCCL's own variable, so the program sets it.
    let nowhere = ("CUDA_VISIBLE_DEVICES", "");
    started.envs([
        ("LOCAL_RANK", "0"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "1"),
        nowhere,
    ]);
    started
        .env_remove("NCCL_COMM_ID")
        .assert()
        .code(2)
        .stdout("")
        .stderr(contains("NCCL connects GPUs: no CUDA GPU was found"));
}

#[test]
fn bf16_is_refused_on_a_cpu_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metrics.jsonl");
    let told = "error: --precision bf16: cpu:0 (1 core) is a slice of the CPU, where bf16 is slower than \
                f32: use f32, or GPUs of compute capability 8.0 (Ampere) or newer\n";
    let mut refused = wrapper(&SMALL);
    refused.args(["--precision=bf16", "--metrics"]).arg(&file);
    refused.assert().code(2).stdout("").stderr(told);
    assert!(!file.exists());
}

/// No machine has the memory for these activations, and for these weights.
#[cfg(target_os = "linux")]
#[test]
fn a_run_that_cannot_fit_is_refused_with_both_numbers() {
    let batch = ["--width=16", "--train-size=1000000", "--batch-size=1000000"];
    let weights = ["--width=1024", "--devices=256", "--batch-size=256"];
    for (flags, needed, advice) in [
        (
            &batch[..],
            "error: --batch-size 1000000 needs about 1418 GB on 2 devices (activations 1408 GB, images 10 GB, weights ",
            " free: take a batch of at most about ",
        ),
        (&weights, "error: --width 1024 needs about 1", " free: take a smaller --width\n"),
    ] {
        let refused = wrapper(flags).arg("--data=synthetic").assert().code(2).stdout("");
        let one_line = predicate::function(|text: &str| text.lines().count() == 1);
        refused.stderr(contains(needed).and(contains(advice)).and(one_line));
    }
}

/// Flags, and a part of the message. With a link of 0.2 MB/s, one copy would be there in time. With a link of 0.1 MB/s, the
/// weights would be there in time, and rank 0 takes three copies of the gradients before it sends any.
const REFUSALS: &str = r#"
--wrapper=single --devices=2 | --wrapper single trains on one device: add --devices 1
--wrapper=data-parallel --shards=4 | are about DDP's all-reduce
--wrapper=data-parallel --bucket-mb=1 | are about DDP's all-reduce
--wrapper=data-parallel --timeline=t.svg | --timeline draws a step of the ranks
--shards=4 --bn=sync | leave one of the two out
--shards=4 --scale=linear | leave one of the two out
--shards=4 --algorithm=ring | cannot be used with '--algorithm <ALGORITHM>'
--shards=1 | 1 shards cannot be shared out over 2 devices
--shards=300 | batch size 256 cannot be cut into 300 shards
--model=lenet --width=8 | are about ResNet-18: leave them out
--model=lenet --test-norm=batch | are about ResNet-18: leave them out
--bucket-mb=0 | a number of megabytes above 0 and up to 1000000
--wrapper=data-parallel --slow-link=100 | are about DDP's all-reduce
--slow-link=1e-300 | a number of megabytes in a second, from 0.001 to 1000000
--slow-link=0.001 --timeout=2 | take a faster link, or a longer --timeout
--model=lenet --devices=4 --slow-link=0.2 --timeout=3 | rank 0 takes 4.9 s to send the weights
--model=lenet --devices=4 --slow-link=0.1 --timeout=12 --algorithm=naive | a rank waits 14.8 s for a message while 516,272 bytes of gradients are added up
--slow-link=25 --algorithm=native | take one-shot, naive, tree or ring
--width=0 | a whole number from 1 to 1,024 is expected
--train-size=1 | 1 training image for 2 devices: each device needs at least one
--momentum=1 | momentum is a share from 0 to below 1
--weight-decay=-1 | weight decay is a number from 0
--algorithm=native | there is no native all-reduce here
--record=same --metrics=same | --metrics and --record both name same
--plot=same --checkpoint=./same/ | --plot and --checkpoint both name ./same/
--record=same --checkpoint=same | --record and --checkpoint both name same
--bucket-mb=1e9 | a number of megabytes above 0 and up to 1000000
--checkpoint=c --epochs=30000 | --epochs 30000: a checkpoint has room for the results of at most 26,214 epochs
--precision=f16 | [possible values: f32, f64, bf16]
--precision=bf16 --dtype=f32 | '--precision <TYPE>' cannot be used multiple times
"#;

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    flags::check(REFUSALS, |arguments| wrapper(&[arguments, &["--data=synthetic"]].concat()));
}
