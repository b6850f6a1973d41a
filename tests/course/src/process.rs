//! A process and its children, with limits of time, output and memory.
//!
//! Every program that may hang or print without end runs in a [`Group`]: commands of the book, learners' answers, the sides of a
//! comparison.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use harness::cli::ReportedElsewhere;
use harness::interrupt;

/// The time between two looks at a process. A look takes microseconds.
const LOOK: Duration = Duration::from_millis(10);

/// The most bytes of output. The last part of this length is read.
const PRINTED: u64 = 16_000_000;

/// The most memory of a process, several times the memory of the largest check.
const MEMORY: u64 = 2 << 30;

#[derive(Clone, Copy, Debug)]
pub enum How {
    /// By itself, or by a crash.
    Alone(ExitStatus),
    OutOfTime,
    /// By Ctrl-C, or because the caller does not want the result any more.
    Interrupted,
    TooMuch(Excess),
}

#[derive(Clone, Copy, Debug)]
pub enum Excess {
    Printed,
    Memory,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Printed => write!(f, "printed more than {} MB", PRINTED / 1_000_000),
            Self::Memory => write!(f, "took more than {} GiB of memory", MEMORY >> 30),
        }
    }
}

/// A process and its children, as a group of their own.
#[derive(Debug)]
pub struct Group {
    leader: Child,
    started: Instant,
}

impl Group {
    /// Starts a program without input.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        // The terminal's Ctrl-C does not reach another group.
        interrupt::watch()?;
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let leader = command.stdin(Stdio::null()).spawn()?;
        Ok(Self { leader, started: Instant::now() })
    }

    /// Waits for the end of the program, at most `limit` after its start. Ctrl-C ends the wait. Then ends the whole group.
    pub fn wait(self, limit: Duration) -> io::Result<How> {
        self.wait_unless(limit, |_| Ok(None))
    }

    /// Like [`wait`](Self::wait), without a limit, while the result is `wanted`.
    pub fn wait_while(self, wanted: &dyn Fn() -> bool) -> io::Result<How> {
        self.wait_unless(Duration::MAX, |_| Ok((!wanted()).then_some(How::Interrupted)))
    }

    /// Like [`wait`](Self::wait), while the result is `wanted`, with limits of output and memory. Only on Linux is the memory
    /// known.
    pub fn wait_if_modest(
        self,
        limit: Duration,
        printed: &Printed,
        wanted: &dyn Fn() -> bool,
    ) -> io::Result<How> {
        self.wait_unless(limit, |leader| {
            Ok(if printed.length()? > PRINTED {
                Some(How::TooMuch(Excess::Printed))
            } else if resident(leader.id()).is_some_and(|bytes| bytes > MEMORY) {
                Some(How::TooMuch(Excess::Memory))
            } else {
                (!wanted()).then_some(How::Interrupted)
            })
        })
    }

    fn wait_unless(
        mut self,
        limit: Duration,
        end: impl Fn(&Child) -> io::Result<Option<How>>,
    ) -> io::Result<How> {
        let how = loop {
            match self.leader.try_wait() {
                Ok(Some(status)) => break Ok(How::Alone(status)),
                Ok(None) if interrupt::requested() => break Ok(How::Interrupted),
                Ok(None) if self.started.elapsed() >= limit => break Ok(How::OutOfTime),
                Ok(None) => {}
                Err(error) => break Err(error),
            }
            match end(&self.leader) {
                Ok(None) => std::thread::sleep(LOOK),
                Ok(Some(how)) => break Ok(how),
                Err(error) => break Err(error),
            }
        };
        self.end();
        how
    }

    /// Ends the whole group, and waits for the end of its leader.
    fn end(mut self) {
        // The standard library ends a single process. The crates that end a group need a feature of libc that the stages do not
        // use, so the shell ends the group. The group comes first, because its number is free again after its last process.
        #[cfg(unix)]
        let _ = Command::new("/bin/sh")
            .args(["-c", "kill -s KILL -- \"-$0\"", &self.leader.id().to_string()])
            .stderr(Stdio::null())
            .status();
        // The leader may have ended already.
        let _ = self.leader.kill();
        let _ = self.leader.wait();
    }
}

