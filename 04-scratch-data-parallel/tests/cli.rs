//! The binary as a newcomer meets it: three runs and a comparison, deliberate bugs, and refusals.

#[path = "../../tests/src/program.rs"]
mod program;
#[path = "../../tests/src/refusals.rs"]
mod refusals;
#[path = "../../tests/src/screen.rs"]
mod screen;
#[path = "../../tests/src/signals.rs"]
mod signals;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use self::signals::with_default_sigint;

fn scratch(arguments: &[&str]) -> Command {
    let mut command = program::command(env!("CARGO_BIN_EXE_scratch-data-parallel"));
    command.arg("--device=cpu").args(arguments);
    if !arguments.contains(&"--threads-per-device") {
        command.arg("--threads-per-device=1");
    }
    command
}

/// Small data whose last batch is uneven: 70 images in batches of 32 leave 6.
const SMALL: [&str; 5] =
    ["--data=synthetic", "--train-size=70", "--test-size=20", "--epochs=2", "--batch-size=32"];

fn metrics(arguments: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("metrics.jsonl");
    scratch(&[&SMALL, arguments].concat()).arg("--metrics").arg(&file).assert().success();
    let text = std::fs::read_to_string(&file).expect("a metrics file");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

#[test]
fn the_help_fits_on_a_screen() {
    screen::check_help(env!("CARGO_BIN_EXE_scratch-data-parallel"));
}

#[test]
fn lines_fit_into_a_terminal() {
    for arguments in [
        &[][..],
        &["--devices=12"],
        &["--devices=1"],
        &["--devices=4", "--shards=8"],
        &["--break=mean-for-sum"],
        &["--break=skip-allreduce"],
        &["--break=skip-allreduce,same-shard"],
    ] {
        let of_slices = ["--device=cpu", "--threads-per-device=1"];
        let arguments = [&SMALL[..], &of_slices, arguments].concat();
        for text in screen::check_width(env!("CARGO_BIN_EXE_scratch-data-parallel"), &arguments) {
            assert!(text.contains("epoch 2/2"), "{text}");
        }
    }
}

#[test]
fn three_runs_and_what_they_say_together() {
    scratch(&SMALL)
        .assert()
        .success()
        .stdout(contains("s/epoch, weights ").count(3))
        .stdout(contains("\none device: test acc ").and(contains("\n  on [cpu:0 (1 core)]\n")))
        .stdout(contains("\n  on [cpu:0 (1 core), cpu:1 (1 core)]\n"))
        .stdout(contains("\none device, all cores: test acc "))
        .stdout(contains("\n  on [cpu:0 (2 cores)]\n"))
        .stdout(contains("largest weight difference: "))
        .stdout(contains("\nAfter step 1 the weights agree with one device up to rounding."))
        // The runs are too short for a ratio of their times.
        .stdout(contains("×").or(contains("as fast")).not())
        .stdout(contains("2 replicas ended with the same weights"));
}

#[test]
fn each_mode_has_its_conclusion() {
    for (argument, expected) in [
        ("--devices=1", "With one device there is nothing to compare: use --devices 2 or more.\n"),
        (
            "--shards=8",
            "After step 1 the weights agree with one device to the last bit. At the end they still agree.",
        ),
        ("--break=skip-allreduce", "The replicas differ, so a comparison"),
        ("--break=mean-for-sum", "The replicas are equal, so only the comparison"),
    ] {
        let output = scratch(&SMALL).arg(argument).output().expect("a run");
        let text = String::from_utf8(output.stdout).expect("text").replace('\n', " ");
        assert!(text.contains(expected.trim_end()), "{text}");
    }
}

/// More threads on one device than a machine can bear: only the run that would need them is left out.
#[test]
fn a_device_that_is_not_to_be_had_costs_its_run_alone() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores > 60 {
        return eprintln!(
            "SKIPPED: so many threads as this machine can bear are not to be started"
        );
    }
    // Over the limit of one device together, and below it each.
    let threads = ((32 * cores).max(256) / 2 + 1).to_string();
    let small =
        ["--data=synthetic", "--train-size=2", "--test-size=1", "--epochs=1", "--batch-size=2"];
    let small = [&small[..], &["--threads-per-device", &threads]].concat();
    let run = scratch(&small).args(["--devices=2"]).assert();
    let told = contains("note: there is no run on one device with all cores: a device of");
    run.success().stdout(told.and(contains("2 replicas ended with the same weights")));
}

