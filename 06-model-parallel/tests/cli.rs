//! The program as a newcomer meets it: ways to split, results, files, and refusals.

use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

/// A mirror that nobody runs.
const NOBODY: &str = "http://127.0.0.1:9";

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-parallel"));
    // No test depends on a network, or on what is in this user's cache.
    command.env("COURSE_MIRRORS", NOBODY);
    command.env("COURSE_DATA_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-data"));
    command.args(["--device=cpu", "--threads-per-device=1"]).args(arguments);
    command
}

/// Few images, whose last batch is uneven and has fewer samples than some runs have micro-batches.
const SMALL: [&str; 5] =
    ["--data=synthetic", "--train-size=70", "--test-size=20", "--epochs=1", "--batch-size=32"];

/// Runs with `--metrics` and returns its lines of a kind.
fn metrics(arguments: &[&str], kind: &str) -> Vec<Value> {
    let all = all_metrics(arguments);
    all.into_iter().filter(|line| line["kind"] == kind).collect()
}

/// All of them.
fn all_metrics(arguments: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("metrics.jsonl");
    program(arguments).arg("--metrics").arg(&file).assert().success();
    let text = std::fs::read_to_string(&file).expect("a metrics file");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

/// Each run's name, and the hash of its weights.
fn hashes(arguments: &[&str]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let summaries = metrics(&[&SMALL[..], arguments].concat(), "summary");
    summaries.iter().map(|line| (text(&line["run"]), text(&line["weights_hash"]))).collect()
}

#[test]
fn all_ways_of_a_small_dense_stack() {
    let widths = ["--widths=20,18,16"];
    program(&[&SMALL[..], &widths].concat())
        .assert()
        .success()
        .stdout(contains("dense stack 784-20-18-16-10 on synthetic garments: 70 training"))
        .stdout(contains("note: 2 stages, cut by measured cost: layer"))
        .stdout(contains("GPipe, 8 micro-batches on 2 devices"))
        .stdout(contains(
            "s/step  speed-up  predicted  measured  after 1 step  at the end  weights",
        ))
        .stdout(contains("MB held by a device"))
        .stdout(contains("s/epoch on [cpu:0 (1 core), cpu:1 (1 core)], weights "));
    let runs = hashes(&widths);
    let names: Vec<&str> = runs.iter().map(|(name, _)| name.as_str()).collect();
    let all = [
        "one device",
        "naive, whole batch",
        "GPipe, 8 micro-batches",
        "1F1B, 8 micro-batches",
        "tensor parallel",
    ];
    assert_eq!(names, all);
    assert_eq!(runs[0].1, runs[1].1, "a batch that passes two stages in one piece");
    assert_eq!(runs[2].1, runs[3].1, "the order of the schedule is not that of the sum");
}

/// Eight shards of each batch, on one pipeline or two, on two stages or one.
#[test]
fn the_same_shards_give_the_same_bits_on_any_mesh() {
    for model in [&["--model=lenet"][..], &["--model=resnet18", "--width=4"]] {
        let last = |arguments: &[&str]| {
            let mut runs = hashes(&[model, arguments].concat());
            runs.pop().expect("a run").1
        };
        let expected = last(&["--mesh=1x2x1", "--micro-batches=8"]);
        for arguments in [
            &["--mesh=1x3x1", "--micro-batches=8", "--schedule=gpipe"][..],
            &["--mesh=2x2x1", "--micro-batches=4"],
            &["--mesh=8x1x1"],
        ] {
            assert_eq!(last(arguments), expected, "{model:?} {arguments:?}");
        }
        assert_ne!(last(&["--mesh=1x2x1", "--micro-batches=7"]), expected);
    }
}

#[test]
fn with_norms_a_pipeline_is_one_device_on_the_same_micro_batches() {
    let runs = hashes(&["--model=resnet18", "--width=4", "--micro-batches=3"]);
    let hash = |name: &str| {
        &runs.iter().find(|(run, _)| run == name).unwrap_or_else(|| panic!("{name}: {runs:?}")).1
    };
    assert_eq!(hash("one device, 3 micro-batches"), hash("1F1B, 3 micro-batches"));
    assert_eq!(hash("one device, 3 micro-batches"), hash("GPipe, 3 micro-batches"));
    assert_ne!(hash("one device"), hash("1F1B, 3 micro-batches"));
    let several = hashes(&["--model=resnet18", "--width=2", "--mesh=2x2x1", "--micro-batches=2"]);
    let [_, (name, alone), (_, replicas)] = several.as_slice() else { panic!("{several:?}") };
    assert_eq!((name.as_str(), alone), ("one device, 4 micro-batches", replicas));
}

/// The two columns of the table that tell how far a run is from one device.
fn differences(arguments: &[&str], run: &str) -> [String; 2] {
    let output = program(arguments).assert().success().get_output().stdout.clone();
    let text = String::from_utf8(output).expect("text");
    let mut lines = text.lines().filter(|line| line.starts_with(run) && line.contains('×'));
    let fields: Vec<&str> = lines.next().unwrap_or_else(|| panic!("{text}")).split(' ').collect();
    let fields: Vec<&str> = fields.into_iter().filter(|field| !field.is_empty()).collect();
    [fields[fields.len() - 3].to_owned(), fields[fields.len() - 2].to_owned()]
}

#[test]
fn the_table_compares_with_the_device_that_took_the_same_pieces() {
    let resnet18 = [&SMALL[..], &["--model=resnet18", "--width=2"]].concat();
    for run in ["naive, whole batch", "1F1B, 8 micro-batches"] {
        assert_eq!(differences(&resnet18, run), ["0.0e0", "0.0e0"], "{run}");
    }
    // In f32 rounding differs after the first step, and grows.
    let dense = ["--data=synthetic", "--train-size=70", "--test-size=20", "--epochs=5"];
    let dense = [&dense[..], &["--batch-size=32", "--widths=20,18", "--schedule=gpipe"]].concat();
    let [first, last] = differences(&dense, "GPipe");
    assert!(first != "0.0e0" && first != last, "{first} {last}");
}

#[test]
fn parts_and_replicas_of_parts() {
    program(&[&SMALL[..], &["--mesh=2x1x2", "--widths=20,18", "--dtype=f64"]].concat())
        .assert()
        .success()
        .stdout(contains("tensor parallel, mesh 2x1x2: 2 replicas ended with the same weights"));
    // Every other layer is cut along its inputs: it may have fewer outputs than there are parts.
    program(&[&SMALL[..], &["--mesh=1x1x3", "--widths=20,2"]].concat()).assert().success();
}

/// Replicas without stages wait for nobody's activations.
#[test]
fn one_stage_has_no_bubble() {
    let lines = metrics(&[&SMALL[..], &["--widths=20", "--mesh=2x1x1"]].concat(), "split");
    assert_eq!(lines[1]["run"], "mesh 2x1x1");
    assert!(lines[1]["predicted"].is_null() && lines[1]["cut"] == Value::Array(Vec::new()));
}

#[test]
fn metrics_tell_what_was_predicted_and_measured() {
    let all = all_metrics(&[&SMALL[..], &["--widths=20,18,16", "--cut=1"]].concat());
    let of_kind =
        |kind: &str| -> Vec<&Value> { all.iter().filter(|line| line["kind"] == kind).collect() };
    let (lines, summaries) = (of_kind("split"), of_kind("summary"));
    assert_eq!(lines.len(), 5);
    for (line, summary) in lines.iter().zip(summaries) {
        let seconds = |line: &Value, of: &str| line[format!("seconds_per_{of}")].as_f64();
        // Batches of 32, 32 and 6.
        let (step, epoch) = (seconds(line, "step"), seconds(summary, "epoch"));
        let steps = epoch.expect("seconds") / step.expect("seconds");
        assert!((steps - 3.0).abs() < 1e-9, "{steps}");
    }
    let pipeline = lines.iter().find(|line| line["run"] == "1F1B, 8 micro-batches");
    let pipeline = pipeline.expect("a pipeline's line");
    for timeline in ["predicted", "measured"] {
        assert_eq!(pipeline[timeline]["stages"], 2);
        // Sixteen passes and seventeen messages or updates of each stage.
        assert_eq!(pipeline[timeline]["spans"].as_array().expect("spans").len(), 2 * 33);
        let bubble = pipeline[format!("{timeline}_bubble")].as_f64().expect("a bubble");
        assert!((0.0..1.0).contains(&bubble), "{bubble}");
    }
    // The first stage has one layer, the second three: weights of 784·20 + 20 numbers against the others'.
    let held = |device: usize| pipeline["held"][device]["parameters"].as_u64();
    assert_eq!(held(0), Some(4 * (784 * 20 + 20)));
    assert_eq!(held(1), Some(4 * (20 * 18 + 18 + 18 * 16 + 16 + 16 * 10 + 10)));
    assert!(lines[0]["measured"].is_null(), "one device has no stages");
}

/// What the runs' devices held.
fn held(arguments: &[&str]) -> impl Fn(&str, usize, &str) -> u64 + use<> {
    let lines = metrics(arguments, "split");
    move |run: &str, device: usize, what: &str| {
        let line = lines.iter().find(|line| line["run"] == run).expect("a run of this name");
        line["held"][device][what].as_u64().expect("bytes")
    }
}

/// In f32: a device keeps the images and each layer's result, and its parameters' gradients.
#[test]
fn memory_by_hand() {
    let small = ["--data=synthetic", "--train-size=70", "--test-size=20", "--epochs=1"];
    let ways = ["--widths=20,18,16", "--cut=2", "--batch-size=1024"];
    let held = held(&[&small[..], &ways].concat());
    let bytes = |samples: u64, widths: &[u64]| 4 * samples * widths.iter().sum::<u64>();
    // A batch is no larger than the data.
    assert_eq!(held("one device", 0, "activations"), bytes(70, &[784, 20, 18, 16, 10]));
    let stage = |run, device| held(run, device, "activations");
    assert_eq!(stage("naive, whole batch", 0), bytes(70, &[784, 20, 18]));
    // The last stage has the loss as well; 70 images are eight micro-batches of 9 or 8.
    assert_eq!(stage("naive, whole batch", 1), bytes(70, &[18, 16, 10]) + 4);
    assert_eq!(stage("GPipe, 8 micro-batches", 1), bytes(70, &[18, 16, 10]) + 8 * 4);
    assert_eq!(stage("1F1B, 8 micro-batches", 0), bytes(2 * 9, &[784, 20, 18]));
    assert_eq!(stage("1F1B, 8 micro-batches", 1), bytes(9, &[18, 16, 10]) + 4);
    for device in [0, 1] {
        let sets = |run| held(run, device, "gradients") / held(run, device, "parameters");
        assert_eq!(sets("naive, whole batch"), 1);
        assert_eq!(sets("1F1B, 8 micro-batches"), 4, "a part for each power of two, and one");
        let optimiser = held("tensor parallel", device, "optimiser");
        assert_eq!(optimiser, held("tensor parallel", device, "parameters"));
    }
}

#[test]
fn without_momentum_the_optimiser_keeps_nothing() {
    let held = held(&[&SMALL[..], &["--widths=20", "--schedule=1f1b", "--momentum=0"]].concat());
    for (run, device) in [("one device", 0), ("1F1B, 8 micro-batches", 1)] {
        assert_eq!(held(run, device, "optimiser"), 0, "{run}");
        assert!(held(run, device, "parameters") > 0, "{run}");
    }
}

/// One device that adds shards up has the gradients of all of them, and the sum.
#[test]
fn shards_on_one_device_cost_gradients() {
    let resnet18 = ["--model=resnet18", "--width=2", "--micro-batches=3", "--schedule=gpipe"];
    let held = held(&[&SMALL[..], &resnet18].concat());
    let run = "one device, 3 micro-batches";
    assert_eq!(held(run, 0, "gradients"), 4 * held(run, 0, "parameters"));
    assert_eq!(held("one device", 0, "gradients"), held("one device", 0, "parameters"));
    // The largest of three shards of 32 images has 11; what it keeps is as much for each image.
    assert_eq!(32 * held(run, 0, "activations"), 11 * held("one device", 0, "activations"));
}

/// It needs no sample for each of eight micro-batches.
#[test]
fn naive_takes_batches_of_any_size() {
    let small = ["--data=synthetic", "--train-size=9", "--test-size=5", "--epochs=1"];
    let naive = ["--schedule=naive", "--batch-size=4", "--widths=20"];
    let runs = metrics(&[&small[..], &naive].concat(), "summary");
    let names: Vec<&Value> = runs.iter().map(|line| &line["run"]).collect();
    assert_eq!(names, ["one device", "naive, whole batch"]);
}

#[test]
fn a_gantt_chart_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gantt.svg");
    let arguments = ["--widths=20,18", "--schedule=naive,1f1b", "--gantt"];
    let mut command = program(&[&SMALL[..], &arguments].concat());
    command.arg(&file).assert().success();
    let svg = std::fs::read_to_string(&file).expect("a picture");
    for text in
        ["naive, whole batch: bubble 50 % predicted", "1F1B, 8 micro-batches", "stage 1 predicted"]
    {
        assert!(svg.contains(text), "{text} is missing");
    }
}

