//! Flags that make no sense.

use predicates::str::contains;

use super::program::refused;
use super::{SMALL, flags, program};

/// Flags, and a part of the message.
const REFUSALS: &str = r#"
--strategy=zero4 | is no strategy: there are ddp, zero1, zero2, zero3 and zero3+prefetch
--strategy=ddp,zero2+prefetch | "zero2+prefetch" is no strategy
--strategy= | "" is no strategy
--strategy=zero3,ddp,zero3 | --strategy names ZeRO 3 twice: leave one out
--strategy=zero3 --recompute=2 | take one, such as --strategy zero3+recompute
--recompute=0 | a whole number from 1 to 1,024 is expected
--micro-batches=0 | a whole number from 1 to 1,024 is expected
--batch-size=7 --devices=4 --micro-batches=2 | --batch-size 7 cannot be cut into 8 micro-batches (4 replicas × 2): take at least 8
--train-size=2 --devices=3 | 2 training images for 3 devices
--devices=0 | invalid value '0' for '--devices
--dtype=bf16 | layers in bf16 keep rounded parameters, which nobody can free: take f32
--dtype=f16 | the types are f32 and f64
--widths=0 | a whole number from 1 to 65,536 is expected
--slow-link=0 | a number of megabytes in a second, from 0.001 to 1000000
--checkpoint=c | take one, such as --strategy zero3
--strategy=zero3,ddp --checkpoint=c | --checkpoint keeps the state of one strategy
--strategy=zero3 --checkpoint=/dev/null | /dev/null: this is not a folder
--strategy=zero3 --resume | --checkpoint
--mesh=2x2 | "2x2" is no mesh: it is DATAxPIPELINExTENSOR
--mesh=2x2x2 | --mesh 2x2x2 has 2 stages, and this program has no pipelines: take --mesh 2x1x2
--mesh=2x1x2 --devices=2 | --mesh 2x1x2 has 4 devices, and --devices is 2: leave one of the two out
--mesh=2x1x2 --strategy=zero3 --checkpoint=c | --checkpoint keeps chunks of whole layers: take a mesh without parts of a layer
--timeout=0 | invalid value '0' for '--timeout
--gantt=/dev/null/at/all.svg | --gantt /dev/null/at/all.svg
--gantt=a.png | the flag writes an SVG picture
--gantt=a.svg --plot=a.svg | --plot and --gantt both name a.svg
"#;

/// Without images.
const REFUSALS_OF_A_GPT: &str = r#"
--model=gpt --data=synthetic | --data is about images, and --model gpt reads
--model=gpt --widths=9 | --widths is about --model dense, and --width is about --model gpt
--width=9 | --width is about --model gpt
--heads=2 | --blocks, --heads, --context and --text are about --model gpt
--model=gpt --heads=3 | --width 128 cannot be cut into 3 heads
--model=gpt --mesh=2x1x3 | 4 heads cannot be cut into 3 equal parts
--model=gpt --text=/nowhere | --text /nowhere: there is no such file
"#;

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    flags::check(REFUSALS, |arguments| program(&[&["--data=synthetic"], arguments].concat()));
    flags::check(REFUSALS_OF_A_GPT, program);
}

/// Flags of a training.
const OF_TRAINING: &str = "
--model=gpt --mesh=2x1x1 --context=9 --data=/nonexistent --train-size=9 --test-size=9 --epochs=1 --batch-size=9
--lr=1 --seed=1 --dtype=f64 --device=cpu --threads-per-device=1 --tf32 --slow-link=9
--gantt=g.svg --checkpoint=c --metrics=m --plot=p --trace=t --timeline=t
";

#[test]
fn a_drawing_has_no_training() {
    for of_training in OF_TRAINING.split_whitespace() {
        refused(program(&["--draw", of_training]), "cannot be used with");
    }
    refused(program(&["--draw", "--strategy=zero9"]), "\"zero9\" is no strategy");
}

/// No machine has the memory for these weights.
#[cfg(target_os = "linux")]
#[test]
fn weights_that_cannot_fit_are_refused_before_anything_is_written() {
    let widths = format!("--widths={}", ["65536"; 100].join(","));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("metrics.jsonl");
    let metrics = format!("--metrics={}", file.display());
    refused(program(&["--data=synthetic", &widths, &metrics]), " free: take smaller --widths\n");
    assert!(!file.exists());
}

/// A device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_written_is_told_with_its_file() {
    let told = contains("--gantt /dev/full: No space left on device");
    let arguments = [&SMALL[..], &["--strategy=ddp", "--gantt=/dev/full"]].concat();
    program(&arguments).assert().code(1).stderr(told);
}