/// The output of a process, in a file. A pipe would have to be read while the process runs, and while its children live.
#[derive(Debug)]
pub struct Printed(File);

impl Printed {
    /// Nothing yet.
    pub fn nothing() -> io::Result<Self> {
        tempfile::tempfile().map(Self)
    }

    /// A stream for standard output or standard error. One file for both keeps the order of the lines.
    pub fn stream(&self) -> io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }

    /// The text, or the last part of a very long one.
    pub fn text(mut self) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.0.seek(SeekFrom::Start(self.length()?.saturating_sub(PRINTED)))?;
        // A child may still print.
        self.0.take(PRINTED).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// The memory of a process in bytes, or `None` if the system does not report the memory.
fn resident(id: u32) -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let told = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = told.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

/// The error of work that Ctrl-C has ended: an exit code without a message.
pub fn interrupted() -> anyhow::Error {
    ReportedElsewhere(interrupt::exit_code().unwrap_or(1)).into()
}

#[cfg(all(test, unix))]
mod tests {
    use std::path::Path;

    use super::*;

    fn shell(script: &str, folder: &Path) -> Group {
        let mut command = Command::new("sh");
        Group::start(command.args(["-c", script]).current_dir(folder)).expect("there is a shell")
    }

    #[test]
    fn what_takes_too_long_is_ended_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        // The child starts another process.
        let group = shell("(sh -c 'sleep 2; touch late' & wait) & sleep 60", folder.path());
        let started = Instant::now();
        let how = group.wait(Duration::from_millis(300)).unwrap();
        assert!(matches!(how, How::OutOfTime), "{how:?}");
        assert!(started.elapsed() < Duration::from_secs(2));
        std::thread::sleep(Duration::from_secs(3));
        assert!(!folder.path().join("late").exists(), "a process lived on");
    }

    #[test]
    fn what_ends_in_time_tells_its_own_status() {
        let how = shell("exit 3", Path::new("/")).wait(Duration::from_secs(20)).unwrap();
        assert!(matches!(how, How::Alone(status) if status.code() == Some(3)), "{how:?}");
    }

    #[test]
    fn whom_it_leaves_behind_is_ended_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let group = shell("(sleep 1; touch late) & exit 0", folder.path());
        assert!(matches!(group.wait(Duration::from_secs(20)).unwrap(), How::Alone(_)));
        std::thread::sleep(Duration::from_secs(2));
        assert!(!folder.path().join("late").exists(), "a process lived on");
    }

    #[test]
    fn what_prints_without_end_is_ended_and_its_last_part_is_read() {
        let printed = Printed::nothing().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "yes again"]).stdout(printed.stream().unwrap());
        let group = Group::start(&mut command).unwrap();
        let how = group.wait_if_modest(Duration::from_secs(20), &printed, &|| true).unwrap();
        assert!(matches!(how, How::TooMuch(Excess::Printed)), "{how:?}");
        assert_eq!(printed.text().unwrap().len() as u64, PRINTED);
    }

    #[test]
    fn what_cannot_be_started_says_so_at_once() {
        let error = Group::start(&mut Command::new("/no/such/program")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn those_who_hold_what_a_process_printed_are_not_waited_for() {
        let printed = Printed::nothing().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo said; sleep 5 &"]).stdout(printed.stream().unwrap());
        let started = Instant::now();
        Group::start(&mut command).unwrap().wait(Duration::from_secs(20)).unwrap();
        assert_eq!(printed.text().unwrap(), "said\n");
        assert!(started.elapsed() < Duration::from_secs(4));
    }
}