#[test]
fn one_device_is_one_run() {
    let lines = metrics(&["--devices=1"]);
    assert_eq!(of_kind(&lines, "summary").len(), 1);
}

#[test]
fn one_and_several_devices_have_the_same_losses() {
    for devices in ["2", "3"] {
        let lines = metrics(&["--devices", devices]);
        let losses: Vec<f64> = of_kind(&lines, "epoch")
            .iter()
            .filter(|line| line["epoch"] == 1)
            .map(|line| line["train_loss"].as_f64().unwrap())
            .collect();
        assert_eq!(losses.len(), 3);
        for loss in &losses {
            assert!((loss - losses[0]).abs() <= 1e-5, "{losses:?}");
        }
        let comparison = of_kind(&lines, "comparison")[0];
        assert_eq!(comparison["replicas_agree"], true);
        let difference = &comparison["weight_difference"];
        assert!(difference["after_first_step"].as_f64().unwrap() < 1e-5, "{difference}");
    }
}

#[test]
fn every_algorithm_gives_the_losses_of_one_device() {
    for algorithm in ["one-shot", "naive", "tree", "ring"] {
        let lines = metrics(&["--devices=3", "--dtype=f64", "--algorithm", algorithm]);
        let difference = &of_kind(&lines, "comparison")[0]["weight_difference"];
        assert!(difference["at_the_end"].as_f64().unwrap() < 1e-10, "{algorithm}: {difference}");
    }
    scratch(&SMALL).args(["--algorithm=tree"]).assert().stdout(contains("all-reduce: tree"));
}

#[test]
fn with_shards_any_number_of_devices_ends_with_the_same_bits() {
    let hash = |devices: &str, threads: &str| {
        let lines = metrics(&["--shards=8", "--devices", devices, "--threads-per-device", threads]);
        let hashes: Vec<String> = of_kind(&lines, "summary")
            .iter()
            .map(|line| line["weights_hash"].as_str().unwrap().to_owned())
            .collect();
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{devices} devices: {hashes:?}");
        hashes[0].clone()
    };
    let one = hash("1", "1");
    for devices in ["2", "4", "8"] {
        assert_eq!(hash(devices, "1"), one, "{devices} devices");
    }
    assert_eq!(hash("2", "2"), one, "two threads each");
}

#[test]
fn bugs_on_purpose_are_visible() {
    for (bug, replicas_agree) in [
        ("skip-allreduce", false),
        ("mean-for-sum", true),
        ("same-shard", true),
        ("own-shuffle", true),
    ] {
        let lines = metrics(&["--dtype=f64", "--break", bug]);
        let comparison = of_kind(&lines, "comparison")[0];
        assert_eq!(comparison["replicas_agree"], replicas_agree, "{bug}");
        let difference = comparison["weight_difference"]["after_first_step"].as_f64().unwrap();
        assert!(difference > 1e-10, "{bug}: {difference:e}");
    }
}

#[test]
fn a_run_that_explodes_stops_with_the_step() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    std::fs::write(&plot, "of before").unwrap();
    // Summed parameters double at every step.
    scratch(&[
        "--data=synthetic",
        "--train-size=2000",
        "--test-size=10",
        "--epochs=2",
        "--batch-size=4",
    ])
    .args(["--break", "reduce-params"])
    .arg("--plot")
    .arg(&plot)
    .assert()
    .code(1)
    .stderr(contains("the loss is").and(contains("of epoch 1")))
    .stderr(contains("this is what --break reduce-params does"));
    // One device went well, and is drawn.
    assert!(std::fs::read_to_string(&plot).unwrap().contains("one device"));
    std::fs::write(&plot, "of before").unwrap();
    let small = ["--data=synthetic", "--train-size=64", "--test-size=10", "--lr=1e30"];
    scratch(&small).arg("--plot").arg(&plot).assert().code(1);
    assert_eq!(std::fs::read_to_string(&plot).unwrap(), "of before");
}

