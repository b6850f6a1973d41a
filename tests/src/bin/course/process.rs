//! A process and all that it starts: begun together, waited for only so long, and ended together.
//!
//! Everything that this tool waits for and that may hang goes through here: commands of the book, readers' answers,
//! sides of a comparison, programs that are asked for their version.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use single_gpu::cli::ToldElsewhere;
use single_gpu::interrupt;

/// How often to look whether a process has ended. Looking takes microseconds.
const LOOK: Duration = Duration::from_millis(10);

/// How a process ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// By itself, or by a crash.
    Alone(ExitStatus),
    /// It was ended, because it took too long.
    OutOfTime,
    /// It was ended, because somebody pressed Ctrl-C.
    Interrupted,
}

/// A process in a group of its own, with whatever it starts.
#[derive(Debug)]
pub(crate) struct Group {
    leader: Child,
    started: Instant,
}

impl Group {
    /// Starts a program; nobody types.
    ///
    /// # Errors
    ///
    /// When it cannot be started, or the system refuses to tell us of Ctrl-C.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        // A group of its own can be ended as a whole, but the terminal's Ctrl-C does not reach it.
        interrupt::watch()?;
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let leader = command.stdin(Stdio::null()).spawn()?;
        Ok(Self { leader, started: Instant::now() })
    }

    /// Waits until the program has ended. When its time is up, counted from its start, or somebody presses Ctrl-C, it
    /// is ended with all that it started.
    ///
    /// # Errors
    ///
    /// When it cannot be waited for; then it is ended as well.
    pub(crate) fn wait(mut self, limit: Duration) -> io::Result<How> {
        let how = loop {
            match self.leader.try_wait() {
                Ok(Some(status)) => return Ok(How::Alone(status)),
                Ok(None) if interrupt::requested() => break Ok(How::Interrupted),
                Ok(None) if self.started.elapsed() < limit => std::thread::sleep(LOOK),
                Ok(None) => break Ok(How::OutOfTime),
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
        // The group comes first: without its leader there would be nobody left to name it by.
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
pub(crate) struct Printed(File);

impl Printed {
    /// Nothing yet.
    ///
    /// # Errors
    ///
    /// When no file can be made.
    pub(crate) fn nothing() -> io::Result<Self> {
        tempfile::tempfile().map(Self)
    }

    /// A process's standard output or standard error. What has several is printed in the order in which it came.
    ///
    /// # Errors
    ///
    /// When the system has no more files to give.
    pub(crate) fn stream(&self) -> io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }

    /// All that was printed.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub(crate) fn text(mut self) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// What is left to say of work that ended because of Ctrl-C, to whoever pressed it: an exit code.
pub(crate) fn interrupted() -> anyhow::Error {
    ToldElsewhere(interrupt::exit_code().unwrap_or(1)).into()
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
