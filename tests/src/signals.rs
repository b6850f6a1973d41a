//! Programs that tests interrupt.

use std::ffi::OsStr;
use std::process::Command;

/// A command that starts a program with the default action of Ctrl-C (`SIGINT`).
///
/// A script's background job ignores `SIGINT`. All programs that the job starts ignore the signal too. Linux's `env` restores
/// the default action. On other systems, the programs of the course handle the signal even if it was ignored.
pub fn with_default_sigint(program: impl AsRef<OsStr>) -> Command {
    if !cfg!(target_os = "linux") {
        return Command::new(program);
    }
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(program);
    command
}
