//! Flags that make no sense.

use std::path::Path;

use super::{flags, program};

fn refused(arguments: &[&str], says: &str) {
    program::refused(program(arguments), says);
}

/// No machine has the memory for these weights.
#[cfg(target_os = "linux")]
#[test]
fn weights_that_cannot_fit_are_refused_before_anything_is_written() {
    let widths = format!("--widths={}", ["65536"; 100].join(","));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metrics.jsonl");
    let metrics = format!("--metrics={}", file.display());
    let flags = ["--data=synthetic", &widths, &metrics];
    refused(&flags, ",65536 needs about 58008 GB on 2 devices (activations 172 GB, images ");
    refused(&flags, " free: take smaller --widths\n");
    assert!(!file.exists());
}

/// Flags, and a part of the message.
const REFUSALS: &str = r#"
--mesh=2x2 | "2x2" is no mesh: it is DATAxPIPELINExTENSOR
--mesh=0x2x1 | three numbers from 1
--mesh=2x2x1 --devices=2 | --mesh 2x2x1 has 4 devices, and --devices is 2
--mesh=1x1x2 --micro-batches=4 | there is one stage: ask for several
--mesh=1x1x2 --gantt=g.svg | there is one stage: ask for several, such as --mesh 1x2x1
--mesh=1x1x2 --export=l.csv | --gantt and --export are about pipelines
--export=l.csv | --export writes one list, and there are 5 schedules: take one
--schedule=gpipe,1f1b --export=l.csv | there are 2 schedules: take one
--schedule=1f1b --export=l.svg | the flag writes a CSV file, not .svg; use l.csv
--schedule=1f1b --export=/dev/null/l.csv | --export /dev/null/l.csv
--schedule=1f1b --export=a --gantt=a | --gantt and --export both name a
--gantt=a.svg --plot=a.svg | --plot and --gantt both name a.svg
--schedule=gpipe,1f1b,gpipe | --schedule names GPipe twice
--mesh=9x1x1 --batch-size=8 | --batch-size 8 cannot be cut into 9 micro-batches (9 replicas × 1): take at least 9
--mesh=1x1x11 | dense6.weight: 10 features cannot be cut into 11 parts
--mesh=1x2x2 --model=resnet18 --width=2 | ResNet-18 is split in stages only
--mesh=1x1x2 --model=resnet18 | ResNet-18 is split in stages only
--mesh=1x1x2 --model=lenet | LeNet is split in stages only
--mesh=2x2x2 --model=lenet | LeNet is split in stages only
--devices=1 --schedule=1f1b | there is one stage
--devices=9 | 7 layers cannot be cut into 9 stages
--devices=6 --model=lenet | LeNet: 5 layers cannot be cut into 6 stages
--cut=3,2 | --cut 3,2: stages begin at ever higher layers, from 1 to 6
--cut=0 | --cut 0: stages begin at ever higher layers, from 1 to 6
--cut=3,5 | --cut 3,5 makes 3 stages, not 2: there are 2 devices with 1 chunk each
--cut=7 | --cut 7: stages begin at ever higher layers, from 1 to 6
--cut=x | "x" is no number
--cut= | "" is no number
--cut=3, | "" is no number
--cut=1.5 | "1.5" is no number
--micro-batches=0 | a whole number from 1 to 1,024 is expected
--batch-size=7 | --batch-size 7 cannot be cut into 8 micro-batches
--mesh=4x2x1 --batch-size=31 | --batch-size 31 cannot be cut into 32 micro-batches (4 replicas × 8)
--mesh=3x2x1 --shards=8 | --shards 8 cannot be shared out over 3 replicas: take a multiple, such as 9
--shards=8 --micro-batches=4 | cannot be used with
--shards=0 | a whole number from 1 to 1,024 is expected
--shards=8 --batch-size=7 | --batch-size 7 cannot be cut into 8 micro-batches
--mesh=2x2x1 --shards=10 --schedule=interleaved:2 | 5 micro-batches cannot be interleaved on 2 stages
--schedule=fifo | "fifo" is no schedule: there are naive, gpipe, 1f1b
--schedule=interleaved:2 --micro-batches=5 | has to be a multiple of 2
--schedule=interleaved:27 | an interleaved schedule has 2 to 26 chunks
--schedule=interleaved:4 | 7 layers cannot be cut into 8 stages
--schedule=interleaved:2 --cut=3 | --cut 3 makes 2 stages, not 4: there are 2 devices with 2 chunks each
--widths=5 --model=lenet | --widths is about --model dense
--width=5 | --width is about --model resnet18
--widths=0 | a whole number from 1 to 65,536 is expected
--gantt=/dev/null/at/all.svg | --gantt /dev/null/at/all.svg
--train-size=0 | invalid value '0' for '--train-size
--timeout=0 | invalid value '0' for '--timeout
"#;