#[test]
fn schedules_are_drawn_without_training() {
    program(&["--draw", "--schedule=1f1b,interleaved:2,zb-h1", "--devices=2", "--micro-batches=4"])
        .assert()
        .success()
        .stdout(contains("1F1B: 2 stages, 4 micro-batches"))
        .stdout(contains("stage 0   F0  F1  ··  ··  B0  B0  F2  B1  B1  F3  B2  B2  ··  B3  B3"))
        .stdout(contains(
            "bubble 20.0 %, 15 units of time; channels have to hold 1 message at least",
        ))
        .stdout(contains("interleaved 1F1B, 2 chunks"))
        .stdout(contains("ZB-H1"))
        .stdout(contains("epoch").not());
}

#[test]
fn one_device_alone_has_nothing_to_split() {
    program(&[&SMALL[..], &["--devices=1", "--widths=20"]].concat())
        .assert()
        .success()
        .stdout(contains("one device"))
        .stdout(contains("pipeline").not());
}

/// In the middle of the second of three ways.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_pipeline_and_leaves_the_rest_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let (metrics, told) = (folder.path().join("metrics"), folder.path().join("told"));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_model-parallel"));
    command.args(["--device=cpu", "--threads-per-device=1"]).args(&SMALL[..3]);
    command.args(["--epochs=1000", "--widths=20,18", "--schedule=gpipe,1f1b", "--batch-size=32"]);
    command.arg("--metrics").arg(&metrics);
    command.stdout(std::fs::File::create(&told).expect("a file"));
    let mut child = command.spawn().expect("the program");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let begun = || read(&metrics).lines().filter(|line| line.contains("\"run\":\"GPipe")).count();
    while begun() < 2 {
        assert!(child.try_wait().expect("a child").is_none(), "it ended before the interrupt");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill").success());
    assert_eq!(child.wait().expect("an end").code(), Some(130));
    let told = read(&told);
    for text in ["left out after the interrupt", "(interrupted after ", "MB held by a device"] {
        assert_eq!(told.matches(text).count(), 1, "{text:?} once in:\n{told}");
    }
    // A part of the training is not compared with the whole: only its first step is.
    let line = told.lines().filter(|line| line.starts_with("GPipe") && line.contains('×'));
    let fields: Vec<&str> = line.flat_map(str::split_whitespace).collect();
    assert!(matches!(fields[..], [.., first, "–", _] if first.contains('e')), "{told}");
}

