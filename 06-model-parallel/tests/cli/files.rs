//! What a run leaves behind.

use model_parallel::Timeline;
use predicates::str::contains;
use serde_json::{Value, json};

use super::{SMALL, all_metrics, metrics, program};

/// Replicas without stages wait for nobody's activations.
#[test]
fn one_stage_has_no_bubble() {
    let lines = metrics(&[&SMALL[..], &["--widths=20", "--mesh=2x1x1"]].concat(), "split");
    assert_eq!(lines[1]["run"], "mesh 2x1x1");
    assert!(lines[1]["predicted"].is_null() && lines[1]["cut"] == json!([{"start": 0, "end": 2}]));
}

#[test]
fn metrics_tell_what_was_predicted_and_measured() {
    let all = all_metrics(&[&SMALL[..], &["--widths=20,18,16", "--cut=1"]].concat());
    let of_kind =
        |kind: &str| -> Vec<&Value> { all.iter().filter(|line| line["kind"] == kind).collect() };
    let (lines, summaries) = (of_kind("split"), of_kind("summary"));
    assert_eq!(lines.len(), 7);
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
        let step: Timeline = serde_json::from_value(pipeline[timeline].clone()).expect("a step");
        assert!((0.0..1.0).contains(&step.bubble()), "{}", step.bubble());
    }
    // The first stage has one layer, the second three: weights of 784·20 + 20 numbers against the others'.
    let held = |device: usize| pipeline["held"][device]["parameters"].as_u64();
    assert_eq!(held(0), Some(4 * (784 * 20 + 20)));
    assert_eq!(held(1), Some(4 * (20 * 18 + 18 + 18 * 16 + 16 + 16 * 10 + 10)));
    // Activations forward and gradients backward: 70 images in three batches, 32 images in a full one.
    for device in [0, 1] {
        assert_eq!(pipeline["held"][device]["sent"], 4 * 32 * 20);
    }
    assert!(lines[0]["measured"].is_null(), "one device has no stages");
}

#[test]
fn a_gantt_chart_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gantt.svg");
    let arguments = ["--schedule=naive,1f1b,zb-h1", "--gantt"];
    let mut command = program(&[&SMALL[..], &arguments].concat());
    command.arg(&file).assert().success();
    let svg = std::fs::read_to_string(&file).expect("a picture");
    for text in
        // The title and the colour key of the default model, whose name is long.
        [
            "naive, whole batch: bubble ",
            "1F1B, 8 micro-batches",
            "stage 1, predicted: parameters ",
            "One step of dense stack 784-512-512-512-512-512-512-10 on synthetic garments",
            "forward, by micro-batch",
            "backward, gradients of weights",
        ]
    {
        assert!(svg.contains(text), "{text} is missing");
    }
    // The run is short. A doubt about the times replaces the best pipeline, as on the terminal.
    let doubts = ["Runs below 0.5 s", "Other programs used", "share hardware"];
    assert!(doubts.iter().any(|text| svg.contains(text)), "{svg}");
    assert!(!svg.contains("The smallest bubble: "), "{svg}");
}

#[test]
fn predicted_schedules_are_drawn_into_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gantt.svg");
    let mut command = program(&["--draw", "--devices=3", "--schedule=1f1b,zb-h1", "--gantt"]);
    let announced = format!("--gantt: {}", file.display());
    command.arg(&file).assert().success().stdout(contains(announced));
    let svg = std::fs::read_to_string(&file).expect("a picture");
    for text in ["ZB-H1: bubble ", "stage 2", "forward, by micro-batch", "0 units"] {
        assert!(svg.contains(text), "{text} is missing");
    }
    assert!(!svg.contains("measured"));
}

/// A drawing, a pipeline, and two pipelines side by side have one list.
#[test]
fn a_list_is_written_for_pytorch() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("list.csv");
    let announced = format!("--export: {}\n", file.display());
    let small = [&SMALL[..], &["--widths=20,18"]].concat();
    for (flags, further) in [
        (&["--draw"][..], "--devices=2"),
        (&["--draw", "--gantt=/dev/null"], "--devices=2"),
        (&small, "--devices=2"),
        (&small, "--mesh=2x2x1"),
    ] {
        let mut command = program(flags);
        command.args([further, "--schedule=1f1b", "--micro-batches=3", "--export"]).arg(&file);
        command.assert().success().stdout(contains(&announced));
        let list = std::fs::read_to_string(&file).expect("a list");
        assert_eq!(list, "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n", "{flags:?}");
        std::fs::remove_file(&file).expect("a file");
    }
}

/// A device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_written_is_told_with_its_file() {
    for flag in ["--gantt", "--export", "--metrics"] {
        let full = format!("{flag}=/dev/full");
        let arguments = ["--widths=20,18", "--schedule=gpipe", &full];
        let told = contains(format!("{flag} /dev/full: No space left on device"));
        program(&[&SMALL[..], &arguments].concat()).assert().code(1).stderr(told);
    }
    // One that cannot be written does not cost the other.
    let folder = tempfile::tempdir().expect("a folder");
    let gantt = folder.path().join("gantt.svg");
    let mut both = program(&[&SMALL[..], &["--schedule=gpipe", "--plot=/dev/full"]].concat());
    both.arg("--gantt").arg(&gantt).assert().code(1).stderr(contains("--plot /dev/full"));
    assert!(gantt.exists());
}
