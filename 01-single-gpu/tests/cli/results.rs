//! What a run leaves behind, however it ends.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command as Process, Stdio};

use predicates::prelude::*;
use predicates::str::contains;

use super::files::names_in;
use super::signals::with_default_sigint;
use super::{SMALL, single_gpu};

/// Arguments that write all three files of results into the current folder.
const FILES: [&str; 3] = ["--metrics=m.jsonl", "--plot=p.svg", "--trace=t.json"];

#[test]
fn a_run_leaves_a_plot_and_a_trace() {
    let folder = tempfile::tempdir().expect("a folder");
    single_gpu(&SMALL).args(FILES).current_dir(&folder).assert().success();
    assert_eq!(names_in(folder.path()), ["m.jsonl", "p.svg", "t.json"]);
    let plot = fs::read_to_string(folder.path().join("p.svg")).expect("a plot");
    assert!(plot.contains("LeNet on synthetic garments") && plot.trim_end().ends_with("</svg>"));
    let trace = fs::read(folder.path().join("t.json")).expect("a trace");
    let trace: serde_json::Value = serde_json::from_slice(&trace).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    for name in ["load", "forward", "backward", "update"] {
        // 40 images in batches of 16 are three steps, in each of two epochs.
        let count = events.iter().filter(|event| event["name"] == name).count();
        assert!(count >= 6, "{count} of {name}");
    }
}

/// A limit of 512 bytes for each file, as a user may have one for the size of core dumps and forget it.
#[test]
fn a_file_over_the_limit_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut limited = assert_cmd::Command::new("sh");
    limited.args(["-c", "ulimit -f 1; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_single-gpu")]);
    let run = limited.args(SMALL).arg("--plot=p.svg").current_dir(&folder).assert().code(1);
    run.stderr(contains("error: --plot p.svg: File too large"));
    assert!(names_in(folder.path()).is_empty());
}

#[test]
fn more_threads_than_cores_are_noted() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let note = format!("note: {} threads share {cores} core", 2 * cores);
    let threads = format!("--threads-per-device={}", 2 * cores);
    single_gpu(&SMALL).arg(threads).assert().success().stdout(contains(note));
}

#[test]
fn a_run_that_fails_leaves_whole_lines_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = single_gpu(&SMALL).args(FILES).args(["--lr=1e30"]).current_dir(&folder).assert();
    run.code(1)
        .stderr(contains("the loss is").and(contains("the learning rate 1e30 is too large")));
    assert_eq!(names_in(folder.path()), ["m.jsonl"]);
}

fn begun(folder: &Path, epochs: &str) -> (Child, BufReader<ChildStdout>) {
    begun_by(with_default_sigint(env!("CARGO_BIN_EXE_single-gpu")), folder, epochs)
}

fn begun_by(mut command: Process, folder: &Path, epochs: &str) -> (Child, BufReader<ChildStdout>) {
    let mut run = command
        .args(SMALL.iter().filter(|argument| !argument.starts_with("--epochs")))
        .args([epochs, "--threads-per-device=1"])
        .args(FILES)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let output = BufReader::new(run.stdout.take().expect("its output"));
    (run, output)
}

fn send(signal: &str, run: &Child) {
    let kill = Process::new("kill").args([signal, &run.id().to_string()]).status();
    assert!(kill.expect("kill").success());
}

#[test]
fn a_signal_ends_with_the_results_so_far() {
    for (signal, exit_code) in [("-INT", 130), ("-TERM", 143)] {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut run, mut output) = begun(folder.path(), "--epochs=100000");
        // It has begun to train when it has told of two epochs.
        let mut lines = output.by_ref().lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("epoch      2/100000")), "no second epoch");
        send(signal, &run);
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("text");
        assert_eq!(run.wait().expect("an end").code(), Some(exit_code));
        assert!(rest.contains(", interrupted after ") && rest.contains(" weights "), "{rest}");
        assert_eq!(names_in(folder.path()), ["m.jsonl", "p.svg", "t.json"]);
        let metrics = fs::read_to_string(folder.path().join("m.jsonl")).expect("metrics");
        let last = metrics.lines().last().expect("a line");
        let summary: serde_json::Value = serde_json::from_str(last).expect("JSON");
        assert_eq!((&summary["kind"], &summary["interrupted"]), (&"summary".into(), &true.into()));
    }
}

/// A mirror that takes the connection and never answers: the program waits for it, and has printed nothing.
#[test]
fn ctrl_c_before_the_first_line_ends_with_a_word() {
    let mirror = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", mirror.local_addr().expect("an address"));
    let folder = tempfile::tempdir().expect("a folder");
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut run = with_default_sigint(env!("CARGO_BIN_EXE_single-gpu"));
        run.args(["--data=fashion-mnist", "--data-mirrors", &address, "--data-dir"]);
        let run = run.arg(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let run = run.expect("a process");
        let connection = mirror.accept().expect("the program asks for a file");
        let begun = std::time::Instant::now();
        send(signal, &run);
        let ended = run.wait_with_output().expect("an end");
        let error = "error: interrupted while reading Fashion-MNIST: nothing was trained\n";
        assert_eq!(String::from_utf8_lossy(&ended.stderr), error);
        assert_eq!((ended.status.code(), &*ended.stdout), (Some(code), &[][..]));
        assert!(begun.elapsed() < std::time::Duration::from_secs(10));
        drop(connection);
        assert_eq!(names_in(folder.path()), [""; 0]);
    }
}