#[test]
fn a_loss_that_runs_away_is_told_once() {
    program(&[&SMALL[..], &["--widths=20,18", "--lr=1e30", "--schedule=gpipe"]].concat())
        .assert()
        .code(1)
        .stderr(contains("the loss is"))
        .stderr(contains("panicked").not());
}

/// One line on standard error, and nothing anywhere else.
fn refused(arguments: &[&str], says: &str) {
    program(arguments)
        .assert()
        .code(2)
        .stdout("")
        .stderr(contains(says))
        .stderr(predicate::function(|text: &str| text.lines().count() == 1));
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    for (arguments, says) in [
        (&["--mesh=2x2"][..], "\"2x2\" is no mesh: it is DATAxPIPELINExTENSOR"),
        (&["--mesh=0x2x1"], "three numbers from 1"),
        (&["--mesh=1x2x2"], "take 1x4x1 or 1x1x4"),
        (&["--mesh=2x2x1", "--devices=2"], "a mesh of 4 devices and --devices 2"),
        (&["--mesh=1x1x2", "--micro-batches=4"], "there is one stage: ask for several"),
        (
            &["--mesh=1x1x2", "--gantt=g.svg"],
            "there is one stage: ask for several, such as --mesh 1x2x1",
        ),
        (&["--gantt=a.svg", "--plot=a.svg"], "--gantt and another flag both name a.svg"),
        (&["--draw", "--metrics=m.jsonl"], "cannot be used with"),
        (&["--schedule=gpipe,1f1b,gpipe"], "--schedule names GPipe twice"),
        (&["--mesh=9x1x1", "--batch-size=8"], "batch size 8 cannot be cut into 9 shards"),
        (&["--mesh=1x1x11"], "dense layer 6: 10 features cannot be cut into 11 parts"),
        (&["--mesh=1x1x2", "--model=resnet18"], "ResNet-18 is split in stages only"),
        (&["--mesh=1x1x11", "--model=lenet"], "LeNet's last layer: 10 features"),
        (&["--devices=1", "--schedule=1f1b"], "there is one stage"),
        (&["--devices=9"], "7 layers cannot be cut into 9 stages"),
        (&["--devices=6", "--model=lenet"], "LeNet: 5 layers cannot be cut into 6 stages"),
        (&["--cut=3,2"], "a stage that begins at layer 2 comes after one that begins at layer 3"),
        (&["--cut=3,5"], "--cut 3,5 makes 3 stages, and there are devices for 2"),
        (&["--cut=7"], "no stage can begin at layer 7"),
        (&["--cut=x"], "\"x\" is no number"),
        (&["--micro-batches=0"], "0 is not in 1..=1024"),
        (&["--batch-size=7"], "batch size 7 cannot be cut into 8 micro-batches"),
        (&["--mesh=4x2x1", "--batch-size=31"], "batch size 31 cannot be cut into 32 micro-batches"),
        (&["--schedule=fifo"], "\"fifo\" is no schedule: there are naive, gpipe, 1f1b"),
        (&["--schedule=zb-h1"], "ZB-H1 can be checked, predicted and drawn, and is not executed"),
        (&["--draw", "--schedule=interleaved:2", "--micro-batches=5"], "has to be a multiple of 2"),
        (&["--draw", "--schedule=interleaved:1"], "needs at least 2 chunks"),
        (&["--draw", "--cut=3"], "cannot be used with"),
        (&["--widths=5", "--model=lenet"], "--widths is about --model dense"),
        (&["--width=5"], "--width is about --model resnet18"),
        (&["--widths=0"], "0 is not in 1..=65536"),
        (&["--gantt=/nowhere/at/all.svg"], "--gantt /nowhere/at/all.svg"),
        (&["--train-size=0"], "invalid value '0' for '--train-size"),
        (&["--timeout=0"], "invalid value '0' for '--timeout"),
    ] {
        refused(&[arguments, &["--data=synthetic"]].concat(), says);
    }
}

#[test]
fn nothing_is_left_behind_by_a_refusal() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (gantt, metrics) = (file("gantt.svg"), file("metrics.jsonl"));
    refused(&["--gantt", &gantt, "--metrics", &metrics, "--cut=9", "--data=synthetic"], "layer 9");
    for path in [gantt, metrics] {
        assert!(!Path::new(&path).exists(), "{path}");
    }
}

#[test]
fn help_tells_what_there_is() {
    program(&["--help"])
        .assert()
        .success()
        .stdout(contains("Usage: model-parallel"))
        .stdout(contains("--mesh <DATAxPIPELINExTENSOR>"))
        .stdout(contains("--cut <LAYER,…>"));
}
