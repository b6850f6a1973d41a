//! What is in the folder, and what happens when it cannot be written.

use std::cell::Cell;
use std::fs;

use checkpoints::Resume;
use tempfile::TempDir;

use super::damage::stored;
use super::files::names_in;
use super::run::{Cut, STEPS, Settings, assert_same, cut, file, lenet, steps};
use super::watched::{Event, Watched};

/// A folder with the checkpoints of all steps before this one, in which a run has crashed.
fn crashed_in(step: usize) -> (TempDir, Settings) {
    let folder = TempDir::new().unwrap();
    let settings = Settings::keeping(&folder).every(1);
    settings.train(&cut(lenet(), Cut(step, Event::Crash))).unwrap_err();
    (folder, settings)
}

#[test]
fn the_latest_valid_is_found_and_the_others_set_aside() {
    let expected = Settings::new().train(&lenet()).unwrap();
    let (_folder, settings) = crashed_in(5);
    assert_eq!(names_in(settings.folder()), ["lock", &file(2), &file(3), &file(4)]);
    for step in [3, 4] {
        fs::write(settings.folder().join(file(step)), b"").unwrap();
    }
    settings.resume(Resume::Newest).train(&lenet()).unwrap_err();
    let rest = cut(lenet(), Cut::NEVER);
    let trained = settings.resume(Resume::LatestValid).every(1000).train(&rest).unwrap();
    assert_same(&trained, &expected, "after step 2");
    assert_eq!(steps(&rest), 4);
    let aside = |step| file(step) + ".broken";
    assert_eq!(names_in(settings.folder()), ["lock", &file(2), &aside(3), &aside(4), &file(6)]);
    for step in [2, 6] {
        fs::write(settings.folder().join(file(step)), b"").unwrap();
    }
    let error = settings.resume(Resume::LatestValid).train(&lenet()).unwrap_err().to_string();
    assert!(error.starts_with("none of the 2 checkpoints in "), "{error}");
    assert!(error.contains("00000002.safetensors is damaged: it has 0 bytes"), "{error}");
}

