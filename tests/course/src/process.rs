//! A process and its children, with limits of time, output and memory, for every program that may hang or print without end:
//! commands of the book, learners' answers, the sides of a comparison.

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

/// Words for an excess.
pub const PRINTED_TOO_MUCH: &str = "printed more than 16 MB";
pub const TOOK_TOO_MUCH: &str = "took more than 2 GiB of memory";

#[derive(Clone, Copy, Debug)]
pub enum How {
    /// By itself, or by a crash.
    Alone(ExitStatus),
    OutOfTime,
    /// By Ctrl-C, or because the caller does not want the result any more.
    Interrupted,
    /// By an excess, in words such as [`PRINTED_TOO_MUCH`].
    TooMuch(&'static str),
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
        std::os::unix::process::CommandExt::process_group(command, 0);
        let leader = command.stdin(Stdio::null()).spawn()?;
        Ok(Self { leader, started: Instant::now() })
    }

    /// Waits for the end of the program, at most `limit` after its start. Ctrl-C ends the wait. Then ends the whole group.
    pub fn wait(self, limit: Duration) -> io::Result<How> {
        self.wait_unless(limit, || Ok(None))
    }

    /// Like [`wait`](Self::wait), while the result is `wanted`, with limits of memory and of output that is kept. Only on Linux
    /// is the memory known.
    pub fn wait_if_modest(
        self,
        limit: Duration,
        printed: Option<&Printed>,
        wanted: &dyn Fn() -> bool,
    ) -> io::Result<How> {
        let id = self.leader.id();
        self.wait_unless(limit, || {
            let length = printed.map_or(Ok(0), Printed::length)?;
            let printed = (length > PRINTED).then_some(How::TooMuch(PRINTED_TOO_MUCH));
            let memory = || (resident(id)? > MEMORY).then_some(How::TooMuch(TOOK_TOO_MUCH));
            let unwanted = || (!wanted()).then_some(How::Interrupted);
            Ok(printed.or_else(memory).or_else(unwanted))
        })
    }

    /// Like [`wait`](Self::wait), until `end` returns an end.
    pub fn wait_unless(
        mut self,
        limit: Duration,
        end: impl Fn() -> io::Result<Option<How>>,
    ) -> io::Result<How> {
        let mut look = || match self.leader.try_wait()? {
            Some(status) => Ok(Some(How::Alone(status))),
            None if interrupt::requested() => Ok(Some(How::Interrupted)),
            None if self.started.elapsed() >= limit => Ok(Some(How::OutOfTime)),
            None => end(),
        };
        let how = loop {
            match look().transpose() {
                None => std::thread::sleep(LOOK),
                Some(how) => break how,
            }
        };
        // The crates that end a group need a feature of libc that the stages do not use, so the shell ends the group. The group
        // comes first, because its number is free again after its last process.
        let _ = Command::new("/bin/sh")
            .args(["-c", "kill -s KILL -- \"-$0\"", &self.leader.id().to_string()])
            .stderr(Stdio::null())
            .status();
        let _ = self.leader.kill();
        let _ = self.leader.wait();
        how
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
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let told = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = told.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

/// The error of work that Ctrl-C has ended: an exit code without a message.
pub fn interrupted() -> anyhow::Error {
    ReportedElsewhere(interrupt::exit_code().unwrap_or(1)).into()
}

#[cfg(test)]
#[test]
fn of_a_long_output_the_last_part_is_read() {
    let (printed, mut command) = (Printed::nothing().unwrap(), Command::new("sh"));
    command
        .args(["-c", "yes first | head -c 16000000; echo last"])
        .stdout(printed.stream().unwrap());
    Group::start(&mut command).unwrap().wait(Duration::from_secs(20)).unwrap();
    let text = printed.text().unwrap();
    assert!(text.len() as u64 == PRINTED && text.ends_with("last\n"));
}
