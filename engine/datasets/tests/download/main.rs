//! Downloads from servers as they are: slow, silent, wrong, gone.

mod server;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use datasets::cache::{self, Error};
use datasets::download::{Failure, TimeLimits};
use datasets::mirrors::{Mirrors, RemoteFile};
use md5::{Digest as _, Md5};

use server::{Manner, Server};

const LIMITS: TimeLimits =
    TimeLimits { first_answer: Duration::from_secs(2), silence: Duration::from_millis(500) };

const LABELS: &str = "labels.gz";
const IMAGES: &str = "images.gz";

/// What a file really holds. Its size and checksum are in [`files`].
fn content(name: &str) -> Vec<u8> {
    let size = if name == LABELS { 300 } else { 200_000 };
    (0..size).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn files() -> [RemoteFile; 2] {
    [LABELS, IMAGES].map(|name| {
        let bytes = content(name);
        let md5 = u128::from_be_bytes(Md5::digest(&bytes).into());
        RemoteFile { name, size: bytes.len() as u64, md5 }
    })
}

fn mirrors(servers: &[&Server]) -> Mirrors {
    let addresses: Vec<&str> = servers.iter().map(|server| server.address.as_str()).collect();
    addresses.join(" ").parse().expect("web addresses")
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"))
        .collect()
}

fn assert_whole(folder: &Path) {
    assert_eq!(names_in(folder), BTreeSet::from([IMAGES, LABELS].map(str::to_owned)));
    for name in [IMAGES, LABELS] {
        assert!(
            fs::read(folder.join(name)).expect("a file") == content(name),
            "{name} has other bytes"
        );
    }
}

/// Downloads the images from one server alone, and returns what is wrong with it.
fn failure(manner: Manner) -> Failure {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::prompt(manner);
    let error = cache::obtain(folder.path(), &files(), &mirrors(&[&server]), LIMITS)
        .expect_err("a bad server");
    // What was right stays; of what was not, nothing is left.
    assert_eq!(names_in(folder.path()), BTreeSet::from([LABELS.to_owned()]));
    match error {
        Error::Unavailable { file: IMAGES, mut failures } => {
            assert_eq!(failures.len(), 1);
            failures.remove(0).1
        }
        error => panic!("{error}"),
    }
}

#[test]
fn a_good_server_is_asked_for_what_is_missing_and_then_never_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("made/when/needed");
    let server = Server::prompt(Manner::Whole);
    cache::obtain(&folder, &files(), &mirrors(&[&server]), LIMITS).unwrap();
    assert_whole(&folder);
    assert!(server.was_asked_for(IMAGES));
    cache::obtain(&folder, &files(), &mirrors(&[&server]), LIMITS).unwrap();
    assert!(server.requests.try_recv().is_err(), "nothing is missing");
    fs::remove_file(folder.join(LABELS)).unwrap();
    cache::obtain(&folder, &files(), &mirrors(&[&server]), LIMITS).unwrap();
    assert_whole(&folder);
    assert!(!server.was_asked_for(IMAGES));
}

#[test]
fn a_slow_server_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::prompt(Manner::Drips);
    let started = Instant::now();
    cache::obtain(folder.path(), &files(), &mirrors(&[&server]), LIMITS).unwrap();
    assert!(started.elapsed() > LIMITS.silence, "slower than the longest silence");
    assert_whole(folder.path());
}

#[test]
fn a_redirection_is_followed_but_not_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let good = Server::prompt(Manner::Whole);
    let server = Server::prompt(Manner::RedirectsTo(good.address.clone()));
    cache::obtain(folder.path(), &files(), &mirrors(&[&server]), LIMITS).unwrap();
    assert_whole(folder.path());
    assert!(good.was_asked_for(IMAGES));
    assert!(matches!(failure(Manner::RedirectsToItself), Failure::Request(_)));
}

#[test]
fn every_failure_has_its_reason() {
    let expected = content(IMAGES).len() as u64;
    let broken_off = |manner| match failure(manner) {
        Failure::BrokenOff { received: 1000, expected: e, cause } if e == expected => *cause,
        failure => panic!("{failure}"),
    };
    assert!(matches!(broken_off(Manner::Stalls), Failure::Silence(_)));
    assert!(matches!(broken_off(Manner::CutsOff), Failure::Request(_)));
    assert!(matches!(failure(Manner::NeverAnswers), Failure::Silence(_)));
    assert!(matches!(failure(Manner::EndsEarly), Failure::TooShort { received: 1000, .. }));
    assert!(matches!(failure(Manner::GoesOn), Failure::TooLong(e) if e == expected));
    assert!(matches!(failure(Manner::NeverEnds), Failure::TooLong(e) if e == expected));
    let more = expected + 1;
    assert!(
        matches!(failure(Manner::AnnouncesMore), Failure::Length { found, .. } if found == more)
    );
    assert!(matches!(failure(Manner::OtherBytes), Failure::Checksum { .. }));
    assert!(matches!(failure(Manner::Status(404)), Failure::Status(404)));
    assert!(matches!(failure(Manner::Status(500)), Failure::Status(500)));
    assert!(matches!(failure(Manner::NoHttp), Failure::Request(_)));
}

