//! A run in a process of its own, which is told to end, or just ends.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;

use checkpoints::Resume;
use harness::interrupt;
use tempfile::TempDir;

use super::files::names_in;
use super::run::{Settings, file, hash, lenet, measured};
use super::watched::{Event, Watched};
use crate::prelude::*;

/// Set in the process that trains: how often it writes checkpoints, and where.
const EVERY: &str = "CHECKPOINTS_EVERY";
const FOLDER: &str = "CHECKPOINTS_FOLDER";

/// More than any of these runs comes to.
const ENDLESS: usize = 1_000_000;

/// No test but what the process does that others start: it trains, and goes on from what is there.
#[test]
fn child() {
    let (Some(folder), Ok(every)) = (env::var_os(FOLDER), env::var(EVERY)) else { return };
    let mut settings = Settings::keeping_in(Path::new(&folder)).every(every.parse().unwrap());
    settings.options.epochs = ENDLESS;
    if settings.folder().exists() && !steps(&settings).is_empty() {
        settings = settings.resume(Resume::Newest);
    }
    interrupt::watch().unwrap();
    let slow = Watched::new(Box::new(lenet()), |step| {
        println!("\nstep {step}");
        sleep(Duration::from_millis(5));
        Event::Nothing
    });
    settings.train(&slow).unwrap();
    assert_eq!(interrupt::exit_code(), Some(143));
}

fn begin(folder: &Path, every: usize) -> Child {
    begin_with(folder, every, Command::new(env::current_exe().unwrap()))
}

fn begin_with(folder: &Path, every: usize, mut program: Command) -> Child {
    let mut child = program
        .args(["--exact", "checkpoints::signals::child", "--nocapture"])
        .env(FOLDER, folder)
        .env(EVERY, every.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "step 4"));
    // Somebody has to go on reading.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

fn kill(child: &Child, signal: &str) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

fn steps(settings: &Settings) -> Vec<usize> {
    let all = names_in(settings.folder()).into_iter();
    let of = |name: String| {
        let digits = name.strip_prefix("step-")?.strip_suffix(".safetensors")?;
        digits.parse().ok()
    };
    all.filter_map(of).collect()
}

/// Goes on for another epoch or two, and compares with a run that had no cut.
fn assert_goes_on(settings: &Settings) {
    let mut settings = settings.resume(Resume::Newest);
    settings.options.epochs = steps(&settings).last().unwrap().div_ceil(3) + 1;
    let rest = settings.train(&lenet()).unwrap();
    let whole = Settings { checkpoints: None, ..settings }.train(&lenet()).unwrap();
    assert_eq!(hash(&rest), hash(&whole));
    assert_eq!(measured(&rest), measured(&whole));
}

#[test]
fn sigterm_leaves_a_checkpoint_of_the_last_step() {
    let folder = TempDir::new().unwrap();
    let settings = Settings::keeping_in(folder.path());
    let mut child = begin(folder.path(), ENDLESS);
    kill(&child, "-TERM");
    assert!(child.wait().unwrap().success());
    let written = steps(&settings);
    assert_eq!(written.len(), 1, "{written:?}");
    assert_eq!(names_in(settings.folder()), ["lock", &file(written[0])]);
    assert_goes_on(&settings);
}

#[test]
fn a_kill_at_any_moment_leaves_whole_checkpoints() {
    let folder = TempDir::new().unwrap();
    let settings = Settings::keeping_in(folder.path());
    for attempt in 0..8 {
        let mut child = begin(folder.path(), 1);
        sleep(Duration::from_micros(1_700 * attempt));
        kill(&child, "-KILL");
        child.wait().unwrap();
        // The lock went with the process. A file that was half written has another name.
        assert!(steps(&settings).len() >= 3);
    }
    assert_goes_on(&settings);
    assert!(names_in(settings.folder()).iter().all(|name| !name.ends_with(".partial")));
    assert!(fs::read_dir(settings.folder()).unwrap().count() <= 4);
}

/// What NFS and FUSE may answer: there are no locks, and a folder cannot be synced.
#[cfg(target_os = "linux")]
const POOR_FILE_SYSTEM: &str = r#"
    #include <errno.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    int flock(int file, int operation) {
        errno = ENOLCK;
        return -1;
    }

    int fsync(int file) {
        struct stat about;
        if (fstat(file, &about) == 0 && S_ISDIR(about.st_mode)) {
            errno = EINVAL;
            return -1;
        }
        return syscall(SYS_fsync, file);
    }
"#;

#[cfg(target_os = "linux")]
#[test]
fn a_poor_file_system_keeps_checkpoints() {
    let folder = TempDir::new().unwrap();
    let (source, library) = (folder.path().join("poor.c"), folder.path().join("poor.so"));
    fs::write(&source, POOR_FILE_SYSTEM).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    if compiler.status().is_err() {
        println!("skipped: there is no C compiler");
        return;
    }
    let settings = Settings::keeping_in(folder.path());
    let mut program = Command::new(env::current_exe().unwrap());
    program.env("LD_PRELOAD", &library);
    let mut child = begin_with(folder.path(), 1, program);
    kill(&child, "-TERM");
    assert!(child.wait().unwrap().success());
    assert!(steps(&settings).len() >= 3);
    assert_goes_on(&settings);
}