/// A link that leads to itself can be read by nobody, as a file of a disk that fails.
#[test]
fn a_checkpoint_that_cannot_be_read_is_left_for_the_one_before_it() {
    let expected = Settings::new().train(&lenet()).unwrap();
    let (_folder, settings) = crashed_in(4);
    let newest = settings.folder().join(file(3));
    fs::remove_file(&newest).unwrap();
    std::os::unix::fs::symlink(&newest, &newest).unwrap();
    let error = settings.resume(Resume::Newest).train(&lenet()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot read {}: ", newest.display())), "{error}");
    assert!(
        error.ends_with("; --resume latest-valid takes the newest checkpoint that can be used")
    );
    let trained = settings.resume(Resume::LatestValid).every(1000).train(&lenet()).unwrap();
    assert_same(&trained, &expected, "after step 2");
    let aside = file(3) + ".broken";
    assert_eq!(names_in(settings.folder()), ["lock", &file(1), &file(2), &aside, &file(6)]);
}

#[test]
fn a_folder_is_one_run_s() {
    let folder = TempDir::new().unwrap();
    let settings = Settings::keeping(&folder).every(1);
    let told = Cell::new(String::new());
    let during = Watched::new(Box::new(lenet()), |step| {
        if step == 2 {
            for second in [settings.clone(), settings.resume(Resume::Newest)] {
                told.set(told.take() + &second.train(&lenet()).unwrap_err().to_string() + "\n");
            }
        }
        Cut(4, Event::Crash).at(step)
    });
    settings.train(&during).unwrap_err();
    let expected = format!(
        "another run keeps its checkpoints in {}: choose another folder, or end that run\n",
        settings.folder().display()
    );
    assert_eq!(told.take(), expected.repeat(2));
    // That run is over: but another one that begins anew would mix its checkpoints with these.
    let error = settings.train(&lenet()).unwrap_err().to_string();
    assert!(error.contains("it has checkpoints up to step 3: resume from them with --resume"));
    settings.resume(Resume::Newest).train(&lenet()).unwrap();
    let nothing = Settings::keeping(&TempDir::new().unwrap()).resume(Resume::LatestValid);
    let error = nothing.train(&lenet()).unwrap_err().to_string();
    assert!(error.ends_with(": there is no checkpoint to resume from"), "{error}");
}

#[test]
fn the_last_few_are_kept() {
    for keep in [1, 2, 5, 100] {
        let folder = TempDir::new().unwrap();
        let mut settings = Settings::keeping(&folder).every(1);
        settings.checkpoints.as_mut().unwrap().keep = keep;
        // What a run that was killed while it wrote has left; and what is nobody's business.
        fs::create_dir(settings.folder()).unwrap();
        fs::write(settings.folder().join(file(9) + ".4711.partial"), "half").unwrap();
        fs::write(settings.folder().join("notes"), "mine").unwrap();
        settings.train(&lenet()).unwrap();
        let mut expected = vec!["lock".to_owned(), "notes".to_owned()];
        expected.extend((STEPS + 1 - keep.min(STEPS)..=STEPS).map(file));
        assert_eq!(names_in(settings.folder()), expected, "{keep} kept");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_and_costs_no_earlier_checkpoint() {
    let expected = Settings::new().train(&lenet()).unwrap();
    let folder = TempDir::new().unwrap();
    let settings = Settings::keeping(&folder).every(2);
    // Under the name that the file has while it is written: a disk that is full.
    let partial = format!("{}.{}.partial", file(4), std::process::id());
    let link = settings.folder().join(partial);
    let filling = Watched::new(Box::new(lenet()), |step| {
        if step == 3 {
            std::os::unix::fs::symlink("/dev/full", &link).unwrap();
        }
        Event::Nothing
    });
    let error = settings.train(&filling).unwrap_err().to_string();
    let path = settings.folder().join(file(4));
    let begin = format!("cannot write {}: No space left on device", path.display());
    assert!(error.starts_with(&begin), "{error}");
    assert_eq!(names_in(settings.folder()), ["lock", &file(2)]);
    assert_same(&settings.resume(Resume::Newest).train(&lenet()).unwrap(), &expected, "after 2");
}

/// Three checkpoints fill a disk. A run that keeps one removes two of them before it writes.
#[cfg(target_os = "linux")]
#[test]
fn a_run_that_keeps_fewer_makes_room_first() {
    let (_folder, settings) = crashed_in(4);
    let three = ["lock".to_owned(), file(1), file(2), file(3)];
    assert_eq!(names_in(settings.folder()), three);
    let mut keeping_one = settings.resume(Resume::Newest);
    keeping_one.checkpoints.as_mut().unwrap().keep = 1;
    let partial = format!("{}.{}.partial", file(4), std::process::id());
    let filling = Watched::new(Box::new(lenet()), |_| {
        std::os::unix::fs::symlink("/dev/full", settings.folder().join(&partial)).unwrap();
        Event::Nothing
    });
    let error = keeping_one.train(&filling).unwrap_err().to_string();
    let told = "No space left on device (os error 28); --keep 1 takes the room of 2 checkpoints";
    assert!(error.ends_with(told), "{error}");
    assert_eq!(names_in(settings.folder()), ["lock", &file(3)]);
    keeping_one.train(&lenet()).unwrap();
}

#[test]
fn a_folder_that_must_not_be_written_is_told() {
    use std::os::unix::fs::PermissionsExt as _;

    let (_folder, settings, _) = stored();
    let permit = |mode| {
        fs::set_permissions(settings.folder(), fs::Permissions::from_mode(mode)).unwrap();
    };
    permit(0o555);
    if fs::write(settings.folder().join("probe"), "").is_ok() {
        permit(0o755);
        println!("skipped: this user may write everywhere");
        return;
    }
    let error = settings.train(&lenet()).unwrap_err().to_string();
    permit(0o755);
    assert!(error.starts_with("cannot write ") && error.contains(&file(6)), "{error}");
    assert_eq!(names_in(settings.folder()), ["lock", &file(2)]);
    settings.train(&lenet()).unwrap();
}
