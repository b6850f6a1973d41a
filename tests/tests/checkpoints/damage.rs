//! A file that is not what was written is refused, and a state that is not finite is not written.

use std::fs;

use checkpoints::Resume;
use tempfile::TempDir;

use super::files::names_in;
use super::run::{Cut, Settings, assert_same, cut, file, lenet, steps};
use super::watched::Event;
use crate::prelude::*;

/// A folder with the checkpoint of LeNet after step 2, and its bytes.
pub(crate) fn stored() -> (TempDir, Settings, Vec<u8>) {
    let folder = TempDir::new().unwrap();
    let settings = Settings::keeping(&folder);
    settings.train(&cut(lenet(), Cut(2, Event::Interrupt))).unwrap();
    let bytes = fs::read(settings.folder().join(file(2))).unwrap();
    (folder, settings.resume(Resume::Newest), bytes)
}

/// `checkpoints` tests files with any fault.
#[test]
fn a_damaged_file_is_refused_and_nothing_is_trained() {
    let (_folder, settings, bytes) = stored();
    let (path, model) = (settings.folder().join(file(2)), cut(lenet(), Cut::NEVER));
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = settings.train(&model).unwrap_err().to_string();
    let begin = format!("checkpoint {} is damaged: ", path.display());
    let end = "; --resume latest-valid takes the newest checkpoint that can be used";
    assert!(error.starts_with(&begin) && error.ends_with(end), "{error}");
    assert_eq!(steps(&model), 0);
    // The bytes themselves are fine.
    fs::write(&path, &bytes).unwrap();
    settings.train(&model).unwrap();
    assert_eq!(steps(&model), 4);
}

/// The run keeps one checkpoint, and the update of step 4 makes weights infinite.
#[test]
fn a_state_that_is_not_finite_is_not_written_and_the_last_good_one_stays() {
    let away = Cut(4, Event::RunAway);
    let undisturbed = Settings::new().train(&lenet()).unwrap();
    for ranks in [1, 2] {
        let folder = TempDir::new().unwrap();
        let mut settings = Settings::keeping(&folder).every(2);
        settings.checkpoints.as_mut().unwrap().keep = 1;
        let error = if ranks == 1 {
            settings.train(&cut(lenet(), away)).unwrap_err().to_string()
        } else {
            // Rank 0, which writes, has finite weights.
            let network = lenet();
            let plan = DevicePlan::slices(ranks).unwrap();
            let outcomes = run_ranks(&plan, WAIT, |rank| {
                let model = Ddp::new(network.replica(rank.device())?, rank, Reduction::default())?;
                settings.train(&cut(model, if rank.rank() == 0 { Cut::NEVER } else { away }))
            });
            outcomes.unwrap_err().to_string()
        };
        let [refused, last] = [4, 2].map(|step| settings.folder().join(file(step)));
        let expected = format!(
            "{} is not written, because W1 is not finite, most likely because the learning rate is too large; \
             the last checkpoint stays: {}",
            refused.display(),
            last.display()
        );
        assert!(error.contains(&expected), "{ranks}: {error}");
        assert_eq!(names_in(settings.folder()), ["lock".to_owned(), file(2)], "{ranks}");
        let rest = settings.resume(Resume::LatestValid).train(&lenet()).unwrap();
        if ranks == 1 {
            assert_same(&rest, &undisturbed, "after the last good one");
        }
    }
}
