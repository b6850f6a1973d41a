//! One test binary, run in a process of its own until it ends or has to be ended.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use single_gpu::interrupt;

/// How often to look whether a process has ended. Looking takes microseconds.
const LOOK: Duration = Duration::from_millis(10);

/// What a process left behind.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) how: How,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// How a process ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    /// By itself, or by a crash.
    Alone(ExitStatus),
    /// It was ended, because it took too long.
    OutOfTime,
    /// It was ended, because somebody pressed Ctrl-C.
    Interrupted,
}

/// Runs those tests of a test binary whose names contain `filter`, in the package's folder as cargo does.
///
/// # Errors
///
/// When it cannot be started or waited for.
pub(super) fn run(
    executable: &Path,
    folder: &Path,
    filter: &str,
    limit: Duration,
) -> anyhow::Result<Ended> {
    // Files, and not pipes: nobody has to empty them while the process runs.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut command = Command::new(executable);
    command.arg(filter).current_dir(folder);
    // One after the other: then the last line names the test that was running.
    command.args(["--test-threads=1", "--color=never"]);
    // A backtrace of a check says nothing about the answer.
    command.env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    // What the reader's code starts is ended with it.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child =
        command.spawn().with_context(|| format!("{} cannot be started", executable.display()))?;
    let started = Instant::now();
    let how = loop {
        if let Some(status) = child.try_wait()? {
            break How::Alone(status);
        }
        // The process is in a group of its own, so a terminal's Ctrl-C reaches only this one.
        let reason = match (interrupt::requested(), started.elapsed() >= limit) {
            (true, _) => How::Interrupted,
            (false, true) => How::OutOfTime,
            (false, false) => {
                std::thread::sleep(LOOK);
                continue;
            }
        };
        end(&mut child)?;
        break reason;
    };
    Ok(Ended { how, stdout: text(&mut stdout)?, stderr: text(&mut stderr)? })
}

/// Ends a process, and on Unix all of its group, and waits until it is gone.
fn end(child: &mut Child) -> std::io::Result<()> {
    // The standard library ends one process, not a group. The shell that every Unix has can; the crates that
    // can ask libc for features that would have everything compiled anew after every use of this tool.
    #[cfg(unix)]
    Command::new("sh")
        .args(["-c", "kill -KILL -$0", &child.id().to_string()])
        .stderr(Stdio::null())
        .status()?;
    child.kill()?;
    child.wait().map(drop)
}

fn text(file: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