#[test]
fn more_than_one_device_is_refused_with_the_program_that_has_them() {
    let told =
        contains("error: --devices 2: this program trains on one device; cargo run --release -p ")
            .and(contains("scratch-data-parallel -- --devices 2 trains LeNet on several\n"));
    single_gpu(&["--devices=2"]).assert().code(2).stdout("").stderr(told);
    single_gpu(&[&SMALL[..], &["--devices=1"]].concat()).assert().success();
}

#[test]
fn a_folder_that_is_missing_is_made_for_the_files_of_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let [plot, metrics] = ["new/below/p.svg", "other/m.jsonl"].map(|name| folder.path().join(name));
    let mut run = single_gpu(&SMALL);
    run.arg("--plot").arg(&plot).arg("--metrics").arg(&metrics).assert().success();
    assert!(plot.is_file() && metrics.is_file());
    // A refused run makes none.
    let other = folder.path().join("refused/p.svg");
    single_gpu(&["--batch-size=0", "--plot"]).arg(&other).assert().code(2);
    single_gpu(&["--data=/nowhere", "--plot"]).arg(&other).assert().code(2);
    assert!(!folder.path().join("refused").exists());
}

/// A script's background job ignores Ctrl-C.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    for (epochs, ending, code) in [("100000", Some("-TERM"), 143), ("200", None, 0)] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Process::new("env");
        command.args(["--ignore-signal=INT", env!("CARGO_BIN_EXE_single-gpu")]);
        let (mut run, output) = begun_by(command, folder.path(), &format!("--epochs={epochs}"));
        let mut lines = output.lines().map_while(Result::ok);
        let mut wait_for = |epoch: &str| {
            let words = format!("epoch {epoch:>width$}/{epochs}", width = epochs.len());
            assert!(lines.any(|line| line.contains(&words)), "no {words:?}");
        };
        wait_for("2");
        send("-INT", &run);
        wait_for("20");
        if let Some(signal) = ending {
            send(signal, &run);
        }
        let rest = lines.collect::<Vec<_>>().join("\n");
        assert_eq!(run.wait().expect("an end").code(), Some(code), "{rest}");
        assert_eq!(rest.contains(", interrupted after "), code != 0, "{rest}");
    }
}

#[test]
fn files_are_written_whether_or_not_somebody_reads_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut run, mut output) = begun(folder.path(), "--epochs=20");
    // As `| head -1`: one line, and no more.
    output.read_line(&mut String::new()).expect("a line");
    drop(output);
    assert!(run.wait().expect("an end").success());
    assert_eq!(names_in(folder.path()), ["m.jsonl", "p.svg", "t.json"]);
    let metrics = fs::read_to_string(folder.path().join("m.jsonl")).expect("metrics");
    assert_eq!(metrics.lines().count(), 21);
}

#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_written_is_named() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let run = Process::new(env!("CARGO_BIN_EXE_single-gpu"))
        .args(SMALL)
        .stdout(full())
        .output()
        .expect("a process");
    assert_eq!(run.status.code(), Some(1));
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(told.contains("error: standard output: No space left on device"), "{told}");
    let run = single_gpu(&SMALL).arg("--metrics=/dev/full").assert().code(1);
    run.stderr(contains("cannot write the report: --metrics /dev/full: No space left on device"));
    // One that cannot be written does not cost the others.
    let folder = tempfile::tempdir().expect("a folder");
    let others = ["plot.svg", "timeline.svg"].map(|name| folder.path().join(name));
    let mut run = single_gpu(&SMALL);
    run.arg("--trace=/dev/full").arg("--plot").arg(&others[0]).arg("--timeline").arg(&others[1]);
    run.assert().code(1).stderr(contains("--trace /dev/full: No space left on device"));
    assert!(others.iter().all(|file| file.exists()), "{others:?}");
}

/// A picture or metrics are printed where `/dev/stdout` leads, a pipe or a file, between the other lines: nothing is written
/// over anything else.
#[cfg(target_os = "linux")]
#[test]
fn files_may_go_where_the_rest_is_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("printed");
    for (flag, is_picture) in [("--plot=/dev/stdout", true), ("--metrics=/dev/stdout", false)] {
        let run = |stdout: Stdio| {
            let mut run = Process::new(env!("CARGO_BIN_EXE_single-gpu"));
            run.args(SMALL).args(["--threads-per-device=1", flag]).stdout(stdout);
            let ended = run.output().expect("a process");
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
            ended.stdout
        };
        let piped = run(Stdio::piped());
        run(fs::File::create(&file).expect("a file").into());
        assert_eq!(names_in(folder.path()), ["printed"]);
        for text in [piped, fs::read(&file).expect("text")] {
            let text = String::from_utf8(text).expect("text");
            let place = |part: &str| text.find(part);
            let (picture, end) = (place("<svg"), place("</svg>"));
            assert_eq!((picture > place("epoch "), end > picture), (is_picture, is_picture));
            let (metrics, rest): (Vec<_>, Vec<_>) =
                text.lines().partition(|line| line.starts_with('{'));
            let kinds = metrics.into_iter().map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
                line["kind"].as_str().expect("a kind").to_owned()
            });
            let expected = if is_picture { &[][..] } else { &["epoch", "epoch", "summary"] };
            assert_eq!(kinds.collect::<Vec<_>>(), expected, "{text}");
            let of_epochs = rest.iter().filter(|line| line.starts_with("  epoch "));
            assert_eq!(of_epochs.count(), 2, "{text}");
            assert!(rest.iter().any(|line| line.contains(" weights ")), "{text}");
        }
    }
}
