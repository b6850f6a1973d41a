//! `mpirun`, for tests with ranks as processes.

use std::process::Command;

/// Returns the beginning of a command that starts processes on this machine: append `-n 4 PROGRAM`. With Open MPI, root may use
/// it, there may be more processes than cores, and a process may use any core. Without `mpirun`, prints that `what` is skipped.
pub fn mpirun(what: &str) -> Option<Command> {
    if let Err(error) = Command::new("mpirun").arg("--version").output() {
        eprintln!("SKIPPED: {what}: no mpirun was found ({error})");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.envs([
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ]);
    Some(command)
}
