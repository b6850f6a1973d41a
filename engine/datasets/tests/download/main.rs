//! Downloads from servers that are slow, silent, wrong or gone.

mod server;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use datasets::download::{Mirrors, RemoteFile, TimeLimits, obtain};
use md5::{Digest as _, Md5};

use server::{Manner, Server};

const LIMITS: TimeLimits =
    TimeLimits { answer: Duration::from_secs(2), silence: Duration::from_millis(500) };

const LABELS: &str = "labels.gz";
const IMAGES: &str = "images.gz";

/// The right content of a file. Its size and checksum are in [`files`].
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

/// Downloads the missing files from these addresses.
fn download(folder: &Path, addresses: &[&str]) -> Result<(), String> {
    let mirrors: Mirrors = addresses.join(" ").parse().expect("web addresses");
    obtain(folder, &files(), &mirrors, LIMITS).map_err(|error| error.to_string())
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let names = fs::read_dir(folder).expect("a folder").map(name);
    names.map(|name| name.into_string().expect("a plain name")).collect()
}

fn assert_whole(folder: &Path) {
    assert_eq!(names_in(folder), BTreeSet::from([IMAGES, LABELS].map(str::to_owned)));
    for name in [IMAGES, LABELS] {
        assert!(fs::read(folder.join(name)).expect("a file") == content(name), "{name}");
    }
}

#[test]
fn a_good_server_is_asked_for_what_is_missing_and_then_never_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("made/when/needed");
    let server = Server::new(Manner::Whole);
    download(&folder, &[&server.address]).unwrap();
    assert_whole(&folder);
    assert!(server.was_asked_for(IMAGES));
    download(&folder, &[&server.address]).unwrap();
    assert!(server.requests.try_recv().is_err(), "nothing is missing");
    fs::remove_file(folder.join(LABELS)).unwrap();
    download(&folder, &[&server.address]).unwrap();
    assert_whole(&folder);
    assert!(!server.was_asked_for(IMAGES));
}

/// A slow server is waited for, longer than the longest silence. Two downloads at once do not disturb each other.
#[test]
fn a_slow_server_is_waited_for_and_a_redirection_followed() {
    let good = Server::new(Manner::Whole);
    for manner in [Manner::Drips, Manner::RedirectsTo(good.address.clone())] {
        let (folder, server) = (tempfile::tempdir().unwrap(), Server::new(manner.clone()));
        let started = Instant::now();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    download(folder.path(), &[&server.address]).unwrap();
                    for name in [IMAGES, LABELS] {
                        assert!(fs::read(folder.path().join(name)).unwrap() == content(name));
                    }
                });
            }
        });
        assert_whole(folder.path());
        match manner {
            Manner::Drips => assert!(started.elapsed() > LIMITS.silence),
            _ => assert!(good.was_asked_for(IMAGES)),
        }
    }
}

#[test]
fn every_failure_has_its_reason_and_then_the_next_mirror_is_asked() {
    let size = content(IMAGES).len();
    let broken_off = format!("it broke off after 1000 of {size} bytes: ");
    thread::scope(|scope| {
        for (manner, reason) in [
            (Manner::Stalls, format!("{broken_off}nothing came for 0.50 s")),
            (Manner::CutsOff, broken_off),
            (Manner::NeverAnswers, "nothing came for 0.50 s".to_owned()),
            (Manner::EndsEarly, format!("it sent 1000 of {size} bytes")),
            (Manner::GoesOn, format!("it sent more than {size} bytes")),
            (Manner::NeverEnds, format!("it sent more than {size} bytes")),
            (Manner::AnnouncesMore, format!("it sent more than {size} bytes")),
            (Manner::OtherBytes, "it sent other bytes: their MD5 is ".to_owned()),
            (Manner::Status(404), "it answers with HTTP status 404".to_owned()),
            (Manner::Status(500), "it answers with HTTP status 500".to_owned()),
            (Manner::RedirectsTo("/files".to_owned()), "too many redirects".to_owned()),
            (Manner::NoHttp, "protocol: ".to_owned()),
        ] {
            scope.spawn(move || {
                let folder = tempfile::tempdir().unwrap();
                let (bad, good) = (Server::new(manner.clone()), Server::new(Manner::Whole));
                let error = download(folder.path(), &[&bad.address]).expect_err("a bad server");
                let expected = format!("cannot download {IMAGES}; from {}: {reason}", bad.address);
                assert!(error.starts_with(&expected), "{manner:?}: {error}");
                assert_eq!(error.lines().count(), 1, "{error}");
                assert!(bad.was_asked_for(IMAGES), "{manner:?}");
                // The good file stays, and nothing is left of the bad one.
                assert_eq!(names_in(folder.path()), BTreeSet::from([LABELS.to_owned()]));
                let outcome = download(folder.path(), &[&bad.address, &good.address]);
                outcome.unwrap_or_else(|error| panic!("{manner:?}: {error}"));
                assert_whole(folder.path());
                assert!(bad.was_asked_for(IMAGES) && good.was_asked_for(IMAGES), "{manner:?}");
            });
        }
    });
}

