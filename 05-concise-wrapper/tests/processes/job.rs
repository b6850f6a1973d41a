//! Starting a stage's program, alone or under `mpirun`, and watching it.

use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs};

use harness::lock::locked;
use serde_json::Value;
use tempfile::TempDir;

use super::binary;

/// No job takes that long, even on a busy machine, unless it hangs.
const HANGS: Duration = Duration::from_secs(180);

/// How long a job may take to end that has lost a rank.
pub(crate) const BOUNDED: Duration = Duration::from_secs(30);

/// One test at a time: the ranks of one job need more cores than there are already.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    locked(&TURN)
}

/// The binary, as one process.
pub(crate) fn alone() -> Command {
    let mut command = Command::new(binary());
    prepare(&mut command);
    command
}

/// The binary, as so many processes; `None` where there is no `mpirun`.
pub(crate) fn processes(ranks: usize) -> Option<Command> {
    let mut command = mpirun(&format!("{ranks} processes"))?;
    command.args(["-n", &ranks.to_string()]).arg(binary());
    Some(command)
}

/// `mpirun`, with nothing to start yet.
pub(crate) fn mpirun(what: &str) -> Option<Command> {
    let mut command = crate::mpirun::mpirun(what)?;
    prepare(&mut command);
    Some(command)
}

/// No test depends on a network, or on what is in this user's cache.
pub(crate) fn prepare(command: &mut Command) {
    command.env("COURSE_MIRRORS", "http://127.0.0.1:9").env("RUST_BACKTRACE", "0");
    command.env("COURSE_DATA_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-data"));
}

/// Runs to the end, which has to be a good one, and returns the summaries' hashes.
pub(crate) fn hashes(command: Command) -> Vec<String> {
    hashes_within(command, HANGS)
}

/// [`hashes`] of a run that may take so long.
pub(crate) fn hashes_within(mut command: Command, limit: Duration) -> Vec<String> {
    let folder = TempDir::new().unwrap();
    let metrics = folder.path().join("metrics.jsonl");
    command.arg("--metrics").arg(&metrics);
    let ended = Started::new(command).end_within(limit);
    assert!(ended.success, "{}", ended.text);
    let text = fs::read_to_string(metrics).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let summaries = lines.filter(|line| line["kind"] == "summary");
    summaries.map(|line| line["weights_hash"].as_str().unwrap().to_owned()).collect()
}

/// Ends with this code, after having said this once.
pub(crate) fn refused(command: Command, code: i32, says: &str) {
    let Ended { code: ended, text, .. } = Started::new(command).end();
    assert_eq!(ended, Some(code), "{text}");
    assert_eq!(text.matches(says).count(), 1, "{says:?} once in:\n{text}");
    assert_eq!(text.matches("error: ").count(), 1, "{text}");
    assert!(!text.contains("panicked"), "{text}");
}

/// How a job has ended.
pub(crate) struct Ended {
    pub(crate) success: bool,
    pub(crate) code: Option<i32>,
    /// What its ranks and `mpirun` wrote.
    pub(crate) text: String,
    /// How long it took since somebody began to wait for its end.
    pub(crate) took: Duration,
}

/// A job that is under way.
pub(crate) struct Started(Option<Child>);

impl Started {
    pub(crate) fn new(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().unwrap()))
    }

    fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    /// Waits until something has happened, which has to be before the job ends.
    pub(crate) fn until(&mut self, happened: impl Fn() -> bool) {
        let began = Instant::now();
        while !happened() {
            assert!(began.elapsed() < HANGS, "it hangs");
            if self.0.as_mut().unwrap().try_wait().unwrap().is_some() {
                let Output { stdout, stderr, .. } =
                    self.0.take().unwrap().wait_with_output().unwrap();
                panic!("it ended too early:\n{}", written(&stdout, &stderr));
            }
            sleep(Duration::from_millis(2));
        }
    }

    /// Sends a signal to one rank's process, as soon as it is there.
    pub(crate) fn signal(&mut self, rank: usize, signal: &str) {
        let id = self.id();
        self.until(|| process_of(id, rank).is_some_and(|process| send(process, signal)));
    }

    /// Sends a signal to `mpirun`.
    pub(crate) fn signal_mpirun(&self, signal: &str) {
        assert!(send(self.id(), signal));
    }

    /// Waits for the end.
    pub(crate) fn end(self) -> Ended {
        self.end_within(HANGS)
    }

    /// Waits for the end, and that it comes within so long.
    fn end_within(mut self, limit: Duration) -> Ended {
        let began = Instant::now();
        let id = self.id();
        let child = self.0.take().unwrap();
        let waiting = std::thread::spawn(move || child.wait_with_output().unwrap());
        while !waiting.is_finished() {
            if began.elapsed() > limit {
                for process in [vec![id], descendants(id)].concat() {
                    send(process, "-KILL");
                }
                let Output { stdout, stderr, .. } = waiting.join().unwrap();
                panic!("it hangs:\n{}", written(&stdout, &stderr));
            }
            sleep(Duration::from_millis(2));
        }
        let took = began.elapsed();
        let Output { status, stdout, stderr } = waiting.join().unwrap();
        let text = written(&stdout, &stderr);
        Ended { success: status.success(), code: status.code(), text, took }
    }
}

impl Drop for Started {
    /// A test that fails leaves nothing running.
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            for process in descendants(child.id()) {
                send(process, "-KILL");
            }
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn written(stdout: &[u8], stderr: &[u8]) -> String {
    [stdout, stderr].map(String::from_utf8_lossy).join("\n")
}

/// Whether the process was still there.
fn send(process: u32, signal: &str) -> bool {
    let sent = Command::new("kill").args([signal, &process.to_string()]).status();
    sent.is_ok_and(|status| status.success())
}

/// The process of one rank of a job.
fn process_of(mpirun: u32, rank: usize) -> Option<u32> {
    // Open MPI's name for it, and that of those who speak PMI.
    let named = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].map(|name| format!("{name}={rank}"));
    descendants(mpirun).into_iter().find(|process| {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let mut all = environment.split(|byte| *byte == 0);
        all.any(|variable| named.iter().any(|named| named.as_bytes() == variable))
    })
}

/// The processes that a process has started, and those that these have.
fn descendants(of: u32) -> Vec<u32> {
    let children = format!("/proc/{of}/task");
    let tasks = fs::read_dir(children).into_iter().flatten().flatten();
    let listed = tasks.map(|task| fs::read_to_string(task.path().join("children")));
    let own: Vec<u32> = listed
        .flatten()
        .flat_map(|line| line.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
        .collect();
    let further = own.iter().flat_map(|child| descendants(*child));
    own.iter().copied().chain(further).collect()
}