#[test]
fn after_any_failure_the_next_mirror_is_asked() {
    let manners = [
        Manner::Stalls,
        Manner::NeverAnswers,
        Manner::CutsOff,
        Manner::EndsEarly,
        Manner::GoesOn,
        Manner::NeverEnds,
        Manner::AnnouncesMore,
        Manner::OtherBytes,
        Manner::Status(404),
        Manner::Status(500),
        Manner::RedirectsToItself,
        Manner::NoHttp,
    ];
    thread::scope(|scope| {
        for manner in manners {
            scope.spawn(move || {
                let folder = tempfile::tempdir().unwrap();
                let (bad, good) = (Server::prompt(manner.clone()), Server::good_but_later());
                // The good one is listed first, and the bad one answers first.
                let mirrors = mirrors(&[&good, &bad]);
                let outcome = cache::obtain(folder.path(), &files(), &mirrors, LIMITS);
                outcome.unwrap_or_else(|error| panic!("{manner:?}: {error}"));
                assert_whole(folder.path());
                assert!(bad.was_asked_for(IMAGES), "{manner:?}");
                assert!(good.was_asked_for(IMAGES), "{manner:?}");
            });
        }
    });
}

#[test]
fn when_all_fail_each_is_named_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (gone, wrong) = (Server::prompt(Manner::Status(410)), Server::prompt(Manner::OtherBytes));
    let outcome = cache::obtain(folder.path(), &files(), &mirrors(&[&gone, &wrong]), LIMITS);
    let told = outcome.unwrap_err().to_string();
    assert!(told.starts_with("cannot download images.gz; from http://127.0.0.1:"), "{told}");
    let (gone, wrong) = (&gone.address, &wrong.address);
    assert!(told.contains(&format!("from {gone}: it answers with HTTP status 410")), "{told}");
    assert!(told.contains(&format!("from {wrong}: it sent other bytes: their MD5 is")), "{told}");
    assert_eq!(names_in(folder.path()), BTreeSet::from([LABELS.to_owned()]));
}

#[test]
fn being_offline_is_found_out_in_time_and_leaves_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("never made");
    // These take connections and say nothing, like a network that swallows everything.
    let silent = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = silent.each_ref().map(|it| format!("http://{}", it.local_addr().unwrap()));
    let mirrors: Mirrors = addresses.join(" ").parse().unwrap();
    let limits = TimeLimits { first_answer: Duration::from_millis(500), ..LIMITS };
    let started = Instant::now();
    let error = cache::obtain(&folder, &files(), &mirrors, limits).unwrap_err();
    assert!(started.elapsed() < Duration::from_millis(1500), "{:?}", started.elapsed());
    assert_eq!(error.to_string().matches(": nothing came for 500ms").count(), 3, "{error}");
    assert!(!folder.exists());
}

#[test]
fn two_that_start_at_once_both_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::prompt(Manner::Drips);
    let mirrors = mirrors(&[&server]);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                cache::obtain(folder.path(), &files(), &mirrors, LIMITS).unwrap();
                for name in [IMAGES, LABELS] {
                    assert!(fs::read(folder.path().join(name)).unwrap() == content(name));
                }
            });
        }
    });
    assert_whole(folder.path());
}

#[test]
fn what_lies_in_the_folder_is_used_and_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::prompt(Manner::Whole);
    fs::write(folder.path().join("images"), "unpacked").unwrap();
    fs::write(folder.path().join(LABELS), "my own").unwrap();
    let outcome = cache::obtain(folder.path(), &files(), &mirrors(&[&server]), LIMITS);
    let told = outcome.unwrap_err().to_string();
    assert!(told.contains("labels.gz: has 6 bytes, and Fashion-MNIST's has 300"), "{told}");
    assert_eq!(fs::read(folder.path().join(LABELS)).unwrap(), b"my own");
    fs::remove_file(folder.path().join(LABELS)).unwrap();
    cache::obtain(folder.path(), &files(), &mirrors(&[&server]), LIMITS).unwrap();
    assert!(!server.was_asked_for(IMAGES));
}

#[test]
fn what_a_killed_run_left_is_removed_once_it_is_old() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::prompt(Manner::Whole);
    let partial = |name: &str| folder.path().join(format!("{name}.partial"));
    let (old, new) = (partial("labels.gz.old"), partial("labels.gz.new"));
    // Somebody's own, though it is old and its name ends alike.
    let other = partial("thesis");
    for path in [&old, &new, &other] {
        fs::write(path, "half").unwrap();
    }
    let yesterday = std::time::SystemTime::now() - Duration::from_secs(86_400);
    for path in [&old, &other] {
        fs::File::options().write(true).open(path).unwrap().set_modified(yesterday).unwrap();
    }
    cache::obtain(folder.path(), &files(), &mirrors(&[&server]), LIMITS).unwrap();
    assert!(!old.exists() && new.exists() && other.exists());
}