/// Nobody hangs: the run ends at once, and what it says begins with the bug's rank.
#[test]
fn a_bug_that_leaves_ranks_waiting_ends_with_the_rank_named() {
    for (bug, shown, named) in [
        ("leave-early", "epoch 1/2", "rank 2 returned early, and rank"),
        ("lone-broadcast", "broken on purpose", "rank 0 sent F64 [], but rank"),
    ] {
        scratch(&SMALL)
            .args(["--devices=3", "--break", bug])
            .timeout(std::time::Duration::from_secs(20))
            .assert()
            .code(1)
            .stdout(contains("one device\n").and(contains(shown)))
            .stderr(contains(named));
    }
}

/// A bug that ends with an error does not end the program.
#[test]
fn several_bugs_end_with_a_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("metrics.jsonl");
    let mut run = scratch(&SMALL);
    let run = run.args(["--break=skip-allreduce,leave-early,mean-for-sum", "--metrics"]).arg(&file);
    let output = run.output().expect("a run");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("\n  error: ") && text.contains("rank 1 returned early"), "{text}");
    let (_, table) = text.split_once("found by\n").expect("a table");
    let rows: Vec<Vec<&str>> =
        table.lines().take(4).map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..2], ["data", "parallel"]);
    assert_eq!((rows[1][0], rows[1].last()), ("skip-allreduce", Some(&"replicas")));
    // All biases start at 0, so half an update is half a bias.
    assert_eq!((rows[2][0], rows[2][3]), ("mean-for-sum", "0.5"));
    assert_eq!(rows[3], ["leave-early", "an", "error"]);
    assert!(table.contains("\n2 of 3 runs with a bug end without an error."), "{table}");
    let text = std::fs::read_to_string(&file).expect("a metrics file");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    let runs: Vec<_> = of_kind(&lines, "summary").iter().map(|line| &line["run"]).collect();
    assert_eq!(runs, ["one device", "data parallel", "skip-allreduce", "mean-for-sum"]);
}

#[test]
fn a_mystery_is_a_bug_without_a_name() {
    scratch(&["--help"]).assert().success().stdout(contains("mystery").not());
    for (mystery, sign) in [
        ("mystery:1", "0.5 after step 1"),
        ("mystery:2", "The weights agree"),
        ("mystery:3", "The replicas differ"),
        ("mystery:4", "The replicas are"),
    ] {
        let run = scratch(&SMALL).args(["--dtype=f64", "--break", mystery]).assert().success();
        let names =
            contains("skip-allreduce").or(contains("mean-for-sum")).or(contains("same-shard"));
        run.stdout(contains(sign).and(names.not()));
    }
}

#[test]
fn help_explains_the_bugs() {
    let help = scratch(&["--help"]).assert().success();
    help.stdout(contains("skip-allreduce: ").and(contains("reduce-params: ")))
        .stdout(contains("Gradients are never added up"));
}

#[test]
fn several_processes_are_refused_as_its_ranks_are_threads() {
    let mut started = scratch(&["--data=synthetic"]);
    started.env("OMPI_COMM_WORLD_SIZE", "4").assert().code(2).stdout("").stderr(contains(
        "mpirun started 4 processes, but this program's ranks are threads: start it with --devices 4 without mpirun",
    ));
    // A step of Slurm's, without a terminal: its other tasks may exist.
    let mut task = scratch(&["--data=synthetic"]);
    task.env("SLURM_STEP_NUM_TASKS", "4")
        .env("SLURM_PTY_PORT", "1")
        .assert()
        .code(2)
        .stderr(contains("without srun, or in a shell of srun with env -u SLURM_STEP_NUM_TASKS"));
}

/// Flags, and a part of the message. Stage 1 tests the flags of every training.
const REFUSALS: &str = r#"
--devices 0 | a run has 1 to 1024 devices
--batch-size 1 | batch size 1 cannot be cut into 2 shards
--devices 8 --train-size 5 | 5 training images for 8 devices
--algorithm native | --algorithm native: there is no native all-reduce here
--algorithm star | possible values: one-shot, naive, tree, ring, native
--shards 8 --algorithm ring | --algorithm ring adds up in an order
--shards 0 | a whole number from 1 to 1,024 is expected
--shards 2 --devices 3 | over 3 devices; use --shards 3 or more
--shards 512 | cut into 512 shards; use --shards 256 or fewer
--shards 8 --break same-shard | cannot be used with
--break everything | possible values: skip-allreduce
--break same-shard --devices 1 | use it with --devices 2 or more
"#;

