//! Runs other programs, with a limit of time.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::{Group, How, Printed};

/// The longest wait for the answer of a program.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the standard output of a program. Fails when the program cannot be started, fails or takes too long.
pub fn ask(program: impl AsRef<Path>, arguments: &[&str]) -> Result<String, String> {
    let name = program.as_ref().display().to_string();
    let told = |error: std::io::Error| format!("{name}: {error}");
    let answer = Printed::nothing().map_err(told)?;
    let mut command = Command::new(program.as_ref());
    command.args(arguments).stdout(answer.stream().map_err(told)?).stderr(Stdio::null());
    let group = Group::start(&mut command).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("not found ({name} is not on the PATH)"),
        _ => format!("{name} cannot be started: {error}"),
    })?;
    let status = match group.wait(PATIENCE).map_err(told)? {
        How::Alone(status) => status,
        How::OutOfTime => {
            return Err(format!("{name} did not answer within {} s", PATIENCE.as_secs()));
        }
        How::Interrupted => return Err(format!("{name} was interrupted")),
        How::TooMuch(excess) => return Err(format!("{name} {excess}")),
    };
    let answer = answer.text().map_err(told)?.trim().to_owned();
    match (status.success(), answer.is_empty()) {
        (true, false) => Ok(answer),
        (true, true) => Err(format!("{name} answered nothing")),
        (false, _) => Err(format!("{name} failed ({status})")),
    }
}

pub fn gpu_answers() -> bool {
    ask("nvidia-smi", &["--list-gpus"]).is_ok()
}

pub fn first_line(text: String) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}
