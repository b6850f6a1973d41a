//! The flags.

use std::io;
use std::path::{Path, PathBuf};

use candle_core::Tensor;
use clap::{Args, ValueEnum};
use harness::cli::{UsageError, whole};
use harness::records::TrainerState;
use harness::report::{file, thousands};

use crate::file::not_finite;
use crate::folder::{LOCK, PREFIX, SUFFIX, check, checkpoints};
use crate::{Configuration, Error, MOST_EPOCHS};

/// Where a run keeps its checkpoints, and whether it resumes from one. A program flattens `Option<Checkpoints>`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(next_help_heading = "Output")]
pub struct Checkpoints {
    /// Write checkpoints to this folder
    #[arg(long = "checkpoint", id = "checkpoint", value_name = "DIR", required = false)]
    pub folder: PathBuf,

    /// Steps from one checkpoint to the next; one is also written at the end, and after Ctrl-C
    #[arg(long = "checkpoint-every", hide_short_help = true, value_name = "N", default_value_t = 100, requires = "checkpoint",
          value_parser = whole::<usize>(1..=u32::MAX.into()))]
    pub every: usize,

    /// How many checkpoints to keep
    #[arg(long, hide_short_help = true, value_name = "N", default_value_t = 3, requires = "checkpoint",
          value_parser = whole::<usize>(1..=u32::MAX.into()))]
    pub keep: usize,

    /// Resume from the newest checkpoint
    ///
    /// The lines of --metrics follow those of the earlier run. With latest-valid, the run resumes from the newest
    /// checkpoint that can be read and is not damaged.
    #[arg(long, value_name = "WHICH", value_enum, num_args = 0..=1, default_missing_value = "newest",
          requires = "checkpoint")]
    pub resume: Option<Resume>,

    /// The program multiplies `--batch-size` and `--lr` by this number before it trains: the devices, under the linear rule.
    #[arg(skip = 1_usize)]
    pub scale: usize,

    /// The settings of the run, which a checkpoint stores. A checkpoint with other settings is refused.
    #[arg(skip)]
    pub configuration: Configuration,
}

/// The checkpoint from which a run resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Resume {
    /// The newest; it is an error if that one is damaged or cannot be read.
    Newest,
    /// The newest that can be used. Newer ones are set aside: they get another name.
    LatestValid,
}

impl Checkpoints {
    /// The names of all flags, for flags that conflict with each of them.
    pub const FLAGS: [&str; 4] = ["checkpoint", "every", "keep", "resume"];

    /// Checks that a run of so many epochs can use the folder as the flags ask, and leaves everything as it was. Of several ranks
    /// only rank 0 calls this. Fails when the folder is none or cannot be made, when it has no checkpoint to resume from, when it
    /// has some and the run does not resume, and when the epochs are too many.
    pub fn check(&self, epochs: usize) -> Result<(), UsageError> {
        if epochs > MOST_EPOCHS {
            return Err(UsageError::new(format_args!(
                "--epochs {epochs}: a checkpoint has room for the results of at most {} epochs: take fewer, or leave --checkpoint out",
                thousands(MOST_EPOCHS)
            )));
        }
        let path = &self.folder;
        let usable = match path.is_dir() {
            true => file::check(&path.join(LOCK)),
            false if path.exists() => Err(io::Error::other("this is not a folder")),
            false => file::check_folder(path),
        };
        let refused = |error| Error::Refused(format!("{}: {error}", path.display()));
        let checked = usable.map_err(refused).and_then(|()| check(path, self.resume));
        checked.map_err(|error| UsageError::new(format_args!("--checkpoint {error}")))
    }

    /// Returns the file for the state after a step, if a checkpoint is due: after every so many steps, after the last step, and
    /// after an interrupt. The run has so many batches in each of so many epochs.
    pub fn due(&self, state: &TrainerState, of: (usize, usize)) -> Option<PathBuf> {
        let step = state.steps(of.0);
        let last = (state.batches, state.epoch()) == of;
        let is_due = step.is_multiple_of(self.every) || last || state.sums.interrupts > 0;
        is_due.then(|| self.folder.join(format!("{PREFIX}{step:08}{SUFFIX}")))
    }

