//! Where images come from.

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use predicates::prelude::*;
use predicates::str::contains;

use super::files::names_in;
use super::single_gpu;

const ONE_STEP: [&str; 5] =
    ["--train-size=16", "--test-size=10", "--epochs=1", "--batch-size=16", "--device=cpu"];

#[test]
fn offline_a_default_run_loses_less_than_five_seconds_and_says_what_it_uses() {
    // It takes connections and says nothing, like a network that swallows everything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mirror = format!("http://{}", silent.local_addr().unwrap());
    let time = |data: &str| {
        let started = Instant::now();
        let run = single_gpu(&ONE_STEP).args(["--data", data, "--data-mirrors", &mirror]).assert();
        (run.success().stdout(contains("LeNet on synthetic garments")), started.elapsed())
    };
    let (run, with) = time("auto");
    run.stderr("").stdout(contains(
        "\nnote: no mirror answers, so drawn garments replace Fashion-MNIST (README, Data)\n",
    ));
    let (run, without) = time("synthetic");
    run.stderr("");
    let lost = with.saturating_sub(without);
    assert!(lost < Duration::from_secs(5), "{lost:?}");
}

#[test]
fn who_insists_on_fashion_mnist_is_told_why_it_cannot_be_had() {
    let run = single_gpu(&ONE_STEP).arg("--data=fashion-mnist").assert().code(1).stdout("");
    run.stderr(
        contains(
            "error: --data fashion-mnist: cannot download t10k-labels-idx1-ubyte.gz; from http://127",
        )
        .and(contains("; use --data synthetic for synthetic garments\n"))
        .and(predicate::function(|text: &str| text.lines().count() == 1)),
    );
}

#[test]
fn a_folder_may_be_called_like_a_keyword() {
    let folder = data_folder();
    let named = folder.path().join("fashion-mnist");
    fs::create_dir(&named).unwrap();
    for entry in fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
        if entry.path().is_file() {
            fs::rename(entry.path(), named.join(entry.file_name())).unwrap();
        }
    }
    let mut run = single_gpu(&["--device=cpu", "--epochs=1", "--data=./fashion-mnist"]);
    let run = run.current_dir(folder.path()).assert().success();
    run.stdout(contains("LeNet on fashion-mnist: 2 training"));
    // What lies unpacked in the folder for downloads is used without a network.
    let mut run = single_gpu(&["--device=cpu", "--epochs=1", "--data-dir"]);
    run.arg(&named).assert().success().stdout(contains("LeNet on Fashion-MNIST: 2 training"));
}

fn data_folder() -> tempfile::TempDir {
    let header = [0x803u32, 2, 28, 28].map(u32::to_be_bytes).concat();
    let images = [header, vec![7; 2 * 784]].concat();
    let labels = [0, 0, 8, 1, 0, 0, 0, 2, 3, 9];
    let folder = tempfile::Builder::new().prefix("my-clothes").tempdir().expect("a folder");
    for split in ["train", "t10k"] {
        let file = |name: &str| folder.path().join(format!("{split}-{name}"));
        fs::write(file("images-idx3-ubyte"), &images).expect("room for images");
        fs::write(file("labels-idx1-ubyte"), labels).expect("room for labels");
    }
    folder
}

#[test]
fn a_folder_of_ones_own_is_trained_on() {
    let folder = data_folder();
    let run = single_gpu(&["--device=cpu", "--epochs=1", "--data"]).arg(folder.path()).assert();
    let text = ": 2 training and 2 test images";
    run.success().stdout(contains("LeNet on my-clothes").and(contains(text)));
}

#[test]
fn a_malformed_file_is_a_failure_that_names_it() {
    let folder = data_folder();
    let file = "train-images-idx3-ubyte";
    let path = folder.path().join(file);
    fs::write(&path, &fs::read(&path).unwrap()[..1000]).unwrap();
    let metrics = folder.path().join("metrics.jsonl");
    single_gpu(&["--data"])
        .arg(folder.path())
        .arg("--metrics")
        .arg(&metrics)
        .assert()
        .code(1)
        .stderr(contains(format!("error: --data: {}: ", path.display())))
        .stderr(contains("ends after 984 of the 1568 bytes").count(1));
    assert!(!metrics.exists(), "a run that never began leaves no metrics");
}