/// Without images.
const REFUSALS_OF_A_GPT: &str = r#"
--model=gpt --data=synthetic | --data is about images, and --model gpt reads a text
--model=gpt --widths=9 | --widths is about --model dense
--model=gpt --momentum=0.9 | --momentum is about SGD, and --model gpt trains with AdamW
--model=gpt --heads=3 | --width 128 cannot be cut into 3 heads: take a multiple, such as 129
--model=gpt --mesh=1x1x3 | 4 heads cannot be cut into 3 equal parts
--model=gpt --text=/nowhere | --text /nowhere: there is no such file
--heads=2 | --blocks, --heads, --context and --text are about --model gpt
--model=lenet --blocks=2 | are about --model gpt
--text=Cargo.toml | are about --model gpt
--context=0 | a whole number from 1 to 8,192 is expected
--draw --context=8 | cannot be used with
"#;

const REFUSALS_OF_A_DRAWING: &str = r#"
--schedule=interleaved:2 --micro-batches=5 | has to be a multiple of 2
--schedule=interleaved:1 | an interleaved schedule has 2 to 26 chunks on each stage, not
--schedule=interleaved:27 | an interleaved schedule has 2 to 26 chunks on each stage, not
--schedule=interleaved:99999999 | an interleaved schedule has 2 to 26 chunks on each stage, not
--schedule=interleaved:9223372036854775808 | an interleaved schedule has 2 to 26 chunks on each stage, not
--schedule=interleaved:18446744073709551615 | an interleaved schedule has 2 to 26 chunks on each stage, not
--schedule=interleaved:18446744073709551616 | interleaved:CHUNKS (2 to 26, such as
--schedule=gpipe,1f1b,gpipe | --schedule names GPipe twice: leave one out
--schedule=1f1b --devices=1024 --micro-batches=1024 | 1F1B of 1024 stages and 1024 micro-batches has up to 6,141 columns, and a drawing has at most 1,000: take fewer --devices or --micro-batches
--schedule=naive --devices=64 --micro-batches=64 | 12,288 columns
--gantt=/dev/null/at/all.svg | --gantt /dev/null/at/all.svg
--gantt=a.png | the flag writes an SVG picture
--export=l.csv | --export writes one list, and there are 3 schedules
--schedule=1f1b --export=/dev/null/l.csv | --export /dev/null/l.csv
"#;

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let with = |flag| move |arguments: &[&str]| program(&[&[flag], arguments].concat());
    flags::check(REFUSALS, with("--data=synthetic"));
    refused(&["--cut=3, -1"], "\"-1\" is no number");
    flags::check(REFUSALS_OF_A_GPT, program);
    flags::check(REFUSALS_OF_A_DRAWING, with("--draw"));
}

/// Flags of a training.
const OF_TRAINING: &str = "
--model=lenet --widths=9 --width=9 --mesh=1x2x1 --cut=3 --momentum=0 --weight-decay=0 --warm-up=1 --data=/nonexistent
--train-size=9 --test-size=9 --epochs=1 --batch-size=9 --lr=1 --seed=1 --dtype=f64 --device=cpu --threads-per-device=1
--tf32 --metrics=m --plot=p --trace=t --timeline=t
";

#[test]
fn a_drawing_has_no_training() {
    for of_training in OF_TRAINING.split_whitespace() {
        refused(&["--draw", of_training], "cannot be used with");
    }
}

#[test]
fn nothing_is_left_behind_by_a_refusal() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (gantt, metrics) = (file("gantt.svg"), file("metrics.jsonl"));
    refused(&["--gantt", &gantt, "--metrics", &metrics, "--cut=9", "--data=synthetic"], "--cut 9");
    for path in [gantt, metrics] {
        assert!(!Path::new(&path).exists(), "{path}");
    }
}