    /// Refuses the tensors of a checkpoint if one is infinite or NaN: no run could go on from there. The error names the last
    /// checkpoint, which stays.
    pub fn check_finite(&self, path: &Path, tensors: &[(String, Tensor)]) -> Result<(), Error> {
        let found = not_finite(tensors.iter().map(|(name, tensor)| (name, tensor)));
        let Some(name) = found.map_err(|error| Error::Unusable(error.to_string()))? else {
            return Ok(());
        };
        let last = self.newest().ok().flatten();
        let last = last.map_or("no checkpoint was written before".to_owned(), |path| {
            format!("the last checkpoint stays: {}", path.display())
        });
        Err(Error::NotFinite(format!(
            "{} is not written, because {name} is not finite, most likely because the learning rate is too large; {last}",
            path.display()
        )))
    }

    /// Returns the file of the newest checkpoint in the folder. Fails when the folder cannot be read.
    pub fn newest(&self) -> Result<Option<PathBuf>, Error> {
        Ok(checkpoints(&self.folder)?.pop().map(|(_, path)| path))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        checkpoints: Option<Checkpoints>,
        #[arg(long, conflicts_with_all = Checkpoints::FLAGS)]
        other: bool,
    }

    fn parse(arguments: &[&str]) -> Result<Option<Checkpoints>, clap::Error> {
        let all = ["program"].into_iter().chain(arguments.iter().copied());
        Program::try_parse_from(all).map(|program| program.checkpoints)
    }

    #[test]
    fn flags_become_settings() {
        let settings = |arguments: &[&str]| parse(arguments).unwrap();
        assert_eq!(settings(&[]), None);
        assert_eq!(settings(&["--other"]), None);
        let plain = settings(&["--checkpoint=a"]).unwrap();
        assert_eq!((plain.folder, plain.every, plain.keep), (PathBuf::from("a"), 100, 3));
        assert_eq!(plain.resume, None);
        let all = ["--checkpoint", "a", "--checkpoint-every=7", "--keep=1", "--resume"];
        let all = settings(&all).unwrap();
        assert_eq!((all.every, all.keep, all.resume), (7, 1, Some(Resume::Newest)));
        let named = settings(&["--checkpoint=a", "--resume", "latest-valid"]).unwrap();
        assert_eq!(named.resume, Some(Resume::LatestValid));
        for wrong in [
            &["--resume"] as &[&str],
            &["--keep=2"],
            &["--checkpoint-every=2"],
            &["--checkpoint=a", "--keep=0"],
            &["--checkpoint=a", "--checkpoint-every=0"],
            &["--checkpoint=a", "--resume=oldest"],
        ] {
            parse(wrong).unwrap_err();
        }
        // Each flag by itself conflicts with the other one, and all flags are named.
        let command = Checkpoints::augment_args(clap::Command::new("program"));
        let names: Vec<_> = command.get_arguments().map(|flag| flag.get_id().as_str()).collect();
        assert_eq!(names, Checkpoints::FLAGS);
        for flag in ["--checkpoint=a", "--resume", "--keep=2", "--checkpoint-every=2"] {
            let error = parse(&[flag, "--other"]).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict, "{flag}");
        }
    }

    #[test]
    fn the_folder_has_to_suit() {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name).display().to_string();
        let check = |folder: &str, more: &[&str]| {
            let arguments = [&["--checkpoint", folder], more].concat();
            let checkpoints = parse(&arguments).unwrap().unwrap();
            checkpoints.check(1).map_err(|error| error.to_string())
        };
        let (full, file) = (inside("full"), inside("file"));
        std::fs::create_dir(&full).unwrap();
        std::fs::write(format!("{full}/step-00000070.safetensors"), "").unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(check(&inside("new"), &[]), Ok(()));
        assert_eq!(check(&inside("new/below/it"), &[]), Ok(()));
        assert!(check(&inside("file/below/it"), &[]).unwrap_err().contains("file/below/it: "));
        std::os::unix::fs::symlink(inside("nowhere/at all"), inside("link")).unwrap();
        assert!(check(&inside("link"), &[]).unwrap_err().contains("link: "));
        std::fs::remove_file(inside("link")).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        assert_eq!(check(&full, &["--resume"]), Ok(()));
        let begins = check(&full, &[]).unwrap_err();
        let expected = format!(
            "--checkpoint {full}: it has checkpoints up to step 70: resume from them with --resume, or choose another \
             folder"
        );
        assert_eq!(begins, expected);
        assert!(check(&file, &[]).unwrap_err().contains("file: this is not a folder"));
        if cfg!(target_os = "linux") {
            // No user may write there.
            check("/proc", &[]).unwrap_err();
            check("/proc/new/folder", &[]).unwrap_err();
        }
        for empty in [inside("new"), inside("")] {
            let error = check(&empty, &["--resume"]).unwrap_err();
            assert!(error.contains("there is no checkpoint to resume from"), "{error}");
        }
    }
}