#[test]
fn a_missing_file_is_named() {
    let folder = data_folder();
    fs::remove_file(folder.path().join("t10k-labels-idx1-ubyte")).unwrap();
    let refusal = single_gpu(&["--data"]).arg(folder.path()).assert().code(2);
    refusal.stderr(contains(
        "no t10k-labels-idx1-ubyte, nor t10k-labels-idx1-ubyte.gz; there are t10k-images-idx3-ubyte, train-images",
    ));
    // Some archives unpack to a folder of the file's name.
    let unpacked = folder.path().join("t10k-labels-idx1-ubyte");
    fs::create_dir(&unpacked).unwrap();
    let refusal = single_gpu(&["--data"]).arg(folder.path()).assert().code(2);
    refusal.stderr(contains(format!("; {} is a folder", unpacked.display())));
}

/// A dot in place of a hyphen, and the name of a packed file for an unpacked one.
#[test]
fn files_may_have_other_names() {
    for (part, other) in [("-idx", ".idx"), ("ubyte", "ubyte.gz")] {
        let folder = data_folder();
        for file in names_in(folder.path()) {
            let path = |name: &str| folder.path().join(name);
            fs::rename(path(&file), path(&file.replace(part, other))).unwrap();
        }
        for flag in ["--data", "--data-dir"] {
            let mut run = single_gpu(&["--device=cpu", "--epochs=1", flag]);
            run.arg(folder.path()).assert().success().stdout(contains(": 2 training and 2 test"));
        }
    }
}

#[test]
fn images_are_read_where_this_system_has_its_caches() {
    let (home, images) = (tempfile::tempdir().unwrap(), data_folder());
    let caches = if cfg!(target_os = "macos") { "Library/Caches" } else { "caches" };
    let folder = home.path().join(caches).join("multi-gpu-course");
    fs::create_dir_all(&folder).unwrap();
    fs::rename(images.path(), folder.join("fashion-mnist")).unwrap();
    let mut run = single_gpu(&["--device=cpu", "--epochs=1"]);
    run.env_remove("COURSE_DATA_DIR").env("HOME", home.path());
    run.env("XDG_CACHE_HOME", home.path().join("caches"));
    run.assert().success().stdout(contains("LeNet on Fashion-MNIST: 2 training"));
}

#[test]
fn a_folder_of_other_files_is_not_replaced_by_drawn_images() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = single_gpu(&["--device=cpu", "--data-dir"]);
    run.arg(folder.path()).args(["--train-size=8", "--test-size=8", "--epochs=1"]);
    // An empty folder is one to download to.
    run.assert().success().stdout(contains("\nnote: no mirror answers, so drawn"));
    for name in ["a.npz", "images.npy"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let text = "Fashion-MNIST is not among a.npz, images.npy, and cannot be had (cannot download ";
    run.assert().code(2).stderr(contains(text).and(contains("or use --data synthetic")));
}

#[test]
fn a_contact_sheet_is_a_png() {
    let folder = tempfile::tempdir().unwrap();
    let sheet = folder.path().join("garments.png");
    single_gpu(&["--data=synthetic", "--train-size=100", "--test-size=10", "--contact-sheet"])
        .arg(&sheet)
        .assert()
        .success()
        .stdout(contains("row 10: Ankle boot"));
    assert!(fs::read(&sheet).unwrap().starts_with(b"\x89PNG\r\n"));
}

/// A folder with the same files and this name, in it.
fn called(folder: &tempfile::TempDir, name: &[u8]) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    let place = folder.path().join(std::ffi::OsStr::from_bytes(name));
    fs::create_dir(&place).expect("a folder");
    for entry in fs::read_dir(folder.path()).expect("a folder").flatten() {
        if entry.path().is_file() {
            fs::copy(entry.path(), place.join(entry.file_name())).expect("a copy");
        }
    }
    place
}

#[test]
fn a_folder_may_have_any_name() {
    let folder = data_folder();
    for (name, told) in [
        (&b"caf\xe9"[..], "LeNet on caf\u{fffd}: "),
        (b"\x1b[31m\nred", "on \u{fffd}[31m\u{fffd}red: "),
    ] {
        let plot = folder.path().join("plot.svg");
        let run = single_gpu(&["--device=cpu", "--epochs=1", "--data"])
            .arg(called(&folder, name))
            .arg("--plot")
            .arg(&plot)
            .assert();
        run.success().stdout(contains(told));
        let plot = fs::read_to_string(plot).expect("a plot");
        assert!(plot.lines().all(|line| !line.contains(char::is_control)), "{plot}");
    }
}

#[test]
fn a_variable_that_is_set_to_nothing_is_not_set() {
    for variable in ["COURSE_DATA_DIR", "COURSE_MIRRORS"] {
        let mut run = single_gpu(&[
            "--data=synthetic",
            "--train-size=8",
            "--test-size=8",
            "--epochs=1",
            "--device=cpu",
        ]);
        run.env(variable, "").assert().success();
    }
}