#[test]
fn what_makes_no_sense_is_refused() {
    refusals::check(REFUSALS, scratch);
}

fn named<'a>(trace: &'a Value, name: &str) -> Vec<&'a Value> {
    let events = trace["traceEvents"].as_array().expect("events");
    events.iter().filter(|event| event["name"] == name).collect()
}

#[test]
fn a_trace_tells_computing_from_communicating() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    scratch(&SMALL).arg("--trace").arg(&file).assert().success();
    let trace = std::fs::read(&file).expect("a trace");
    let trace: Value = serde_json::from_slice(&trace).expect("JSON");
    let names = named(&trace, "thread_name");
    let title = |event: &Value| {
        let name = names.iter().find(|name| name["tid"] == event["tid"]);
        name.expect("every track has a name")["args"]["name"].as_str().expect("text").to_owned()
    };
    // Three runs on four devices, two epochs of three steps each. All devices evaluate.
    for (name, track, per_step, per_epoch) in [
        ("forward", "compute", 1, 0),
        ("update", "compute", 1, 0),
        ("evaluate", "compute", 0, 1),
        ("all-reduce", "communication", 9, 1),
    ] {
        let spans = named(&trace, name);
        assert_eq!(spans.len(), 4 * 2 * (3 * per_step + per_epoch), "{name}");
        assert!(spans.iter().all(|span| span["cat"] == track && title(span).contains(track)));
    }
    let second = named(&trace, "all-reduce").iter().filter(|s| title(s).contains("rank 1")).count();
    assert_eq!(second, 2 * (3 * 9 + 1));
    let runs: Vec<_> = named(&trace, "process_name").iter().map(|e| &e["args"]["name"]).collect();
    assert_eq!(runs, ["one device", "data parallel", "one device, all cores"]);
}

/// All ranks stop after the same step, whichever of them saw it first: nobody waits, replicas agree.
#[test]
fn ctrl_c_ends_all_ranks_together() {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::process::{Command, Stdio};

    let folder = tempfile::tempdir().expect("a folder");
    let mut run = with_default_sigint(env!("CARGO_BIN_EXE_scratch-data-parallel"))
        .args(["--device=cpu", "--threads-per-device=1", "--devices=3", "--data=synthetic"])
        .args(["--train-size=300", "--test-size=20", "--epochs=40", "--batch-size=32"])
        .args(["--metrics=m.jsonl", "--plot=p.svg", "--trace=t.json"])
        .current_dir(&folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut output = BufReader::new(run.stdout.take().expect("its output"));
    // The first run is left alone; the second is interrupted after its first epoch.
    let mut lines = output.by_ref().lines().map_while(Result::ok);
    lines.find(|line| line == "data parallel").expect("a second run");
    lines.next().expect("its first epoch");
    let kill = Command::new("kill").args(["-INT", &run.id().to_string()]).status();
    assert!(kill.expect("kill").success());
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("text");
    assert_eq!(run.wait().expect("an end").code(), Some(130), "{rest}");
    for text in [
        ", interrupted after ",
        "one device, all cores\n  left out after the interrupt",
        "after step 1; not compared at the end\n",
        "The runs did not\nend at the same step",
        "3 replicas ended with the same weights",
    ] {
        assert!(rest.contains(text), "{text:?} is not in {rest}");
    }
    let read = |name| std::fs::read_to_string(folder.path().join(name)).expect(name);
    let metrics = read("m.jsonl");
    let lines: Vec<Value> =
        metrics.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    let interrupted: Vec<_> =
        of_kind(&lines, "summary").iter().map(|summary| &summary["interrupted"]).collect();
    assert_eq!(interrupted, [&Value::from(false), &Value::from(true)]);
    assert!(read("p.svg").trim_end().ends_with("</svg>"));
    serde_json::from_str::<Value>(&read("t.json")).expect("JSON");
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 3);
}