#[test]
fn when_all_fail_each_is_named_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (gone, wrong) = (Server::new(Manner::Status(410)), Server::new(Manner::OtherBytes));
    let (gone, wrong) = (&gone.address, &wrong.address);
    let message = download(folder.path(), &[gone, wrong]).unwrap_err();
    let expected = format!(
        "cannot download images.gz; from {gone}: it answers with HTTP status 410; \
         from {wrong}: it sent other bytes: their MD5 is "
    );
    assert!(message.starts_with(&expected) && message.lines().count() == 1, "{message}");
    assert_eq!(names_in(folder.path()), BTreeSet::from([LABELS.to_owned()]));
}

/// A server that takes connections and sends nothing, like a network that swallows everything.
fn silent_server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    (listener, address)
}

#[test]
fn being_offline_is_found_out_in_time_and_leaves_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("never made");
    let silent = [(); 3].map(|()| silent_server());
    let addresses = silent.each_ref().map(|(_, address)| address.as_str());
    let limits = TimeLimits { answer: Duration::from_millis(500), ..LIMITS };
    let started = Instant::now();
    let error = obtain(&folder, &files(), &addresses.join(" ").parse().unwrap(), limits);
    let error = error.unwrap_err().to_string();
    assert!(started.elapsed() < Duration::from_millis(1500), "{:?}", started.elapsed());
    // Each has about a third of the time.
    assert_eq!(error.matches(": nothing came for 0.1").count(), 3, "{error}");
    assert!(!folder.exists());
}

#[test]
fn a_silent_mirror_leaves_the_next_one_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let ((_listener, silent), good) = (silent_server(), Server::new(Manner::Whole));
    let started = Instant::now();
    download(folder.path(), &[&silent, "http://127.0.0.1:9", &good.address]).unwrap();
    // The silent one is asked once, and not for each file.
    assert!(started.elapsed() < LIMITS.answer, "{:?}", started.elapsed());
    assert_whole(folder.path());
}

#[test]
fn what_lies_in_the_folder_is_used_and_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(Manner::Whole);
    fs::write(folder.path().join("images"), "unpacked").unwrap();
    fs::write(folder.path().join(LABELS), "my own").unwrap();
    let message = download(folder.path(), &[&server.address]).unwrap_err();
    assert!(message.contains("labels.gz: has 6 bytes, and Fashion-MNIST's has 300"), "{message}");
    assert_eq!(fs::read(folder.path().join(LABELS)).unwrap(), b"my own");
    fs::remove_file(folder.path().join(LABELS)).unwrap();
    download(folder.path(), &[&server.address]).unwrap();
    assert!(!server.was_asked_for(IMAGES));
}

#[test]
fn an_unpacked_file_under_the_name_of_a_packed_one_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(Manner::Whole);
    // The magic number of labels.
    fs::write(folder.path().join(LABELS), [0, 0, 8, 1, 0, 0, 0, 1, 5]).unwrap();
    download(folder.path(), &[&server.address]).unwrap();
    assert!(server.was_asked_for(IMAGES) && !server.was_asked_for(LABELS));
}
