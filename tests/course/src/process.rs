//! A process and all that it starts: begun together, waited for only so long, and ended together.
//!
//! Commands of the book, readers' answers, sides of a comparison, programs that are asked for their version: what may
//! hang, or print without end, goes through here. (Tools that end by themselves, such as git, do not.)

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use harness::cli::ReportedElsewhere;
use harness::interrupt;

/// How often to look whether a process has ended. Looking takes microseconds.
const LOOK: Duration = Duration::from_millis(10);

/// A modest process prints no more on a stream. Of what is longer, the last part of this length is read.
const PRINTED: u64 = 16_000_000;

/// A modest process has no more in memory: several times what the largest check of an exercise takes.
const MEMORY: u64 = 2 << 30;

#[derive(Clone, Copy, Debug)]
pub enum How {
    /// By itself, or by a crash.
    Alone(ExitStatus),
    OutOfTime,
    /// By Ctrl-C, or because the caller has no use for the program any more.
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

/// A process in a group of its own, with whatever it starts.
#[derive(Debug)]
pub struct Group {
    leader: Child,
    started: Instant,
}

impl Group {
    /// Starts a program; nobody types.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        // A group of its own can be ended as a whole, but the terminal's Ctrl-C does not reach it.
        interrupt::watch()?;
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let leader = command.stdin(Stdio::null()).spawn()?;
        Ok(Self { leader, started: Instant::now() })
    }

    /// Waits until the program has ended: by itself, or because its time is up, counted from its start, or because
    /// somebody pressed Ctrl-C. In each case all that it started is ended too.
    pub fn wait(self, limit: Duration) -> io::Result<How> {
        self.wait_unless(limit, |_| Ok(None))
    }

    /// As [`wait`](Self::wait), and ends the program as soon as it is not `wanted` any more.
    pub fn wait_while(self, wanted: &dyn Fn() -> bool) -> io::Result<How> {
        self.wait_unless(Duration::MAX, |_| Ok((!wanted()).then_some(How::Interrupted)))
    }

    /// As [`wait`](Self::wait), and ends the program as soon as it is not `wanted` any more, has printed too much, or takes
    /// too much memory. How much memory it takes is known on Linux only; elsewhere its time has to do.
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

    /// Ends all of the group, and waits until its leader is gone.
    fn end(mut self) {
        // The standard library ends one process, not a group. The shell that every Unix has can; the crates that
        // can ask libc for features that would have everything compiled anew after every use of this tool.
        // The group comes first: it keeps its number as long as anybody is in it, and no longer.
        #[cfg(unix)]
        let _ = Command::new("/bin/sh")
            .args(["-c", "kill -s KILL -- \"-$0\"", &self.leader.id().to_string()])
            .stderr(Stdio::null())
            .status();
        // It may have ended by itself meanwhile, and where there is no shell at least the leader is ended.
        let _ = self.leader.kill();
        let _ = self.leader.wait();
    }
}

/// What a process prints. A file, and no pipe: nobody has to empty it while the process runs, or waits for those who
/// were started by a process that has ended.
#[derive(Debug)]
pub struct Printed(File);

impl Printed {
    /// Nothing yet.
    pub fn nothing() -> io::Result<Self> {
        tempfile::tempfile().map(Self)
    }

    /// A process's standard output or standard error. What has several is printed in the order in which it came.
    pub fn stream(&self) -> io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }

    /// What was printed; the last part of it, where that is very long.
    pub fn text(mut self) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.0.seek(SeekFrom::Start(self.length()?.saturating_sub(PRINTED)))?;
        // Whoever was left behind may print on while this reads.
        self.0.take(PRINTED).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// How many bytes of memory a process has, where the system tells.
fn resident(id: u32) -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let told = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = told.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

/// What is left to say of work that ended because of Ctrl-C, to whoever pressed it: an exit code.
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
        // The one that is started starts another.
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
