//! The flags that are about checkpoints.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use harness::cli::UsageError;
use harness::report::file;

use super::{About, Checkpoints, Resume, folder};

/// The longest distance that can be asked for: more steps than any run has.
const MOST: u64 = u32::MAX as u64;

/// Flags that say where a run keeps its checkpoints, and whether it goes on from one.
#[derive(Args, Clone, Debug)]
pub struct CheckpointArguments {
    /// Write checkpoints to this folder, from which --resume goes on
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,

    /// Steps from one checkpoint to the next; one is also written at the end, and after Ctrl-C
    #[arg(long, value_name = "N", default_value_t = 100, requires = "checkpoint",
          value_parser = clap::value_parser!(u64).range(1..=MOST))]
    pub checkpoint_every: u64,

    /// How many checkpoints to keep
    #[arg(long, value_name = "N", default_value_t = 3, requires = "checkpoint",
          value_parser = clap::value_parser!(u64).range(1..=MOST))]
    pub keep: u64,

    /// Go on from the newest checkpoint, and behind what --metrics has; with latest-valid, from the newest that is not
    /// damaged
    #[arg(long, value_name = "WHICH", value_enum, num_args = 0..=1, default_missing_value = "newest",
          requires = "checkpoint")]
    pub resume: Option<Resume>,
}

impl CheckpointArguments {
    /// Their names, for flags that go with none of them. (With `checkpoint` alone clap would not miss it where another one
    /// asks for it.)
    pub const ALL: [&str; 4] = ["checkpoint", "checkpoint_every", "keep", "resume"];

    /// Checks the folder against what is asked for, and leaves everything as it was. Of several ranks only rank 0 does
    /// this: only its folder counts.
    ///
    /// # Errors
    ///
    /// A [`UsageError`] when there is nothing to go on from, or there is and nobody asked for it, or the
    /// folder is none.
    pub fn check(&self) -> Result<(), UsageError> {
        let Some(path) = &self.checkpoint else { return Ok(()) };
        let refused = |told: &dyn std::fmt::Display| {
            UsageError::new(format_args!("--checkpoint {}: {told}", path.display()))
        };
        if path.exists() && !path.is_dir() {
            return Err(refused(&"this is not a folder"));
        }
        if !path.exists() {
            room_for(path).map_err(|error| refused(&error))?;
        }
        let mut newest = None;
        if path.exists() {
            newest = folder::checkpoints(path).map_err(|error| refused(&error))?.pop();
            file::check(&path.join(folder::LOCK)).map_err(|error| refused(&error))?;
        }
        match (newest, self.resume) {
            (None, Some(_)) => Err(refused(&"there is no checkpoint to go on from")),
            (Some((step, _)), None) => Err(refused(&format_args!(
                "it has checkpoints up to step {step}: go on from them with --resume, or choose another \
                 folder"
            ))),
            _ => Ok(()),
        }
    }

    /// What the loop is to do; `None` without `--checkpoint`.
    pub fn checkpoints(&self, about: About) -> Option<Checkpoints> {
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        self.checkpoint.as_ref().map(|folder| Checkpoints {
            folder: folder.clone(),
            every: count(self.checkpoint_every),
            keep: count(self.keep),
            resume: self.resume,
            about,
        })
    }
}

/// Whether a folder that is not there could be made, told by one of another name that is made and removed in what there is of
/// its path: runs that begin at the same time beside each other take nothing from each other.
fn room_for(folder: &Path) -> io::Result<()> {
    let there = |path: &&Path| path.as_os_str().is_empty() || path.symlink_metadata().is_ok();
    match folder.ancestors().find(there) {
        Some(above) if !above.as_os_str().is_empty() => tempfile::tempdir_in(above)?.close(),
        _ => tempfile::tempdir_in(".")?.close(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        checkpoints: CheckpointArguments,
        #[arg(long)]
        other: bool,
    }

    fn parse(arguments: &[&str]) -> Result<CheckpointArguments, clap::Error> {
        let all = ["program"].into_iter().chain(arguments.iter().copied());
        Program::try_parse_from(all).map(|program| program.checkpoints)
    }

    #[test]
    fn flags_become_settings() {
        let settings = |arguments: &[&str]| parse(arguments).unwrap().checkpoints(About::default());
        assert_eq!(settings(&[]), None);
        let plain = settings(&["--checkpoint=a"]).unwrap();
        assert_eq!((plain.every, plain.keep, plain.resume), (100, 3, None));
        let all = ["--checkpoint", "a", "--checkpoint-every=7", "--keep=1", "--resume", "--other"];
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
    }

    #[test]
    fn the_folder_has_to_suit() {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name).display().to_string();
        let told = |folder: &str, more: &[&str]| {
            let arguments = [&["--checkpoint", folder], more].concat();
            parse(&arguments).unwrap().check().map_err(|error| error.to_string())
        };
        let (full, file) = (inside("full"), inside("file"));
        std::fs::create_dir(&full).unwrap();
        std::fs::write(format!("{full}/step-00000070.safetensors"), "").unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(told(&inside("new"), &[]), Ok(()));
        assert_eq!(told(&inside("new/below/it"), &[]), Ok(()));
        assert!(told(&inside("file/below/it"), &[]).unwrap_err().contains("file/below/it: "));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(inside("nowhere/at all"), inside("link")).unwrap();
            assert!(told(&inside("link"), &[]).unwrap_err().contains("link: "));
            std::fs::remove_file(inside("link")).unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        assert_eq!(told(&full, &["--resume"]), Ok(()));
        assert!(told(&full, &[]).unwrap_err().contains("checkpoints up to step 70: go on from"));
        assert!(told(&file, &[]).unwrap_err().contains("this is not a folder"));
        if cfg!(target_os = "linux") {
            // Nobody may write there, whoever this is.
            told("/proc", &[]).unwrap_err();
            told("/proc/new/folder", &[]).unwrap_err();
        }
        for empty in [inside("new"), inside("")] {
            let told = told(&empty, &["--resume"]).unwrap_err();
            assert!(told.contains("there is no checkpoint to go on from"), "{told}");
        }
    }

    #[test]
    fn all_of_them_are_named() {
        let command = CheckpointArguments::augment_args(clap::Command::new("program"));
        let names: Vec<_> = command.get_arguments().map(|flag| flag.get_id().as_str()).collect();
        assert_eq!(names, CheckpointArguments::ALL);
    }
}
